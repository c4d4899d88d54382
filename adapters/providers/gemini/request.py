"""The body of a generateContent call. Pure.

This module writes tools, the form of the reply, thinking and sampling. An unsupported tuning setting is dropped
with a warning. A request's ``provider_options["gemini"]`` (safety settings, cached content, the provider's tools,
new fields) is merged into the body, object by object, and overrides Callboard's.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from callboard.bus.errors import CapabilityError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import CallWarning, ToolDefinition

from ...contract import CanonicalRequest
from ...requests.history import fit_history
from ...requests.history_target import BuiltRequest
from ...requests.schemas import (
    describe,
    describe_constraints,
    encoded_tool,
    fold_root,
    instruction,
    merge_all_of,
    normalise_schema,
    remembered,
)
from ...requests.settings import (
    changed,
    check_demands,
    check_tool_choice,
    dropped,
    joined_options,
    merge_options,
    nearest_effort,
    tool_options,
    write_settings,
)
from .contents import KIND, ContentWriter, read_token, target_of
from .data import BUDGETS, UNLISTED, find_model

# --- Schemas ---

_KEPT = frozenset(
    {"$id", "$anchor", "type", "format", "title", "enum", "required", "minItems", "maxItems", "minimum", "maximum"}
    | {"minLength", "maxLength", "pattern", "minProperties", "maxProperties", "default", "nullable", "example"}
    | {"propertyOrdering"}
)
_WITHOUT_MEANING = frozenset({"deprecated", "readOnly", "writeOnly"})
"""Keywords without an effect on the value or the model."""


def fit_schema(schema: JsonObject) -> JsonObject:
    """Convert a schema to the supported form. A supported schema is returned unchanged. Pure.

    Results are cached: five tools with three parameters each take 80 µs.
    """
    fitted = _fitted(schema)
    return schema if fitted is None else fitted


@remembered
def _fitted(schema: JsonObject) -> JsonObject | None:
    written = normalise_schema(schema)
    fitted = _Fitter(written).fit(written, at_root=True)
    return None if fitted == schema else fitted


def takes_nothing(schema: JsonObject) -> bool:
    """Whether an object schema has no properties. Some models require that such a schema is omitted."""
    return not schema.get("properties") and schema.keys() <= {
        "type", "properties", "additionalProperties", "required", "title", "$schema", "description",
    } and schema.get("additionalProperties") in (None, False)  # fmt: skip


class _Fitter:
    def __init__(self, root: JsonObject) -> None:
        definitions = root.get("$defs")
        self._definitions = definitions if isinstance(definitions, dict) else {}

    def fit(self, schema: JsonObject, *, at_root: bool = False) -> JsonObject:
        if "allOf" in schema:
            schema = merge_all_of(schema)
        if "$ref" in schema:
            fitted = self._reference(schema)
        else:
            words: list[str] = []
            fitted = {}
            for name, value in _with_inclusive_bounds(schema).items():
                self._keyword(name, value, fitted, words)
            fitted = describe(fitted, words)
        if at_root and self._definitions:
            fitted["$defs"] = {name: self._fit(value) for name, value in self._definitions.items()}
        return fitted

    def _fit(self, value: Json) -> Json:
        if isinstance(value, dict):
            return self.fit(value)
        return {} if value is True else value

    def _keyword(self, name: str, value: Json, fitted: JsonObject, words: list[str]) -> None:
        match name, value:
            case "$defs" | "definitions", _:
                pass  # these are written elsewhere
            case "description", str():
                if value:
                    fitted[name] = value
            case _ if name in _KEPT:
                fitted[name] = value
            case "properties", dict():
                fitted[name] = {key: self._fit(inner) for key, inner in value.items()}
            case "items" | "additionalProperties", dict() | bool():
                fitted[name] = value if isinstance(value, bool) else self.fit(value)
            case "anyOf" | "oneOf" | "prefixItems", list():
                fitted[name] = [self._fit(inner) for inner in value]
            case "items", list():
                fitted["prefixItems"] = [self._fit(inner) for inner in value]
            case "const", str() | int() if not isinstance(value, bool):
                fitted["enum"] = [value]
            case "exclusiveMinimum" | "exclusiveMaximum", True:  # the form before draft 6
                words.append("without the bound itself")
            case _ if name not in _WITHOUT_MEANING:
                words += describe_constraints({name: value})

    def _reference(self, schema: JsonObject) -> JsonObject:
        """Write a schema with ``$ref``. Gemini accepts no other keyword next to ``$ref``.

        So the other keywords are put into an outer schema.
        """
        target = schema["$ref"]
        beside = {name: value for name, value in schema.items() if name not in ("$ref", "$defs", "definitions")}
        known = isinstance(target, str) and (target == "#" or target.removeprefix("#/$defs/") in self._definitions)
        if not known:
            return describe(self.fit(beside), describe_constraints({"$ref": target}))
        if not beside:
            return {"$ref": target}
        if "anyOf" in beside:
            return describe(self.fit(beside), describe_constraints({"$ref": target}))
        return {**self.fit(beside), "anyOf": [{"$ref": target}]}


def _with_inclusive_bounds(schema: JsonObject) -> JsonObject:
    if schema.get("type") != "integer":
        return schema
    bounded = dict(schema)
    for name, bound, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        value, exclusive = schema.get(name), schema.get(bound)
        if type(value) is int:
            del bounded[name]
            nearest = value + step
            if isinstance(exclusive, int | float) and (exclusive - nearest) * step > 0:
                bounded[bound] = exclusive
            else:
                bounded[bound] = nearest
    return bounded


OPTIONS = "gemini"
"""The key of the protocol's options in a request, besides the adapter's own name."""

MAX_STOP_SEQUENCES = 5

SETTINGS = {
    "temperature": "temperature",
    "top_p": "topP",
    "frequency_penalty": "frequencyPenalty",
    "presence_penalty": "presencePenalty",
    "seed": "seed",
}
"""The places of the portable settings in the generationConfig."""

_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "named": "ANY"}


class RequestBuilder:
    """The parts of a request that both APIs write in the same way."""

    def __init__(self, request: CanonicalRequest, provider: str) -> None:
        self.request = request
        self.provider = provider
        self.row = find_model(request.wire_model) or UNLISTED
        self.options = joined_options(request, OPTIONS, provider)
        self.warnings: list[CallWarning] = []

    def left_out(self, parameter: str, why: str) -> None:
        self.warnings.append(dropped(parameter, self.provider, why))

    def check_tools(self) -> None:
        request = self.request
        if request.tools and not self.row.tools:
            raise CapabilityError(f"{self.provider}: {request.wire_model} does not support tools")
        check_tool_choice(request.tool_choice, [tool.name for tool in request.tools])
        if request.tools and request.parallel_tool_calls is False:
            self.left_out("parallel_tool_calls", "the protocol can't turn them off")

    def effort(self) -> str | None:
        """The requested effort; None if there is none, or if the model does not reason."""
        effort, can = self.request.reasoning_effort, self.request.capabilities
        if effort is None or (self.row.reasons and (can is None or can.supports_thinking)):
            return effort
        if effort != "none":
            self.left_out("reasoning_effort", f"{self.request.wire_model} does not reason")
        return None

    def level(self, effort: str, levels: tuple[str, ...]) -> str:
        level = nearest_effort(effort, levels)
        if level != effort:
            self.warnings.append(changed("reasoning_effort", effort, level, "the nearest value of the model"))
        return level

    def settings(self, config: JsonObject, places: Mapping[str, str]) -> list[str]:
        """Write the portable settings. Return the stop sequences."""
        request = self.request
        ignored = () if self.row.sampling else ("temperature", "top_p")
        refused = dict.fromkeys(ignored, f"{request.wire_model} ignores it")
        if request.seed is not None and not -(2**31) <= request.seed < 2**31:
            refused["seed"] = "it must fit into 32 bits"
        self.warnings += write_settings(config, request, places, self.provider, refused=refused)
        return [stop for stop in request.stop_sequences if stop]


def build_request(request: CanonicalRequest, *, provider: str) -> BuiltRequest:
    return _Builder(request, provider).build()


class _Builder(RequestBuilder):
    def build(self) -> BuiltRequest:
        self.request, token = read_token(self.request, self.provider)
        check_demands(self.request, self.request.capabilities, self.provider)
        target = target_of(self.provider, self.request.wire_model, self.row, keeps_own_blanks=True)
        history = fit_history(self.request, target)
        writer = ContentWriter(history, self.request.wire_model, self.row)
        contents = writer.write()
        history = history.with_losses(writer.losses)
        self.warnings += writer.warnings
        body: JsonObject = {}
        config: JsonObject = {"maxOutputTokens": self.request.max_output_tokens}
        instruction = self._format(config)
        system = "\n\n".join(text for text in (history.system, instruction) if text)
        if system and self.row.system:
            body["systemInstruction"] = {"parts": [{"text": system}]}
        elif system:
            _say_first(contents, system)
        body["contents"] = list[Json](contents)
        self._tools(body)
        self._thinking(config)
        self._sampling(config)
        _give_way(config, self.options)
        body["generationConfig"] = config
        if token is not None:
            body[KIND] = token
        merge_options(body, self.options)
        self._use_cached(body)
        return BuiltRequest(body, history, (*history.warnings, *self.warnings))

    def _use_cached(self, body: JsonObject) -> None:
        """Drop the system text and the tools if the request uses cached content, which already contains them."""
        if not body.get("cachedContent"):
            return
        for name in ("systemInstruction", "tools", "toolConfig"):
            if body.pop(name, None) is not None:
                self.left_out(name, "cachedContent has its own")

    # --- Tools ---

    def _tools(self, body: JsonObject) -> None:
        self.check_tools()
        request, theirs = self.request, self.options.get("tools")
        if request.tools:
            tools = [encoded_tool(tool, "gemini_json", self._declaration, self.warnings) for tool in request.tools]
            body["tools"] = [{"functionDeclarations": tools}]
        mode = self._mode()
        config: JsonObject = {}
        if mode is not None:
            config["functionCallingConfig"] = mode
        if request.tools and self.row.modern and isinstance(theirs, list) and _has_built_in(theirs):
            config["includeServerSideToolInvocations"] = True
        if config:
            body["toolConfig"] = config

    def _declaration(self, tool: ToolDefinition) -> JsonObject:
        fields: JsonObject = {"name": tool.name}
        if tool.description:
            fields["description"] = tool.description
        options = tool_options(tool, OPTIONS, self.provider) if tool.provider_options else {}
        # The host may use the other field for parameters.
        if not takes_nothing(tool.input_schema) and "parameters" not in options:
            folded = fold_root(tool.input_schema)
            if folded.folded:
                self.warnings += folded.warnings(f"tool {tool.name!r}")
            fields["parametersJsonSchema"] = fit_schema(folded.schema)
        if options:
            merge_options(fields, options)
        return fields

    def _mode(self) -> JsonObject | None:
        choice, tools = self.request.tool_choice, self.request.tools
        if not tools:
            return None  # the API rejects the mode without declarations
        if choice is None or choice.mode == "auto":
            if self.row.modern and any(tool.strict for tool in tools):
                return {"mode": "VALIDATED"}  # like AUTO, with arguments that follow the schema
            return None if choice is None else {"mode": "AUTO"}
        mode: JsonObject = {"mode": _MODES[choice.mode]}
        if choice.tool_name is not None:
            mode["allowedFunctionNames"] = [choice.tool_name]
        return mode

    def _format(self, config: JsonObject) -> str | None:
        """Request JSON. Returns an instruction if the model can't combine a schema with tools."""
        schema = self.request.output_schema
        if schema is None:
            return None
        if self.request.tools and not self.row.modern:
            why = f"{self.provider}: {self.request.wire_model} does not support an output schema with tools"
            self.warnings.append(CallWarning(WarningCode.SCHEMA_AS_INSTRUCTION, why))
            return instruction(schema, with_tools=True)
        config["responseMimeType"] = "application/json"
        if not set(schema) <= {"type", "title", "description"} or schema.get("type") != "object":
            config["responseJsonSchema"] = fit_schema(schema)
        return None

    # --- Tuning ---

    def _thinking(self, config: JsonObject) -> None:
        effort = self.effort()
        if effort is None:
            return
        if self.row.levels:
            level = self.level(effort, self.row.levels)
            config["thinkingConfig"] = {"thinkingLevel": level.upper(), "includeThoughts": True}
            return
        assert self.row.budget is not None
        least, most = self.row.budget
        budget = BUDGETS[effort]
        if not (budget == 0 and self.row.stops_thinking):
            budget = min(max(budget, least), most)
        if effort == "none" and budget:
            why = f"{self.request.wire_model} always reasons"
            self.warnings.append(changed("reasoning_effort", effort, f"{budget} tokens", why))
        config["thinkingConfig"] = {"thinkingBudget": budget, **({"includeThoughts": True} if budget else {})}

    def _sampling(self, config: JsonObject) -> None:
        stops = self.settings(config, SETTINGS)
        if stops:
            config["stopSequences"] = list[Json](stops[:MAX_STOP_SEQUENCES])
        if len(stops) > MAX_STOP_SEQUENCES:
            self.left_out("part of stop_sequences", f"the model accepts at most {MAX_STOP_SEQUENCES}")


