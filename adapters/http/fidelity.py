"""A client's own request and a provider's own reply, unchanged.

If a gateway's client and the provider share a protocol, nothing is lost: the body is sent unchanged, and the
events of the reply are passed on unchanged. The canonical request and reply also exist, for the trace and the
price. `WireRequest` has the rules.

The adapter changes these parts of a body, and no others:

* ``model``: the model's name at the provider. Gemini has it in the path.
* ``stream``: set to whether the call is streamed. Chat's ``stream_options`` are removed if the call is not
  streamed.
* ``stream_options.include_usage`` of a streamed Chat request, if the server supports it. Without it no usage is
  reported. The additional usage event is not passed on to the client.

A server's quirks are not applied here, because the client's own body is sent. If the server rejects a field, the
body is repaired like other bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import RawReply

from ..contract import WireRequest
from ..keys import Keyring
from ..transport.transport import MASK, masked

_NOT_PASSED_ON = frozenset({
    # keys and accounts: the adapter sends its own
    "authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie",
    "openai-organization", "openai-project", "x-goog-user-project",
    # headers of the message and the connection
    "host", "content-type", "content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive",
    "te", "trailer", "upgrade", "expect", "accept", "accept-encoding", "user-agent",
    # headers about the client's route to this server
    "forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "via", "origin",
    "referer",
})  # fmt: skip
"""Headers of a client's request that never reach the provider."""


def client_body(sent: WireRequest, model: str, *, stream: bool) -> JsonObject:
    """The body of a client's request with the provider's name of the model. The order of fields is kept."""
    body: JsonObject = {**sent.body, "model": model}
    if stream:
        body["stream"] = True
    elif body.get("stream"):
        body["stream"] = False
    return body


def client_headers(sent: WireRequest, adapter_headers: Mapping[str, str] = {}) -> dict[str, str]:
    """The headers for the provider, in lower case. The client's headers replace `adapter_headers`."""
    from_client = {name.lower(): value for name, value in sent.headers.items()}
    return {
        **adapter_headers,
        **{name: value for name, value in from_client.items() if name not in _NOT_PASSED_ON},
    }


class EventRelay:
    """Forwards the events of one attempt's reply unchanged.

    Events are held until the first content, because an attempt may fail before it and be repeated.

    Args:
        receiver: A function that gets each event.
        keys: The adapter's keys, which are masked.
        hides: A function that returns True for an event that only the adapter requested; None if it requested
            none.
    """

    def __init__(
        self,
        receiver: Callable[[str, bytes], object],
        keys: Keyring,
        hides: Callable[[bytes], bool] | None,
    ) -> None:
        self._receiver: Callable[[str, bytes], object] | None = receiver
        self._keys = keys
        self._masks: list[bytes] = []
        self._hides = hides
        self._undelivered: list[tuple[bytes, bytes]] | None = []

    def deliver(self) -> None:
        """Pass on the held events, and every later event immediately. Idempotent."""
        events, self._undelivered = self._undelivered, None
        if events is not None:
            self._masks = [secret.encode() for secret in self._keys.secrets]
            for name, data in events:
                self._pass_on(name, data)

    def stop(self) -> None:
        """Drop the held events and all later ones."""
        self._receiver, self._undelivered = None, None

    def body(self, body: bytes) -> None:
        """Hold or pass on the body of a whole reply."""
        self._take((b"", body))

    def event(self, event: tuple[bytes, bytes]) -> None:
        if self._hides is None or not self._hides(event[1]):
            self._take(event)

    def _take(self, event: tuple[bytes, bytes]) -> None:
        if self._undelivered is not None:
            self._undelivered.append(event)
        else:
            self._pass_on(*event)

    def _pass_on(self, name: bytes, data: bytes) -> None:
        if self._receiver is None:
            return
        for secret in self._masks:
            if secret in data:
                data = data.replace(secret, MASK.encode())
        self._receiver(name.decode("utf-8", "replace"), data)


# --- The raw reply ---

MAX_RAW_BYTES = 16 * 1024 * 1024
"""The largest number of bytes that are kept of one reply."""


class RawKept:
    """Collects the provider's data of one reply, from all its connections."""

    def __init__(self) -> None:
        self._body: bytes | None = None
        self._events: list[bytes] = []
        self._size = 0
        self._left_out = 0

    def body(self, body: bytes) -> None:
        if self._has_room(body):
            self._body = body

    def event(self, data: bytes) -> None:
        if self._has_room(data):
            self._events.append(data)

    def reply(self, hidden: Sequence[str]) -> RawReply:
        return RawReply(
            body=None if self._body is None else _decoded(self._body, hidden),
            events=tuple(_decoded(data, hidden) for data in self._events),
            left_out=self._left_out,
        )

    def _has_room(self, data: bytes) -> bool:
        # once an event was left out, later ones are too, so the recorded part has no gaps
        if self._left_out or self._size + len(data) > MAX_RAW_BYTES:
            self._left_out += 1
            return False
        self._size += len(data)
        return True


def _decoded(data: bytes, hidden: Sequence[str]) -> Json:
    text = masked(data.decode("utf-8", "replace"), hidden)
    try:
        value: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value
