"""One reply on its way through a guardrail. Pure: what is asked and what is answered goes in and out as values.

    between blocks    what comes passes as it is
    in a block        text of a guarded kind is held, and its pieces are looked at as they become complete
    over              the message has its end

The message's start is held, too, until something follows it: as long as nothing was delivered, another model may
still answer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Literal, TypeAlias

import msgspec

from callboard.adapters import CanonicalRequest, StreamEvent
from callboard.bus import GuardrailStopped
from callboard.bus.streams.events import MessageComplete, MessageStart, ProviderEvent, TextDelta, ThinkingDelta
from callboard.bus.values.content import ContentBlock, TextBlock, ThinkingBlock
from callboard.bus.values.usage import StopReason

from ..contract import GuardReport, Judged, StoppedAfter
from .windows import TextWindow, Window

GuardedKind: TypeAlias = Literal["text", "thinking"]
"""A kind of text that a guardrail looks at."""

BEFORE_CHARACTERS = 2000
"""The most of the text before a piece that goes with it."""

_BROKEN = (StopReason.CANCELLED, StopReason.ERROR)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of text that is held back until its guardrail has looked at it."""

    text: str
    """The text. With an overlap it begins with the end of the piece before, as that was passed."""
    before: str
    """The text of the same block that has passed, its last 2,000 characters."""
    last: bool
    """Whether the block's text ends here."""
    kind: GuardedKind
    """The kind of the text."""
    block_index: int
    """The place of its block in the reply, from 0."""
    request: CanonicalRequest
    """The request that the reply answers."""


class Stop(msgspec.Struct, frozen=True):
    """The answer of a guardrail that ends the reply here. The piece isn't delivered, and nothing after it."""

    reason: str
    """The reason, for the error and the trace."""


Steps: TypeAlias = Generator[Held, str | Stop, None]


class _Block:
    """The block that is open."""

    def __init__(self, kind: GuardedKind, index: int, window: Window) -> None:
        self.kind: GuardedKind = kind
        self.index = index
        self.window = TextWindow(window)
        self.kept = ""  # of the piece before, to be looked at again
        self.passed: list[str] = []
        self.before = ""  # the end of what has passed
        self.changed = False
        self.signature: str | None = None


class HeldReply:
    """A reply's events, of which the text of some kinds is held.

    Args:
        name: The guardrail's name.
        window: How much is held.
        kinds: The kinds of text.
        request: The request.
        report: Told of each piece that didn't pass as it was.
    """

    def __init__(
        self,
        name: str,
        window: Window,
        kinds: frozenset[GuardedKind],
        request: CanonicalRequest,
        report: GuardReport,
    ) -> None:
        self._name = name
        self._window = window
        self._kinds = kinds
        self._request = request
        self._report = report
        self._message_id = ""
        self._start: MessageStart | None = None
        self._block: _Block | None = None
        self._texts: dict[int, str] = {}  # of the blocks that were held, as they passed
        self._ready: list[StreamEvent] = []

    def take(self) -> list[StreamEvent]:
        """The events that may pass by now."""
        ready, self._ready = self._ready, []
        return ready

    def steps(self, events: Sequence[StreamEvent]) -> Steps:
        """Take events in. Each piece to look at is yielded, and the answer to it sent.

        Raises:
            StoppedAfter: The answer is a Stop. It has what may pass before that.
        """
        for event in events:
            match event:
                case TextDelta() if "text" in self._kinds:
                    yield from self._text("text", event)
                case ThinkingDelta() if "thinking" in self._kinds:
                    yield from self._text("thinking", event)
                case ProviderEvent():
                    pass  # it may say the text that is held
                case MessageStart():
                    self._start, self._message_id = event, event.message_id
                case MessageComplete():
                    if event.stop_reason in _BROKEN:
                        self._drop()
                        if self._start is not None:  # nothing has passed: the call is as if it had said nothing
                            return
                    else:
                        yield from self._close()
                    self._pass(msgspec.structs.replace(event, final_content=self._final(event.final_content)))
                case _:
                    yield from self._close()
                    self._pass(event)

    def _text(self, kind: GuardedKind, event: TextDelta | ThinkingDelta) -> Steps:
        block = self._block
        if block is None or block.index != event.content_block_index or block.kind != kind:
            yield from self._close()
            block = self._block = _Block(kind, event.content_block_index, self._window)
        if isinstance(event, ThinkingDelta) and event.signature is not None:
            block.signature = event.signature
        for piece in block.window.feed(event.text):
            yield from self._judge(block, piece, last=False)

    def _close(self) -> Steps:
        """The open block is over: what is left of it is looked at."""
        block = self._block
        if block is None:
            return
        rest = block.window.rest()
        if rest or block.kept:
            yield from self._judge(block, rest, last=True)
        self._drop()
        if block.signature is not None and not block.changed:
            self._pass(ThinkingDelta("", block.signature, block.index, self._message_id))

    def _drop(self) -> None:
        """The open block is over with what has passed of it."""
        block, self._block = self._block, None
        if block is not None:
            self._texts[block.index] = "".join(block.passed)

    def _judge(self, block: _Block, piece: str, *, last: bool) -> Steps:
        text = block.kept + piece
        held = Held(
            text=text,
            before=block.before,
            last=last,
            kind=block.kind,
            block_index=block.index,
            request=self._request,
        )
        answer = yield held
        if isinstance(answer, Stop):
            self._tell(held, "stopped", 0, answer.reason)
            error = GuardrailStopped(f"guardrail {self._name} stopped the reply: {answer.reason}")
            raise StoppedAfter(self.take(), error)
        if answer != text:
            block.changed = True
            self._tell(held, "changed", len(answer))
        overlap = 0 if last else self._window.overlap
        block.kept = answer[len(answer) - min(overlap, len(answer)) :]
        self._pass_text(block, answer[: len(answer) - len(block.kept)])

    def _pass_text(self, block: _Block, text: str) -> None:
        if text:
            block.passed.append(text)
            block.before = (block.before + text)[-BEFORE_CHARACTERS:]
            kind = TextDelta if block.kind == "text" else ThinkingDelta
            self._pass(kind(text, content_block_index=block.index, message_id=self._message_id))

    def _pass(self, event: StreamEvent) -> None:
        if self._start is not None:
            self._ready.append(self._start)
            self._start = None
        self._ready.append(event)

    def _final(self, content: tuple[ContentBlock, ...]) -> tuple[ContentBlock, ...]:
        """The content with the texts that have passed. Of a text that was changed nothing else of the provider's
        stays, because that might have the text as it was.
        """
        final: list[ContentBlock] = []
        for index, block in enumerate(content):
            text = self._texts.get(index)
            if text is None or not isinstance(block, TextBlock | ThinkingBlock) or block.text == text:
                final.append(block)
            else:
                final.append(type(block)(text))
        return tuple(final)

    def _tell(self, held: Held, action: Literal["changed", "stopped"], passed: int, reason: str = "") -> None:
        self._report(
            Judged(
                guardrail=self._name,
                action=action,
                content_block_index=held.block_index,
                held_characters=len(held.text),
                passed_characters=passed,
                reason=reason,
            )
        )
