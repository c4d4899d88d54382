"""From tokens to text. One reader serves whole replies and streams.

Special tokens are left out of the text. The stop sequence that ended a reply is cut off. If that sequence was the
template's own, the model had simply finished. A reply without details has no finish reason, and none is made up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from callboard.adapters.refusals.classify import read_error_value
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.usage.counts import reported_count
from callboard.adapters.usage.partial import fill_usage
from callboard.adapters.usage.rates import TokenRates
from callboard.bus.errors import StreamError
from callboard.bus.values.usage import StopReason, TokenUsage

from .errors import classify
from .prompt import PromptTemplate
from .stops import StopTrimmer
from .wire import WireDetails, WireReply, decode_list, decode_piece

STOP_REASONS: Mapping[str, StopReason] = {
    "eos_token": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
}
"""By `finish_reason`; any other, and none, is ``provider_specific``."""

_TEXT = "text"


class ReplyReader:
    """Reads one reply into an assembler.

    Args:
        assembler: The assembler. Its `usage` has what the head of the reply said.
        template: The template of the prompt.
        stops: All stop sequences that were sent.
        rates: The rates by which tokens are estimated.
    """

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
        """One token, or a whole reply; True if it is the last. Raises AdapterError for an error in it."""
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
