"""Reads requests of Chat Completions, with their settings and tools. Pure.

If a field has no canonical equivalent, it is stored in the protocol's `provider_options` and listed among the
losses.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.adapters import CanonicalRequest
from callboard.adapters.requests.settings import CUSTOM, EFFORTS, merge_options
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import ToolChoice, ToolDefinition

from .chat_messages import MARKS, PROTOCOL, read_messages
from .failures import BadRequest
from .wire import (
    ClientRequest,
    LossReport,
    ToolNames,
    a_flag,
    a_list,
    a_number,
    a_text,
    an_integer,
    an_object,
    first_text,
    free_form_schema,
    missing,
    model_of,
    object_in,
    object_schema,
    objects_in,
    rest_of,
    wrong_type,
    wrong_value,
)

DEFAULT_OUTPUT_TOKENS = 16_384
"""The reply's limit in tokens, if the client sets none."""

INCLUDE_USAGE = "include_usage"
"""Whether the stream ends in a chunk with the usage."""
FREE_FORM_TOOLS = "free_form_tools"
"""The canonical names of the free-form tools."""
LEGACY_FUNCTIONS = "legacy_functions"
"""Whether the client sent `functions` instead of `tools`."""

_HEADERS = ("openai-beta", "http-referer", "x-title")
"""The headers that are passed on with a request. OpenRouter identifies the client by the last two."""

_SESSION_HEADERS = ("x-session-id", "x-session-affinity", "x-conversation-id")
_SESSION_FIELDS = ("session_id", "conversation_id", "thread_id", "litellm_session_id")


def read_request(
    body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
) -> ClientRequest:
    return _Reader(body, headers).read(model, stream)


