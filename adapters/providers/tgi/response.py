"""Text from tokens. One reader serves whole replies and streams.

Special tokens are dropped. The stop sequence that ended a reply is cut off. The template's own means a regular
end. A reply without details has no finish reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from callboard.bus.errors import AdapterError, InvalidRequestError, OverloadedError, ServerError, StreamError
from callboard.bus.values.base import Json
from callboard.bus.values.usage import StopReason, TokenUsage

from ...refusals.classify import ErrorBody, ErrorType, build_error, error_type, read_error, read_error_value
from ...replies.assembler import Assembler
from ...replies.normaliser import SseNormaliser
from ...usage.counts import fill_usage, reported_count
from ...usage.estimate import TokenRates
from .request import PromptTemplate, WireDetails, WireReply, decode_list, decode_piece


class StopTrimmer:
    """Trims stop sequences from text in pieces. A possible start of one is held."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""

    def feed(self, text: str) -> str:
        text = self._held + text
        cut = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - cut :]
        return text[: len(text) - cut]

    def finish(self, *, stopped: bool) -> tuple[str, str | None]:
        held, self._held = self._held, ""
        if stopped:
            for stop in sorted(self._stops, key=len, reverse=True):
                if held.endswith(stop):
                    return held.removesuffix(stop), stop
        return held, None


def _overlap(text: str, stop: str) -> int:
    """The number of characters at the end of a text that may start or be a stop sequence."""
    return next((size for size in range(min(len(stop), len(text)), 0, -1) if stop.startswith(text[-size:])), 0)


ERROR_CODES: Mapping[str, ErrorType] = {
    "overloaded": OverloadedError,
    "generation": ServerError,
    "incomplete_generation": ServerError,
    "incomplete_generation_stream": ServerError,
    "unhealthy": ServerError,
    "template_error": InvalidRequestError,
    "tool_error": InvalidRequestError,
    "missing_template_vertices": InvalidRequestError,
}
"""By `error_type`. ``validation`` is missing: a prompt that is too long has that type too."""

_VALIDATION = "validation"
_VALIDATION_STATUS = 422


def classify(
    body: ErrorBody, status: int | None, headers: Mapping[str, str], *, provider: str, now_us: int
) -> AdapterError:
    """The AdapterError for an error reply, or for an error inside a stream (`status` is None)."""
    codes = dict(ERROR_CODES)
    if body.type == _VALIDATION:
        codes[_VALIDATION] = error_type(msgspec.structs.replace(body, type=""), _VALIDATION_STATUS, {})
    return build_error(
        body,
        status=status,
        headers=headers,
        codes=codes,
        provider=provider,
        now_us=now_us,
    )


def loading_seconds(value: Json) -> float | None:
    """Seconds that a model may take to load, as hosted inference reports with a 503."""
    seconds = value.get("estimated_time") if isinstance(value, dict) else None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        return None
    return float(seconds)


STOP_REASONS: Mapping[str, StopReason] = {
    "eos_token": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
}
"""By `finish_reason`; any other, and none, is ``provider_specific``."""

_TEXT = "text"


class ReplyReader:
    """Reads one reply into an assembler."""

    def __init__(
        self,
        assembler: Assembler,
        template: PromptTemplate,
        stops: Sequence[str],
        rates: TokenRates,
    ) -> None:
        self.assembler = assembler
        self.template = template
        self.rates = rates
        self._trimmer = StopTrimmer(stops)
        self._at_start = template.strip
        self._spoke = False

    def piece(self, reply: WireReply) -> bool:
        """Read one token or a whole reply; True if it is the last. Raises AdapterError for an error in it."""
        if reply.error is not None:
            body = read_error_value({"error": reply.error, "error_type": reply.error_type})
            raise classify(body, None, {}, provider=self.assembler.provider, now_us=0)
        token = reply.token
        if token is not None and token.text and not token.special:
            self._say(token.text)
        if reply.generated_text is None and reply.details is None:
            return False
        if reply.generated_text and not self._spoke:
            self._say(reply.generated_text)
        self._finish(reply.details)
        return True

    def _say(self, text: str) -> None:
        self._spoke = True
        self._show(self._trimmer.feed(text))

    def _show(self, text: str) -> None:
        if self._at_start:
            text = text.lstrip()
            self._at_start = not text
        self.assembler.text(_TEXT, text, implicit_end=True)

    def _finish(self, details: WireDetails | None) -> None:
        found = details.finish_reason if details is not None else None
        reason = found if isinstance(found, str) and found else None
        rest, stop = self._trimmer.finish(stopped=reason in (None, "stop_sequence"))
        self._show(rest)
        stop_reason = STOP_REASONS.get(reason or "", StopReason.PROVIDER_SPECIFIC)
        if stop is not None:
            stop_reason = StopReason.END_TURN if stop in self.template.stop else StopReason.STOP_SEQUENCE
        elif reason is None:
            self.assembler.end_unsaid()
        self.assembler.finish(stop_reason, reason, self._usage(details))

    def _usage(self, details: WireDetails | None) -> TokenUsage | None:
        if details is None:
            details = WireDetails()
        said = self.assembler.usage.input_tokens if self.assembler.usage is not None else None
        prompt = reported_count(details.input_length) or len(details.prefill or ()) or said
        generated = reported_count(details.generated_tokens) or None
        raw = msgspec.json.encode({"input_length": prompt, "generated_tokens": generated})
        return fill_usage(self.assembler, prompt, generated, self.rates, raw)


def read_whole(body: bytes, reader: ReplyReader) -> None:
    """Feed a whole reply to the assembler and finish it. Raises AdapterError, or msgspec's decoding errors."""
    replies = decode_list(body) if body.lstrip().startswith(b"[") else [decode_piece(body)]
    for reply in replies:
        if reader.piece(reply):
            return
    raise StreamError(f"{reader.assembler.provider}: the reply holds no generated text")


class TokenNormaliser(SseNormaliser):
    """Reads a body. Without a last event it was cut off, because there is no other end mark."""

    def __init__(self, reader: ReplyReader) -> None:
        super().__init__(reader.assembler)
        self._reader = reader

    def on_event(self, name: bytes, data: bytes) -> None:
        if name == b"error":
            raise classify(read_error(data), None, {}, provider=self.assembler.provider, now_us=0)
        self.finished = self._reader.piece(decode_piece(data))
