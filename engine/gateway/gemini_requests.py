"""Reads the requests of Gemini clients for replies and token counts: settings, tools and schemas. Pure.

The reverse of `adapters.providers.gemini.request`. If a setting has no canonical equivalent, it is stored in
``provider_options["gemini"]`` and listed among the losses for other wires.

Google's schemas are converted to JSON Schema. Gemini accepts any schema for a reply, but other providers accept
only objects. So the schema of a list, a number or an enum is wrapped in an object with the member ``value``, and
the reply is unwrapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import msgspec

from callboard.adapters.contract import AdapterCapabilities, CanonicalRequest
from callboard.adapters.providers.gemini.data import BUDGETS
from callboard.adapters.requests.content import as_text, encode_json
from callboard.adapters.requests.schemas import remembered
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import ToolChoice, ToolDefinition

from .failures import BadRequest
from .gemini_contents import GEMINI, camel, each, objects_of, read_contents
from .wire import ClientRequest, LossReport, ToolNames, fitting_schema, rest_of

DEFAULT_OUTPUT = AdapterCapabilities().max_output_tokens
"""The reply's limit in tokens, if the client sets none."""


def read_request(
    body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
) -> ClientRequest:
    """Read the body of generateContent, streamGenerateContent or countTokens.

    Headers are ignored, because Gemini's clients send none about the request or the session.
    """
    fields = camel(body, "request")
    inner = fields.get("generateContentRequest")  # countTokens may contain a complete request
    if isinstance(inner, dict):
        fields = camel(inner, "generate_content_request")
    named = model or as_text(fields.get("model") or "")
    if not named:
        raise BadRequest("model is required", param="model", kind="not_found")
    try:
        return _Reader(fields).read(named.removeprefix("models/"), body, stream=stream)
    except RecursionError:
        raise BadRequest("the request is nested too deeply") from None


_WITHOUT_LOSS = frozenset({"includeServerSideToolInvocations"})
_OWN = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model", "generateContentRequest"}
)