# --- Helpers ---


def _has_built_in(tools: list[Json]) -> bool:
    return any(isinstance(tool, dict) and tool.keys() - {"functionDeclarations"} for tool in tools)


def _say_first(contents: list[JsonObject], text: str) -> None:
    """Put the system text before the first user message, for models that have no system text."""
    parts = contents[0]["parts"]
    assert isinstance(parts, list)
    if isinstance(parts[0], dict) and "functionResponse" in parts[0]:
        contents.insert(0, {"role": "user", "parts": [{"text": text}]})
    else:
        parts.insert(0, {"text": text})


def _give_way(config: JsonObject, options: JsonObject) -> None:
    """Remove Callboard's budget or level of thinking if the host sets one, because both together are refused."""
    theirs = options.get("generationConfig")
    requested = theirs.get("thinkingConfig") if isinstance(theirs, dict) else None
    ours = config.get("thinkingConfig")
    if (
        isinstance(requested, dict)
        and isinstance(ours, dict)
        and requested.keys() & {"thinkingBudget", "thinkingLevel"}
    ):
        config["thinkingConfig"] = {key: value for key, value in ours.items() if key == "includeThoughts"}


def model_name(model: str) -> str:
    """The full name of a model: below ``models``, unless the name has a folder (``tunedModels/mine``)."""
    return model if "/" in model else f"models/{model}"


def path_of(version: str, name: str, method: str = "") -> str:
    """The path of a model or of an operation. With `method`, the path of a method of it."""
    path = f"/{version}/{quote(name, safe='/-._~@')}"
    return f"{path}:{method}" if method else path
