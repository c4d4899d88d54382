"""The interface of all client wires, and the code that they share: checks, losses, and names and forms of tools.

A wire is the reverse of an adapter: it reads clients' requests, and writes the replies that their SDKs expect. All
of it is pure functions. The application handles routing, budgets, keys and sessions. The error texts here are
OpenAI's, with the exact wording where programs match it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from callboard.adapters import CallWarning, CanonicalRequest, CanonicalResponse
from callboard.adapters.requests.settings import INPUT
from callboard.bus.errors import WarningCode
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject, ShortRepr
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.usage import StopReason

from ..generation.partial_json import JsonString
from .failures import BadRequest, Failure


class ClientRequest(ShortRepr, frozen=True, kw_only=True):
    """A client's request for one reply."""

    model: str
    """The client's name for the model."""
    request: CanonicalRequest
    """The request in the canonical form. Its `model` is the client's name. Its ids are empty. If the client sets
    no limit, `default_output_limit` is set.
    """
    stream: bool = False
    """Whether the client requested a stream."""
    body: JsonObject = msgspec.field(default_factory=dict)
    """The client's original body, for a provider with the same protocol."""
    headers: Mapping[str, str] = {}
    """The client's headers that concern the request, such as ``anthropic-beta``, in lower case."""
    losses: tuple[CallWarning, ...] = ()
    """The parts without a canonical equivalent. If another wire serves the request, the client gets these
    warnings.
    """
    refers_to: str = ""
    """A field that refers to data stored at the provider, see `WireRequest.refers_to`."""
    session_hint: str | None = None
    """The conversation's id from a header or the metadata of the client; None if the client sent none."""
    tool_names: Mapping[str, str] = {}
    """The client's names of tools, by canonical name, where they differ."""
    options: Mapping[str, Any] = {}
    """Fields that only the wire's own writer needs, such as Chat's `include_usage`."""

    def tool_name(self, name: str) -> str:
        """The client's name of a tool, by its canonical name."""
        return self.tool_names.get(name, name)


class ReplyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a writer needs before the reply starts."""

    id: str
    """The reply's id, without the wire's prefix. A writer adds ``msg_``, ``chatcmpl-`` or ``resp_``."""
    model: str
    """The model's name, as the client requested it."""
    created: int
    """Seconds since the epoch."""
    input_tokens: int = 0
    """An estimate of the prompt's tokens, for wires that send it before the reply ends."""


class StopWords(NamedTuple):
    """A stop reason in the words of each wire. Responses has a status instead."""

    chat: str
    """OpenAI's values, and OpenRouter's ``error``."""
    anthropic: str
    google: str


STOP_WORDS: Mapping[StopReason, StopWords] = {
    StopReason.END_TURN: StopWords("stop", "end_turn", "STOP"),
    StopReason.STOP_SEQUENCE: StopWords("stop", "stop_sequence", "STOP"),
    StopReason.TOOL_USE: StopWords("tool_calls", "tool_use", "STOP"),
    StopReason.MAX_TOKENS: StopWords("length", "max_tokens", "MAX_TOKENS"),
    # the reply is not complete, and not every protocol has a better value
    StopReason.PAUSE_TURN: StopWords("length", "pause_turn", "OTHER"),
    StopReason.CANCELLED: StopWords("length", "max_tokens", "OTHER"),
    StopReason.ERROR: StopWords("error", "max_tokens", "OTHER"),
    StopReason.CONTENT_FILTER: StopWords("content_filter", "refusal", "SAFETY"),
    StopReason.REFUSAL: StopWords("content_filter", "refusal", "SAFETY"),
    StopReason.PROVIDER_SPECIFIC: StopWords("stop", "end_turn", "OTHER"),
}


