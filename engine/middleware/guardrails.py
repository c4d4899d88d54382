"""Guardrails: they hold back text of a reply until it is checked. Then they pass it on, change it or stop the
reply.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Generator, Sequence
from functools import partial
from typing import Literal, Self, TypeAlias, cast

import msgspec

from callboard.adapters import CanonicalRequest, StreamEvent
from callboard.bus import GuardrailStopped
from callboard.bus.streams.events import MessageComplete, MessageStart, ProviderEvent, TextDelta, ThinkingDelta
from callboard.bus.values.content import ContentBlock, TextBlock, ThinkingBlock
from callboard.bus.values.usage import StopReason

from .chain import AnyEventFilter, GuardReport, Judged, Middleware, StoppedAfter, is_async

# --- Windows of text ---

Unit: TypeAlias = Literal["characters", "words", "sentences", "block"]

MOST_CHARACTERS = 4000
"""The number of characters after which text is cut if no word or sentence ends in it."""

_WORD = re.compile(r"\S+\s")
_SENTENCE = re.compile(r"[.!?…][\"'”’»)\]]{0,8}\s|[。！？｡][\"'”’」』）]{0,8}(?=.)|\n", re.DOTALL)
_LONGEST_END = 10
"""The maximum length of a sentence's end in characters, including the next character, which confirms the end."""


class Window(msgspec.Struct, frozen=True):
    """The amount of text that is held back until it is checked. Use one of the class methods to make it.

    Raises:
        ValueError: The size is below one, or the overlap is below zero.
    """

    unit: Unit
    """The unit in which the size is counted."""
    size: int = 1
    """The number of units in each piece."""
    overlap: int = 0
    """The number of characters at the end of a piece that are held back and checked again with the next piece."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.overlap < 0:
            raise ValueError("a window needs at least one unit, and an overlap of at least 0 characters")

    @classmethod
    def characters(cls, size: int, *, overlap: int = 0) -> Self:
        """Pieces of a number of characters.

        Args:
            size: The number of new characters in each piece.
            overlap: The number of characters that are checked again with the next piece. A match that is at most
                one character longer than the overlap is always within one piece.
        """
        return cls("characters", size, overlap)

    @classmethod
    def words(cls, size: int, *, overlap: int = 0) -> Self:
        """Pieces of a number of words, each with its trailing white space.

        Args:
            size: The number of words in each piece.
            overlap: The number of characters that are checked again with the next piece.
        """
        return cls("words", size, overlap)

    @classmethod
    def sentences(cls, size: int = 1, *, overlap: int = 0) -> Self:
        """Pieces of a number of sentences.

        A sentence ends with a full stop, a question mark or an exclamation mark before white space, or at the end
        of a line.

        Args:
            size: The number of sentences in each piece.
            overlap: The number of characters that are checked again with the next piece.
        """
        return cls("sentences", size, overlap)

    @classmethod
    def block(cls) -> Self:
        """The whole text of a block: no text is delivered before the end of the block."""
        return cls("block")


class TextWindow:
    def __init__(self, window: Window) -> None:
        self._window = window
        self._text = ""
        self._scanned = 0  # the length of the text that was already searched for ends
        self._counted = 0  # the number of units that have ended
        self._last_end = 0  # the end of the last unit

    def feed(self, text: str) -> list[str]:
        """The pieces that are complete with this fragment."""
        self._text += text
        pieces: list[str] = []
        while (end := self._end()) is not None:
            pieces.append(self._text[:end])
            self._text = self._text[end:]
            self._scanned = self._counted = self._last_end = 0
        return pieces

    def rest(self) -> str:
        """The text that is held back at the end and is not a complete piece."""
        rest, self._text = self._text, ""
        return rest

    def _end(self) -> int | None:
        """The end of the first piece; None if it hasn't arrived."""
        window, text = self._window, self._text
        if window.unit == "block":
            return None
        if window.unit == "characters":
            return window.size if len(text) >= window.size else None
        end = self._end_of_units(_WORD if window.unit == "words" else _SENTENCE)
        if end is None and len(text) < MOST_CHARACTERS:
            return None
        return min(end or MOST_CHARACTERS, MOST_CHARACTERS)

    def _end_of_units(self, ends: re.Pattern[str]) -> int | None:
        start = max(self._last_end, self._scanned - _LONGEST_END)
        for match in ends.finditer(self._text, start):
            self._counted += 1
            self._last_end = match.end()
            if self._counted == self._window.size:
                return self._last_end
        self._scanned = len(self._text)
        return None


