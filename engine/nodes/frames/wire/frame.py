"""What goes over the wire: a stretch of one stream's log, from one event number to another.

A frame says whose it is (node and epoch), which events it has (`first_seq` up to before `next_seq`), and the
events themselves. Adjacent deltas of a block are one entry: their texts joined, and the length of each, so that
who reads it has the same events under the same numbers. Frames may be lost, doubled, and come in any order; each
one stands for itself.

The wire form is MessagePack, an array whose first item is the kind and the version of the rest. Fields may be
added at the end; anything else needs a new number, which older nodes leave unread.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from callboard.bus import TurnStatus

from .packed import Packed


class Texts(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Text deltas of one block that follow each other."""

    text: bytes
    """All their text, see `packed.text_bytes`."""
    lengths: list[int]
    """The number of characters of each."""
    index: int
    """The place of the block in the reply."""
    message_id: str
    """The id of the reply's message."""


class Thoughts(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Thinking deltas of one block that follow each other."""

    text: bytes
    """As in `Texts`."""
    lengths: list[int]
    """As in `Texts`."""
    index: int
    """As in `Texts`."""
    message_id: str
    """As in `Texts`."""
    signature: str | None
    """The signature of the last of them; the others have none."""


class Arguments(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Pieces of the arguments of one tool call that follow each other."""

    text: bytes
    """As in `Texts`."""
    lengths: list[int]
    """As in `Texts`."""
    index: int
    """As in `Texts`."""
    message_id: str
    """As in `Texts`."""
    tool_use_id: str
    """The id of the call."""


class Whole(msgspec.Struct, frozen=True, array_like=True, tag=3, gc=False):
    """Any other event."""

    event: Packed
    """The event."""


Entry: TypeAlias = Texts | Thoughts | Arguments | Whole
"""One or more events of a log."""


class Beginning(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a turn began with, for whoever has to go on with its session."""

    history: int
    """The number of messages that the session's history had."""
    said: tuple[Packed, ...]
    """The messages that the turn says, which enter the history with the first content of the reply."""
    opening: bytes = b""
    """All of the session besides its messages, see `engine.sessions.handover`; empty if not known."""


class Appended(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message that the turn has added to its session's history."""

    position: int
    """Its place in the history, from 0."""
    message: Packed
    """The message."""


class Ending(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a turn ended whose owner could not say it."""

    status: TurnStatus
    """The way it ended, for its `turn.complete`."""
    error: str | None = None
    """The reason, in words."""
    epoch: int = 0
    """The session's epoch at the decision."""


class Frame(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """A stretch of a stream."""

    stream_id: str
    """The id of the stream."""
    session_id: str
    """The id of the stream's session; empty without one."""
    node: str
    """The node that sent it."""
    epoch: int
    """The session's epoch under which that node acts; 0 without one."""
    first_seq: int
    """The number of the first event."""
    next_seq: int
    """The number of the event after the last."""
    entries: tuple[Entry, ...] = ()
    """The events."""
    folded: bool = False
    """Whether the entries are a snapshot: they say the same as all events before `next_seq`, with fewer events."""
    beginning: Beginning | None = None
    """What the turn began with, in its first frame."""
    appended: tuple[Appended, ...] = ()
    """The messages that entered the history meanwhile."""
    ending: Ending | None = None
    """The end of the turn, said by a node that is not its owner. Such a frame has no events."""
    owner: str | None = None
    """The tag ``owner`` of the stream; None if it has none, and in a frame with an ending."""


class Part(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A part of a frame that is too large for one message."""

    stream_id: str
    """The id of the stream."""
    check: int
    """The CRC-32 of the whole frame, by which parts of one frame are known."""
    index: int
    """The part's place, from 0."""
    count: int
    """The number of parts."""
    body: bytes
    """A stretch of the encoded frame."""


class UnreadableFrame(ValueError):
    """The bytes are no frame, or one of a version that this node doesn't know."""


_encoder = msgspec.msgpack.Encoder()

_PART_OVERHEAD = 256


@functools.cache
def _decoder() -> msgspec.msgpack.Decoder[Frame | Part]:
    return msgspec.msgpack.Decoder(Frame | Part)


def packets(frame: Frame, most_bytes: int) -> Iterator[bytes]:
    """The messages that carry a frame: one, or several parts of at most so many bytes."""
    encoded = _encoder.encode(frame)
    if len(encoded) <= most_bytes:
        yield encoded
        return
    size = max(most_bytes - _PART_OVERHEAD, 1)
    check, count = zlib.crc32(encoded), -(-len(encoded) // size)
    for index in range(count):
        body = encoded[index * size : (index + 1) * size]
        yield _encoder.encode(Part(frame.stream_id, check, index, count, body))


def read_packet(payload: bytes) -> Frame | Part:
    """What a message carries.

    Raises:
        UnreadableFrame: It is none, or a later version's.
    """
    try:
        return _decoder().decode(payload)
    except (ValueError, RecursionError) as error:
        raise UnreadableFrame(str(error)) from error


class Assembly:
    """The parts of large frames, until they are whole. Parts may come in any order, and twice."""

    MOST = 16
    """The number of frames that may be incomplete at a time; the oldest is given up for the next one."""

    def __init__(self) -> None:
        self._parts: dict[tuple[int, int], dict[int, bytes]] = {}

    def frame(self, payload: bytes) -> Frame | None:
        """The frame that a message carries or completes; None if parts are missing yet.

        Raises:
            UnreadableFrame: As for `read_packet`.
        """
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
        whole = b"".join(parts[index] for index in sorted(parts))
        if zlib.crc32(whole) != packet.check:
            raise UnreadableFrame("the parts of a frame don't fit together")
        frame = read_packet(whole)
        if isinstance(frame, Part):
            raise UnreadableFrame("a part of a part")
        return frame
