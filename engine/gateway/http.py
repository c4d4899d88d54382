"""HTTP for the gateway: reads requests within limits, and writes answers.

The module uses plain ASGI, because a framework's request and response objects take more time than the rest of a
short call.
"""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.message
import importlib
import math
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from callboard.adapters.contract import RateLimitInfo
from callboard.adapters.http.retry import seconds_until
from callboard.bus import Log
from callboard.bus.values.base import JsonObject

from .failures import BadRequest, Failure

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

_log = Log("gateway")


class GatewayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a gateway."""

    body_bytes: int = 32 * 1024 * 1024
    """The maximum size of a request's body, in bytes."""
    bodies_bytes: int = 256 * 1024 * 1024
    """The maximum total size of all bodies that are being read, in bytes."""
    body_seconds: float = 60.0
    """Seconds in which a client must send its body."""
    header_bytes: int = 64 * 1024
    """The maximum size of a request's headers, in bytes."""
    header_count: int = 128
    """The maximum number of headers."""
    write_seconds: float = 60.0
    """Seconds without progress after which the call of a client that doesn't read is cancelled."""
    first_event_seconds: float = 15.0
    """Seconds to wait for the first event of a stream before sending status 200. Later errors are events of the
    stream.
    """
    ping_seconds: float = 15.0
    """Seconds of silence after which a stream sends a ping."""


UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
"""The code of a failure with the status 415."""


class ClientGone(Exception):
    """The client has disconnected, or has stopped reading."""


# --- Requests ---


class Incoming:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.receive = receive
        self.status = 0
        """The status of the answer; 0 until it is sent."""
        self._send = send
        self.method: str = scope["method"]
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        self.path = path[len(root) :] if root and path.startswith(root) else path
        self.abort: Callable[[], object] = scope.get(ABORT, lambda: None)
        """Closes the connection and drops waiting data, if the server supports it."""
        self.is_read = self.method in ("GET", "HEAD")
        """Whether the whole body was read."""
        self.client_name = ""
        """The name of the authenticated client."""
        self.summary: Callable[[], dict[str, Any]] | None = None
        """Returns data about the request's call, for a log."""
        self._scope = scope

    async def send(self, message: Message) -> None:
        """Send a part of the answer. Raises ClientGone."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self.method == "HEAD":
            message = {**message, "body": b""}
        try:
            await self._send(message)
        except OSError as error:
            raise ClientGone from error

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """The headers, with names in lower case. Headers of the same name are joined with a comma."""
        found: dict[str, str] = {}
        for raw_name, raw_value in self._scope["headers"]:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            found[name] = f"{found[name]}, {value}" if name in found else value
        return found

    @cached_property
    def query(self) -> Mapping[str, str]:
        text: bytes = self._scope.get("query_string", b"")
        return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True)) if text else {}

    def check_headers(self, limits: GatewayLimits) -> str | None:
        """The reason why the headers are too large or too many; None if they are not."""
        headers = self._scope["headers"]
        if len(headers) > limits.header_count:
            return f"the request has more than {limits.header_count} headers"
        if sum(len(name) + len(value) for name, value in headers) > limits.header_bytes:
            return f"the headers have more than {limits.header_bytes} bytes"
        return None


class Bodies:
    """Reads bodies, with a limit for each body and for all bodies together."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self._reading = 0

    async def read_json(self, request: Incoming) -> JsonObject:
        return json_object(await self.read(request))

    async def read(self, request: Incoming) -> bytes:
        """The body of a request, decompressed. Raises BadRequest or ClientGone."""
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            unpack = None
        elif encoding in ("gzip", "deflate"):
            unpack = _inflated
        elif encoding == "zstd" and zstd() is not None:
            unpack = _unzstd
        else:
            message = (
                f"content-encoding {encoding[:50]!r} is not supported. Send the body uncompressed, or with gzip"
            )
            raise BadRequest(message, code=UNSUPPORTED_MEDIA_TYPE)
        body = await self._read(request)
        request.is_read = True
        return body if unpack is None else unpack(body, self._limits)

    async def _read(self, request: Incoming) -> bytes:
        limits = self._limits
        length = request.headers.get("content-length", "")
        declared = int(length) if length.isascii() and length.isdecimal() else 0
        if declared > limits.body_bytes:
            raise BadRequest(_too_large(limits), kind="too_large")
        received = 0
        try:
            async with asyncio.timeout(limits.body_seconds):
                message = await request.receive()
                if not message.get("more_body") and message["type"] == "http.request":
                    body: bytes = message.get("body", b"")
                    if len(body) > limits.body_bytes:
                        raise BadRequest(_too_large(limits), kind="too_large")
                    return body
                parts: list[bytes] = []
                while True:
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    parts.append(part)
                    received += len(part)
                    self._reading += len(part)
                    if received > limits.body_bytes:
                        raise BadRequest(_too_large(limits), kind="too_large")
                    if self._reading > limits.bodies_bytes:
                        text = "too many large requests arrive. Retry later"
                        raise BadRequest(text, kind="unavailable", retry_after=1.0)
                    if not message.get("more_body"):
                        return b"".join(parts)
                    message = await request.receive()
        except TimeoutError:
            raise BadRequest(
                f"the body did not arrive within {limits.body_seconds:g} seconds", kind="timeout"
            ) from None
        finally:
            self._reading -= received