# --- One reply in a guardrail ---

GuardedKind: TypeAlias = Literal["text", "thinking"]
"""A kind of text that a guardrail checks."""

BEFORE_CHARACTERS = 2000
"""The maximum number of characters before a piece that its guardrail receives."""

_BROKEN = (StopReason.CANCELLED, StopReason.ERROR)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of text that is held back until its guardrail has checked it."""

    text: str
    """The text. With an overlap, it starts with the end of the previous piece, as that was delivered."""
    before: str
    """The text of the same block that was delivered before, at most its last 2,000 characters."""
    last: bool
    """Whether the block's text ends here."""
    kind: GuardedKind
    """The kind of the text."""
    block_index: int
    """The index of the block in the reply, from 0."""
    request: CanonicalRequest
    """The request that the reply answers."""


class Stop(msgspec.Struct, frozen=True):
    """The answer of a guardrail to end the reply. Neither the piece nor anything after it is delivered."""

    reason: str
    """The reason, for the error and the trace."""


Steps: TypeAlias = Generator[Held, str | Stop, None]


class _Block:
    def __init__(self, kind: GuardedKind, index: int, window: Window) -> None:
        self.kind: GuardedKind = kind
        self.index = index
        self.window = TextWindow(window)
        self.tail = ""  # the end of the previous piece, to be checked again
        self.passed: list[str] = []
        self.before = ""  # the end of the delivered text
        self.changed = False
        self.signature: str | None = None


