"""From lines to content. One reader serves whole replies and streams, because a whole reply is a stream of one
line.

* Reasoning has a field of its own. Text and reasoning may close each other.
* A tool call comes whole, with its arguments. A reply with tool calls has the stop reason of tool calls, although
  the server says ``stop``.
* Older servers give no stop reason. The limit is then the reason if as many tokens as were allowed were generated.
* Counts of zero are left out. A prompt of zero tokens can't be. Older servers leave out the count when the whole
  prompt was in their cache. An estimate then takes its place, and the usage says so.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.json_text import is_whole, may_become_json
from callboard.adapters.replies.ndjson import NdjsonDecoder
from callboard.adapters.usage.counts import reported_count
from callboard.adapters.usage.partial import fill_usage
from callboard.adapters.usage.rates import TokenRates
from callboard.bus.errors import StreamError
from callboard.bus.values.json import Json
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.bus.values.warning_codes import WarningCode

from .errors import error_in_reply
from .wire import METRICS, WireReply, WireToolCall, decode_reply

STOP_REASONS: Mapping[str, StopReason] = {"stop": StopReason.END_TURN, "length": StopReason.MAX_TOKENS}
"""By `done_reason`; any other is ``provider_specific``, such as ``load`` and ``unload``, after which nothing was
said: they answer an empty request."""

_TEXT = "text"
_THINKING = "thinking"


class ReplyReader:
    """Reads one reply into an assembler, line by line."""

    def __init__(self, assembler: Assembler, rates: TokenRates) -> None:
        self.assembler = assembler
        self.rates = rates
        self._calls = 0
        self._growing: dict[Json, tuple[str, int]] = {}  # calls with a part of their arguments, by id or place

    def line(self, reply: WireReply) -> bool:
        """One line, or a whole reply; True if it is the last. Raises AdapterError for an error that it carries."""
        assembler = self.assembler
        if reply.error:
            raise error_in_reply(reply.error, assembler.provider)
        if isinstance(reply.model, str) and reply.model:
            assembler.model = reply.model
        message = reply.message
        if message is not None:
            calls = [(call, _arguments(call)) for call in message.tool_calls or ()]  # which may raise, so first
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
        """One call of a line, or more of the arguments of a call that had only a part of them."""
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
    """Feed a whole reply to the assembler and finish it; also one that was streamed without having been asked.

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
    """A call's arguments as text. Raises UnicodeDecodeError, which decoding the line does not."""
    if call is None or call.function is None:
        return ""
    text = bytes(call.function.arguments)
    if text == b"null":
        return ""
    return str(msgspec.json.decode(text)) if text.startswith(b'"') else text.decode()
