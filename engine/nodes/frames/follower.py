"""Whom a reader on another node asks, and when: the frames first, then the owner, then the store.

    replaying     the frames that the broker has kept are being read: first of all, and after a reconnection
    following     frames come by themselves
    asking owner  because events are missing, nothing was found, or nothing has come for a while
    asking store  because the owner does not answer: for what is stored of the turn, or for its ending
    over          the mirror has its one end

One question is under way at a time, and frames are taken in meanwhile, but for an ending that other nodes have
decided: what was kept comes before it. As long as the store can't tell, the owner and it are asked again. So they
are of a stream that nobody knows, if it may have been made a moment ago: its id may be here before its node has
said a word of it. Where the cluster has no store, a turn whose owner has given no sign for `patience` seconds
counts as lost. There is no I/O here: the clock and all answers come from outside, and the questions go there.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

from callboard.bus.errors import UnknownStream
from callboard.bus.streams.events import TurnComplete, TurnEvent

from .mirror import Mirror
from .wire.frame import Ending, Frame


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """How long a reader waits."""

    quiet: float = 3.0
    """Seconds without news after which the owner is asked whether it still is at it."""
    gap: float = 0.2
    """Seconds for which missing events may still be on their way."""
    retry: float = 1.0
    """Seconds after which the owner and the store are asked again, when the owner has not answered."""
    patience: float = 20.0
    """Seconds without a sign of the owner after which the turn counts as lost, if the store can't tell."""
    new: float = 5.0
    """Seconds in which a node may not have said anything yet of a turn that it has just made."""


class AskOwner(msgspec.Struct, frozen=True):
    """A question to the owner: its events from there on."""

    from_seq: int
    """The number of the first event that is wanted."""
    node: str
    """The node that is thought to own the stream; empty if nobody knows."""


class AskStore(msgspec.Struct, frozen=True):
    """A question to the store: the turn as it is stored, or its ending."""

    session_id: str
    """The stream's session, as far as it is known."""
    node: str
    """The node that owned it, as far as it is known."""
    epoch: int
    """The epoch under which that node acted."""


class Replay(msgspec.Struct, frozen=True):
    """A question to the broker: the frames that it has kept."""


Question: TypeAlias = Replay | AskOwner | AskStore


class OwnerAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of the node that has the stream. The events come as frames."""

    node: str
    """The node."""
    next_seq: int
    """The number of events that it has."""


class Stored(msgspec.Struct, frozen=True):
    """A turn as it is stored."""

    events: tuple[TurnEvent, ...]
    """The events of its messages in whole pieces, and its end."""
    owner: str | None = None
    """The tag ``owner`` of the turn's session; None if it has none."""


StoreAnswer: TypeAlias = Stored | Ending | Literal["alive", "nothing", "no answer"]
"""What the store says: the turn, its ending, that its owner still has it, or nothing (as where there is no store).
``no answer`` means that store or broker can't be asked now.
"""


class Follower:
    """What a reader's node does about one stream.

    Args:
        mirror: The copy of the stream's log.
        now: The time in seconds, of a clock that never goes back.
        timing: How long it waits.
        new: Whether the turn may have been made a moment ago.
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
        self._stale = True  # kept frames may say more
        self._next: Literal["owner", "store"] = "owner"
        self._due = now
        self._owner_at = now
        self._unknown_at = now + timing.new if new else now  # it is believed from then on that nobody knows it
        self._known = False  # whether frames or the owner have told of the stream
        self._ended: Frame | None = None  # an ending that is not to be heard before the kept frames

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return self.mirror.over

    @property
    def settled(self) -> bool:
        """Whether it is known how far the stream is by now, so that a reader may begin at its tail."""
        return self.over or (self._known and not self._stale and not self.mirror.behind)

    @property
    def wake_at(self) -> float:
        """The time at which `question` may have one, if nothing comes before."""
        return self._due if self._phase == "following" and not self.over else math.inf

    # -- what comes in

    def frame(self, frame: Frame, now: float, *, kept: bool = False) -> None:
        """Take in a frame.

        Args:
            frame: The frame.
            now: The time.
            kept: Whether it is one of those that the broker has kept, which come in order.
        """
        if self._stale and not kept and (self._ended is not None or frame.ending is not None):
            self._ended = self._ended or frame
            return
        self._known = True
        if self.mirror.receive(frame):
            self._owner_at, self._next = now, "owner"
            self._due = now if self._stale else now + self._timing.quiet
        if self.mirror.behind:
            self._due = min(self._due, now + self._timing.gap)

    def replayed(self, now: float) -> None:
        """The broker has no more frames, or can't be asked for them."""
        self._phase, self._stale = "following", False
        ended, self._ended = self._ended, None
        if ended is not None:
            self.frame(ended, now)
        self._due = now + (self._timing.gap if self.mirror.behind else self._timing.quiet) if self._known else now

    def reconnected(self, now: float) -> None:
        """Frames may have been missed."""
        self._stale, self._due = True, now

    def owner_answered(self, answer: OwnerAnswer | None, now: float) -> None:
        """The owner has answered; None if nobody has."""
        self._phase = "following"
        if answer is None:
            self._next, self._due = "store", now
            return
        self._known, self._owner_at = True, now
        self.mirror.node = answer.node
        self.mirror.expect(answer.next_seq)
        self._due = now + (self._timing.gap if self.mirror.behind else self._timing.quiet)

    def store_answered(self, answer: StoreAnswer, now: float) -> None:
        """The store has answered."""
        self._phase, self._next, self._due = "following", "owner", now + self._timing.retry
        lost = now - self._owner_at >= self._timing.patience
        match answer:
            case Stored(events=events, owner=owner):
                end = events[-1]
                if isinstance(end, TurnComplete) and end.status == "outcome_unknown" and self.mirror.next_seq:
                    self.mirror.end(Ending(end.status, end.error))  # what came stays as its readers have it
                else:
                    self.mirror.complete(events, owner)
            case Ending():
                self.mirror.end(answer)
            case "alive":
                self._known = True
            case "no answer" if not self._known and lost:
                self.mirror.give_up(unknown_anywhere(self.mirror.log.stream_id))
            case "nothing" if not self._known and now >= self._unknown_at:
                self.mirror.give_up(unknown_anywhere(self.mirror.log.stream_id))
            case "nothing" if lost:
                self.mirror.end(Ending("outcome_unknown", "its node does not answer any more"))
            case _:
                pass

    # -- what goes out

    def question(self, now: float) -> Question | None:
        """The question that is due now, if there is one. It must be answered: by `replayed`,
        `owner_answered` or `store_answered`.
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
    """The error for a stream that no node has, and for one of another owner: the two must not differ."""
    return UnknownStream(
        f"no stream {stream_id!r}: no node has it, and nothing is stored of it. "
        "Take the finished message from its session instead"
    )
