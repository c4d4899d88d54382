"""Events of a streamed reply, as every adapter emits them.

* `MessageStart` is first, `MessageComplete` is last, and there is exactly one of each.
* The events of a block are contiguous, and `content_block_index` never decreases.
* A tool call is one `ToolUseStart`, any number of `ToolUseInputDelta`, exactly one `ToolUseEnd`.
* `partial_json` is the provider's fragment, byte for byte; `final_input` is always a JSON object.
* `MessageComplete.final_content` is the sum of the deltas.

A call that fails or is cancelled after its first event still emits `MessageComplete`, then raises its exception.
The stop reason is then ``error`` or ``cancelled``. `fold` and `coalesce` shorten a stream without losing content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec

from ..events.calls import ToolFinished, ToolProgress, ToolStarted
from ..events.sessions import TurnStatus
from ..values.base import Json, JsonObject
from ..values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
)
from ..values.messages import CallWarning
from ..values.usage import Cost, StopReason, TokenUsage


class MessageStart(msgspec.Struct, frozen=True, gc=False, tag="message.start"):
    """The start of the reply."""

    message_id: str = ""
    """Callboard's id of the message that all events of the reply belong to."""
    model: str = ""
    """The model that serves the call, as the provider names it."""
    provider: str = ""
    """The adapter's name."""
    warnings: tuple[CallWarning, ...] = ()
    """The warnings known when the call was sent, such as history that this model cannot accept.

    The response has all warnings.
    """
    type: ClassVar[str] = "message.start"


class TextDelta(msgspec.Struct, frozen=True, gc=False, tag="text.delta"):
    """The next piece of a text block."""

    text: str
    """The new text."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "text.delta"

    @property
    def segment_id(self) -> str:
        """The id of its block, the same for all deltas of the block."""
        return f"{self.message_id}:{self.content_block_index}"


class ThinkingDelta(msgspec.Struct, frozen=True, gc=False, tag="thinking.delta"):
    """The next piece of a reasoning block."""

    text: str
    """The new reasoning."""
    signature: str | None = None
    """The provider's signature, on the block's last delta, if the provider signs."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "thinking.delta"

    @property
    def segment_id(self) -> str:
        """The id of its block, the same for all deltas of the block."""
        return f"{self.message_id}:{self.content_block_index}"


class ToolUseStart(msgspec.Struct, frozen=True, gc=False, tag="tool.use_start"):
    """The start of a tool call."""

    tool_use_id: str
    """Callboard's id of the call, the same as in the final ToolUseBlock."""
    tool_name: str
    """The tool's name."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "tool.use_start"


class ToolUseInputDelta(msgspec.Struct, frozen=True, gc=False, tag="tool.use_input_delta"):
    """The next piece of a call's arguments."""

    tool_use_id: str
    """Callboard's id of the call."""
    partial_json: str
    """A literal fragment of JSON text."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "tool.use_input_delta"


class ToolUseEnd(msgspec.Struct, frozen=True, gc=False, tag="tool.use_end"):
    """The end of a tool call's arguments, complete or cut off.

    Wait for `MessageComplete` before you run the call. If the reply failed or was cut off, `MessageComplete` marks
    the call as incomplete.
    """

    tool_use_id: str
    """Callboard's id of the call."""
    final_input: JsonObject
    """The arguments of the call; an empty object if they are not a JSON object."""
    incomplete: bool = False
    """Whether the call was cut off. Never run it then."""
    content_block_index: int = 0
    """The place of its block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "tool.use_end"


class ProviderBlock(msgspec.Struct, frozen=True, gc=False, tag="provider.block"):
    """A whole block of a kind without an event class, such as redacted thinking."""

    kind: str
    """The provider's name for the block."""
    raw: Json
    """The block as the provider sent it."""
    content_block_index: int = 0
    """The place of the block in the reply, from 0."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "provider.block"


class ProviderEvent(msgspec.Struct, frozen=True, gc=False, tag="provider.event"):
    """Data outside the content: the progress of the provider's tools, a partial image, an event of an unknown
    kind.

    The event may occur anywhere in a message. Only live readers get it, because folding a stream drops it.
    """

    kind: str
    """The provider's name for the event."""
    raw: Json
    """The event as the provider sent it."""
    message_id: str = ""
    """The id of the reply's message."""
    content_block_index: int | None = None
    """The index of the event's content block, from 0. An adapter's stream has None, because it reports whole
    blocks as `ProviderBlock`. A view of `stream()` may have an index.
    """
    type: ClassVar[str] = "provider.event"


