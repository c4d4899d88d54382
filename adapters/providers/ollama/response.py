"""Content from lines. A whole reply is a stream of one line.

* Reasoning has its own field. Text and reasoning may close each other.
* A tool call is whole. A reply with tool calls has the stop reason ``tool_use``, although the server reports
  ``stop``.
* Older servers give no stop reason. If the allowed number of tokens was generated, it is ``max_tokens``.
* Zero counts are omitted. If a fully cached prompt's count is missing, as on older servers, it is estimated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CapabilityError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
    StreamError,
    WarningCode,
)
from callboard.bus.values.base import Json
from callboard.bus.values.usage import StopReason, TokenUsage

from ...http.errors import ErrorBody, ErrorType, build_error, read_error_value
from ...replies.assembler import Assembler, fill_usage
from ...replies.block import is_whole, may_become_json
from ...replies.streamed import NdjsonDecoder, NdjsonNormaliser
from ...replies.usage import reported_count
from ...requests.estimate import TokenRates

# --- Fields of `/api/chat` ---

CHAT_PATH = "/api/chat"
TAGS_PATH = "/api/tags"
SHOW_PATH = "/api/show"

NDJSON = "application/x-ndjson"

ABSENT = msgspec.Raw(b"null")
"""The value of a raw field that was not sent, equal to null."""


class WireFunction(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: msgspec.Raw = ABSENT
    """The arguments as an object. Some implementations send JSON text."""


class WireToolCall(msgspec.Struct, gc=False):
    id: Json = None
    """The call's id, from newer servers only."""
    function: WireFunction | None = None


class WireMessage(msgspec.Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[WireToolCall | None] | None = None


class WireReply(msgspec.Struct, gc=False):
    """A whole reply, or a line of a streamed one. Durations are in nanoseconds."""

    model: Json = None
    message: WireMessage | None = None
    done: bool | None = None
    done_reason: Json = None
    error: Json = None
    """The error of a failed request. If it is set, all other fields are missing."""
    total_duration: Json = None
    load_duration: Json = None
    prompt_eval_count: Json = None
    prompt_eval_duration: Json = None
    eval_count: Json = None
    eval_duration: Json = None


METRICS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)
"""The fields of a reply's durations and counts."""

decode_reply = msgspec.json.Decoder(WireReply).decode


# --- Errors of Ollama ---

ERROR_CODES: Mapping[str, ErrorType] = {
    "server_busy": OverloadedError,
    "unsupported": CapabilityError,
    "model_missing": NotFoundError,
    "out_of_memory": ServerError,
    "runner_failed": ServerError,
    "request_canceled": ServerError,
    "context_exceeded": ContextOverflowError,
    "usage_limit": QuotaExceededError,
    "too_many_requests": RateLimitError,
    "unauthorized": AuthError,
    "cloud_disabled": AccessDeniedError,
    "bad_value": InvalidRequestError,
}
"""The exception for each code that `named` adds."""

_SENTENCES: tuple[tuple[str, str], ...] = (
    (r"server busy|maximum pending requests exceeded|server overloaded", "server_busy"),
    (r"does not support (?:chat|tools|thinking|insert|vision|images?|generate|completion)", "unsupported"),
    (r"think value .+ is not supported", "unsupported"),
    (r"model .+ not found|try pulling it first", "model_missing"),
    (r"requires more system memory|out of memory|cudamalloc failed", "out_of_memory"),
    (r"longer than the context length|exceeds the (?:model's maximum )?context length", "context_exceeded"),
    (r"runner process (?:has terminated|no longer running)|timed out waiting for llama runner", "runner_failed"),
    (r"request cancell?ed|context canceled", "request_canceled"),
    (r"reached your .*usage limit", "usage_limit"),
    (r"too many (?:concurrent )?requests", "too_many_requests"),
    (r"^unauthorized", "unauthorized"),
    (r"cloud .*disabled", "cloud_disabled"),
    (r"^invalid |cannot unmarshal|is required", "bad_value"),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), code) for pattern, code in _SENTENCES)

_LASTING = frozenset({"out_of_memory"})
"""Failures that would occur again if the request were repeated on the same machine."""


def named(body: ErrorBody) -> ErrorBody:
    """Add a code to an error with a known message."""
    if body.code or body.type:
        return body
    for pattern, code in _PATTERNS:
        if pattern.search(body.message):
            return msgspec.structs.replace(body, code=code)
    return body


def classify(
    body: ErrorBody, status: int | None, headers: Mapping[str, str], *, provider: str, now_us: int
) -> AdapterError:
    """The AdapterError for an error reply, or for an error inside a stream (`status` is None)."""
    body = named(body)
    error = build_error(
        body,
        status=status,
        headers=headers,
        codes=ERROR_CODES,
        provider=provider,
        now_us=now_us,
    )
    if body.code in _LASTING:
        error.retryable = False
    return error


def error_in_reply(error: Json, provider: str) -> AdapterError:
    return classify(read_error_value({"error": error}), None, {}, provider=provider, now_us=0)


