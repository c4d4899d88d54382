"""The frames of streams at the broker: their subjects, their encoding, and the requests of nodes about streams.

callboard.CLUSTER.streams.SESSION.STREAM    frames, which the broker stores for some minutes
callboard.CLUSTER.mirrors.NODE.STREAM       frames that one node has requested
callboard.CLUSTER.ask.NODE.STREAM           requests to a node; if NODE is ``-``, to all nodes
callboard.CLUSTER.wanted.NODE               a notice that another node waits for a session of NODE
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import Any, TypeAlias, TypeVar

import msgspec

from callboard.bus import Message, TurnStatus
from callboard.bus.events import UnknownEvent
from callboard.bus.streams.events import (
    MessageComplete,
    StepFinish,
    TextDelta,
    ThinkingDelta,
    ToolUseInputDelta,
    TurnEvent,
)
from callboard.bus.values.usage import TokenUsage

T = TypeVar("T")

# --- Subjects ---

ANY = "-"
"""The token for any node, or for no session."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def token(name: str) -> str:
    """Encode a name as one token of a subject. Different names have different tokens, and none equals `ANY`."""
    if not name:
        return ANY
    return "".join(
        sign if sign in _PLAIN else "".join(f"={byte:02x}" for byte in sign.encode("utf-8", "surrogatepass"))
        for sign in name
    )


class Subjects:
    def __init__(self, cluster: str) -> None:
        self._root = f"callboard.{cluster}"

    @property
    def stored_pattern(self) -> str:
        return f"{self._root}.streams.>"

    def stream(self, stream_id: str, session_id: str) -> str:
        """The subject to which the owner of a stream sends its frames."""
        return f"{self._root}.streams.{token(session_id)}.{token(stream_id)}"

    def request_subject(self, node: str) -> str:
        """The subject on which a node is notified that another node waits for one of its sessions."""
        return f"{self._root}.wanted.{token(node)}"

    def of_stream(self, stream_id: str) -> str:
        """The pattern of all frames of a stream, in any session."""
        return f"{self._root}.streams.*.{token(stream_id)}"

    def of_session(self, session_id: str) -> str:
        return f"{self._root}.streams.{token(session_id)}.*"

    def mirror(self, node: str, stream_id: str) -> str:
        """The subject on which a node receives the frames that it requested."""
        return f"{self._root}.mirrors.{token(node)}.{token(stream_id)}"

    def mirrors(self, node: str) -> str:
        """The pattern of all frames that a node has requested."""
        return f"{self._root}.mirrors.{token(node)}.*"

    def ask(self, node: str, stream_id: str) -> str:
        """The subject for requests to a node, or to all nodes if the name is empty."""
        return f"{self._root}.ask.{token(node)}.{token(stream_id)}"

    def ask_pattern(self, node: str) -> str:
        """The pattern of all requests to a node, or to all nodes if the name is empty."""
        return f"{self._root}.ask.{token(node)}.*"


# --- Events and messages as JSON ---

_json_encoder = msgspec.json.Encoder()


class Packed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    json: bytes
    """The message's JSON, without the provider's usage object."""
    usage: bytes | None = None
    """The provider's usage object, unchanged; None if there is none."""


def pack_event(event: TurnEvent) -> Packed:
    """Encode an event of a turn's stream. If it can't be encoded, only its type is kept."""
    raw: msgspec.Raw | None = None
    if isinstance(event, MessageComplete | StepFinish) and event.usage.raw is not None:
        raw = event.usage.raw
        event = msgspec.structs.replace(event, usage=msgspec.structs.replace(event.usage, raw=None))
    try:
        return Packed(_as_json(event), None if raw is None else bytes(raw))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return Packed(_json_encoder.encode({"type": event.type, "unsendable": type(error).__name__}))


def unpack_event(packed: Packed) -> TurnEvent | UnknownEvent:
    """Decode an event. An event of a newer version becomes an UnknownEvent, so that every event keeps its
    number.
    """
    try:
        event = _from_json(packed.json, _event_decoder())
    except (ValueError, TypeError, RecursionError):
        return UnknownEvent(topic=_type_in(packed.json), raw=msgspec.Raw(packed.json))
    if packed.usage is not None and isinstance(event, MessageComplete | StepFinish):
        return msgspec.structs.replace(event, usage=_with_raw(event.usage, packed.usage))
    return event


def pack_message(message: Message) -> Packed:
    metadata = message.metadata
    if metadata is None or metadata.usage.raw is None:
        return Packed(_as_json(message))
    raw = bytes(metadata.usage.raw)
    metadata = msgspec.structs.replace(metadata, usage=msgspec.structs.replace(metadata.usage, raw=None))
    return Packed(_as_json(msgspec.structs.replace(message, metadata=metadata)), raw)