class ReplyWriter(Protocol):
    """Writes one streamed reply. Each method returns the bytes to send next, which may be empty.

    Call `start` first, then `write` for each event, and at the end `finish` or `fail`.
    """

    def start(self) -> bytes: ...

    def write(self, event: StreamEvent) -> bytes:
        """The bytes for an event of the reply. `MessageStart` and `MessageComplete` are among these events."""
        ...

    def finish(self, response: CanonicalResponse) -> bytes: ...

    def fail(self, failure: Failure) -> bytes:
        """The bytes for the end of a reply that failed after its first byte."""
        ...

    def ping(self) -> bytes:
        """The bytes to keep a waiting connection open; empty if the wire has none."""
        ...


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """The name that a client sends."""
    created: int = 0
    """Seconds since the epoch."""
    owned_by: str = "callboard"
    """The provider."""
    context_tokens: int | None = None
    """The maximum number of tokens of prompt and reply together."""
    output_tokens: int | None = None
    """The maximum number of tokens of a reply."""


def _events_type(_request: ClientRequest) -> str:
    return "text/event-stream; charset=utf-8"


class RequestReader(Protocol):
    def __call__(
        self, body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
    ) -> ClientRequest:
        """Read a request. The names of headers are in lower case. The arguments `model` and `stream`
        are for wires whose path contains them. Raises BadRequest.
        """
        ...


class ClientWire(msgspec.Struct, frozen=True, kw_only=True):
    """The functions of a client wire. Each of the four wires has one, named ``WIRE``."""

    name: str
    """``chat``, ``responses``, ``messages`` or ``gemini``."""
    protocol: str
    """The adapters' name for the protocol: ``openai_compatible``, ``openai``, ``anthropic`` or ``gemini``."""
    read_request: RequestReader
    stream_type: Callable[[ClientRequest], str] = _events_type
    """Returns the content type of a streamed reply."""
    writer: Callable[[ClientRequest, ReplyInfo], ReplyWriter]
    """Makes a writer of the streamed reply to a request."""
    write_reply: Callable[[ClientRequest, ReplyInfo, CanonicalResponse], JsonObject]
    """Makes the body of a reply that is not streamed."""
    write_failure: Callable[[Failure], tuple[int, JsonObject]]
    """Makes the status and the body of a failure before the first byte."""
    write_models: Callable[[Sequence[ListedModel]], JsonObject]
    """Makes the body of a list of models."""
    write_model: Callable[[ListedModel], JsonObject]
    """Makes the body of one model."""
    write_token_count: Callable[[int], JsonObject]
    """Makes the body of a token count."""


# --- Errors with OpenAI's texts ---


def kind_of(value: Json) -> str:
    """The name of a value's type in OpenAI's errors."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def wrong_type(param: str, expected: str, value: Json) -> BadRequest:
    message = f"Invalid type for '{param}': expected {expected}, but got {kind_of(value)} instead."
    return BadRequest(message, param=param, code="invalid_type")


def missing(param: str) -> BadRequest:
    return BadRequest(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def wrong_value(param: str, value: object, allowed: Iterable[str]) -> BadRequest:
    listed = ", ".join(f"'{each}'" for each in allowed)
    message = f"Invalid value: '{str(value)[:100]}'. Supported values are: {listed}."
    return BadRequest(message, param=param, code="invalid_value")


def an_object(value: Json, param: str) -> JsonObject:
    if not isinstance(value, dict):
        raise wrong_type(param, "an object", value)
    return value


def object_in(body: JsonObject, name: str) -> JsonObject:
    value = body.get(name)
    return {} if value is None else an_object(value, name)


def a_list(value: Json, param: str) -> list[Json]:
    if not isinstance(value, list):
        raise wrong_type(param, "an array", value)
    return value


def objects_in(value: Json, param: str) -> Iterator[tuple[JsonObject, str]]:
    """The objects of a list, with their places."""
    for number, item in enumerate(a_list(value, param)):
        yield an_object(item, f"{param}[{number}]"), f"{param}[{number}]"


def a_text(value: Json, param: str) -> str:
    if value is None:
        raise missing(param)
    if not isinstance(value, str):
        raise wrong_type(param, "a string", value)
    return value


def an_integer(value: Json, param: str, *, least: int | None = None) -> int | None:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(param, "an integer", value)
    if least is not None and value < least:
        message = f"Invalid '{param}': integer below minimum value. Expected a value >= {least}, but got {value}"
        raise BadRequest(f"{message} instead.", param=param, code="integer_below_min_value")
    return value


def a_number(value: Json, param: str) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise wrong_type(param, "a decimal", value)


def a_flag(value: Json, param: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise wrong_type(param, "a boolean", value)


def model_of(body: JsonObject, model: str | None = None) -> str:
    """The client's name of the model, from the path or the body."""
    name = body.get("model") if model is None else model
    if name is None or name == "":
        raise BadRequest("you must provide a model parameter", param="model")
    return a_text(name, "model")