class HeldReply:
    """The events of a reply, with the text of some kinds held back.

    `report` is called with each piece that was changed or stopped.
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
        self._texts: dict[int, str] = {}  # the delivered texts of the checked blocks
        self._ready: list[StreamEvent] = []

    def take(self) -> list[StreamEvent]:
        ready, self._ready = self._ready, []
        return ready

    def steps(self, events: Sequence[StreamEvent]) -> Steps:
        """Add events. Yields each piece to check, and receives the answer through `send`."""
        for event in events:
            match event:
                case TextDelta() if "text" in self._kinds:
                    yield from self._text("text", event)
                case ThinkingDelta() if "thinking" in self._kinds:
                    yield from self._text("thinking", event)
                case ProviderEvent():
                    pass  # The exception may contain the text that is held back.
                case MessageStart():
                    self._start, self._message_id = event, event.message_id
                case MessageComplete():
                    if event.stop_reason in _BROKEN:
                        self._drop()
                        if self._start is not None:  # No text was delivered, so the reply is treated as empty.
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
        """Check the remaining text of a block at its end."""
        block = self._block
        if block is None:
            return
        rest = block.window.rest()
        if rest or block.tail:
            yield from self._judge(block, rest, last=True)
        self._drop()
        if block.signature is not None and not block.changed:
            self._pass(ThinkingDelta("", block.signature, block.index, self._message_id))

    def _drop(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._texts[block.index] = "".join(block.passed)

    def _judge(self, block: _Block, piece: str, *, last: bool) -> Steps:
        text = block.tail + piece
        passage = Held(
            text=text,
            before=block.before,
            last=last,
            kind=block.kind,
            block_index=block.index,
            request=self._request,
        )
        answer = yield passage
        if isinstance(answer, Stop):
            self._publish(passage, "stopped", 0, answer.reason)
            error = GuardrailStopped(f"guardrail {self._name} stopped the reply: {answer.reason}")
            raise StoppedAfter(self.take(), error)
        if answer != text:
            block.changed = True
            self._publish(passage, "changed", len(answer))
        overlap = 0 if last else self._window.overlap
        block.tail = answer[len(answer) - min(overlap, len(answer)) :]
        self._pass_text(block, answer[: len(answer) - len(block.tail)])

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
        """The content with the delivered texts. If a text was changed, the provider's other data is removed,
        because it might contain the original text.
        """
        final: list[ContentBlock] = []
        for index, block in enumerate(content):
            text = self._texts.get(index)
            if text is None or not isinstance(block, TextBlock | ThinkingBlock) or block.text == text:
                final.append(block)
            else:
                final.append(type(block)(text))
        return tuple(final)

    def _publish(
        self, passage: Held, action: Literal["changed", "stopped"], passed: int, reason: str = ""
    ) -> None:
        self._report(
            Judged(
                guardrail=self._name,
                action=action,
                content_block_index=passage.block_index,
                held_characters=len(passage.text),
                passed_characters=passed,
                reason=reason,
            )
        )


# --- Guardrail ---

Guard: TypeAlias = Callable[[Held], str | Stop] | Callable[[Held], Awaitable[str | Stop]]
"""A function, plain or async, that receives a piece of text and returns the text to deliver, or a `Stop`."""

_TEXT: tuple[GuardedKind, ...] = ("text",)


class Guardrail(Middleware):
    """A guardrail that holds a reply's text back until a function has checked it.

    The stream, the reply, the session's history and captured content only have the text that the function
    returned. Tool calls and other blocks are delivered unchanged, in order. If a reply is cancelled or breaks off,
    its unchecked text is dropped.

    An exception of the function ends the call, and is raised. The provider bills everything that it generated.

    Args:
        check: The function. It may be async, and may call another model. During the check, the reply continues to
            arrive.
        window: The amount of text in each piece. A larger window delays readers more; see `Window`.
        kinds: The kinds of text to check. If reasoning was changed, the reply can't be sent back to a provider
            that requires the original reasoning.
        name: The name in the trace; defaults to the function's.

    Raises:
        ValueError: The kind is unknown.
    """

    def __init__(
        self,
        check: Guard,
        *,
        window: Window | None = None,
        kinds: Collection[GuardedKind] = _TEXT,
        name: str | None = None,
    ) -> None:
        unknown = set(kinds) - {"text", "thinking"}
        if unknown:
            raise ValueError(f"a guardrail checks text and thinking, not {', '.join(sorted(unknown))}")
        self.name = name or str(getattr(check, "__name__", type(check).__name__))
        """The name in the trace."""
        self._check = check
        self._waits = is_async(check)
        self._window = window or Window.sentences()
        self._kinds = frozenset(kinds)

    def guarded(self, request: CanonicalRequest, report: GuardReport) -> AnyEventFilter:
        """A filter for the events of one call.

        Args:
            request: The request.
            report: Called with each piece that was changed or stopped.
        """
        reply = HeldReply(self.name, self._window, self._kinds, request, report)
        if self._waits:
            return partial(_wait_through, reply, cast("Callable[[Held], Awaitable[str | Stop]]", self._check))
        return partial(_through, reply, cast("Callable[[Held], str | Stop]", self._check))


def _through(
    reply: HeldReply, check: Callable[[Held], str | Stop], events: Sequence[StreamEvent]
) -> list[StreamEvent]:
    steps = reply.steps(events)
    try:
        passage = next(steps)
        while True:
            passage = steps.send(check(passage))
    except StopIteration:
        return reply.take()


async def _wait_through(
    reply: HeldReply, check: Callable[[Held], Awaitable[str | Stop]], events: Sequence[StreamEvent]
) -> list[StreamEvent]:
    steps = reply.steps(events)
    try:
        passage = next(steps)
        while True:
            passage = steps.send(await check(passage))
    except StopIteration:
        return reply.take()
