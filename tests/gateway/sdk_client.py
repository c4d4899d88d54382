"""Each vendor's SDK as a client of a gateway, with one interface for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
import pydantic

from tests.support.canonical_requests import PNG
from tests.support.wires import Wire

from .scripted_providers import ScriptedProvider, stream, whole

PICTURE = b64encode(PNG).decode()


class City(pydantic.BaseModel):
    """The form of a structured output."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: str
    people: int | None


class Said(NamedTuple):
    """A reply, as an SDK returns it."""

    text: str
    calls: Sequence[tuple[str, str, Any]]
    """The id, the name and the arguments of each call."""
    thoughts: str
    finish: str
    usage: tuple[int, int, int]
    """All input tokens, the cached input tokens, and the output tokens."""
    images: Sequence[str]
    again: list[Any]
    """The messages that the client adds to its history."""
    native: Any


class Client(ABC):
    """An SDK in front of a gateway, and the gateway's provider.

    Args:
        url: The gateway's address.
        provider: The provider.
        wire: Its protocol.
    """

    protocol: ClassVar[str]
    model: ClassVar[str]
    tools: ClassVar[Mapping[str, Any]]
    """The fields that declare the tools in CALLS."""
    thinks: ClassVar[Mapping[str, Any]]
    """The fields that ask for reasoning."""
    structured: ClassVar[Mapping[str, Any]]
    """The fields that ask for a City."""
    brief: ClassVar[Mapping[str, Any]] = {}
    """The fields with the system text "Be brief."."""
    error: ClassVar[type[Exception]]
    sdk: Any

    def __init__(self, url: str, provider: ScriptedProvider, wire: Wire) -> None:
        self.url = url
        self.provider = provider
        self.wire = wire
        self.warnings = ""
        """The header with the warnings of the last reply."""
        self.kinds: list[str] = []
        """The types of the events of the last stream."""

    def says(self, text: str, calls: int, stop: str, thought: str = "", *, streamed: bool) -> None:
        """Script the provider's next reply."""
        if streamed:
            more = (thought,) if thought else ()
            events = self.wire.events(text, calls, stop, *more)
            self.provider.says(stream(self.wire, *(event for _, event in events)))
        else:
            self.provider.says(whole(self.wire.body(text, calls, stop, thought)))

    @property
    def sent(self) -> Any:
        """The body of the provider's last request."""
        return self.provider.asked[-1]

    def check_sent(self) -> None:
        """Check that the provider accepts the last request, unless the request is the client's own body."""
        if self.wire.name == self.protocol:
            return
        body = msgspec.json.encode(self.sent)
        assert self.wire.faults(body) == self.wire.judged(body) == []

    @abstractmethod
    def user(self, text: str) -> Any:
        """A message of the user."""

    @abstractmethod
    def media(self, page: bytes, media_type: str) -> Any:
        """A message with a picture and a document."""

    @abstractmethod
    def results(self, said: Said, text: str) -> list[Any]:
        """The results of a reply's calls as messages."""

    @abstractmethod
    async def ask(self, history: Any, *, streamed: bool = False, **fields: Any) -> Said:
        """Send a request and return the reply."""

    @abstractmethod
    def deltas(self, history: Any) -> AsyncIterator[str]:
        """Yield the text of a stream as it arrives. Closing the iterator closes the stream."""

    @abstractmethod
    def facts(self, error: Any) -> tuple[int, str, str | None]:
        """The status, the code and the delay in seconds of an error."""


def picture() -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
