"""Where frames travel, and the questions that nodes ask each other about streams.

callboard.CLUSTER.streams.SESSION.STREAM    frames, which the broker keeps for a while
callboard.CLUSTER.mirrors.NODE.STREAM       frames that one node has asked for
callboard.CLUSTER.ask.NODE.STREAM           questions to a node; to all of them where NODE is ``-``
callboard.CLUSTER.wanted.NODE               word that another node waits for a session of this one
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from .follower import OwnerAnswer

T = TypeVar("T")

ANY = "-"
"""In place of a node or a session: any node, no session."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def token(name: str) -> str:
    """A name as one token of a subject. Different names have different tokens, and no name has that of `ANY`."""
    if not name:
        return ANY
    return "".join(
        sign if sign in _PLAIN else "".join(f"={byte:02x}" for byte in sign.encode("utf-8", "surrogatepass"))
        for sign in name
    )


class Subjects:
    """The subjects of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._root = f"callboard.{cluster}"

    @property
    def kept(self) -> str:
        """All frames that the broker keeps."""
        return f"{self._root}.streams.>"

    def stream(self, stream_id: str, session_id: str) -> str:
        """Where the owner of a stream puts its frames."""
        return f"{self._root}.streams.{token(session_id)}.{token(stream_id)}"

    def wanted(self, node: str) -> str:
        """Where a node hears that another one waits for one of its sessions."""
        return f"{self._root}.wanted.{token(node)}"

    def of_stream(self, stream_id: str) -> str:
        """All frames of a stream, whatever its session."""
        return f"{self._root}.streams.*.{token(stream_id)}"

    def of_session(self, session_id: str) -> str:
        """All frames of a session's streams."""
        return f"{self._root}.streams.{token(session_id)}.*"

    def mirror(self, node: str, stream_id: str) -> str:
        """Where a node wants frames that it has asked for."""
        return f"{self._root}.mirrors.{token(node)}.{token(stream_id)}"

    def mirrors(self, node: str) -> str:
        """All frames that a node has asked for."""
        return f"{self._root}.mirrors.{token(node)}.*"

    def ask(self, node: str, stream_id: str) -> str:
        """Where a node is asked, or all of them if the name is empty."""
        return f"{self._root}.ask.{token(node)}.{token(stream_id)}"

    def asked(self, node: str) -> str:
        """All questions to a node, or those to all nodes if the name is empty."""
        return f"{self._root}.ask.{token(node)}.*"


class AskFrames(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Send me the events of a stream."""

    stream_id: str
    """The stream."""
    from_seq: int
    """The number of the first event that is wanted."""
    to: str
    """The subject where they are wanted. The answer is an `OwnerAnswer`."""


class AskCancel(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Cancel the turn of a stream. The answer is a bool."""

    stream_id: str
    """The stream."""
    owner: str | None = None
    """The owner that the stream must have; None cancels the stream of any owner."""


Ask: TypeAlias = AskFrames | AskCancel

_encoder = msgspec.msgpack.Encoder()


@functools.cache
def _ask_decoder() -> msgspec.msgpack.Decoder[Ask]:
    return msgspec.msgpack.Decoder(Ask)


def encode(value: Ask | OwnerAnswer | bool) -> bytes:
    """A question or an answer as it travels."""
    return _encoder.encode(value)


def read_ask(payload: bytes) -> Ask | None:
    """A question; None if this version can't read it."""
    try:
        return _ask_decoder().decode(payload)
    except (ValueError, RecursionError):
        return None


def read_answer(payload: bytes | None, kind: type[T]) -> T | None:
    """An answer; None if there is none, or this version can't read it."""
    if payload is None:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (ValueError, RecursionError):
        return None


Receiver: TypeAlias = Callable[[str, bytes, str], None]
"""Takes a message: its subject, what it carries, and the subject where an answer is wanted, or nothing."""


class Subscription(Protocol):
    """Messages that are taken in."""

    async def unsubscribe(self) -> None:
        """Take in no more. It never raises."""


class FrameBroker(Protocol):
    """What frames need of a broker. A broker that can't be reached loses what is published, and says so."""

    @property
    def connected_seconds(self) -> float:
        """Seconds for which the broker has been reached without a break; 0 if it can't be reached."""

    @property
    def most_bytes(self) -> int:
        """The bytes of a message at most."""

    def publish(self, subject: str, payload: bytes) -> bool:
        """Send a message, without waiting.

        Returns:
            False if it is lost for certain.
        """

    async def subscribe(self, subject: str, receive: Receiver) -> Subscription:
        """Take in messages from now on, also after the broker was away.

        Raises:
            OSError: The broker can't be used.
        """

    async def request(self, subject: str, payload: bytes, seconds: float) -> bytes | None:
        """The first answer to a message. None if nobody listens there, nobody answers in time, or the broker
        can't be reached.
        """

    def kept(self, subject: str) -> AsyncIterator[bytes]:
        """The frames that the broker has kept, in the order in which they were sent.

        Raises:
            OSError: The broker can't be asked.
        """

    async def forget(self, subject: str) -> None:
        """Have the broker keep no frame of a subject that was sent until now. It never raises."""

    async def let_go(self) -> None:
        """Return when what was published goes out whatever becomes of this process, if it can. It never raises."""

    async def drain(self) -> None:
        """Have everything sent that was published."""

    async def run(self) -> None:
        """Be at work until cancelled."""

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Have a function called whenever the broker is back: what was sent may be lost, and so may be what it
        had kept.
        """
