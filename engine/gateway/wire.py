"""The interface of all client wires: read a request, write a reply, write a failure.

A wire is the reverse of an adapter: it reads clients' requests, and writes the replies that their SDKs expect. All
of it is pure functions. The application handles routing, budgets, keys and sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from callboard.adapters import CallWarning, CanonicalRequest, CanonicalResponse
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject, ShortRepr

FailureKind: TypeAlias = Literal[
    "invalid_request",  # 400
    "context_overflow",  # 400; the prompt is too long
    "content_filter",  # 400
    "authentication",  # 401
    "budget",  # 402 or 429, with `retry_after` if a window ends
    "permission",  # 403
    "not_found",  # 404, for a model
    "missing",  # 404, for an address or a stored response
    "wrong_method",  # 405
    "too_large",  # 413
    "rate_limit",  # 429
    "server",  # 500
    "unavailable",  # 503
    "timeout",  # 504
    "overloaded",  # 529
]
"""The kinds of failure that a wire can express."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed request, in a form that is independent of the wire."""

    kind: FailureKind
    """The kind. A wire maps it to its own type and status."""
    message: str
    """The error's text."""
    param: str | None = None
    """The field that caused the error, as named on the client's wire."""
    code: str | None = None
    """The provider's own code, if it gave one."""
    retry_after: float | None = None
    """Seconds after which a retry may succeed."""
    request_id: str | None = None
    """The id of the call in the trace."""
    details: Mapping[str, Json] = {}
    """More fields of the provider's error, if the provider uses the client's wire."""
    allow: tuple[str, ...] = ()
    """The methods of the address, for `wrong_method`."""


class BadRequest(Exception):
    """A client's request that a wire can't read. `failure` has the details."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        kind: FailureKind = "invalid_request",
        code: str | None = None,
        retry_after: float | None = None,
        allow: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.failure = Failure(
            kind=kind, message=message, param=param, code=code, retry_after=retry_after, allow=allow
        )


class ClientRequest(ShortRepr, frozen=True, kw_only=True):
    """A client's request for one reply."""

    model: str
    """The client's name for the model."""
    request: CanonicalRequest
    """The request in the canonical form. Its `model` is the client's name. Its ids are empty. If the client sets
    no limit, `default_output_limit` is set.
    """
    stream: bool = False
    """Whether the client requested a stream."""
    body: JsonObject = msgspec.field(default_factory=dict)
    """The client's original body, for a provider with the same protocol."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The client's headers that concern the request, such as ``anthropic-beta``, in lower case."""
    losses: tuple[CallWarning, ...] = ()
    """The parts without a canonical equivalent. If another wire serves the request, the client gets these
    warnings.
    """
    refers_to: str = ""
    """A field that refers to data stored at the provider, see `WireRequest.refers_to`."""
    session_hint: str | None = None
    """The conversation's id from a header or the metadata of the client; None if the client sent none."""
    options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    """Fields that only the wire's own writer needs, such as Chat's `include_usage`."""


class ReplyInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The data that a writer needs before the reply starts."""

    id: str
    """The reply's id, without the wire's prefix. A writer adds ``msg_``, ``chatcmpl-`` or ``resp_``."""
    model: str
    """The model's name, as the client requested it."""
    created: int
    """Seconds since the epoch."""
    input_tokens: int = 0
    """An estimate of the prompt's tokens, for wires that send it before the reply ends."""


class ReplyWriter(Protocol):
    """Writes one streamed reply. Each method returns the bytes to send next, which may be empty.

    Call `start` first, then `write` for each event, and at the end `finish` or `fail`.
    """

    def start(self) -> bytes: ...

    def write(self, event: StreamEvent) -> bytes:
        """The bytes for an event of the reply. `MessageStart` and `MessageComplete` are among these events."""
        ...

    def finish(self, response: CanonicalResponse) -> bytes: ...

    def fail(self, failure: Failure) -> bytes:
        """The bytes for the end of a reply that failed after its first byte."""
        ...

    def ping(self) -> bytes:
        """The bytes to keep a waiting connection open; empty if the wire has none."""
        ...


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in a list."""

    id: str
    """The name that a client sends."""
    created: int = 0
    """Seconds since the epoch."""
    owned_by: str = "callboard"
    """The provider."""
    context_tokens: int | None = None
    """The maximum number of tokens of prompt and reply together."""
    output_tokens: int | None = None
    """The maximum number of tokens of a reply."""


def _events_type(_request: ClientRequest) -> str:
    return "text/event-stream; charset=utf-8"


class RequestReader(Protocol):
    """Reads a client's request."""

    def __call__(
        self, body: JsonObject, headers: Mapping[str, str], *, model: str | None = None, stream: bool = False
    ) -> ClientRequest:
        """Read a request.

        Args:
            body: The decoded body.
            headers: The headers, names in lower case.
            model: The model in the path, if the wire puts it there.
            stream: Whether the path requests a stream, if the wire has that there.

        Raises:
            BadRequest: The request can't be read.
        """
        ...


class ClientWire(msgspec.Struct, frozen=True, kw_only=True):
    """The functions of a client wire. Each of the four wires has one, named ``WIRE``."""

    name: str
    """``chat``, ``responses``, ``messages`` or ``gemini``."""
    protocol: str
    """The adapters' name for the protocol: ``openai_compatible``, ``openai``, ``anthropic`` or ``gemini``."""
    read_request: RequestReader
    """Reads a request. Raises BadRequest."""
    stream_type: Callable[[ClientRequest], str] = _events_type
    """Returns the content type of a streamed reply."""
    writer: Callable[[ClientRequest, ReplyInfo], ReplyWriter]
    """Makes a writer of the streamed reply to a request."""
    write_reply: Callable[[ClientRequest, ReplyInfo, CanonicalResponse], JsonObject]
    """Makes the body of a reply that is not streamed."""
    write_failure: Callable[[Failure], tuple[int, JsonObject]]
    """Makes the status and the body of a failure before the first byte."""
    write_models: Callable[[Sequence[ListedModel]], JsonObject]
    """Makes the body of a list of models."""
    write_model: Callable[[ListedModel], JsonObject]
    """Makes the body of one model."""
    write_token_count: Callable[[int], JsonObject]
    """Makes the body of a token count."""