class _Reader:
    def __init__(self, fields: JsonObject) -> None:
        self.fields = fields
        self.names = ToolNames()
        self.losses = LossReport()
        self.protocol_fields: JsonObject = {}  # the fields for Gemini's adapter
        self.config: JsonObject = {}  # the fields for the generationConfig
        self.settings: dict[str, Any] = {}  # the fields of the CanonicalRequest
        self.options: JsonObject = {}

    def read(self, model: str, body: JsonObject, *, stream: bool) -> ClientRequest:
        tools = self._tools()
        self._tool_config(tools)
        messages = read_contents(self.fields.get("contents"), self.names, self.losses)
        if not messages:
            raise BadRequest("contents are required", param="contents")
        self._generation(camel(self.fields.get("generationConfig") or {}, "generation_config"))
        for name, value in self.fields.items():
            if name not in _OWN and value is not None:
                self.protocol_fields[name] = value
                self.losses.parameter(name)
        if self.config:
            self.protocol_fields["generationConfig"] = self.config
        limit = self.settings.pop("max_output_tokens", None)
        try:
            request = CanonicalRequest(
                request_id="",
                model=model,
                messages=tuple(messages),
                max_output_tokens=limit if isinstance(limit, int) else DEFAULT_OUTPUT,
                default_output_limit=limit is None,
                tools=tuple(tools),
                system_prompt=self._system(),
                provider_options={GEMINI: self.protocol_fields} if self.protocol_fields else {},
                stream=stream,
                **self.settings,
            )
        except ValueError as error:
            raise BadRequest(str(error)) from error
        return ClientRequest(
            model=model,
            request=request,
            stream=stream,
            body=body,
            refers_to="cachedContent" if self.fields.get("cachedContent") else "",
            losses=tuple(self.losses),
            tool_names=self.names.changed,
            options=self.options,
        )

    def _system(self) -> str | None:
        value = self.fields.get("systemInstruction")
        if value is None:
            return None
        if isinstance(value, str):
            return value
        parts = value if isinstance(value, list) else camel(value, "system_instruction").get("parts")
        texts: list[str] = []
        for number, part in enumerate(each(parts, "system_instruction.parts")):
            where = f"system_instruction.parts[{number}]"
            text = part if isinstance(part, str) else camel(part, where).get("text")
            if isinstance(text, str):
                texts.append(text)
            else:
                self.losses.content(f"{where}", "only text can be an instruction")
        return "\n\n".join(texts) or None

    # --- Tools ---

    def _tools(self) -> list[ToolDefinition]:
        found: list[ToolDefinition] = []
        built_in: list[Json] = []
        for fields, place in objects_of(self.fields.get("tools"), "tools"):
            declarations = fields.get("functionDeclarations")
            found += [
                self._tool(declaration, where)
                for declaration, where in objects_of(declarations, f"{place}.function_declarations")
            ]
            rest = rest_of(fields, "functionDeclarations")
            if rest:
                built_in.append(rest)
                self.losses.parameter(f"the tool {', '.join(rest)}")
        if built_in:
            self.protocol_fields["tools"] = built_in
        names = [tool.name for tool in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise BadRequest(f"Duplicate function declaration found: {twice}", param="tools")
        return found

    def _tool(self, fields: JsonObject, where: str) -> ToolDefinition:
        name = fields.get("name")
        if not isinstance(name, str) or not name:
            raise BadRequest(f"{where}.name: Name cannot be empty.", param=f"{where}.name")
        declared_schema = fields.get("parametersJsonSchema")
        schema: JsonObject | None = None
        if isinstance(declared_schema, dict):
            schema = declared_schema
        elif fields.get("parameters") is not None:
            schema = json_schema(fields["parameters"], f"{where}.parameters")
        rest = rest_of(fields, "name", "description", "parameters", "parametersJsonSchema")
        for key in rest:
            self.losses.parameter(f"{key} of the tool {name}")
        return ToolDefinition(
            self.names.canonical(name),
            as_text(fields.get("description") or ""),
            self._arguments(schema, name),
            provider_options={GEMINI: rest} if rest else {},
        )

    def _arguments(self, schema: JsonObject | None, tool: str) -> JsonObject:
        if not schema:
            return {"type": "object", "properties": {}}
        fitting = fitting_schema(schema)
        if fitting.get("required") != schema.get("required"):
            self.losses.changed(
                f"the tool {tool} requires arguments that its schema does not define; they were left out",
            )
        return fitting

    def _tool_config(self, tools: list[ToolDefinition]) -> None:
        config = camel(self.fields.get("toolConfig") or {}, "tool_config")
        protocol_fields: JsonObject = {}
        for name, value in config.items():
            if name == "functionCallingConfig" or value is None:
                continue
            protocol_fields[name] = value
            if name not in _WITHOUT_LOSS:
                self.losses.parameter(name)
        calling = camel(config.get("functionCallingConfig") or {}, "tool_config.function_calling_config")
        rest = self._mode(calling, tools)
        if rest:
            protocol_fields["functionCallingConfig"] = rest
        if protocol_fields:
            self.protocol_fields["toolConfig"] = protocol_fields

    def _mode(self, calling: JsonObject, tools: list[ToolDefinition]) -> JsonObject:
        """Set the tool choice. Returns the fields without a canonical equivalent."""
        rest = rest_of(calling, "mode", "allowedFunctionNames")
        for name in rest:
            self.losses.parameter(name)
        named = each(calling.get("allowedFunctionNames"), "allowed_function_names")
        allowed = [self.names.canonical(name) for name in named if isinstance(name, str)]
        mode = as_text(calling.get("mode") or "").upper()
        match mode:
            case "ANY" if tools and len(allowed) == 1:
                self.settings["tool_choice"] = ToolChoice("named", allowed[0])
                return rest
            case "ANY" if not tools:
                self.losses.parameter("functionCallingConfig.mode")
                return calling
            case "ANY":
                self.settings["tool_choice"] = ToolChoice("required")
            case "NONE":
                self.settings["tool_choice"] = ToolChoice("none")
            case "AUTO":
                self.settings["tool_choice"] = ToolChoice()
            case "VALIDATED":
                tools[:] = [msgspec.structs.replace(tool, strict=True) for tool in tools]
            case "" | "MODE_UNSPECIFIED":
                pass
            case _:
                raise BadRequest(
                    f"Invalid value at 'tool_config.function_calling_config.mode' (MODE), {mode!r}",
                    param="tool_config.function_calling_config.mode",
                )
        if allowed:
            rest["allowedFunctionNames"] = list[Json](allowed)
            if {tool.name for tool in tools} - set(allowed):
                self.losses.changed(
                    "allowedFunctionNames was not sent: the model may call any tool of the request",
                )
        return rest

    # --- Generation ---

    def _generation(self, config: JsonObject) -> None:
        for name, value in config.items():
            if value is None:
                continue
            match name, value:
                case "thinkingConfig", _:
                    self._thinking(camel(value, "generation_config.thinking_config"))
                case "responseMimeType" | "responseSchema" | "responseJsonSchema" | "_responseJsonSchema", _:
                    pass  # handled below
                case "stopSequences", list():
                    self.settings["stop_sequences"] = tuple(stop for stop in value if isinstance(stop, str))
                case ("candidateCount", 1) | ("responseModalities", ["TEXT" | "text"]):
                    if name == "responseModalities":
                        self.config[name] = value
                case _ if name in _NUMBERS:
                    self._number(name, value)
                case "candidateCount", _:
                    self.config[name] = value
                    self.losses.parameter(name, "there is one candidate")
                case _:
                    self.config[name] = value
                    self.losses.parameter(name)
        self._format(config)

    def _number(self, name: str, value: Json) -> None:
        field, kind = _NUMBERS[name]
        try:
            number: float = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            where = f"generation_config.{name}"
            raise BadRequest(f"Invalid value at '{where}', {value!r}", param=where) from None
        if field == "max_output_tokens" and number < 1:
            raise BadRequest("max_output_tokens must be positive.", param="generation_config.max_output_tokens")
        self.settings[field] = number

    def _format(self, config: JsonObject) -> None:
        media_type = as_text(config.get("responseMimeType") or "")
        schema = config.get("responseJsonSchema") or config.get("_responseJsonSchema")
        if not isinstance(schema, dict) and config.get("responseSchema") is not None:
            schema = json_schema(config["responseSchema"], "generation_config.response_schema")
        match media_type:
            case "text/x.enum" if isinstance(schema, dict):
                self.settings["output_schema"] = wrapped(schema)
                self.options["unwraps"] = "text"
            case "application/json" | "" if isinstance(schema, dict):
                bare = is_bare(schema)
                self.settings["output_schema"] = wrapped(schema) if bare else schema
                if bare:
                    self.options["unwraps"] = "json"
            case "application/json":
                self.settings["output_schema"] = {"type": "object"}
            case "" | "text/plain":
                pass
            case _:
                self.config["responseMimeType"] = media_type
                if isinstance(schema, dict):
                    self.config["responseJsonSchema"] = schema
                self.losses.parameter(f"responseMimeType {media_type}")

    def _thinking(self, config: JsonObject) -> None:
        self.options["include_thoughts"] = bool(config.get("includeThoughts"))
        level, budget = config.get("thinkingLevel"), config.get("thinkingBudget")
        rest = rest_of(config, "thinkingLevel", "thinkingBudget", "includeThoughts")
        for name in rest:
            self.losses.parameter(name)
        if isinstance(level, str) and level and level.upper() != "THINKING_LEVEL_UNSPECIFIED":
            self.settings["reasoning_effort"] = level.lower()
        elif isinstance(budget, int | float | str):
            effort = self._effort(budget)
            if BUDGETS[effort] != budget:
                rest["thinkingBudget"] = budget
                self.losses.changed(f"thinkingBudget {budget} was sent as {effort!r}, the nearest")
        elif config.get("includeThoughts"):
            rest["includeThoughts"] = True
        if rest:
            self.config["thinkingConfig"] = rest

    def _effort(self, budget: float | str) -> str:
        try:
            tokens = int(budget)
        except ValueError:
            where = "generation_config.thinking_config.thinking_budget"
            raise BadRequest(f"Invalid value at '{where}', {budget!r}", param=where) from None
        effort = effort_of(tokens)
        self.settings["reasoning_effort"] = effort
        return effort


_NUMBERS: Mapping[str, tuple[str, type[float]]] = {
    "maxOutputTokens": ("max_output_tokens", int),
    "temperature": ("temperature", float),
    "topP": ("top_p", float),
    "seed": ("seed", int),
    "presencePenalty": ("presence_penalty", float),
    "frequencyPenalty": ("frequency_penalty", float),
}
"""The settings of the generationConfig with a canonical equivalent."""

_EFFORTS = ("minimal", "low", "medium", "high", "xhigh")


def effort_of(budget: int) -> str:
    """The effort nearest to a number of thinking tokens, by ratio. -1 lets the model decide: a medium effort."""
    if budget <= 0:
        return "medium" if budget < 0 else "none"
    return min(_EFFORTS, key=lambda effort: abs(log(BUDGETS[effort] / budget)))


# --- Schemas ---

_CAMEL_KEYWORDS = frozenset(
    {"anyOf", "oneOf", "allOf", "minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
    | {"additionalProperties", "propertyOrdering", "prefixItems"}
)
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
"""Keywords with 64-bit integers, which are strings in the JSON of protocol buffers."""

_RENAMED = {"ref": "$ref", "defs": "$defs"}


def json_schema(schema: Json, where: str) -> JsonObject:
    """Convert Google's Schema object, whose types are in capitals, to a JSON Schema.

    The result is cached, because the same tools arrive with every request. It must not be changed.
    """
    if isinstance(schema, dict):
        try:
            return _remembered(schema)
        except BadRequest:
            pass  # not cached, because the error's text has the path
    return _converted(schema, where)


def _converted(schema: Json, where: str) -> JsonObject:
    written: JsonObject = {}
    nullable = False
    ordering: Json = None
    for name, value in camel_keywords(schema, where).items():
        match name, value:
            case "type", str():
                if value.upper() != "TYPE_UNSPECIFIED":
                    written[name] = value.lower()
            case "type", list():
                written[name] = [kind.lower() if isinstance(kind, str) else kind for kind in value]
            case "nullable", bool():
                nullable = value
            case "propertyOrdering", _:
                ordering = value
            case "example", _:
                written["examples"] = [value]
            case "format", "enum":
                pass  # the keyword `enum` has the same meaning
            case "properties" | "$defs" | "defs", dict():
                named: JsonObject = {
                    key: _converted(inner, f"{where}.{name}[{key}]") for key, inner in value.items()
                }
                written[_RENAMED.get(name, name)] = named
            case "items" | "additionalProperties", dict():
                written[name] = _converted(value, f"{where}.{name}")
            case "anyOf" | "oneOf" | "allOf" | "prefixItems", list():
                written[name] = [
                    _converted(inner, f"{where}.{name}[{number}]") for number, inner in enumerate(value)
                ]
            case _ if name in _COUNTS and isinstance(value, str) and value.isdigit():
                written[name] = int(value)
            case "ref", str():
                written["$ref"] = value
            case _:
                written[name] = value
    _put_in_order(written, ordering)
    return _or_null(written) if nullable else written


@remembered
def _remembered(schema: JsonObject) -> JsonObject:
    return _converted(schema, "schema")


def camel_keywords(schema: Json, where: str) -> JsonObject:
    """A schema with its keywords in camel case, as in JSON Schema."""
    if not isinstance(schema, dict):
        raise BadRequest(f"{where} must be an object", param=where)
    if "_" not in "".join(schema):
        return schema
    renamed: JsonObject = {}
    for name, value in schema.items():
        camel_name = next(iter(camel({name: None}, where)))
        renamed[camel_name if camel_name in _CAMEL_KEYWORDS else name] = value
    return renamed


def _put_in_order(schema: JsonObject, ordering: Json) -> None:
    properties = schema.get("properties")
    if isinstance(ordering, list) and isinstance(properties, dict):
        first = {name: properties[name] for name in ordering if isinstance(name, str) and name in properties}
        schema["properties"] = {**first, **properties}


def _or_null(schema: JsonObject) -> JsonObject:
    kind, values = schema.get("type"), schema.get("enum")
    if isinstance(values, list) and None not in values:
        schema["enum"] = [*values, None]
    if isinstance(kind, str) and kind != "null":
        schema["type"] = [kind, "null"]
    elif isinstance(kind, list) and "null" not in kind:
        schema["type"] = [*kind, "null"]
    elif isinstance(choices := schema.get("anyOf"), list):
        schema["anyOf"] = [*choices, {"type": "null"}]
    elif "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return schema


# --- Replies that are not objects ---

VALUE = "value"


def is_bare(schema: JsonObject) -> bool:
    """Whether a schema describes a value other than an object. Such a value can be wrapped in an object."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "object" in kinds or not (kind or "enum" in schema):
        return False
    return b'"$ref":"#"' not in encode_json(schema)


def wrapped(schema: JsonObject) -> JsonObject:
    """The schema of an object whose only member is the value."""
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    written: JsonObject = {
        "type": "object",
        "properties": {VALUE: inner},
        "required": [VALUE],
        "additionalProperties": False,
    }
    return {**written, "$defs": schema["$defs"]} if "$defs" in schema else written
