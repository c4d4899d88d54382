"""The body of Chat Completions. Pure.

This module writes the parameters and the system text; `messages` writes the history. An unsupported parameter that
only tunes the reply (sampling, effort, stop) is dropped with a warning. If the parameter changes the reply's
content (tool choice, schema, images of the current turn), a CapabilityError is raised before anything is sent.
"""

from __future__ import annotations

import re
from functools import lru_cache

from callboard.bus.errors import CapabilityError, InvalidRequestError, UnsupportedToolChoiceError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import TextBlock
from callboard.bus.values.messages import CallWarning, ToolDefinition

from ...contract import AdapterCapabilities, CanonicalRequest
from ...requests.content import current_turn, encode_json
from ...requests.history import fit_history
from ...requests.history_target import BuiltRequest, FittedHistory, Target, ToolIdRule
from ...requests.schemas import encoded_tool, fold_root, moonshot_schema, plain_schema
from ...requests.settings import (
    CUSTOM,
    MEDIA,
    changed,
    check_demands,
    check_tool_choice,
    dropped,
    is_free_form,
    may_omit_limit,
    merge_options,
    merge_own_options,
    nearest_effort,
    short_id,
    tool_options,
    write_settings,
)
from ...requests.strict_schemas import StrictSchema, strict_reply, strict_tool
from .messages import MessageWriter, refusal, text_parts
from .quirks import Quirks

COMMON_OPTIONS = "openai_compatible"
"""The key of provider options for every server of this protocol."""


def build_body(
    request: CanonicalRequest, quirks: Quirks, capabilities: AdapterCapabilities, provider: str, *, stream: bool
) -> BuiltRequest:
    """The body of a request. Raises CapabilityError or InvalidRequestError if it can't be expressed."""
    return _Builder(request, quirks, capabilities, provider).build(stream)


def target(quirks: Quirks, capabilities: AdapterCapabilities, provider: str) -> Target:
    return Target(
        provider=provider,
        tool_ids=_id_rule(quirks.tool_id_length, quirks.tool_id_alphanumeric),
        accepts_images=capabilities.supports_images,
        accepts_audio=capabilities.supports_audio,
        accepts_documents=capabilities.supports_documents,
        replays_thinking=quirks.replays != "nothing",
        keeps_developer=quirks.developer_role,
        takes_opaque=True,
        takes_system_parts=True,
    )


@lru_cache
def _id_rule(length: int, alphanumeric: bool) -> ToolIdRule:
    return ToolIdRule(length, "[A-Za-z0-9]", "") if alphanumeric else ToolIdRule(length)