def _inflated(body: bytes, limits: GatewayLimits) -> bytes:
    """Decompress a body from gzip or zlib, up to the maximum size of a body."""
    decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)  # detects gzip or zlib by the header
    try:
        unpacked = decompressor.decompress(body, limits.body_bytes)
    except zlib.error as error:
        raise _garbled(error) from None
    if decompressor.unconsumed_tail:
        raise BadRequest(_too_large(limits), kind="too_large")
    if not decompressor.eof:
        raise _cut()
    return unpacked


@cache
def zstd() -> Any:
    """The module for zstd; None if it is missing. Python 3.14 and newer include it."""
    for name in ("compression.zstd", "backports.zstd"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name)
    return None


def _unzstd(body: bytes, limits: GatewayLimits) -> bytes:
    """Decompress a body from zstd, up to the maximum size of a body."""
    module = zstd()
    decompressor = module.ZstdDecompressor()
    try:
        unpacked: bytes = decompressor.decompress(body, limits.body_bytes)
    except module.ZstdError as error:
        raise _garbled(error) from None
    if not decompressor.eof:
        raise _cut() if decompressor.needs_input else BadRequest(_too_large(limits), kind="too_large")
    return unpacked


def _garbled(error: Exception) -> BadRequest:
    return BadRequest(f"the body is not what its content-encoding says: {error}")


def _cut() -> BadRequest:
    return BadRequest("the compressed body is not complete")


def _too_large(limits: GatewayLimits) -> str:
    return f"the body is larger than {limits.body_bytes} bytes"


def json_object(body: bytes) -> JsonObject:
    """The JSON object in a body. Raises BadRequest."""
    try:
        found = msgspec.json.decode(body)
    except RecursionError:
        raise BadRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRequest("the body must be a JSON object")
    return found


MOST_FIELDS = 64
"""The maximum number of fields and files in a form."""


class FormField(NamedTuple):
    """A field or a file of a form."""

    name: str
    data: bytes
    media_type: str | None
    """The media type of a file; None for a field."""


def form_fields(body: bytes, content_type: str) -> list[FormField]:
    """The parts of a ``multipart/form-data`` body. Raises BadRequest."""
    boundary = _headers_of(b"content-type: " + content_type.encode("latin-1")).get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise BadRequest("the form has no boundary in its content-type")
    delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
    _, *parts = (b"\r\n" + body).split(delimiter, MOST_FIELDS + 1)
    if len(parts) > MOST_FIELDS or not parts or not parts.pop().startswith(b"--"):
        raise BadRequest(f"the form is not complete, or has more than {MOST_FIELDS} fields")
    found: list[FormField] = []
    for part in parts:
        head, blank, data = part.partition(b"\r\n\r\n")
        headers = _headers_of(head.removeprefix(b"\r\n"))
        name = headers.get_param("name", header="content-disposition")
        if not blank or not isinstance(name, str):
            raise BadRequest("a field of the form has no name")
        is_file = headers.get_param("filename", header="content-disposition") is not None
        found.append(FormField(name, data, headers.get_content_type() if is_file else None))
    return found


def _headers_of(head: bytes) -> email.message.Message:
    return email.message_from_bytes(head + b"\r\n\r\n")


# --- Answers ---

ABORT = "callboard.abort"
"""The key of `Incoming.abort` in an ASGI scope."""

JSON_TYPE = b"application/json"


async def answer(
    send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = (), *, kind: bytes = JSON_TYPE
) -> None:
    all_headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def header(name: bytes, text: str) -> tuple[bytes, bytes]:
    """A header, with its text reduced to printable ASCII."""
    return name, text.encode("ascii", "replace").translate(_PRINTABLE)


_PRINTABLE = bytes(code if 32 <= code < 127 else 32 for code in range(256))


def retry_headers(failure: Failure, *, may_retry: bool | None = None) -> Headers:
    """The headers that control an SDK's retries."""
    headers: Headers = []
    if failure.retry_after is not None:
        headers.append((b"retry-after", b"%d" % math.ceil(failure.retry_after)))
        headers.append((b"retry-after-ms", b"%d" % math.ceil(failure.retry_after * 1000)))
    if may_retry is False:
        headers.append((b"x-should-retry", b"false"))  # the SDKs of OpenAI and Anthropic use this header
    return headers