STOP_REASONS: Mapping[str, StopReason] = {"stop": StopReason.END_TURN, "length": StopReason.MAX_TOKENS}
"""Any other reason is ``provider_specific``, such as ``load`` and ``unload`` after an empty request."""

_TEXT = "text"
_THINKING = "thinking"


class ReplyReader:
    """Reads one reply into an assembler, line by line."""

    def __init__(self, assembler: Assembler, rates: TokenRates) -> None:
        self.assembler = assembler
        self.rates = rates
        self._calls = 0
        self._growing: dict[Json, tuple[str, int]] = {}  # calls with partial arguments, by id or index

    def line(self, reply: WireReply) -> bool:
        """Read one line or a whole reply. Return True if it is the last line. Raises AdapterError for an error in
        it.
        """
        assembler = self.assembler
        if reply.error:
            raise error_in_reply(reply.error, assembler.provider)
        if isinstance(reply.model, str) and reply.model:
            assembler.model = reply.model
        message = reply.message
        if message is not None:
            # done first, because it may raise
            calls = [(call, _arguments(call)) for call in message.tool_calls or ()]
            if message.thinking:
                assembler.thinking(_THINKING, message.thinking, implicit_end=True)
            if message.content:
                assembler.text(_TEXT, message.content, implicit_end=True)
            for place, (call, arguments) in enumerate(calls):
                self._call(call, arguments, place)
        if not reply.done:
            return False
        for _, number in self._growing.values():
            assembler.end(("call", number))
        reason = reply.done_reason if isinstance(reply.done_reason, str) and reply.done_reason else None
        assembler.finish(self._stop_reason(reason, reply), reason, self._usage(reply))
        return True

    def _call(self, call: WireToolCall | None, arguments: str, place: int) -> None:
        """Read one call of a line, or more arguments of a partial call."""
        if call is None:
            return
        function = call.function
        if function is None or not function.name:
            self.assembler.warn(WarningCode.NAMELESS_TOOL_CALL, "a tool call without a name was dropped")
            return
        raw: dict[str, Json] = {"id": call.id} if isinstance(call.id, str) and call.id else {}
        name, number = self._growing.get(raw.get("id", place), ("", 0))
        if name != function.name:
            self._calls += 1
            number = self._calls
            self.assembler.tool_start(("call", number), function.name, raw=raw)
        key = ("call", number)
        self.assembler.tool_arguments(key, arguments)
        text = self.assembler.block_text(key)
        if text and not is_whole(text) and may_become_json(text):
            self._growing[raw.get("id", place)] = function.name, number
        else:
            self._growing.pop(raw.get("id", place), None)
            self.assembler.end(key)

    def _stop_reason(self, reason: str | None, reply: WireReply) -> StopReason:
        if reason is None:
            stop = StopReason.MAX_TOKENS if self._reached_limit(reply) else StopReason.END_TURN
        else:
            stop = STOP_REASONS.get(reason, StopReason.PROVIDER_SPECIFIC)
        return StopReason.TOOL_USE if stop is StopReason.END_TURN and self.assembler.has_tool_use else stop

    def _reached_limit(self, reply: WireReply) -> bool:
        request, generated = self.assembler.request, reported_count(reply.eval_count) or None
        return request is not None and generated is not None and generated >= request.max_output_tokens

    def _usage(self, reply: WireReply) -> TokenUsage | None:
        metrics = {name: value for name in METRICS if (value := getattr(reply, name)) is not None}
        return fill_usage(
            self.assembler,
            reported_count(reply.prompt_eval_count) or None,
            reported_count(reply.eval_count) or None,
            self.rates,
            msgspec.json.encode(metrics),
        )


def read_whole(body: bytes, assembler: Assembler, rates: TokenRates) -> None:
    """Feed a whole reply to the assembler and finish it. Some servers stream a reply although streaming was not
    requested.

    Raises AdapterError, or msgspec's decoding errors.
    """
    reader = ReplyReader(assembler, rates)
    try:
        lines = [decode_reply(body)]
    except msgspec.DecodeError:
        decoder = NdjsonDecoder()
        lines = [decode_reply(line) for _, line in decoder.feed(body) + decoder.close()]
    for line in lines:
        if reader.line(line):
            return
    raise StreamError(f"{assembler.provider}: the reply is not done")


def _arguments(call: WireToolCall | None) -> str:
    """A call's arguments as text.

    Raises UnicodeDecodeError, because decoding the line does not check the bytes.
    """
    if call is None or call.function is None:
        return ""
    text = bytes(call.function.arguments)
    if text == b"null":
        return ""
    return str(msgspec.json.decode(text)) if text.startswith(b'"') else text.decode()


class ChatNormaliser(NdjsonNormaliser):
    """Reads a body line by line. A body without a last line was cut off."""

    def __init__(self, assembler: Assembler, rates: TokenRates) -> None:
        super().__init__(assembler)
        self._reader = ReplyReader(assembler, rates)

    def on_event(self, name: bytes, data: bytes) -> None:
        self.finished = self._reader.line(decode_reply(data))

    def on_end(self) -> None:
        raise StreamError(f"{self.assembler.provider}: the stream ended before the reply was complete")