def unpack_message(packed: Packed) -> Message:
    message = _from_json(packed.json, _message_decoder())
    if packed.usage is None or message.metadata is None:
        return message
    metadata = msgspec.structs.replace(message.metadata, usage=_with_raw(message.metadata.usage, packed.usage))
    return msgspec.structs.replace(message, metadata=metadata)


def text_bytes(text: str) -> bytes:
    """Encode a text, even if UTF-8 can't encode it."""
    return text.encode("utf-8", "surrogatepass")


def text_of(encoded: bytes) -> str:
    """Decode the result of `text_bytes`. Raises ValueError for other bytes."""
    return encoded.decode("utf-8", "surrogatepass")


@functools.cache
def _event_decoder() -> msgspec.json.Decoder[TurnEvent]:
    return msgspec.json.Decoder(TurnEvent)


@functools.cache
def _message_decoder() -> msgspec.json.Decoder[Message]:
    return msgspec.json.Decoder(Message)


def _as_json(value: msgspec.Struct) -> bytes:
    try:
        return _json_encoder.encode(value)
    except (UnicodeEncodeError, OverflowError):  # half a surrogate pair, or a number that msgspec can't write
        return text_bytes(json.dumps(msgspec.to_builtins(value), ensure_ascii=False))


def _from_json(encoded: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(encoded)
    except (UnicodeDecodeError, msgspec.DecodeError):
        fields: Any = json.loads(text_of(encoded))
        return msgspec.convert(fields, decoder.type)


def _with_raw(usage: TokenUsage, raw: bytes) -> TokenUsage:
    return msgspec.structs.replace(usage, raw=msgspec.Raw(raw))


class _Typed(msgspec.Struct):
    type: str = "unknown"


def _type_in(encoded: bytes) -> str:
    try:
        return msgspec.json.decode(encoded, type=_Typed).type
    except (ValueError, RecursionError):
        return "unknown"


# --- Frames ---


class Texts(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Consecutive text deltas of one block."""

    text: bytes
    """The text of all deltas, see `text_bytes`."""
    lengths: list[int]
    """The number of characters of each delta."""
    index: int
    message_id: str


class Thoughts(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Consecutive thinking deltas of one block."""

    text: bytes
    lengths: list[int]
    index: int
    message_id: str
    signature: str | None
    """The signature of the last delta; the others have none."""


class Arguments(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Consecutive pieces of the arguments of one tool call."""

    text: bytes
    lengths: list[int]
    index: int
    message_id: str
    tool_use_id: str


class Whole(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Any other event."""

    event: Packed


Entry: TypeAlias = Texts | Thoughts | Arguments | Whole
"""One or more events of a log."""


class Beginning(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The start of a turn, for the node that continues its session."""

    history: int
    """The number of messages in the session's history before the turn."""
    said: tuple[Packed, ...]
    """The messages of the turn. They enter the history with the first content of the reply."""
    opening: bytes = b""
    """The session's setup, see `Opening`; empty if unknown."""


class Appended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    position: int
    """The message's index in the history, from 0."""
    message: Packed


class Ending(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The end of a turn, decided by a node that is not its owner."""

    status: TurnStatus
    """How the turn ended, for the event `turn.complete`."""
    error: str | None = None
    epoch: int = 0
    """The session's epoch when the end was decided."""


class Frame(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    stream_id: str
    session_id: str
    """The id of the stream's session; empty without one."""
    node: str
    epoch: int
    """The session's epoch in which the deciding node acts; 0 without a session."""
    first_seq: int
    next_seq: int
    """The number of the event after the last one in the frame."""
    entries: tuple[Entry, ...] = ()
    folded: bool = False
    """Whether the entries are a snapshot: all events before `next_seq`, merged into fewer."""
    beginning: Beginning | None = None
    appended: tuple[Appended, ...] = ()
    """The messages that have entered the history since the previous frame."""
    ending: Ending | None = None
    """The end of the turn, from a node that is not its owner. Such a frame has no events."""
    owner: str | None = None
    """The tag ``owner`` of the stream; None if it has none, or in a frame with an ending."""


class FramePart(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A part of a frame that is too large for one message."""

    stream_id: str
    check: int
    """The CRC-32 of the whole frame. It identifies the parts of one frame."""
    index: int
    count: int
    body: bytes


class UnreadableFrame(ValueError):
    """The bytes are not a frame, or a frame of an unknown version."""


_encoder = msgspec.msgpack.Encoder()
_packets: msgspec.msgpack.Decoder[Frame | FramePart] = msgspec.msgpack.Decoder(Frame | FramePart)

_PART_OVERHEAD = 256


def packets(frame: Frame, most_bytes: int) -> Iterator[bytes]:
    """Split a frame into messages: one, or several parts of at most this number of bytes."""
    encoded = _encoder.encode(frame)
    if len(encoded) <= most_bytes:
        yield encoded
        return
    size = max(most_bytes - _PART_OVERHEAD, 1)
    check, count = zlib.crc32(encoded), -(-len(encoded) // size)
    for index in range(count):
        body = encoded[index * size : (index + 1) * size]
        yield _encoder.encode(FramePart(frame.stream_id, check, index, count, body))


def read_packet(payload: bytes) -> Frame | FramePart:
    try:
        return _packets.decode(payload)
    except (ValueError, RecursionError) as error:
        raise UnreadableFrame(str(error)) from error


class Assembly:
    """Collects the parts of large frames until they are complete. Parts may arrive in any order, and
    repeatedly.
    """

    MOST = 16
    """The maximum number of incomplete frames; the oldest is dropped for the next one."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], dict[int, bytes]] = {}

    def frame(self, payload: bytes) -> Frame | None:
        """The frame that a message contains or completes; None if parts are missing."""
        packet = read_packet(payload)
        if isinstance(packet, Frame):
            return packet
        key = (packet.check, packet.count)
        parts = self._parts.setdefault(key, {})
        parts[packet.index] = packet.body
        if len(parts) < packet.count:
            if len(self._parts) > self.MOST:
                del self._parts[next(iter(self._parts))]
            return None
        del self._parts[key]
        joined = b"".join(parts[index] for index in sorted(parts))
        if zlib.crc32(joined) != packet.check:
            raise UnreadableFrame("the parts of a frame do not match")
        frame = read_packet(joined)
        if isinstance(frame, FramePart):
            raise UnreadableFrame("a nested frame part")
        return frame


# --- Entries of a log ---

ENTRY_BYTES = 48
"""The approximate size of an entry without its text, in bytes."""

Chunk = tuple[tuple[Entry, ...], int]
"""The entries of one frame, and the number of their events."""

_Delta = TextDelta | ThinkingDelta | ToolUseInputDelta


def chunks(events: Sequence[TurnEvent], most_bytes: int) -> Iterator[Chunk]:
    """Split events into groups of roughly this number of bytes. A larger event is a separate group."""
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
    return sum(1 if isinstance(entry, Whole) else len(entry.lengths) for entry in entries)


def _pieces(entry: Texts | Thoughts | Arguments) -> list[str]:
    text, ends = text_of(entry.text), list(accumulate(entry.lengths, initial=0))
    if len(ends) < 2 or min(entry.lengths) < 0 or ends[-1] != len(text):
        raise ValueError("the lengths of merged deltas do not match their text")
    return [text[start:end] for start, end in pairwise(ends)]


def _entries(events: Sequence[TurnEvent], most_bytes: int) -> Iterator[tuple[Entry, int, int]]:
    """Yield entries, each with its number of events and its size. A sequence of deltas is split at the size of a
    frame.
    """
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
    """The texts of the deltas in one entry, and the index after the last of these deltas."""
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
    """The entry for a sequence of deltas. `last` is the last delta of the sequence."""
    match last:
        case ThinkingDelta():
            return Thoughts(text, lengths, last.content_block_index, last.message_id, last.signature)
        case ToolUseInputDelta():
            return Arguments(text, lengths, last.content_block_index, last.message_id, last.tool_use_id)
        case TextDelta():
            return Texts(text, lengths, last.content_block_index, last.message_id)
        case _:
            raise TypeError(f"{type(last).__name__} is not a delta")


# --- Requests ---


class AskFrames(msgspec.Struct, frozen=True, array_like=True, tag=1):
    stream_id: str
    from_seq: int
    to: str
    """The subject to which the events are sent. The answer is an `OwnerAnswer`."""


class AskCancel(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A request to cancel the turn of a stream. The answer is a bool."""

    stream_id: str
    owner: str | None = None
    """The owner that the stream must have; None cancels the stream of any owner."""


class OwnerAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of the node that has the stream. The events are sent separately, as frames."""

    node: str
    next_seq: int


Ask: TypeAlias = AskFrames | AskCancel


_asks: msgspec.msgpack.Decoder[Ask] = msgspec.msgpack.Decoder(Ask)


def encode(value: Ask | OwnerAnswer | bool) -> bytes:
    return _encoder.encode(value)


def read_ask(payload: bytes) -> Ask | None:
    """Decode a request; None if this version can't read it."""
    try:
        return _asks.decode(payload)
    except (ValueError, RecursionError):
        return None


def read_answer(payload: bytes | None, kind: type[T]) -> T | None:
    """Decode an answer; None if there is none, or this version can't read it."""
    if payload is None:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (ValueError, RecursionError):
        return None