class _Reader:
    def __init__(self, body: JsonObject, headers: Mapping[str, str]) -> None:
        self.body = body
        self.headers = headers
        self.names = ToolNames()
        self.losses = LossReport()
        self.protocol_fields: JsonObject = {}  # provider options of the protocol
        self.elsewhere: dict[str, JsonObject] = {}  # provider options of other protocols

    def read(self, model: str | None, stream: bool) -> ClientRequest:
        body = self.body
        name = model_of(body, model)
        tool_set = _ToolReader(body, self.names, self.losses)
        choice, tools = tool_set.choice(tool_set.tools())
        self.protocol_fields |= tool_set.protocol_fields
        history = read_messages(body.get("messages"), self.names, self.losses)
        limit, effort, schema = self._limit(), self._effort(), self._schema()
        self._others(has_tools=bool(tools))
        options = {PROTOCOL: self.protocol_fields} if self.protocol_fields else {}
        request = CanonicalRequest(
            request_id="",
            model=name,
            messages=history.messages,
            system_prompt=history.system_prompt,
            has_beginning=history.has_beginning or body.get("continue_final_message") is True,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=False if tool_set.legacy else self._flag("parallel_tool_calls"),
            max_output_tokens=limit or DEFAULT_OUTPUT_TOKENS,
            default_output_limit=limit is None,
            stop_sequences=self._stop(),
            temperature=self._number("temperature"),
            top_p=self._number("top_p"),
            frequency_penalty=self._number("frequency_penalty"),
            presence_penalty=self._number("presence_penalty"),
            seed=an_integer(body.get("seed"), "seed"),
            user=self._text("user") or self._text("safety_identifier"),
            verbosity=self._text("verbosity"),
            reasoning_effort=effort,
            output_schema=schema,
            provider_options={**options, **self.elsewhere},
        )
        return ClientRequest(
            model=name,
            request=request,
            stream=stream or self._flag("stream") is True,
            body=body,
            headers={each: self.headers[each] for each in _HEADERS if each in self.headers},
            losses=tuple(self.losses),
            session_hint=self._session(),
            tool_names=self.names.changed,
            options={
                INCLUDE_USAGE: object_in(body, "stream_options").get(INCLUDE_USAGE) is True,
                FREE_FORM_TOOLS: tool_set.free_form,
                LEGACY_FUNCTIONS: tool_set.legacy,
            },
        )

    # --- Single fields ---

    def _number(self, name: str) -> float | None:
        return a_number(self.body.get(name), name)

    def _flag(self, name: str) -> bool | None:
        return a_flag(self.body.get(name), name)

    def _text(self, name: str) -> str | None:
        value = self.body.get(name)
        return None if value is None else a_text(value, name)

    def _limit(self) -> int | None:
        for name in ("max_completion_tokens", "max_tokens"):
            limit = self.body.get(name)
            if limit is not None and limit != -1:  # -1 means no limit on local servers
                return an_integer(limit, name, least=1)
        return None

    def _stop(self) -> tuple[str, ...]:
        stop = self.body.get("stop")
        if stop is None:
            return ()
        if isinstance(stop, str):
            return (stop,)
        return tuple(a_text(each, f"stop[{place}]") for place, each in enumerate(a_list(stop, "stop")))

    def _effort(self) -> str | None:
        effort = self._text("reasoning_effort")
        if effort is not None and effort not in EFFORTS:  # for example Groq's "default", or a future value
            self._keep("reasoning_effort", f"reasoning_effort {effort!r}")
            effort = None
        for name, word, effort_of in (
            ("reasoning", "effort", _effort_of_reasoning),
            ("thinking", "type", _effort_of_thinking),
        ):
            if self.body.get(name) is not None:
                settings = object_in(self.body, name)
                read, beyond = effort_of(settings), rest_of(settings, word, "enabled")
                lost = f"{', '.join(beyond)} of the reasoning's settings" if beyond else None
                self._keep(name, name if read is None and settings else lost)
                effort = effort or read
        return effort

    def _session(self) -> str | None:
        value = self.body.get("metadata")
        metadata = value if isinstance(value, dict) else {}
        return first_text(
            *(self.headers.get(name) for name in _SESSION_HEADERS),
            *(fields.get(name) for fields in (self.body, metadata) for name in _SESSION_FIELDS),
            self.body.get("prompt_cache_key"),
        )

    # --- The reply's form ---

    def _schema(self) -> JsonObject | None:
        response_format = self.body.get("response_format")
        if response_format is None:
            return None
        match an_object(response_format, "response_format"):
            case {"type": "text"}:
                return None
            case {"type": "json_object"} as form if len(form) == 1:
                return {"type": "object"}
            case {"type": "json_schema", "json_schema": dict(json_schema)}:
                return _named_schema(json_schema)
            case {"type": "json_schema"}:
                raise missing("response_format.json_schema")
            case {"type": str()}:
                self._keep("response_format", "response_format")
                return None
            case _:
                raise missing("response_format.type")

    # --- Fields without a canonical word ---

    def _keep(self, name: str, lost: str | None) -> None:
        """Keep a field for this protocol. `lost` is the loss text for other protocols."""
        self.protocol_fields[name] = self.body[name]
        if lost is not None:
            self.losses.parameter(lost)

    def _others(self, *, has_tools: bool) -> None:
        for name, value in self.body.items():
            if name in _CANONICAL or value is None:
                continue
            if name == "n":
                if an_integer(value, "n", least=1) != 1:
                    self.losses.parameter("n", "another protocol returns one choice")
                continue
            harmless = name in _HARMLESS or (name in _DEFAULTS and value in _DEFAULTS[name])
            self._keep(name, None)
            elsewhere = _in_other_words(name, value)
            if has_tools and name == "web_search_options":
                elsewhere.pop("gemini", None)  # older models refuse a search tool together with functions
            for protocol, options in elsewhere.items():
                merge_options(self.elsewhere.setdefault(protocol, {}), options)
            if not harmless:
                protocols = ", ".join((PROTOCOL, *elsewhere))
                self.losses.parameter(
                    name, f"only {protocols} have it" if elsewhere else "only this protocol has it"
                )


_CANONICAL = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"),
        *("max_tokens", "max_completion_tokens", "stop", "temperature", "top_p", "frequency_penalty", "seed"),
        *("presence_penalty", "user", "verbosity", "reasoning_effort", "response_format", "stream"),
        *("stream_options", "reasoning", "thinking", "continue_final_message", "add_generation_prompt"),
    }
)
"""The fields with a canonical equivalent, and fields that other code reads."""

_HARMLESS = frozenset(
    {
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "safety_identifier"),
        *("usage", "include_reasoning", *_SESSION_FIELDS),
    }
)
"""Fields without effect on the reply."""

_DEFAULTS: Mapping[str, tuple[Json, ...]] = {
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "metadata": ({},),
}
"""Values that change nothing, because they are defaults."""

