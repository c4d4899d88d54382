"""The parts of a provider's test kit that its conformance kit does not have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

import msgspec

from callboard.adapters.conformance import CALLS, FakeReply, HttpKit
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.transport.transport import HttpReply, HttpRequest, Transport
from callboard.bus.clock import Clock
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import Message

Event = JsonObject | bytes | str
"""An event of a stream. A string or bytes are its data, unchanged."""


def as_data(event: Event) -> bytes:
    """The bytes of an event's data in a body."""
    match event:
        case bytes():
            return event
        case str():
            return event.encode()
        case _:
            return msgspec.json.encode(event)


class Wire(HttpKit):
    """One protocol, over HTTP.

    A stop reason may also be one of the provider's own values, or empty to leave it out.
    """

    adapter: type[HttpAdapter]
    history = "messages"
    """The key of the conversation in a request's body."""
    secrets: tuple[str, ...] = ()
    """The parts of the reasoning in `reasoned` that must be sent back to this provider and to no other."""
    reasons = True
    """Whether replies can begin with reasoning."""
    fetches = True
    """Whether it accepts images by URL."""
    calls_tools = True
    """Whether it calls tools itself. Emulated calls are tested with its adapter."""
    has_response_ids = True
    """Whether its replies have an id of their own."""
    hello = Message.user("Hello")
    names_events = False
    """Whether the events of a stream have names, which are the types in their data."""

    knows: ClassVar[Mapping[str, Json]] = {}
    """The provider's answers to the requests that its adapter makes by itself."""
    _stops: ClassVar[Mapping[str, str]] = {}

    @property
    def type_name(self) -> str:
        """The `type` of its adapters in models.yaml."""
        return self.name

    @abstractmethod
    def body(self, text: str, calls: int, stop: str, thought: str = "") -> JsonObject:
        """As in the kit; it may begin with reasoning."""

    def stream(self, *events: Event, named: bool = True, line_end: bytes = b"\n", colon: bytes = b": ") -> bytes:
        """A streamed body of these events."""
        parts: list[bytes] = []
        for event in events:
            data = as_data(event)
            name = str(event.get("type") or event.get("event_type", "")) if isinstance(event, dict) else "other"
            head = [b"event" + colon + name.encode()] if named and self.names_events else []
            parts.append(line_end.join([*head, b"data" + colon + data, b"", b""]))
        return b"".join(parts)

    def other_forms(self, *events: Event) -> list[bytes]:
        """The same body in the formats of other servers and proxies."""
        return [
            self.stream(*events, line_end=b"\r\n"),
            self.stream(*events, line_end=b"\r"),
            self.stream(*events, named=False),
            b": comment\n\n" + self.stream(*events, colon=b":"),
        ]

    @abstractmethod
    def events(self, text: str, calls: int, stop: str, thought: str = "") -> Iterator[tuple[str, JsonObject]]:
        """As in the kit; it may begin with reasoning in two pieces."""

    def _word(self, stop: str) -> str | None:
        """The provider's value of a stop reason."""
        return self._stops.get(stop, stop) or None

    def thinking_body(self, thought: str, text: str) -> JsonObject | None:
        return self.body(text, 0, "end", thought) if self.reasons else None

    def thinking_events(self, thought: str, text: str) -> Iterable[tuple[str, JsonObject]] | None:
        return self.events(text, 0, "end", thought) if self.reasons else None

    def reasoned(self, thought: str, text: str, calls: int, stop: str) -> JsonObject:
        """As `body`, preceded by all kinds of reasoning of the protocol."""
        return self.body(text, calls, stop, thought if self.reasons else "")

    @property
    def most(self) -> tuple[int, str]:
        """The maximum number of tool calls in a reply, and its stop reason."""
        return (len(CALLS), "tools") if self.calls_tools else (0, "end")

    def faults(self, body: bytes) -> list[str]:
        """The faults of a request's history. Each provider requires at least that tool calls and results are
        pairs.
        """
        calls, results = self.ids(msgspec.json.decode(body))
        return [] if sorted(calls) == sorted(results) else [f"calls {calls} and results {results} are no pairs"]

    def judged(self, body: bytes) -> list[str]:
        """The faults of a request by the vendor's own types."""
        return []

    def through(self, transport: Transport) -> Transport:
        """Wrap the transport for an adapter that also makes other requests."""
        return Knowing(transport, self.knows) if self.knows else transport

    def make(self, transport: Transport, clock: Clock, **config: object) -> ProviderAdapter:
        return super().make(self.through(transport), clock, **config)


class Knowing:
    """A transport that answers some requests by itself, chosen by the end of their URL."""

    def __init__(self, transport: Transport, answers: Mapping[str, Json]) -> None:
        self.transport = transport
        self.answers = answers

    async def send(self, request: HttpRequest) -> HttpReply:
        for end, answer in self.answers.items():
            if request.url.endswith(end):
                return FakeReply(msgspec.json.encode(answer), headers={"content-type": "application/json"})
        return await self.transport.send(request)

    async def aclose(self) -> None:
        await self.transport.aclose()


def openai_error(condition: str) -> tuple[int, Json]:
    """The error response of OpenAI's servers."""
    status, kind, code, message = {
        "rate limit": (429, "requests", "rate_limit_exceeded", "Rate limit reached for requests"),
        "overload": (503, "server_error", "server_is_overloaded", "The server is overloaded"),
        "quota": (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota"),
        "bad key": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided: sk-***"),
        "forbidden": (403, "invalid_request_error", "unsupported_country_region_territory", "Not supported"),
        "no model": (404, "invalid_request_error", "model_not_found", "The model does not exist"),
        "overflow": (
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "maximum context length is 8192 tokens",
        ),
        "bad request": (400, "invalid_request_error", None, "Invalid value: must be positive"),
        "server": (500, "server_error", None, "The server had an error"),
    }[condition]
    return status, {"error": {"type": kind, "code": code, "message": message, "param": None}}
