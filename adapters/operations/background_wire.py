"""The wire of a provider's background replies: how one is asked for again, looked at and ended. All is pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.normaliser import StreamNormaliser
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import TokenUsage


class BackgroundStatus(NamedTuple):
    """How a reply stands that is made in the background."""

    response_id: str
    """The provider's id of the reply; empty if it said none."""
    done: bool
    """Whether the reply is over, well or not."""


class NumberedNormaliser(StreamNormaliser, Protocol):
    """Reads a stream whose events are numbered, over any number of connections. No event is read twice."""

    response_id: str
    """The provider's id of the reply; empty before it is said."""
    number: int | None
    """The number of the last event; None if none was read, or the server numbers none."""
    told: bool
    """Whether `error` is the provider's own word, and not one of the connection."""

    def reopen(self) -> None:
        """Another connection begins behind the last event. What was half read is forgotten."""
        ...

    def take_whole(self, body: bytes) -> list[StreamEvent]:
        """The events that are missing, out of the whole reply. Raises the reply's error, or a decoding error."""
        ...


class BackgroundWire(Protocol):
    """One provider's way to make replies in the background."""

    def wanted(self, request: CanonicalRequest) -> bool:
        """Whether a request asks for a reply in the background, and the server has such."""
        ...

    def attach(self, response_id: str, after: int | None) -> WireCall:
        """The question for the stream of a reply, behind the event of that number; None is from the beginning."""
        ...

    def look(self, response_id: str) -> WireCall:
        """The question how a reply stands."""
        ...

    def cancel(self, response_id: str) -> WireCall:
        """The request to end a reply."""
        ...

    def status(self, body: bytes) -> BackgroundStatus:
        """How a reply stands. Raises msgspec's decoding errors."""
        ...

    def usage(self, body: bytes, assembler: Assembler) -> TokenUsage | None:
        """The usage that the provider reports with the state of a reply; None without one."""
        ...

    def normaliser(self, assembler: Assembler) -> NumberedNormaliser:
        """What reads the stream into the assembler."""
        ...