class MessageComplete(msgspec.Struct, frozen=True, gc=False, tag="message.complete"):
    """The end of the reply."""

    final_content: tuple[ContentBlock, ...]
    """All content of the reply."""
    stop_reason: StopReason
    """How the reply ended."""
    raw_stop_reason: str | None
    """The provider's own stop reason; None if it gave none, for example after a stop by Callboard."""
    usage: TokenUsage
    """The tokens that the reply used."""
    message_id: str = ""
    """The id of the reply's message."""
    type: ClassVar[str] = "message.complete"


class StepFinish(msgspec.Struct, frozen=True, gc=False, tag="step.finish"):
    """The end of one call of a turn and of the tools that it requested."""

    step: int
    """The number of the step in the turn, from 0."""
    stop_reason: StopReason
    """How the reply ended."""
    usage: TokenUsage
    """The tokens of the call."""
    cost: Cost | None = None
    """The cost of the call."""
    message_id: str = ""
    """The id of the call's message."""
    type: ClassVar[str] = "step.finish"


class TurnComplete(msgspec.Struct, frozen=True, gc=False, tag="turn.complete"):
    """The last event of a turn's stream."""

    status: TurnStatus
    """How the turn ended, as `TurnStatus` lists the values."""
    error: str | None = None
    """The type and text of the exception that a failed or cancelled turn raised."""
    type: ClassVar[str] = "turn.complete"


class UserMessage(msgspec.Struct, frozen=True, gc=False, tag="user.message"):
    """A user message that steers a turn in progress. The model gets it before its next reply."""

    content: tuple[ContentBlock, ...]
    """The content of the message."""
    message_id: str = ""
    """Callboard's id of the message."""
    type: ClassVar[str] = "user.message"


StreamEvent: TypeAlias = (
    MessageStart
    | TextDelta
    | ThinkingDelta
    | ToolUseStart
    | ToolUseInputDelta
    | ToolUseEnd
    | ProviderBlock
    | ProviderEvent
    | MessageComplete
)
"""An event of a reply."""

TurnEvent: TypeAlias = (
    StreamEvent | UserMessage | ToolStarted | ToolProgress | ToolFinished | StepFinish | TurnComplete
)
"""An event of a turn: the events of each message, tools, steps and steering, and one TurnComplete last."""


MERGE_LIMIT = 16 * 1024
"""The largest number of characters in a merged delta."""

_EVENT_BYTES = 160
"""The bytes of an event without its text: the object, the string's header, and the list entry."""


def coalesce(events: Sequence[object], first_seq: int) -> tuple[list[object], list[int]]:
    """Merge adjacent text and thinking deltas."""
    merged: list[object] = []
    seqs: list[int] = []
    run: list[TextDelta | ThinkingDelta] = []
    length = 0

    def end_run() -> None:
        nonlocal length
        if run:
            merged.append(_join(run))
            run.clear()
            length = 0

    for seq, event in enumerate(events, first_seq):
        if not isinstance(event, (TextDelta, ThinkingDelta)):
            end_run()
            merged.append(event)
            seqs.append(seq)
            continue
        if run and (length + len(event.text) > MERGE_LIMIT or not _continues(run[-1], event)):
            end_run()
        if run:
            seqs[-1] = seq
        else:
            seqs.append(seq)
        run.append(event)
        length += len(event.text)
    end_run()
    return merged, seqs


