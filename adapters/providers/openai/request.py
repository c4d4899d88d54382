"""The body of a Responses call. Pure.

This module writes the parameters of the call; `items` writes the history. The call is stateless: nothing is
stored, and reasoning is encrypted. A tuning setting that the model lacks is dropped with a warning.
"""

from __future__ import annotations

import re

import msgspec

from callboard.bus.errors import CapabilityError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning, ToolChoice, ToolDefinition

from ...contract import AdapterCapabilities, CanonicalRequest
from ...requests.history import fit_history
from ...requests.history_target import FittedHistory, Target
from ...requests.schemas import encoded_tool, fold_root
from ...requests.settings import (
    CUSTOM,
    check_demands,
    check_tool_choice,
    digest,
    is_free_form,
    joined_options,
    may_omit_limit,
    merge_options,
    nearest_effort,
    short_id,
    tool_options,
    write_settings,
)
from ...requests.strict_schemas import StrictSchema, strict_reply, strict_tool
from .data import DOCUMENT_TYPES, ENCRYPTED_REASONING, IMAGE_TYPES, TOOL_IDS, Model, Quirks, find_model
from .items import write_items
from .response import output_limit

OPTIONS = "openai"
"""The key of `provider_options` that is merged into the body."""

AUTO_CACHE = "auto_cache"
"""In `provider_options`: false sends no key for the prompt cache."""


class BuiltRequest(msgspec.Struct, frozen=True):
    """The body with the history, and the warnings."""

    body: JsonObject
    history: FittedHistory
    warnings: tuple[CallWarning, ...]


def build_request(
    request: CanonicalRequest,
    *,
    provider: str,
    quirks: Quirks,
    stream: bool,
    encrypts: bool = True,
    summarises: bool = True,
) -> BuiltRequest:
    return _Builder(request, provider, quirks, encrypts, summarises).build(stream=stream)


