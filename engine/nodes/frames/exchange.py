"""The subjects of frames, and the requests of nodes about each other's streams.

callboard.CLUSTER.streams.SESSION.STREAM    frames, which the broker stores for some minutes
callboard.CLUSTER.mirrors.NODE.STREAM       frames that one node has requested callboard.CLUSTER.ask.NODE.STREAM
requests to a node; if NODE is ``-``, to all nodes callboard.CLUSTER.wanted.NODE               a notice that
another node waits for a session of NODE
"""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Callable
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

from callboard.bus.errors import UnknownStream
from callboard.bus.streams.events import TurnComplete, TurnEvent

from .mirror import Mirror
from .wire import Ending, Frame

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
    """A request to the owner for its events from a number on."""

    from_seq: int
    """The number of the first event to send."""
    node: str
    """The node that probably owns the stream; empty if unknown."""


class AskStore(msgspec.Struct, frozen=True):
    """A request to the store for the stored turn or its end."""

    session_id: str
    """The stream's session, if known."""
    node: str
    """The node that owned the stream, if known."""
    epoch: int
    """The epoch in which the lost node acted."""


class Replay(msgspec.Struct, frozen=True):
    """A request to the broker for its stored frames."""


Question: TypeAlias = Replay | AskOwner | AskStore


class OwnerAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of the node that has the stream. The events are sent separately, as frames."""

    node: str
    next_seq: int


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
    """Decides for a reader's node what to do about one stream.

    Args:
        mirror: The copy of the stream's log.
        now: The time in seconds, of a monotonic clock.
        timing: The waiting times.
        new: Whether the turn may have just started.
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
        self._unknown_at = (
            now + timing.new if new else now
        )  # after this time, a stream is treated as nonexistent if no node has shown that it exists
        self._stream_exists = False  # whether a frame or the owner has shown that the stream exists
        self._ended: Frame | None = None  # an end that must be applied after the stored frames

    @property
    def over(self) -> bool:
        """Whether the stream's end has been reached."""
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


T = TypeVar("T")

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
        """The pattern of all frames that the broker stores."""
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
        """The pattern of all frames of a session's streams."""
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


class AskFrames(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A request to send the events of a stream."""

    stream_id: str
    from_seq: int
    """The number of the first event to send."""
    to: str
    """The subject to which the events are sent. The answer is an `OwnerAnswer`."""


class AskCancel(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A request to cancel the turn of a stream. The answer is a bool."""

    stream_id: str
    owner: str | None = None
    """The owner that the stream must have; None cancels the stream of any owner."""


Ask: TypeAlias = AskFrames | AskCancel

_encoder = msgspec.msgpack.Encoder()


@functools.cache
def _ask_decoder() -> msgspec.msgpack.Decoder[Ask]:
    return msgspec.msgpack.Decoder(Ask)


def encode(value: Ask | OwnerAnswer | bool) -> bytes:
    """Encode a request or an answer."""
    return _encoder.encode(value)


def read_ask(payload: bytes) -> Ask | None:
    """Decode a request; None if this version can't read it."""
    try:
        return _ask_decoder().decode(payload)
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


Receiver: TypeAlias = Callable[[str, bytes, str], None]
"""Receives a message: its subject, its payload, and the subject for an answer, if any."""


class Subscription(Protocol):
    """A subscription to messages."""

    async def unsubscribe(self) -> None:
        """End the subscription. It never raises."""


class FrameBroker(Protocol):
    """The methods of a broker that frames use. Messages are lost while the broker is unreachable; callbacks report
    reconnections.
    """

    @property
    def connected_seconds(self) -> float:
        """Seconds of uninterrupted connection to the broker; 0 if it can't be reached."""

    @property
    def most_bytes(self) -> int:
        """The maximum size of a message, in bytes."""

    def publish(self, subject: str, payload: bytes) -> bool:
        """Send a message, without waiting."""

    async def subscribe(self, subject: str, receive: Receiver) -> Subscription:
        """Receive messages from now on, also after a reconnection."""

    async def request(self, subject: str, payload: bytes, seconds: float) -> bytes | None:
        """Send a message, and return the first answer.

        Returns None if there is no receiver, no answer in time, or no connection.
        """

    def stored_frames(self, subject: str) -> AsyncIterator[bytes]:
        """The frames that the broker has stored, in the order in which they were sent."""

    async def forget(self, subject: str) -> None:
        """Delete all stored frames of a subject from the broker. It never raises."""

    async def let_go(self) -> None:
        """Wait, if possible, until the operating system will send published messages even if this process dies.
        This never raises.
        """

    async def drain(self) -> None:
        """Send everything that was published."""

    async def run(self) -> None:
        """Work until cancelled."""

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call a function after each reconnection. Messages may have been lost meanwhile."""