def fold(events: Iterable[object]) -> tuple[object, ...]:
    """Merge events into the smallest number of events with the same content.

    A finished message becomes its MessageStart and its MessageComplete. In an unfinished message, the deltas of
    each block are joined. `ProviderEvent` values are dropped.
    """
    folded: list[object] = []
    message_at: int | None = None  # where the unfinished message starts in `folded`
    run: list[TextDelta | ThinkingDelta | ToolUseInputDelta] = []
    for event in events:
        if isinstance(event, (TextDelta, ThinkingDelta, ToolUseInputDelta)):
            if run and not _continues(run[-1], event):
                folded.append(_join(run))
                run.clear()
            run.append(event)
            continue
        if isinstance(event, ProviderEvent):
            continue
        if run:
            folded.append(_join(run))
            run.clear()
        if isinstance(event, MessageStart):
            message_at = len(folded)
        elif isinstance(event, MessageComplete) and message_at is not None:
            del folded[message_at + 1 :]
            message_at = None
        folded.append(event)
    if run:
        folded.append(_join(run))
    return tuple(folded)


def weigh(event: object) -> int:
    """Return the approximate memory of an event in bytes."""
    beyond = _BEYOND.get(type(event))
    return _EVENT_BYTES if beyond is None else _EVENT_BYTES + beyond(event)


def weigh_all(events: Iterable[object]) -> int:
    """The sum of `weigh`, fast for text deltas."""
    total, beyond_of = 0, _BEYOND.get
    for event in events:
        total += _EVENT_BYTES
        if type(event) is TextDelta:
            total += len(event.text)
        elif (beyond := beyond_of(type(event))) is not None:
            total += beyond(event)
    return total


def weigh_content(content: Iterable[object]) -> int:
    """Return the approximate memory of a message's blocks in bytes, in constant time for each block."""
    return sum(map(_weigh_block, content))


def _weigh_block(block: object) -> int:
    match block:
        case TextBlock() | ThinkingBlock():
            return _EVENT_BYTES + len(block.text)
        case ImageBlock() | AudioBlock() | DocumentBlock():
            return _EVENT_BYTES + len(block.data or b"") + len(block.url or "")
        case ToolResultBlock():
            return _EVENT_BYTES + len(block.text)
        case _:
            return 2 * _EVENT_BYTES


def _weigh_json(value: object) -> int:
    if isinstance(value, str):
        return 50 + len(value)
    if isinstance(value, dict):
        return 64 + sum(_weigh_json(key) + _weigh_json(item) for key, item in value.items())
    if isinstance(value, list):
        return 64 + sum(_weigh_json(item) for item in value)
    return 32


_BEYOND: dict[type, Callable[[Any], int]] = {
    TextDelta: lambda event: len(event.text),
    ThinkingDelta: lambda event: len(event.text),
    ToolUseInputDelta: lambda event: len(event.partial_json),
    ToolUseEnd: lambda event: _weigh_json(event.final_input),
    ProviderBlock: lambda event: _weigh_json(event.raw),
    ProviderEvent: lambda event: _weigh_json(event.raw),
    MessageComplete: lambda event: weigh_content(event.final_content),
}
"""Functions that return an event's bytes beyond the object itself, by type. A table is fast: every event of a
closing log is weighed.
"""

_Delta = TextDelta | ThinkingDelta | ToolUseInputDelta


def _same_block(first: _Delta, second: _Delta) -> bool:
    return first.content_block_index == second.content_block_index and first.message_id == second.message_id


def _continues(first: _Delta, second: _Delta) -> bool:
    if type(first) is not type(second) or not _same_block(first, second):
        return False
    return not (isinstance(first, ThinkingDelta) and first.signature is not None)


def _join(run: Sequence[_Delta]) -> _Delta:
    first, last = run[0], run[-1]
    if len(run) == 1:
        return first
    index, message_id = first.content_block_index, first.message_id
    if isinstance(last, ToolUseInputDelta):
        fragments = (delta.partial_json for delta in run if isinstance(delta, ToolUseInputDelta))
        return ToolUseInputDelta(last.tool_use_id, "".join(fragments), index, message_id)
    text = "".join(delta.text for delta in run if not isinstance(delta, ToolUseInputDelta))
    if isinstance(last, ThinkingDelta):
        return ThinkingDelta(text, last.signature, index, message_id)
    return TextDelta(text, index, message_id)