class _Builder:
    def __init__(
        self, request: CanonicalRequest, quirks: Quirks, capabilities: AdapterCapabilities, provider: str
    ) -> None:
        self.request = request
        self.quirks = quirks
        self.capabilities = capabilities
        self.provider = provider
        self.warnings: list[CallWarning] = []
        self.free_form: set[str] = set()  # names of tools

    def build(self, stream: bool) -> BuiltRequest:
        request = self.request
        self._check()
        history = fit_history(request, target(self.quirks, self.capabilities, self.provider))
        response_format, instruction = self._response_format()
        tools = self._tools()
        writer = MessageWriter(history, request.wire_model, self.quirks, self.capabilities, self.free_form)
        messages = writer.write()
        self._add_system(messages, history, instruction, response_format)
        if not messages:
            raise InvalidRequestError(f"{self.provider}: the request has no message to send")
        body: JsonObject = {"model": request.wire_model, "messages": list(messages)}
        if self.quirks.needs_max_tokens or not may_omit_limit(request, AdapterCapabilities()):
            body[self.quirks.max_tokens_field] = request.max_output_tokens
        body |= tools
        if response_format is not None:
            body["response_format"] = response_format
        body |= self._sampling()
        body |= self._effort()
        if stream:
            body["stream"] = True
            if self.quirks.stream_usage:
                body["stream_options"] = {"include_usage": True}
        if request.has_beginning:  # the model continues its own last message
            match self.quirks.beginning:
                case "prefix" | "partial" as field:
                    messages[-1][field] = True
                case "final_message":
                    body["continue_final_message"], body["add_generation_prompt"] = True, False
                case _:
                    pass
        merge_own_options(body, request, COMMON_OPTIONS, self.provider)
        history = history.with_losses(writer.losses)
        return BuiltRequest(body, history, (*history.warnings, *self.warnings))

    def _check(self) -> None:
        check_demands(self.request, self.capabilities, self.provider)
        for message in current_turn(self.request.messages):
            for block in message.content:
                if isinstance(block, MEDIA):
                    reason = refusal(block, self.quirks)
                    if reason is not None:
                        raise CapabilityError(f"{self.provider}: {reason}")

    def _left_out(self, parameter: str, why: str) -> None:
        self.warnings.append(dropped(parameter, self.provider, why))

    def _add_system(
        self, messages: list[JsonObject], history: FittedHistory, instruction: str, response_format: Json
    ) -> None:
        added = [instruction] if instruction else []
        if response_format == {"type": "json_object"} and not instruction:
            encoded = encode_json([history.system, *messages]).lower()
            if b"json" not in encoded:
                added.append("Reply with a JSON object.")  # servers refuse this mode unless JSON is mentioned
        content: Json = "\n\n".join([history.system, *added] if history.system else added)
        if history.system_parts:
            content = [*text_parts(history.system_parts, history), *text_parts(map(TextBlock, added), history)]
        if content:
            messages.insert(0, {"role": self.quirks.system_role, "content": content})

    # --- Tools ---

    def _tools(self) -> JsonObject:
        tools, choice = self.request.tools, self.request.tool_choice
        mode = choice.mode if choice is not None else None
        if mode in ("required", "named"):
            self._check_choice(mode)
        if not tools or (mode == "none" and "none" not in self.quirks.tool_choices):
            return {}
        quirks = self.quirks
        form = f"chat_json {quirks.strict} {quirks.root_unions} {quirks.schemas}"
        wire: JsonObject = {"tools": [encoded_tool(tool, form, self._tool, self.warnings) for tool in tools]}
        if choice is not None and mode is not None and mode in self.quirks.tool_choices:
            wire["tool_choice"] = self._choice(mode, choice.tool_name)
        parallel = self.request.parallel_tool_calls
        if parallel is not None:
            if self.quirks.parallel_tool_calls:
                wire["parallel_tool_calls"] = parallel
            else:
                self._left_out("parallel_tool_calls", "the server does not support it")
        return wire

    def _check_choice(self, mode: str) -> None:
        if mode not in self.quirks.tool_choices:
            raise UnsupportedToolChoiceError(
                f"{self.provider} can't be forced to call a tool (tool choice {mode!r})"
            )
        if not self.quirks.forced_while_thinking and self.request.reasoning_effort not in (None, "none"):
            raise UnsupportedToolChoiceError(
                f"{self.provider} can't be forced to call a tool while it reasons (tool choice {mode!r})"
            )
        check_tool_choice(self.request.tool_choice, [tool.name for tool in self.request.tools])

    def _choice(self, mode: str, name: str | None) -> Json:
        if mode == "named":
            kind = CUSTOM if name in self.free_form else "function"
            return {"type": kind, kind: {"name": name}}
        return self.quirks.required_word if mode == "required" else mode

    def _tool(self, tool: ToolDefinition) -> JsonObject:
        if not tool.provider_options:
            return self._function(tool)
        options = tool_options(tool, COMMON_OPTIONS, self.provider)
        if is_free_form(tool, options):
            self.free_form.add(tool.name)
            return _free_form(tool, options)
        written = self._function(tool)
        merge_options(written, options)
        return written

    def _function(self, tool: ToolDefinition) -> JsonObject:
        schema, strict = plain_schema(tool), False
        if self.quirks.strict:
            enforced = strict_tool(tool, by_default=True)
            if isinstance(enforced, StrictSchema):
                schema, strict = enforced.schema, True
            elif enforced is not None:
                self._left_out(f"strict of tool {tool.name!r}", "its schema can't be rewritten without loss")
        elif tool.strict:
            self._left_out(f"strict of tool {tool.name!r}", "the server does not support it")
        if not strict and not self.quirks.root_unions:
            folded = fold_root(schema)
            if folded.folded:
                self.warnings += folded.warnings(f"tool {tool.name!r}")
            schema = folded.schema
        if self.quirks.schemas == "moonshot":
            schema = moonshot_schema(schema)
        schema = {**schema} if "properties" in schema else {**schema, "properties": {}}
        function: JsonObject = {"name": tool.name, "description": tool.description, "parameters": schema}
        if self.quirks.strict:
            function["strict"] = strict
        return {"type": "function", "function": function}

    # --- The reply's form ---

    def _response_format(self) -> tuple[JsonObject | None, str]:
        """The format, and an addition to the system text."""
        schema = self.request.output_schema
        if schema is None:
            return None, ""
        if self.quirks.structured == "none":
            raise CapabilityError(f"{self.provider} does not support output schemas")
        if self.quirks.structured == "json_value":
            return {"type": "json_object", "value": schema}, ""
        if schema == {"type": "object"} and self.quirks.json_objects:
            return {"type": "json_object"}, ""
        if self.quirks.structured == "json_object":
            text = encode_json(schema).decode()
            return {"type": "json_object"}, f"Reply with a JSON object that follows this JSON Schema:\n{text}"
        if self.quirks.strict:  # other servers compile the schema to a grammar, which supports unions
            folded = fold_root(schema)
            self.warnings += folded.warnings("the reply")
            schema = folded.schema
        if self.quirks.schemas == "moonshot":
            schema = moonshot_schema(schema)
        wire: JsonObject = {"name": schema_name(schema), "schema": schema}
        if self.quirks.strict:
            wire |= strict_reply(schema)
        return {"type": "json_schema", "json_schema": wire}, ""

    # --- Tuning ---

    def _sampling(self) -> JsonObject:
        request, quirks, wire = self.request, self.quirks, JsonObject()
        fixed = quirks.fixed_sampling
        may_reason = request.reasoning_effort != "none" or quirks.fixed_without_thinking
        reasons = fixed and may_reason and re.match(fixed, request.wire_model)
        refused = dict.fromkeys(quirks.fixed_settings, f"{request.wire_model} rejects it") if reasons else {}
        self.warnings += write_settings(wire, request, quirks.settings, self.provider, refused=refused)
        if not quirks.top_p_of_one and request.top_p == 1:
            wire.pop("top_p", None)
        user = quirks.settings.get("user")
        if user is not None and request.user is not None:
            wire[user] = short_id(request.user)
        stop = request.stop_sequences
        if stop and "stop" in refused:
            self._left_out("stop", refused["stop"])
        elif stop:
            wire["stop"] = list(stop[: quirks.max_stop])
            if len(stop) > quirks.max_stop:
                self._left_out("part of stop_sequences", f"the server accepts at most {quirks.max_stop}")
        return wire

    def _effort(self) -> JsonObject:
        requested = self.request.reasoning_effort
        if requested is None:
            return {}
        if requested != "none" and not self.capabilities.supports_thinking:
            self._left_out("reasoning_effort", "the model does not reason")
            return {}
        match self.quirks.effort:
            case "none":
                self._left_out("reasoning_effort", "the server does not support it")
                return {}
            case "thinking":
                return {"thinking": {"type": "disabled" if requested == "none" else "enabled"}}
            case style:
                effort = nearest_effort(requested, self.quirks.efforts)
                if effort != requested:
                    self.warnings.append(
                        changed("reasoning_effort", requested, effort, "the nearest value of the model")
                    )
                return {"reasoning": {"effort": effort}} if style == "openrouter" else {"reasoning_effort": effort}


def _free_form(tool: ToolDefinition, options: JsonObject) -> JsonObject:
    """A free-form tool. Its fields may be next to its type, as in the Responses API, or in an object, as in Chat
    Completions.
    """
    fields: JsonObject = {"name": tool.name}
    if tool.description:
        fields["description"] = tool.description
    merge_options(fields, {name: value for name, value in options.items() if name not in ("type", CUSTOM)})
    match fields.get("format"):
        case {"type": "grammar", "syntax": syntax, "definition": definition}:
            fields["format"] = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
        case _:
            pass
    written: JsonObject = {"type": CUSTOM, CUSTOM: fields}
    merge_options(written, {name: value for name, value in options.items() if name == CUSTOM})
    return written


def schema_name(schema: JsonObject) -> str:
    """The schema's title in the wire's alphabet, or ``response``."""
    title = schema.get("title")
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", title).strip("_")[:64] if isinstance(title, str) else ""
    return name or "response"
