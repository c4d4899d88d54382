"""Requests of Chat Completions in the canonical form. Pure.

A field without a canonical word goes into `provider_options` of the protocol, and is among the losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from callboard.adapters import CanonicalRequest
from callboard.adapters.requests.settings import CUSTOM, EFFORTS, INPUT
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import ToolChoice, ToolDefinition

from .chat_messages import MARK, read_messages
from .chat_reasoning import PROTOCOL
from .reading import LossReport, ToolNames, a_list, a_text, an_integer, an_object, missing, wrong_type, wrong_value
from .wire import BadRequest, ClientRequest

DEFAULT_OUTPUT_TOKENS = 16_384
"""The limit of a reply without one of the client's, in tokens."""

INCLUDE_USAGE = "include_usage"
"""Whether the stream ends in a chunk with the usage."""
TOOL_NAMES = "tool_names"
"""The clients' names of tools by the canonical ones, where they differ."""
FREE_FORM_TOOLS = "free_form_tools"
"""The canonical names of the free-form tools."""
LEGACY_FUNCTIONS = "legacy_functions"
"""Whether the client sent `functions` instead of `tools`."""

_HEADERS = ("openai-beta", "http-referer", "x-title")
"""The headers that belong to a request. The last two name the client to OpenRouter."""

_SESSION_HEADERS = ("x-session-id", "x-session-affinity", "x-conversation-id")
_SESSION_FIELDS = ("session_id", "conversation_id", "thread_id", "litellm_session_id")


def read_request(
    body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
) -> ClientRequest:
    """Read a request.

    Raises:
        BadRequest: The request can't be read. The text and the code are the vendor's.
    """
    return _Reader(body, headers).read(model, stream)