class StreamedAnswer:
    """A streamed answer. It sends a ping after some seconds of silence. If the client stops reading, the answer is
    abandoned.
    """

    def __init__(
        self, send: Send, limits: GatewayLimits, ping: Callable[[], bytes], give_up: Callable[[str], object]
    ) -> None:
        self.headers: Headers = []
        """The headers to send at the start."""
        self.started = False
        """Whether the status was sent."""
        self._send = send
        self._limits = limits
        self._ping = ping
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._last = self._started = self._loop.time()
        self._writing = False
        self._pinging: asyncio.Task[None] | None = None
        self._tick_seconds = min(limits.ping_seconds, limits.write_seconds, limits.first_event_seconds) / 3
        self._timer: asyncio.TimerHandle = self._loop.call_later(self._tick_seconds, self._tick)

    async def start(self) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self.headers})

    async def write(self, data: bytes) -> None:
        """Send a piece. Waits while the client does not read."""
        if not self.started:
            await self.start()
        self._writing, self._last = True, self._loop.time()
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self._writing, self._last = False, self._loop.time()

    async def end(self, data: bytes = b"") -> None:
        if not self.started:
            await self.start()
        self._writing, self._last = True, self._loop.time()
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    def close(self) -> None:
        self._timer.cancel()
        if self._pinging is not None:
            self._pinging.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._tick_seconds, self._tick)
        limits, now = self._limits, self._loop.time()
        if self._writing:
            if now - self._last >= limits.write_seconds:
                self._timer.cancel()
                self._give_up(f"the client read nothing for {limits.write_seconds:g} seconds")
            return
        waited = limits.ping_seconds if self.started else limits.first_event_seconds
        if now - self._last >= waited and (self._pinging is None or self._pinging.done()):
            self._pinging = self._loop.create_task(self._send_ping())

    async def _send_ping(self) -> None:
        ping = self._ping()
        if not self.started:
            await self.start()
        if ping and not self._writing:
            await self.write(ping)


# --- Rate limits ---


class RateHeaders(msgspec.Struct, frozen=True):
    """The limits of a client or a provider per minute; None if there is no such limit."""

    limit_requests: int | None = None
    remaining_requests: int | None = None
    reset_requests: float | None = None
    """Seconds until the limit of requests is fully reset."""
    limit_tokens: int | None = None
    remaining_tokens: int | None = None
    reset_tokens: float | None = None
    """Seconds until the limit of tokens is fully reset."""
    counts_output: bool = True
    """Whether the token limit also counts the tokens of replies."""


def rate_headers(wire: str, rates: RateHeaders) -> Headers:
    """The headers with the limits, as named on a client's wire. Gemini has no such headers, and OpenAI has none
    for a limit on input only.
    """
    if wire == "gemini":
        return []
    found: Headers = []
    kinds = [("requests", rates.limit_requests, rates.remaining_requests, rates.reset_requests)]
    if rates.counts_output or wire == "messages":
        name = "tokens" if rates.counts_output else "input-tokens"
        kinds.append((name, rates.limit_tokens, rates.remaining_tokens, rates.reset_tokens))
    for kind, limit, remaining, reset in kinds:
        if wire == "messages":
            names, until = f"anthropic-ratelimit-{kind}-%s", None if reset is None else _moment(reset)
        else:
            names, until = f"x-ratelimit-%s-{kind}", None if reset is None else f"{reset:.3f}s"
        for name, value in (("limit", limit), ("remaining", remaining), ("reset", until)):
            if value is not None:
                found.append(((names % name).encode(), str(value).encode()))
    return found


def provider_rates(limits: RateLimitInfo, now_us: int) -> RateHeaders:
    def seconds(reset: str | None) -> float | None:
        return None if reset is None else seconds_until(reset, now_us)

    return RateHeaders(
        limit_requests=limits.requests_limit,
        remaining_requests=limits.requests_remaining,
        reset_requests=seconds(limits.requests_reset),
        limit_tokens=limits.tokens_limit,
        remaining_tokens=limits.tokens_remaining,
        reset_tokens=seconds(limits.tokens_reset),
        counts_output=limits.counts_output,
    )


def passed_rates(headers: Mapping[str, str]) -> Headers:
    """The headers with limits of a provider's reply, unchanged."""
    return [header(name.encode("latin-1"), value) for name, value in headers.items() if name.startswith(_RATES)]


_RATES = ("x-ratelimit-", "anthropic-ratelimit-")


def _moment(seconds: float) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"
