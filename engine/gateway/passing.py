"""Passes a reply through with the provider's own bytes, because client and provider use the same protocol.

Only the model's name is replaced with the client's name for it. All other bytes of an event stay.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .wire import ClientRequest

_Members = dict[str, msgspec.Raw]
_members = msgspec.json.Decoder(_Members)

MODEL_PLACES: dict[str, tuple[str, ...]] = {
    "anthropic": ("message", "model"),
    "openai": ("response", "model"),
    "openai_compatible": ("model",),
    "gemini": ("modelVersion",),
}
"""The place of the model's name in a stream's events, by protocol. Events without this place have no name."""

MODEL_FIELDS = {"anthropic": "model", "openai": "model", "openai_compatible": "model", "gemini": "modelVersion"}
"""The field with the model's name in a whole reply."""

ENDS_IN_FAILURE = frozenset({"error", "response.failed", "response.error"})
"""The events by which a provider itself reports the failure of a reply."""


_ERROR_WITHIN = 20
"""The number of first bytes of an unnamed event that are searched for ``error``, in Chat and Gemini."""

MOST_WAITING_BYTES = 8 * 1024 * 1024
"""The largest number of bytes of a stream that may wait for a slow client."""


class ClientTooSlow(Exception):
    """The client reads too slowly, so the rest of its stream was dropped."""

    def __init__(self) -> None:
        super().__init__(f"it is more than {MOST_WAITING_BYTES} bytes behind")


class PassedReply:
    """The events of a reply as received from the provider. Use `take_in` as `WireRequest.on_event`.

    Args:
        protocol: The protocol of client and provider.
        client_request: The request.
        model: Returns the provider's name of the serving model.
        is_array: Whether the stream is one JSON array, not server-sent events.
    """

    def __init__(
        self, protocol: str, client_request: ClientRequest, model: Callable[[], str], *, is_array: bool = False
    ) -> None:
        self.seen = False
        """Whether anything has arrived. If so, the provider uses the client's protocol."""
        self.body = b""
        """The whole reply; empty for a stream."""
        self.final = b""
        """The last event of a stream of the Responses API, which has the whole response."""
        self.failed = False
        """Whether the provider reported a failure in the stream."""
        self._frames: list[bytes] = []
        self._waiting_bytes = 0
        self._protocol = protocol
        self._client_request = client_request
        self._model = model
        self._named = protocol in ("anthropic", "openai")
        self._is_array = is_array
        self._place = MODEL_PLACES[protocol]
        self._renames: bool | None = None
        # The bytes of the member with the model's name, and their replacement.
        self._known: tuple[bytes, bytes] | None = None
        self._sent_first = False

    def take_in(self, name: str, data: bytes) -> None:
        """Add an event, or a whole reply."""
        self.seen = True
        if not self._client_request.stream:
            self.body = data
            return
        if self._renames is None:
            self._renames = self._model() != self._client_request.model
        if name in _FINAL_EVENTS:
            self.final = data
        if name in ENDS_IN_FAILURE or (not name and b'"error"' in data[:_ERROR_WITHIN]):
            self.failed = True
        if self._waiting_bytes > MOST_WAITING_BYTES:
            return
        frame = self._framed(name, self._renamed(name, data) if self._renames else data)
        self._frames.append(frame)
        self._waiting_bytes += len(frame)

    def take(self) -> bytes:
        """The bytes for the client that have arrived. Raises ClientTooSlow."""
        if not self._frames:
            return b""
        if self._waiting_bytes > MOST_WAITING_BYTES:
            raise ClientTooSlow
        found = b"".join(self._frames)
        self._frames.clear()
        self._waiting_bytes = 0
        if self._is_array:
            found = (b"" if self._sent_first else b"[") + (
                found if self._sent_first else found.removeprefix(b",\r\n")
            )
            self._sent_first = True
        return found

    @property
    def end(self) -> bytes:
        """The bytes after the last event."""
        return b"]" if self._is_array else b""

    def whole(self) -> bytes:
        """The whole reply with the client's name of the model."""
        if self._model() == self._client_request.model:
            return self.body
        return replaced(self.body, (MODEL_FIELDS[self._protocol],), self._client_request.model)

    def _renamed(self, name: str, data: bytes) -> bytes:
        if self._named and name not in _NAMING_EVENTS:
            return data
        known = self._known
        if known is not None and data.count(known[0]) == 1:  # the usual case, without decoding
            return data.replace(*known)
        renamed = replaced(data, self._place, self._client_request.model)
        if len(self._place) == 1 and renamed is not data:
            found = _members.decode(data)[self._place[0]]
            key = b'"%s":' % self._place[0].encode()
            self._known = key + bytes(found), key + msgspec.json.encode(self._client_request.model)
        return renamed

    def _framed(self, name: str, data: bytes) -> bytes:
        if self._is_array:
            return b",\r\n" + data
        if b"\n" in data:
            data = b"\ndata: ".join(data.split(b"\n"))
        if self._named:
            return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
        return b"data: %s\r\n\r\n" % data if self._protocol == "gemini" else b"data: %s\n\n" % data


_FINAL_EVENTS = frozenset({"response.completed", "response.incomplete"})

_NAMING_EVENTS = frozenset(
    {
        "message_start",
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    }
)
"""The named events that contain the model's name."""


def replaced(data: bytes, place: tuple[str, ...], value: str) -> bytes:
    """JSON with the text at a place replaced. Data without this place is returned unchanged."""
    first, *rest = place
    try:
        members = _members.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data  # for example [DONE]
    found = members.get(first)
    if found is None:
        return data
    if not rest:
        members[first] = msgspec.Raw(msgspec.json.encode(value))
    else:
        members[first] = msgspec.Raw(replaced(bytes(found), tuple(rest), value))
    return msgspec.json.encode(members)
