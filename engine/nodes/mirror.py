"""A copy of a stream's log on another node, and the decisions of the node that fills it.

A mirror is made from frames, which may arrive in any order.

    empty ──▶ contiguous ⇄ with a gap ──▶ over

- If a frame directly follows the known events or overlaps them, its new events are added. Known events, and events
  of an older epoch, are ignored.
- A frame after a gap is held until the missing frames or a snapshot arrive.
- The mirror is over after exactly one of these: the turn's own end, an end from another node, or the store's copy
  of the turn. Later frames are ignored.

So at any time, its readers have a prefix of the owner's stream, with one end. A `Follower` decides when to ask the
broker, the owner and the store for missing events. This module uses no I/O and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, cast

import msgspec

from callboard.bus import StopReason, StreamLog, TokenUsage, UsageSource
from callboard.bus.errors import UnknownStream
from callboard.bus.streams.events import TurnComplete, TurnEvent, fold

from ..generation.view_events import StreamAccumulator
from .frames import Ending, Frame, OwnerAnswer, count_of, unpacked

# --- The copy of a log ---


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
    """A copy of a stream's log. Only the mirror appends to `log`."""

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
        self.log.close(error)

    def _hold(self, frame: Frame) -> None:
        consistent = frame.folded or frame.next_seq - frame.first_seq == count_of(frame.entries)
        if frame.next_seq <= self.next_seq or not consistent:
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


# --- Following a stream ---


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting times of a reader."""

    quiet: float = 3.0
    """Seconds without a frame after which the reader requests the turn's state from the owner."""
    gap: float = 0.2
    """Seconds to wait for missing events before requesting them."""
    retry: float = 1.0
    """Seconds after which the owner and the store are queried again if the owner has not answered."""
    patience: float = 20.0
    """Seconds without a message from the owner after which the turn is treated as lost, if the store has no answer
    either.
    """
    new: float = 5.0
    """Seconds after the start of a turn during which its node may not have published anything about the turn."""


class AskOwner(msgspec.Struct, frozen=True):
    from_seq: int
    node: str
    """The node that probably owns the stream; empty if unknown."""


class AskStore(msgspec.Struct, frozen=True):
    """A request to the store for the stored turn or its end."""

    session_id: str
    node: str
    epoch: int
    """The epoch in which the lost node acted."""


class Replay(msgspec.Struct, frozen=True):
    """A request to the broker for its stored frames."""


Question: TypeAlias = Replay | AskOwner | AskStore


class Stored(msgspec.Struct, frozen=True):
    events: tuple[TurnEvent, ...]
    """The events of the turn's messages in whole pieces, and the turn's end."""
    owner: str | None = None
    """The tag ``owner`` of the turn's session; None if it has none."""


StoreAnswer: TypeAlias = Stored | Ending | Literal["alive", "nothing", "no answer"]
"""The answer of the store: the turn, its end, ``alive`` if its owner still runs it, or ``nothing``, also without a
store.

``no answer`` means that the store or the broker can't be reached now.
"""


class Follower:
    """Decides for a reader's node what to do about one stream. Times are seconds of any monotonic clock.

    `new` is whether the turn may have just started.
    """

    def __init__(
        self,
        mirror: Mirror,
        now: float,
        timing: Timing = Timing(),  # noqa: B008 (frozen)
        *,
        new: bool = False,
    ) -> None:
        self.mirror = mirror
        self._timing = timing
        self._phase: Literal["following", "replaying", "asking owner", "asking store"] = "following"
        self._stale = True  # whether stored frames may contain more
        self._next: Literal["owner", "store"] = "owner"
        self._due = now
        self._owner_at = now
        # After this time, a stream is treated as nonexistent if no node has shown that it exists.
        self._unknown_at = now + timing.new if new else now
        self._stream_exists = False  # whether a frame or the owner has shown that the stream exists
        self._ended: Frame | None = None  # an end that must be applied after the stored frames

    @property
    def over(self) -> bool:
        return self.mirror.over

    @property
    def settled(self) -> bool:
        """Whether the end of the stream is known, so that a reader can start there."""
        return self.over or (self._stream_exists and not self._stale and not self.mirror.behind)

    @property
    def wake_at(self) -> float:
        """The time at which `question` may return a request, if no frame arrives before."""
        return self._due if self._phase == "following" and not self.over else math.inf

    # --- Incoming facts ---

    def frame(self, frame: Frame, now: float, *, stored: bool = False) -> None:
        if self._stale and not stored and (self._ended is not None or frame.ending is not None):
            self._ended = self._ended or frame
            return
        self._stream_exists = True
        if self.mirror.receive(frame):
            self._owner_at, self._next = now, "owner"
            self._due = now if self._stale else now + self._timing.quiet
        if self.mirror.behind:
            self._due = min(self._due, now + self._timing.gap)

    def replayed(self, now: float) -> None:
        """Record that the broker has no more frames, or can't be reached."""
        self._phase, self._stale = "following", False
        ended, self._ended = self._ended, None
        if ended is not None:
            self.frame(ended, now)
        self._due = (
            now + (self._timing.gap if self.mirror.behind else self._timing.quiet) if self._stream_exists else now
        )

    def reconnected(self, now: float) -> None:
        """Record a reconnection: frames may have been missed."""
        self._stale, self._due = True, now

    def owner_answered(self, answer: OwnerAnswer | None, now: float) -> None:
        """Apply the owner's answer; None if there was none."""
        self._phase = "following"
        if answer is None:
            self._next, self._due = "store", now
            return
        self._stream_exists, self._owner_at = True, now
        self.mirror.node = answer.node
        self.mirror.expect(answer.next_seq)
        self._due = now + (self._timing.gap if self.mirror.behind else self._timing.quiet)

    def store_answered(self, answer: StoreAnswer, now: float) -> None:
        self._phase, self._next, self._due = "following", "owner", now + self._timing.retry
        lost = now - self._owner_at >= self._timing.patience
        match answer:
            case Stored(events=events, owner=owner):
                end = events[-1]
                if isinstance(end, TurnComplete) and end.status == "outcome_unknown" and self.mirror.next_seq:
                    self.mirror.end(Ending(end.status, end.error))  # readers keep the events that have arrived
                else:
                    self.mirror.complete(events, owner)
            case Ending():
                self.mirror.end(answer)
            case "alive":
                self._stream_exists = True
            case "no answer" if not self._stream_exists and lost:
                self.mirror.give_up(unknown_anywhere(self.mirror.log.stream_id))
            case "nothing" if not self._stream_exists and now >= self._unknown_at:
                self.mirror.give_up(unknown_anywhere(self.mirror.log.stream_id))
            case "nothing" if lost:
                self.mirror.end(Ending("outcome_unknown", "its node no longer answers"))
            case _:
                pass

    def question(self, now: float) -> Question | None:
        """The request that is due now; None if there is none. Report its result with `replayed`, `owner_answered`
        or `store_answered`.
        """
        if now < self.wake_at:
            return None
        mirror = self.mirror
        if self._stale:
            self._phase = "replaying"
            return Replay()
        if self._next == "store":
            self._phase = "asking store"
            return AskStore(mirror.session_id, mirror.node, mirror.epoch)
        self._phase = "asking owner"
        return AskOwner(mirror.next_seq, mirror.node)


def unknown_anywhere(stream_id: str) -> UnknownStream:
    """The error for an unknown stream and for a stream of another owner. Both must be equal, so that users can't
    detect other users' streams.
    """
    return UnknownStream(
        f"no stream {stream_id!r}: no node has it, and it is not stored. Read the finished message from "
        f"its session instead"
    )
