"""Reads requests of Chat Completions. Pure.

If a field has no canonical equivalent, it is stored in the protocol's `provider_options` and listed among the
losses.
"""

from __future__ import annotations

from collections.abc import Mapping

from callboard.adapters import CanonicalRequest
from callboard.adapters.requests.settings import EFFORTS, merge_options
from callboard.bus.values.base import Json, JsonObject

from .chat_messages import read_messages
from .chat_reasoning import PROTOCOL
from .chat_tools import ReadTools, read_tools
from .reading import LossReport, ToolNames, a_list, a_text, an_integer, an_object, missing, wrong_type
from .wire import BadRequest, ClientRequest

DEFAULT_OUTPUT_TOKENS = 16_384
"""The reply's limit in tokens, if the client sets none."""

INCLUDE_USAGE = "include_usage"
"""Whether the stream ends in a chunk with the usage."""
TOOL_NAMES = "tool_names"
"""The client's tool names, by canonical name, where they differ."""
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
    """Read a request.

    Raises:
        BadRequest: The request can't be read. The error's text and code are OpenAI's.
    """
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
        name = body.get("model") if model is None else model
        if name is None or name == "":
            raise BadRequest("you must provide a model parameter", param="model")
        name = a_text(name, "model")
        tool_set = read_tools(body, self.names, self.losses)
        self.protocol_fields |= tool_set.protocol_fields
        history = read_messages(body.get("messages"), self.names, self.losses)
        limit, effort, schema = self._limit(), self._effort(), self._schema()
        self._others(has_tools=bool(tool_set.tools))
        options = {PROTOCOL: self.protocol_fields} if self.protocol_fields else {}
        request = CanonicalRequest(
            request_id="",
            model=name,
            messages=history.messages,
            system_prompt=history.system_prompt,
            has_beginning=history.has_beginning or body.get("continue_final_message") is True,
            tools=tool_set.tools,
            tool_choice=tool_set.choice,
            parallel_tool_calls=False if tool_set.legacy else self._flag("parallel_tool_calls"),
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
            options=self._options(tool_set),
        )

    def _options(self, tools: ReadTools) -> dict[str, Json]:
        stream_options = self.body.get("stream_options")
        options: dict[str, Json] = {}
        if stream_options is not None and an_object(stream_options, "stream_options").get("include_usage") is True:
            options[INCLUDE_USAGE] = True
        if self.names.changed:
            options[TOOL_NAMES] = self.names.changed
        if tools.free_form:
            options[FREE_FORM_TOOLS] = tools.free_form
        if tools.legacy:
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
        reasoning, thinking = self.body.get("reasoning"), self.body.get("thinking")
        if reasoning is not None:
            reasoning = an_object(reasoning, "reasoning")
            read = _effort_of(reasoning)
            self._keep(
                "reasoning", "reasoning" if read is None and reasoning else self._beyond(reasoning, "effort")
            )
            effort = effort or read
        if thinking is not None:
            thinking = an_object(thinking, "thinking")
            read = _effort_of_thinking(thinking)
            self._keep("thinking", "thinking" if read is None and thinking else self._beyond(thinking, "type"))
            effort = effort or read
        return effort

    def _beyond(self, settings: JsonObject, word: str) -> str | None:
        """The names of the other fields in an object of reasoning settings."""
        beyond = [name for name, value in settings.items() if name not in (word, "enabled") and value is not None]
        return f"{', '.join(beyond)} of the reasoning's settings" if beyond else None

    def _session(self) -> str | None:
        value = self.body.get("metadata")
        metadata = value if isinstance(value, dict) else {}
        found = (
            *(self.headers.get(name) for name in _SESSION_HEADERS),
            *(self.body.get(name) for name in _SESSION_FIELDS),
            *(metadata.get(name) for name in _SESSION_FIELDS),
            self.body.get("prompt_cache_key"),
        )
        return next((each for each in found if isinstance(each, str) and each), None)

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
    """The search tool of each protocol."""
    location: JsonObject = {}
    match options.get("user_location"):
        case {"approximate": dict(place)}:
            location["user_location"] = {"type": "approximate", **place}
        case _:
            pass
    size: JsonObject = {name: options[name] for name in ("search_context_size",) if options.get(name) is not None}
    return {
        "openai": {"tools": [{"type": "web_search", **location, **size}]},
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


def _effort_of(reasoning: JsonObject) -> str | None:
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
