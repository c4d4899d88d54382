"""Events of a log as entries of frames, and back.

    events     TextDelta "He", TextDelta "llo", ToolUseStart …
    entries    Texts "Hello" [2, 3], Whole {…}

Going there and back gives equal events, one for one. Both ways are pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise

from callboard.bus.events.envelope import UnknownEvent
from callboard.bus.streams.events import TextDelta, ThinkingDelta, ToolUseInputDelta, TurnEvent

from .frame import Arguments, Entry, Texts, Thoughts, Whole
from .packed import pack_event, text_bytes, text_of, unpack_event

ENTRY_BYTES = 48
"""What an entry counts for besides its text, towards the size of a frame."""

Chunk = tuple[tuple[Entry, ...], int]
"""The entries of one frame, and the number of their events."""

_Delta = TextDelta | ThinkingDelta | ToolUseInputDelta


def chunks(events: Sequence[TurnEvent], most_bytes: int) -> Iterator[Chunk]:
    """The events in stretches of roughly so many bytes. A larger event is a stretch of its own."""
    entries: list[Entry] = []
    size = count = 0
    for entry, events_in_it, weight in _entries(events, most_bytes):
        if entries and size + weight > most_bytes:
            yield tuple(entries), count
            entries, size, count = [], 0, 0
        entries.append(entry)
        size += weight
        count += events_in_it
    if entries:
        yield tuple(entries), count


def unpacked(entries: Sequence[Entry]) -> list[TurnEvent | UnknownEvent]:
    """The events of entries.

    Raises:
        ValueError: An entry contradicts itself.
    """
    events: list[TurnEvent | UnknownEvent] = []
    for entry in entries:
        match entry:
            case Whole():
                events.append(unpack_event(entry.event))
            case Texts(index=index, message_id=message_id):
                events += (TextDelta(piece, index, message_id) for piece in _pieces(entry))
            case Arguments(tool_use_id=call, index=index, message_id=message_id):
                events += (ToolUseInputDelta(call, piece, index, message_id) for piece in _pieces(entry))
            case Thoughts(index=index, message_id=message_id):
                *unsigned, last = _pieces(entry)
                events += (ThinkingDelta(piece, None, index, message_id) for piece in unsigned)
                events.append(ThinkingDelta(last, entry.signature, index, message_id))
    return events


def count_of(entries: Sequence[Entry]) -> int:
    """The number of events in entries."""
    return sum(1 if isinstance(entry, Whole) else len(entry.lengths) for entry in entries)


def _pieces(entry: Texts | Thoughts | Arguments) -> list[str]:
    text, ends = text_of(entry.text), list(accumulate(entry.lengths, initial=0))
    if len(ends) < 2 or min(entry.lengths) < 0 or ends[-1] != len(text):
        raise ValueError("the lengths of merged deltas don't fit their text")
    return [text[start:end] for start, end in pairwise(ends)]


def _entries(events: Sequence[TurnEvent], most_bytes: int) -> Iterator[tuple[Entry, int, int]]:
    """Entries, each with the number of its events and what it weighs. No run of deltas weighs more than a
    frame."""
    index, total = 0, len(events)
    while index < total:
        event = events[index]
        if isinstance(event, TextDelta | ThinkingDelta | ToolUseInputDelta):
            texts, index = _run(events, index, event, most_bytes - ENTRY_BYTES)
            text = text_bytes("".join(texts))
            entry = _merged(events[index - 1], text, [len(piece) for piece in texts])
            yield entry, len(texts), ENTRY_BYTES + len(text)
        else:
            packed = pack_event(event)
            yield Whole(packed), 1, ENTRY_BYTES + len(packed.json)
            index += 1


def _run(events: Sequence[TurnEvent], start: int, first: _Delta, most: int) -> tuple[list[str], int]:
    """The texts of the deltas that make one entry from there on, and the index behind the last of them."""
    kind, block, message_id = type(first), first.content_block_index, first.message_id
    call = first.tool_use_id if isinstance(first, ToolUseInputDelta) else ""
    texts: list[str] = []
    size, index = 0, start
    for event in islice(events, start, None):
        if type(event) is not kind:
            break
        assert isinstance(event, TextDelta | ThinkingDelta | ToolUseInputDelta)
        if event.content_block_index != block or event.message_id != message_id:
            break
        if isinstance(event, ToolUseInputDelta):
            text = event.partial_json
            if event.tool_use_id != call:
                break
        else:
            text = event.text
        size += len(text)
        if texts and size > most:
            break
        texts.append(text)
        index += 1
        if isinstance(event, ThinkingDelta) and event.signature is not None:
            break
    return texts, index


def _merged(last: TurnEvent, text: bytes, lengths: list[int]) -> Entry:
    """The entry of a run of deltas that ends with this one."""
    match last:
        case ThinkingDelta():
            return Thoughts(text, lengths, last.content_block_index, last.message_id, last.signature)
        case ToolUseInputDelta():
            return Arguments(text, lengths, last.content_block_index, last.message_id, last.tool_use_id)
        case TextDelta():
            return Texts(text, lengths, last.content_block_index, last.message_id)
        case _:
            raise TypeError(f"{type(last).__name__} is no delta")