class _Builder:
    def __init__(
        self, request: CanonicalRequest, provider: str, quirks: Quirks, encrypts: bool, summarises: bool
    ) -> None:
        self.request = request
        self.provider = provider
        self.quirks = quirks
        self.encrypts = encrypts
        self.summarises = summarises and quirks.summaries
        self.name = request.wire_model
        self.model = find_model(self.name)
        self.warnings: list[CallWarning] = []
        self.free_form: set[str] = set()  # names of tools

    def build(self, *, stream: bool) -> BuiltRequest:
        check_demands(self.request, self.request.capabilities, self.provider)
        history = self._fit()
        form = f"responses_json {self.quirks.strict_tools}"
        tools = [encoded_tool(tool, form, self._tool, self.warnings) for tool in self.request.tools]
        items, losses = write_items(history, self.name, self.free_form)
        history = history.with_losses(losses)
        body: JsonObject = {"model": self.name, "input": items}
        if history.system:
            body["instructions"] = history.system
        unknown = self.model is None and not self.quirks.completed_at_limit
        if not (unknown and may_omit_limit(self.request, AdapterCapabilities())):
            body["max_output_tokens"] = output_limit(self.request, self.quirks)
        if self.request.max_output_tokens < self.quirks.min_output_tokens:
            self._warn(
                WarningCode.PARAMETER_CHANGED,
                f"max_output_tokens is {body['max_output_tokens']}, the minimum",
            )
        if self.quirks.stateless:
            body["store"] = False
            if self._reasons() and self.encrypts:
                body["include"] = [ENCRYPTED_REASONING]
        self._tools(body, tools)
        self._format(body)
        self._reasoning(body)
        self._settings(body)
        if self.request.stop_sequences:
            self._warn(WarningCode.PARAMETER_DROPPED, "the Responses API has no stop_sequences")
        if stream:
            body["stream"] = True
        options = self._options()
        auto_cache = options.pop(AUTO_CACHE, True)
        if auto_cache is not False and self._caches() and self.request.session_id:
            body["prompt_cache_key"] = digest(self.request.session_id)
        merge_options(body, options)
        if body.get("background") is True and "store" not in options:
            body["store"] = True  # a background reply must be stored until it is read
        return BuiltRequest(body, history, (*history.warnings, *self.warnings))

    def _warn(self, code: WarningCode, message: str) -> None:
        self.warnings.append(CallWarning(code, f"{self.provider}: {message}"))

    def _reasons(self) -> bool:
        can = self.request.capabilities
        able = can is None or can.supports_thinking
        return able and self.quirks.reasoning and (self.model is None or bool(self.model.efforts))

    def _caches(self) -> bool:
        can = self.request.capabilities
        return self.quirks.cache_key and (can is None or can.supports_prompt_caching)

    def _fit(self) -> FittedHistory:
        target = Target(
            provider=self.provider,
            tool_ids=TOOL_IDS,
            model=self.name,
            accepts_images=self.quirks.images,
            accepts_documents=self.quirks.documents,
            image_types=IMAGE_TYPES,
            document_types=DOCUMENT_TYPES,
            results_carry=("image", "document", "opaque"),
            replays_thinking=self._reasons(),
            replays_images=True,
            keeps_developer=self.quirks.keeps_developer,
            takes_opaque=True,
        )
        return fit_history(self.request, target)

    def _options(self) -> JsonObject:
        return joined_options(self.request, OPTIONS, self.provider)

    # --- Tools ---

    def _tools(self, body: JsonObject, tools: list[Json]) -> None:
        if tools:
            body["tools"] = tools
            if self.request.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = self.request.parallel_tool_calls
        choice = self.request.tool_choice
        if choice is not None and (self.request.tools or choice.mode != "auto"):
            self._check_choice(choice)
            if self.request.tools or "tools" in self._options():
                body["tool_choice"] = self._tool_choice(choice)

    def _check_choice(self, choice: ToolChoice) -> None:
        if choice.mode == "required" and "tools" in self._options():
            return  # a tool in the host's options can fulfil it
        check_tool_choice(choice, [tool.name for tool in self.request.tools])

    def _tool_choice(self, choice: ToolChoice) -> Json:
        if choice.mode != "named":
            return choice.mode
        return {
            "type": CUSTOM if choice.tool_name in self.free_form else "function",
            "name": choice.tool_name,
        }

    def _tool(self, tool: ToolDefinition) -> JsonObject:
        written: JsonObject = {"type": "function", "name": tool.name}
        if tool.description:
            written["description"] = tool.description
        options = tool_options(tool, OPTIONS, self.provider) if tool.provider_options else {}
        if options and is_free_form(tool, options):
            self.free_form.add(tool.name)
        else:
            self._schema(tool, written)
        if options:
            merge_options(written, options)
        return written

    def _schema(self, tool: ToolDefinition, written: JsonObject) -> None:
        strict = strict_tool(tool, by_default=self.quirks.strict_tools)
        if isinstance(strict, str):
            self._warn(WarningCode.TOOL_NOT_STRICT, f"tool {tool.name!r} is sent without strict mode: {strict}")
        if isinstance(strict, StrictSchema):
            written["parameters"] = strict.schema
        else:
            folded = fold_root(tool.input_schema)
            if folded.folded:
                self.warnings += folded.warnings(f"tool {tool.name!r}")
            written["parameters"] = folded.schema
        written["strict"] = isinstance(strict, StrictSchema)

    # --- The reply's form ---

    def _format(self, body: JsonObject) -> None:
        schema = self.request.output_schema
        if schema is None:
            return
        if not self.quirks.structured_output:
            raise CapabilityError(f"{self.provider}: this server ignores output schemas on the Responses API")
        if set(schema) <= {"type", "title", "description"} and schema.get("type") == "object":
            body["text"] = {"format": {"type": "json_object"}}
            _mention_json(body)
            return
        folded = fold_root(schema)
        self.warnings += folded.warnings("the reply")
        form = strict_reply(folded.schema)
        written: JsonObject = {"type": "json_schema", "name": _schema_name(schema), **form}
        if isinstance(described := schema.get("description"), str):
            written["description"] = described
        body["text"] = {"format": written}

    # --- Tuning ---

    def _reasoning(self, body: JsonObject) -> None:
        requested = self.request.reasoning_effort
        if requested is None:
            return
        if not self._reasons():
            if requested != "none":
                self._warn(WarningCode.PARAMETER_DROPPED, f"{self.name} does not support reasoning_effort")
            return
        effort = requested if self.model is None else nearest_effort(requested, self.model.efforts)
        if effort != requested:
            self._warn(
                WarningCode.PARAMETER_CHANGED,
                f"{self.name} has no effort {requested!r}; {effort!r} is used",
            )
        body["reasoning"] = {"effort": effort}
        if self.summarises and self.model is not None and effort != "none":
            body["reasoning"] = {"effort": effort, "summary": "auto"}

    def _settings(self, body: JsonObject) -> None:
        model, refused = self.name, {}
        if _refuses_sampling(self.model, body):
            refused = dict.fromkeys(("temperature", "top_p"), f"{model} rejects it while it reasons")
        if self.model is not None and not self.model.verbosity:
            refused["verbosity"] = f"{model} has none"
        if not self.quirks.background:
            refused["background"] = "this server does not support background replies"
        paths = {
            "temperature": "temperature",
            "top_p": "top_p",
            "background": "background",
            "verbosity": "text.verbosity",
            "user": self.quirks.user,
        }
        self.warnings += write_settings(body, self.request, paths, self.provider, refused=refused)
        user = body.get(self.quirks.user)
        if isinstance(user, str):
            body[self.quirks.user] = short_id(user)


def _refuses_sampling(row: Model | None, body: JsonObject) -> bool:
    if row is None or not row.efforts:
        return False
    reasoning = body.get("reasoning")
    effort = reasoning.get("effort") if isinstance(reasoning, dict) else row.default_effort
    return effort != "none"


def _schema_name(schema: JsonObject) -> str:
    title = schema.get("title")
    return re.sub("[^A-Za-z0-9_-]", "_", title)[:64] if isinstance(title, str) and title else "reply"


def _mention_json(body: JsonObject) -> None:
    """Add an input item that mentions JSON, because JSON mode requires one. The instructions don't count."""
    items = body["input"]
    assert isinstance(items, list)
    if b"json" not in msgspec.json.encode(items).lower():
        items.insert(0, {"role": "developer", "content": "Answer with a JSON object."})