def first_text(*values: Json) -> str | None:
    return next((value for value in values if isinstance(value, str) and value), None)


def rest_of(fields: JsonObject, *known: str) -> JsonObject:
    """The fields that were sent besides the known ones."""
    return {name: value for name, value in fields.items() if name not in known and value is not None}


# --- Losses ---


class LossReport:
    """The parts of a request that other protocols don't get. Each kind is reported once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], None] = {}

    def content(self, what: str, why: str = "only this protocol has it") -> None:
        self._add(WarningCode.CONTENT_DROPPED, f"{what} is not sent to another protocol: {why}")

    def parameter(self, what: str, why: str = "only this protocol has it") -> None:
        self._add(WarningCode.PARAMETER_DROPPED, f"{what} is not sent to another protocol: {why}")

    def mark(self, name: str) -> None:
        """Report a prompt cache mark."""
        self.parameter(name, "adapters of other protocols set their own marks")

    def changed(self, message: str) -> None:
        self._add(WarningCode.PARAMETER_CHANGED, message)

    def _add(self, code: WarningCode, message: str) -> None:
        self._found[code, _PLACE.sub("[]", message)] = None

    def __iter__(self) -> Iterator[CallWarning]:
        return (CallWarning(code, message) for code, message in self._found)


_PLACE = re.compile(r"\[\d+\]")


# --- Calls, their arguments, and free-form tools ---


class CallIds:
    """The ids of the calls in a history. They are unique, but some clients use the same id for two calls."""

    def __init__(self) -> None:
        self.latest: dict[str, str] = {}
        """The id of the latest call for each of the client's ids."""
        self._used: set[str] = set()
        self._repeats: dict[str, int] = {}

    def new(self, client_id: str) -> str:
        """The id of a new call: the client's id, with a number if an earlier call has the same id."""
        call_id = client_id
        while call_id in self._used:
            number = self._repeats[client_id] = self._repeats.get(client_id, 1) + 1
            call_id = f"{client_id}_{number}"
        self._used.add(call_id)
        self.latest[client_id] = call_id
        return call_id


class FreeFormReader:
    """Reads the text of a free-form tool's call from the arguments of a function call, as they grow."""

    def __init__(self) -> None:
        self._head = ""
        self._string: JsonString | None = None

    def read(self, fragment: str) -> str:
        """The text in a fragment of arguments; empty if the arguments do not start with the text."""
        string = self._string
        if string is None:
            if len(self._head) > _LONGEST_HEAD:
                return ""
            self._head += fragment
            start = _HEAD.match(self._head)
            if start is None:
                return ""
            string = self._string = JsonString(lenient=True)
            fragment = self._head[start.end() :]
        string.read(fragment, 0)
        return string.take()


_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_LONGEST_HEAD = 200
"""The number of characters within which the text must start. Otherwise the arguments have another form."""


def free_form_text(arguments: JsonObject, unreadable: str | None = None) -> str:
    """The text of a call to a free-form tool. A model without such tools may send malformed arguments."""
    text = arguments.get(INPUT)
    if isinstance(text, str):
        return text
    if unreadable is not None:
        return unreadable
    texts = [value for value in arguments.values() if isinstance(value, str)]
    if len(arguments) == 1 and texts:
        return texts[0]
    return msgspec.json.encode(arguments).decode() if arguments else ""