class _Reader:
    def __init__(self, body: JsonObject, headers: Mapping[str, str]) -> None:
        self.body = body
        self.headers = headers
        self.names = ToolNames()
        self.losses = LossReport()
        self.own: JsonObject = {}  # provider options of the protocol
        self.elsewhere: dict[str, JsonObject] = {}  # provider options of other protocols
        self.free_form: list[Json] = []

    def read(self, model: str | None, stream: bool) -> ClientRequest:
        body = self.body
        name = body.get("model") if model is None else model
        if name is None or name == "":
            raise BadRequest("you must provide a model parameter", param="model")
        name = a_text(name, "model")
        tools = self._tools()
        history = read_messages(body.get("messages"), self.names, self.losses)
        choice, tools = self._choice(tools)
        limit, effort, schema = self._limit(), self._effort(), self._schema()
        self._others()
        options = {PROTOCOL: self.own} if self.own else {}
        request = CanonicalRequest(
            request_id="",
            model=name,
            messages=history.messages,
            system_prompt=history.system_prompt,
            has_beginning=history.has_beginning or body.get("continue_final_message") is True,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=False if self._legacy else self._flag("parallel_tool_calls"),
            max_output_tokens=limit or DEFAULT_OUTPUT_TOKENS,
            default_output_limit=limit is None,
            stop_sequences=self._stop(),
            temperature=self._number("temperature"),
            top_p=self._number("top_p"),
            frequency_penalty=self._number("frequency_penalty"),
            presence_penalty=self._number("presence_penalty"),
            seed=an_integer(self.body.get("seed"), "seed"),
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
            options=self._options(),
        )

    def _options(self) -> dict[str, Json]:
        told = self.body.get("stream_options")
        options: dict[str, Json] = {}
        if told is not None and an_object(told, "stream_options").get("include_usage") is True:
            options[INCLUDE_USAGE] = True
        if self.names.changed:
            options[TOOL_NAMES] = self.names.changed
        if self.free_form:
            options[FREE_FORM_TOOLS] = self.free_form
        if self._legacy:
            options[LEGACY_FUNCTIONS] = True
        return options

    # --- Single fields ---

    def _number(self, name: str) -> float | None:
        value = self.body.get(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise wrong_type(name, "a decimal", value)

    def _flag(self, name: str) -> bool | None:
        value = self.body.get(name)
        if value is None or isinstance(value, bool):
            return value
        raise wrong_type(name, "a boolean", value)

    def _text(self, name: str) -> str | None:
        value = self.body.get(name)
        return None if value is None else a_text(value, name)

    def _limit(self) -> int | None:
        for name in ("max_completion_tokens", "max_tokens"):
            given = self.body.get(name)
            if given is not None and given != -1:  # local servers' word for no limit
                return an_integer(given, name, least=1)
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
        if effort is not None and effort not in EFFORTS:  # Groq's "default", and words of models to come
            self._keep("reasoning_effort", f"reasoning_effort {effort!r}")
            effort = None
        told, thinking = self.body.get("reasoning"), self.body.get("thinking")
        if isinstance(told, dict):
            effort = effort or _effort_of(told)
            self._keep("reasoning", self._beyond(told, "effort"))
        if isinstance(thinking, dict):
            effort = effort or _effort_of_thinking(thinking)
            self._keep("thinking", self._beyond(thinking, "type"))
        return effort

    def _beyond(self, settings: JsonObject, word: str) -> str | None:
        """The fields of an object of reasoning settings besides the one that is the effort."""
        beyond = [name for name, value in settings.items() if name not in (word, "enabled") and value is not None]
        return f"{', '.join(beyond)} of the reasoning's settings" if beyond else None

    def _session(self) -> str | None:
        told = self.body.get("metadata")
        metadata = told if isinstance(told, dict) else {}
        found = (
            *(self.headers.get(name) for name in _SESSION_HEADERS),
            *(self.body.get(name) for name in _SESSION_FIELDS),
            *(metadata.get(name) for name in _SESSION_FIELDS),
            self.body.get("prompt_cache_key"),
        )
        return next((each for each in found if isinstance(each, str) and each), None)

    # --- The reply's form ---

    def _schema(self) -> JsonObject | None:
        given = self.body.get("response_format")
        if given is None:
            return None
        match an_object(given, "response_format"):
            case {"type": "text"}:
                return None
            case {"type": "json_object"} as form if len(form) == 1:
                return {"type": "object"}
            case {"type": "json_schema", "json_schema": dict(told)}:
                return _named_schema(told)
            case {"type": "json_schema"}:
                raise missing("response_format.json_schema")
            case {"type": str()}:
                self._keep("response_format", "response_format")
                return None
            case _:
                raise missing("response_format.type")

    # --- Tools ---

    @property
    def _legacy(self) -> bool:
        return bool(self.body.get("functions")) and not self.body.get("tools")

    def _tools(self) -> tuple[ToolDefinition, ...]:
        found: dict[str, ToolDefinition] = {}
        others: list[Json] = []
        for where, tool in self._given_tools():
            read = self._tool(tool, where)
            if read is None:
                others.append(tool)
                self.losses.parameter(f"the tool of type {tool.get('type')!r}")
            elif read.name not in found:
                found[read.name] = read
            elif read != found[read.name]:
                self.losses.parameter(f"{where}", "another tool has its name")
        if others:
            self.own["tools"] = others
        return tuple(found.values())

    def _given_tools(self) -> list[tuple[str, JsonObject]]:
        if self._legacy:
            functions = a_list(self.body["functions"], "functions")
            return [
                (f"functions[{place}]", {"type": "function", "function": function})
                for place, function in enumerate(functions)
            ]
        given = self.body.get("tools")
        tools = [] if given is None else a_list(given, "tools")
        return [(f"tools[{place}]", an_object(tool, f"tools[{place}]")) for place, tool in enumerate(tools)]

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
        beside = _others(tool, ("type", "function"))
        inside = _others(function, ("name", "description", "parameters", "strict"))
        options: JsonObject = {}
        if beside or inside:
            own: JsonObject = {**beside, **({"function": inside} if inside else {})}
            options[PROTOCOL] = own
        for each in (*beside, *inside):
            if each == MARK:
                self.losses.parameter(MARK, "adapters of other protocols set their own marks")
            else:
                self.losses.parameter(f"{where}.{each}")
        return ToolDefinition(
            name,
            _said(function.get("description")),
            self._tool_schema(function.get("parameters"), f"{where}.function.parameters"),
            strict=function.get("strict") is True,
            provider_options=options,
        )

    def _tool_schema(self, given: Json, where: str) -> JsonObject:
        """The schema of a tool's arguments, with an object at its root."""
        schema = {} if given is None else an_object(given, where)
        if not _COMBINED.isdisjoint(schema):
            return schema
        kind, properties, required = (schema.get(name) for name in ("type", "properties", "required"))
        if kind not in (None, "object") and not (isinstance(kind, list) and "object" in kind):
            self.losses.changed(f"{where} has the type {kind!r}. Arguments are an object, so any is accepted")
            return {"type": "object", "properties": {}}
        known = properties if isinstance(properties, dict) else {}
        schema = {**schema, "type": "object", "properties": known}
        if "required" in schema and not isinstance(required, list):
            del schema["required"]
        elif isinstance(required, list) and any(name not in known for name in required):
            self.losses.changed(f"{where} requires properties that it doesn't define. They aren't required")
            schema["required"] = [name for name in required if name in known]
        return schema

    def _free_form(self, tool: JsonObject, where: str) -> ToolDefinition:
        """A tool with one text as its argument. Both of OpenAI's protocols have it; others get a function."""
        name = self.names.canonical(a_text(tool.get("name"), f"{where}.custom.name"))
        self.free_form.append(name)
        fields: JsonObject = {"type": CUSTOM, **_others(tool, ("name", "description", "format"))}
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
            _said(tool.get("description")),
            {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]},
            provider_options={PROTOCOL: fields, "openai": dict(fields)},
        )

    def _choice(self, tools: tuple[ToolDefinition, ...]) -> tuple[ToolChoice | None, tuple[ToolDefinition, ...]]:
        """The choice, and the tools that it allows."""
        legacy = self._legacy
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
                kept = self._allowed(allowed, tools)
                return self._forced(kept), kept
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
        if "tools" not in self.own:
            raise BadRequest("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
        self._keep("tool_choice", "tool_choice")
        return None

    def _named(self, name: str, tools: tuple[ToolDefinition, ...], field: str) -> ToolChoice:
        named = self.names.canonical(name)
        if all(tool.name != named for tool in tools):
            raise BadRequest(f"Invalid value for '{field}': no tool named '{name}' was specified.", param=field)
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

    # --- Fields without a canonical word ---

    def _keep(self, name: str, lost: str | None) -> None:
        """Keep a field for the protocol. `lost` names what other protocols don't get."""
        self.own[name] = self.body[name]
        if lost is not None:
            self.losses.parameter(lost)

    def _others(self) -> None:
        for name, value in self.body.items():
            if name in _CANONICAL or value is None:
                continue
            if name in _ELSEWHERE:
                for protocol, path in _ELSEWHERE[name].items():
                    _put(self.elsewhere.setdefault(protocol, {}), path, value)
            if name == "n":
                if value != 1:
                    self.losses.parameter("n", "another protocol returns one choice")
                continue
            harmless = name in _HARMLESS or (name in _DEFAULTS and value in _DEFAULTS[name])
            self._keep(name, None if harmless else name)


_COMBINED = frozenset({"anyOf", "oneOf", "allOf", "$ref"})

_CANONICAL = frozenset(
    {
        *("model", "messages", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"),
        *("max_tokens", "max_completion_tokens", "stop", "temperature", "top_p", "frequency_penalty", "seed"),
        *("presence_penalty", "user", "verbosity", "reasoning_effort", "response_format", "stream"),
        *("stream_options", "reasoning", "thinking", "continue_final_message", "add_generation_prompt"),
    }
)
"""The fields that the canonical request has, or that are read elsewhere."""

_HARMLESS = frozenset(
    {
        *("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "usage", "include_reasoning"),
        *_SESSION_FIELDS,
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
"""Values that ask for nothing."""

_ELSEWHERE: Mapping[str, Mapping[str, str]] = {
    "top_k": {"anthropic": "top_k", "gemini": "generationConfig.topK"},
    "service_tier": {"openai": "service_tier"},
    "store": {"openai": "store"},
    "metadata": {"openai": "metadata"},
    "safety_identifier": {"openai": "safety_identifier"},
    "prompt_cache_key": {"openai": "prompt_cache_key"},
    "prompt_cache_retention": {"openai": "prompt_cache_retention"},
}
"""The places of a field in other protocols' bodies."""


def _put(body: JsonObject, path: str, value: Json) -> None:
    *outer, last = path.split(".")
    for name in outer:
        body = cast("JsonObject", body.setdefault(name, {}))
    body[last] = value


def _said(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _others(fields: JsonObject, known: tuple[str, ...]) -> JsonObject:
    return {name: value for name, value in fields.items() if name not in known and value is not None}


def _named_schema(told: JsonObject) -> JsonObject:
    """The schema of the reply. The format's name and description are its title and its description."""
    given = told.get("schema")
    schema: JsonObject = {"type": "object"}
    if given is not None:
        schema = an_object(given, "response_format.json_schema.schema")
    for name, field in (("name", "title"), ("description", "description")):
        value = told.get(name)
        if isinstance(value, str) and value and value != "response" and field not in schema:
            schema = {**schema, field: value}
    return schema


_BUDGETS = ((1024, "low"), (8192, "medium"))
"""The largest numbers of tokens for reasoning, and the efforts that they are."""


def _effort_of_budget(budget: Json) -> str:
    if not isinstance(budget, int | float):
        return "medium"
    return next((effort for most, effort in _BUDGETS if budget <= most), "high")


def _effort_of(reasoning: JsonObject) -> str | None:
    """The effort in OpenRouter's object."""
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
    """The effort in the object of Anthropic, DeepSeek and Z.ai."""
    match thinking.get("type"):
        case "disabled":
            return "none"
        case "enabled" | "adaptive":
            return _effort_of_budget(thinking.get("budget_tokens"))
        case _:
            return None
