"""What has been said of one stream to other nodes, and the frames that say the rest.

A frame is cut when it has so many bytes; when frames are made is decided outside. Every number of the log is in a
frame once, until everything is said `again`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from callboard.bus import Message, StreamLog
from callboard.bus.streams.events import TurnEvent

from .wire.entries import chunks
from .wire.frame import Appended, Beginning, Frame
from .wire.packed import pack_message

_UNBOUNDED = 1 << 62


class Framer:
    """The frames of one stream.

    Args:
        log: The stream's log.
        session_id: The stream's session; empty without one.
        node: This node.
        most_bytes: The bytes of a frame, roughly.
    """

    def __init__(self, log: StreamLog[TurnEvent], session_id: str, node: str, most_bytes: int) -> None:
        self.log = log
        self.session_id = session_id
        self.epoch = 0
        """The epoch under which this node owns the session."""
        self._node = node
        self._most_bytes = most_bytes
        self._said = 0  # the number of events that are in frames
        self._beginning: Beginning | None = None
        self._appended: list[Appended] = []
        self._appended_said = 0
        self._beginning_said = False

    @property
    def over(self) -> bool:
        """Whether nothing is left to say, and nothing will come."""
        return self.log.closed and self._said >= self.log.next_seq

    def begin(self, history: int, said: Sequence[Message], opening: bytes = b"") -> None:
        """Note what the turn begins with: the number of messages before it, what it says, the session's setup."""
        self._beginning = Beginning(history, tuple(map(pack_message, said)), opening)

    def append(self, position: int, message: Message) -> None:
        """Note a message that has entered the history."""
        self._appended.append(Appended(position, pack_message(message)))

    def again(self) -> None:
        """Have everything said once more, because what was said may be lost."""
        self._said = self._appended_said = 0
        self._beginning_said = False

    def frames(self) -> Iterator[Frame]:
        """The frames of everything that is not said yet. What they hold counts as said."""
        beginning = None if self._beginning_said else self._beginning
        appended = tuple(self._appended[self._appended_said :])
        self._beginning_said = self._beginning is not None
        self._appended_said = len(self._appended)
        frames = self.since(self._said)
        self._said = self.log.next_seq
        first = next(frames, None)
        if first is None and (beginning or appended):
            first = self._frame(self._said, self._said)
        if first is not None:
            yield msgspec.structs.replace(first, beginning=beginning, appended=appended)
        yield from frames

    def since(self, seq: int) -> Iterator[Frame]:
        """The frames of the events from there on. The part that the log has folded comes as a snapshot."""
        log = self.log
        folded, events = log.snapshot if seq < log.first_seq else (), log.since(seq)
        first_seq = max(seq, log.first_seq)
        if folded:
            ((entries, _),) = chunks(folded, _UNBOUNDED)
            yield msgspec.structs.replace(self._frame(0, log.first_seq), entries=entries, folded=True)
        for entries, count in chunks(events, self._most_bytes):
            yield msgspec.structs.replace(self._frame(first_seq, first_seq + count), entries=entries)
            first_seq += count

    def _frame(self, first_seq: int, next_seq: int) -> Frame:
        return Frame(
            self.log.stream_id,
            self.session_id,
            self._node,
            self.epoch,
            first_seq,
            next_seq,
            owner=self.log.owner,
        )