def free_form_schema(format: Json) -> JsonObject:
    """The schema of a function that replaces a free-form tool. Its only argument is the text, and the description
    has the grammar.
    """
    description = "The text for the tool, unquoted and unescaped apart from JSON's own escapes."
    match format:
        case {"grammar": dict(inner)}:  # the form of Chat Completions
            return free_form_schema(inner)
        case {"syntax": str(syntax), "definition": str(definition)}:
            description = f"{description} It must match this {syntax} grammar:\n{definition}"
        case _:
            pass
    properties: JsonObject = {INPUT: {"type": "string", "description": description}}
    return {"type": "object", "properties": properties, "required": [INPUT], "additionalProperties": False}


def arguments_of(block: ToolUseBlock) -> str:
    """The arguments of a call: the model's own text. If there is none, their JSON encoding."""
    if block.raw_arguments is not None:
        return block.raw_arguments
    return msgspec.json.encode(block.input).decode()


def object_schema(declared: Json) -> JsonObject:
    """Convert the schema of a tool's arguments to a form that `ToolDefinition` accepts.

    A required property without a definition may have any value.
    """
    if not isinstance(declared, dict):
        return {"type": "object", "properties": {}}
    if not _COMBINED.isdisjoint(declared):
        return declared
    properties, required = declared.get("properties"), declared.get("required")
    by_name = properties if isinstance(properties, dict) else {}
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    schema: JsonObject = {**declared, "type": "object"}
    if "properties" in schema or names:
        schema["properties"] = {**by_name, **{name: {} for name in names if name not in by_name}}
    if "required" in schema:
        schema["required"] = list[Json](names)
    return schema


def fitting_schema(schema: JsonObject) -> JsonObject:
    """A schema of arguments that `ToolDefinition` accepts: required properties without a definition are left out.

    A valid schema is returned unchanged.
    """
    if not _COMBINED.isdisjoint(schema):
        return schema
    properties, needed = schema.get("properties"), schema.get("required")
    by_name = properties if isinstance(properties, dict) else {}
    changed: JsonObject = {}
    if schema.get("type") != "object":
        changed["type"] = "object"
    if isinstance(needed, list) and any(not isinstance(name, str) or name not in by_name for name in needed):
        changed["required"] = [name for name in needed if isinstance(name, str) and name in by_name]
    return {**schema, **changed} if changed else schema


_COMBINED = frozenset({"anyOf", "oneOf", "allOf", "$ref"})


# --- Names of tools ---

_VALID = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class ToolNames:
    """Maps clients' tool names one to one to names that every provider accepts."""

    def __init__(self) -> None:
        self._canonical: dict[str, str] = {}
        self._used: set[str] = set()

    def canonical(self, name: str) -> str:
        """The name for providers. It is the client's name if that is valid."""
        tool_name = self._canonical.get(name)
        if tool_name is None:
            tool_name = self._free(name)
            self._canonical[name] = tool_name
            self._used.add(tool_name)
        return tool_name

    def _free(self, name: str) -> str:
        valid = name if _VALID.fullmatch(name) else _plain_name(name, "t")
        valid = valid if len(valid) <= 64 else _with_digest(valid, name)
        number = 0
        while valid in self._used:
            number += 1
            valid = _with_digest(valid, f"{name} {number}")
        return valid

    @property
    def changed(self) -> dict[str, str]:
        """The clients' names, by canonical name, where they differ."""
        return {canonical: name for name, canonical in self._canonical.items() if name != canonical}


def legal_name(name: str, start: str = "t") -> str:
    """A tool name that every provider accepts: the client's name, or a changed one that is always the same. If the
    name does not start with a letter, `start` is put before it.
    """
    return name if _VALID.fullmatch(name) else _with_digest(_plain_name(name, start), name)


def _plain_name(name: str, start: str) -> str:
    plain = re.sub("[^A-Za-z0-9_-]", "_", name)
    return plain if plain[:1].isalpha() else f"{start}{plain}"


def _with_digest(valid: str, name: str) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{valid[:55]}_{digest[:8]}"
