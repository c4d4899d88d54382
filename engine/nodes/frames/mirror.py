"""A copy of a stream's log on another node. It is made from frames, which may arrive in any order.

    empty ──▶ contiguous ⇄ with a gap ──▶ over

- If a frame directly follows the known events or overlaps them, its new events are added. Known events, and events
  of an older epoch, are ignored.
- A frame after a gap is held until the missing frames or a snapshot arrive.
- The mirror is over after exactly one of these: the turn's own end, an end from another node, or the store's copy
  of the turn. Later frames are ignored.

So at any time, its readers have a prefix of the owner's stream, with one end. This module uses no I/O and no
clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from callboard.bus import StopReason, StreamLog, TokenUsage, UsageSource
from callboard.bus.streams.events import TurnComplete, TurnEvent, fold

from ...generation.view_events import StreamAccumulator
from .wire import Ending, Frame, count_of, unpacked


def closing_events(events: Iterable[TurnEvent], ending: Ending) -> list[TurnEvent]:
    """The events that end the open message and the turn. The message keeps the content that has arrived."""
    accumulator = StreamAccumulator()
    for event in events:
        accumulator.process(event)
    unknown = TokenUsage(source=UsageSource.PARTIAL)
    return [
        *accumulator.closing_events(StopReason.ERROR, unknown),
        TurnComplete(ending.status, ending.error),
    ]


MOST_HELD = 256
"""The maximum number of frames that are held after a gap. Later frames are dropped, because they are requested
again.
"""


class Mirror:
    """A copy of a stream's log.

    Args:
        log: The log to fill. Only the mirror appends to it.
    """

    def __init__(self, log: StreamLog[TurnEvent]) -> None:
        self.log = log
        self.session_id = ""
        """The id of the stream's session; empty until a frame contains it, or without a session."""
        self.node = ""
        """The node that owns the stream; empty until a frame names it."""
        self.epoch = 0
        """The highest epoch that a frame had."""
        self.ahead = 0
        """The highest known number of the owner's events."""
        self._early_frames: dict[int, Frame] = {}

    @property
    def next_seq(self) -> int:
        return self.log.next_seq

    @property
    def over(self) -> bool:
        return self.log.closed

    @property
    def behind(self) -> bool:
        """Whether known events of the owner are missing."""
        return not self.over and self.ahead > self.next_seq

    def receive(self, frame: Frame) -> bool:
        if self.over or frame.epoch < self.epoch:
            return False
        if frame.epoch > self.epoch:
            self._early_frames.clear()
        self.epoch, self.session_id, self.log.session_id = frame.epoch, frame.session_id, frame.session_id
        if frame.ending is not None:
            self.end(frame.ending)
            return True
        self.node, self.log.owner = frame.node, frame.owner
        before = self.next_seq
        self.expect(frame.next_seq)
        self._hold(frame)
        while not self.log.closed and (following := self._following()) is not None:
            self._add(following)
        return self.log.closed or self.next_seq > before

    def expect(self, next_seq: int) -> None:
        """Record the number of the owner's events."""
        self.ahead = max(self.ahead, next_seq)

    def end(self, ending: Ending) -> None:
        """End the stream with an end that another node decided. An open message ends with the content that has
        arrived.
        """
        if not self.over:
            self.log.extend(closing_events((*self.log.snapshot, *self.log.since(0)), ending))
            self.log.close()

    def complete(self, events: Sequence[TurnEvent], owner: str | None = None) -> None:
        """End the stream with its complete events from another source. Readers that have read a part of the stream
        start again.
        """
        if not self.over:
            self.log.owner = owner
            *content, end = events
            if content:
                snapshot = cast("tuple[TurnEvent, ...]", fold(content))
                self.log.jump(snapshot, max(self.next_seq + 1, len(content)))
            self.log.append(end)
            self.log.close()

    def give_up(self, error: Exception) -> None:
        """End the stream with an exception for its readers."""
        self.log.close(error)

    def _hold(self, frame: Frame) -> None:
        if frame.next_seq <= self.next_seq or not _consistent(frame):
            return
        other = self._early_frames.get(frame.first_seq)
        if other is None and len(self._early_frames) >= MOST_HELD:
            furthest = max(self._early_frames)
            if furthest <= frame.first_seq:
                return
            del self._early_frames[furthest]
        if other is None or other.next_seq < frame.next_seq:
            self._early_frames[frame.first_seq] = frame

    def _following(self) -> Frame | None:
        """The next frame with new events and without a gap. Frames without new events are dropped."""
        for first_seq in sorted(self._early_frames):
            frame = self._early_frames[first_seq]
            if frame.next_seq <= self.next_seq:
                del self._early_frames[first_seq]
            elif frame.folded or first_seq <= self.next_seq:
                return self._early_frames.pop(first_seq)
            else:
                break
        return None

    def _add(self, frame: Frame) -> None:
        # An event of a newer version becomes an UnknownEvent, so that later events keep their numbers.
        try:
            events = cast("list[TurnEvent]", unpacked(frame.entries))
        except ValueError:
            return  # the frame is inconsistent; the gap stays, and is requested again
        if frame.folded:
            self.log.jump(events, frame.next_seq)
        else:
            self.log.extend(events[self.next_seq - frame.first_seq :])
        if events and isinstance(events[-1], TurnComplete):
            self.log.close()


def _consistent(frame: Frame) -> bool:
    return frame.folded or frame.next_seq - frame.first_seq == count_of(frame.entries)


_ULID_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

RECENT_US = 2 * 3_600_000_000
"""The maximum age at which a turn may be new, in microseconds. Clocks may differ by more than an hour."""


def started_us(stream_id: str) -> int | None:
    """The creation time in a turn's id, in microseconds since the epoch; None if the id has no time."""
    digits = stream_id.partition("_")[2][:10]
    if len(digits) != 10 or any(digit not in _ULID_DIGITS for digit in digits):
        return None
    milliseconds = 0
    for digit in digits:
        milliseconds = milliseconds * 32 + _ULID_DIGITS.index(digit)
    return milliseconds * 1000


def may_be_new(stream_id: str, now_us: int) -> bool:
    """Whether a turn may be so new that its node has not published anything about it yet."""
    started = started_us(stream_id)
    return started is not None and now_us - started < RECENT_US