_OF_OPENAI = (
    *("service_tier", "store", "metadata", "moderation", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
)
"""The fields that the Responses API also has."""


def _in_other_words(name: str, value: Json) -> dict[str, JsonObject]:
    """The equivalents of a field in other protocols."""
    match name, value:
        case "top_k", _:
            return {"anthropic": {"top_k": value}, "gemini": {"generationConfig": {"topK": value}}}
        case "modalities", list(kinds) if "image" in kinds:  # OpenRouter's way to request images
            words: list[Json] = [str(kind).upper() for kind in kinds]
            return {"gemini": {"generationConfig": {"responseModalities": words}}}
        case "web_search_options", dict(options):
            return _search(options)
        case _:
            return {"openai": {name: value}} if name in _OF_OPENAI else {}


def _search(options: JsonObject) -> dict[str, JsonObject]:
    location: JsonObject = {}
    match options.get("user_location"):
        case {"approximate": dict(place)}:
            location["user_location"] = {"type": "approximate", **place}
        case _:
            pass
    size = options.get("search_context_size")
    sized: JsonObject = {} if size is None else {"search_context_size": size}
    return {
        "openai": {"tools": [{"type": "web_search", **location, **sized}]},
        "anthropic": {"tools": [{"type": "web_search_20250305", "name": "web_search", **location}]},
        "gemini": {"tools": [{"googleSearch": {}}]},
    }


def _named_schema(json_schema: JsonObject) -> JsonObject:
    """The schema of the reply, with the format's name as its title, and the format's description."""
    value = json_schema.get("schema")
    schema: JsonObject = {"type": "object"}
    if value is not None:
        schema = an_object(value, "response_format.json_schema.schema")
    for name, field in (("name", "title"), ("description", "description")):
        value = json_schema.get(name)
        if isinstance(value, str) and value and value != "response" and field not in schema:
            schema = {**schema, field: value}
    return schema


_BUDGETS = ((1024, "low"), (8192, "medium"))
"""The maximum number of reasoning tokens for each effort."""


def _effort_of_budget(budget: Json) -> str:
    if not isinstance(budget, int | float):
        return "medium"
    return next((effort for most, effort in _BUDGETS if budget <= most), "high")


def _effort_of_reasoning(reasoning: JsonObject) -> str | None:
    """Read the effort from OpenRouter's object."""
    match reasoning:
        case {"effort": str(effort)} if effort in EFFORTS:
            return effort
        case {"enabled": False}:
            return "none"
        case {"max_tokens": budget} if budget is not None:
            return _effort_of_budget(budget)
        case {"enabled": True}:
            return "medium"
        case _:
            return None


def _effort_of_thinking(thinking: JsonObject) -> str | None:
    """Read the effort from the object of Anthropic, DeepSeek or Z.ai."""
    match thinking.get("type"):
        case "disabled":
            return "none"
        case "enabled" | "adaptive":
            return _effort_of_budget(thinking.get("budget_tokens"))
        case _:
            return None


# --- Tools ---


class _ToolReader:
    def __init__(self, body: JsonObject, names: ToolNames, losses: LossReport) -> None:
        self.body = body
        self.names = names
        self.losses = losses
        self.protocol_fields: JsonObject = {}  # tools and choices without a canonical equivalent
        self.free_form: list[str] = []  # the canonical names of the free-form tools
        self.legacy = bool(body.get("functions")) and not body.get("tools")

    def tools(self) -> tuple[ToolDefinition, ...]:
        found: dict[str, ToolDefinition] = {}
        others: list[Json] = []
        for tool, where in self._given_tools():
            read = self._tool(tool, where)
            if read is None:
                others.append(tool)
                self.losses.parameter(f"the tool of type {tool.get('type')!r}")
            elif read.name not in found:
                found[read.name] = read
            elif read != found[read.name]:
                self.losses.parameter(f"{where}", "another tool has its name")
        if others:
            self.protocol_fields["tools"] = others
        return tuple(found.values())

    def _given_tools(self) -> list[tuple[JsonObject, str]]:
        if self.legacy:
            functions = a_list(self.body["functions"], "functions")
            return [
                ({"type": "function", "function": function}, f"functions[{place}]")
                for place, function in enumerate(functions)
            ]
        value = self.body.get("tools")
        return [] if value is None else list(objects_in(value, "tools"))

    def _tool(self, tool: JsonObject, where: str) -> ToolDefinition | None:
        match tool.get("type", "function"):
            case "function":
                return self._function(tool, an_object(tool.get("function"), f"{where}.function"), where)
            case "custom" if isinstance(tool.get(CUSTOM), dict):
                return self._free_form(an_object(tool[CUSTOM], f"{where}.custom"), where)
            case str():
                return None
            case _:
                raise wrong_type(f"{where}.type", "a string", tool["type"])

    def _function(self, tool: JsonObject, function: JsonObject, where: str) -> ToolDefinition:
        name = self.names.canonical(a_text(function.get("name"), f"{where}.function.name"))
        outside = rest_of(tool, "type", "function")
        inside = rest_of(function, "name", "description", "parameters", "strict")
        options: JsonObject = {}
        if outside or inside:
            fields: JsonObject = {**outside, **({"function": inside} if inside else {})}
            options[PROTOCOL] = fields
        for each in (*outside, *inside):
            if each in MARKS:
                self.losses.mark(each)
            else:
                self.losses.parameter(f"{where}.{each}")
        return ToolDefinition(
            name,
            _text(function.get("description")),
            self._schema(function.get("parameters"), f"{where}.function.parameters"),
            strict=function.get("strict") is True,
            provider_options=options,
        )

    def _schema(self, value: Json, where: str) -> JsonObject:
        kind = None if value is None else an_object(value, where).get("type")
        if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
            self.losses.changed(f"{where} has the type {kind!r}. Arguments are an object, so any is accepted")
            value = None
        return object_schema(value)

    def _free_form(self, tool: JsonObject, where: str) -> ToolDefinition:
        """Read a tool whose only argument is one text. Only OpenAI's two protocols have such tools; other
        protocols get a function.
        """
        name = self.names.canonical(a_text(tool.get("name"), f"{where}.custom.name"))
        self.free_form.append(name)
        fields: JsonObject = {"type": CUSTOM, **rest_of(tool, "name", "description", "format")}
        match tool.get("format"):
            case {"type": "grammar", "grammar": dict(grammar)}:
                fields["format"] = {"type": "grammar", **grammar}
                self.losses.parameter(f"the grammar of the tool {name!r}", "only OpenAI's protocols have it")
            case dict(form):
                fields["format"] = form
            case _:
                pass
        return ToolDefinition(
            name,
            _text(tool.get("description")),
            free_form_schema(tool.get("format")),
            provider_options={PROTOCOL: fields, "openai": dict(fields)},
        )

    def choice(self, tools: tuple[ToolDefinition, ...]) -> tuple[ToolChoice | None, tuple[ToolDefinition, ...]]:
        """The tool choice, and the tools that it allows. A list of allowed tools limits the offered tools."""
        legacy = self.legacy
        field = "function_call" if legacy else "tool_choice"
        match self.body.get(field):
            case None:
                return None, tools
            case "auto" | "none" as mode:
                return ToolChoice(mode), tools
            case "required" | "any" if not legacy:
                return self._forced(tools), tools
            case {"name": str(name)} if legacy:
                return self._named(name, tools, field), tools
            case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}}:
                return self._named(name, tools, field), tools
            case {"type": "tool", "name": str(name)}:
                return self._named(name, tools, field), tools
            case {"type": "allowed_tools", "allowed_tools": {"tools": list(allowed), "mode": "required"}}:
                allowed_names = self._allowed(allowed, tools)
                return self._forced(allowed_names), allowed_names
            case {"type": "allowed_tools", "allowed_tools": {"tools": list(allowed)}}:
                return ToolChoice(), self._allowed(allowed, tools)
            case {"type": "auto" | "none" as mode}:
                return ToolChoice(mode), tools
            case {"type": "any" | "required"}:
                return self._forced(tools), tools
            case other:
                raise wrong_value(field, other, ("none", "auto", "required"))

    def _forced(self, tools: tuple[ToolDefinition, ...]) -> ToolChoice | None:
        if tools:
            return ToolChoice("required")
        if "tools" not in self.protocol_fields:
            raise BadRequest("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
        self.protocol_fields["tool_choice"] = self.body["tool_choice"]
        self.losses.parameter("tool_choice")
        return None

    def _named(self, name: str, tools: tuple[ToolDefinition, ...], field: str) -> ToolChoice:
        named = self.names.canonical(name)
        if all(tool.name != named for tool in tools):
            raise BadRequest(
                f"Invalid value for '{field}': no tool named '{name[:100]}' was specified.", param=field
            )
        return ToolChoice("named", named)

    def _allowed(self, allowed: list[Json], tools: tuple[ToolDefinition, ...]) -> tuple[ToolDefinition, ...]:
        names: set[str] = set()
        for each in allowed:
            match each:
                case {"function": {"name": str(name)}} | {"custom": {"name": str(name)}} | {"name": str(name)}:
                    names.add(self.names.canonical(name))
                case _:
                    pass
        return tuple(tool for tool in tools if tool.name in names)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
