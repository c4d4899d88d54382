"""The protocol of transports: HTTP requests, replies, their bodies and failures.

A transport is not bound to a server. A transport limits only the time to connect; the caller limits each read.
`connection_pool` makes transports.

Three kilobytes may unpack to gigabytes. So no piece of a body is larger than `PIECE_BYTES`, the reader counts the
bytes, and other tasks run between two pieces.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import msgspec

from callboard.bus.errors import (
    AdapterError,
    ConfigurationError,
    InvalidRequestError,
    NetworkError,
    RequestTimeoutError,
    StreamError,
)

from ..config import AdapterConfig

PIECE_BYTES = 64 * 1024
"""The largest piece of an unpacked body, in bytes."""

MOST_CODINGS = 4
"""The largest number of codings of a body."""

_GZIP = zlib.MAX_WBITS | 16
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
_ZLIB_HEADER = 2


class _Inflater:
    """A decoder of one coding: gzip, or deflate with or without its header."""

    def __init__(self, coding: str) -> None:
        self._may_be_raw = coding == "deflate"
        self._head = b""  # the first bytes, until it is clear whether there is a header
        self._inner = zlib.decompressobj(_ZLIB if self._may_be_raw else _GZIP)

    def unpack(self, data: bytes) -> Iterator[bytes]:
        while True:
            piece = self._step(data)
            data = self._inner.unconsumed_tail
            if piece:
                yield piece
            if not data and len(piece) < PIECE_BYTES:
                return

    def _step(self, data: bytes) -> bytes:
        if not self._may_be_raw:
            return self._inner.decompress(data, PIECE_BYTES)
        self._head += data
        self._may_be_raw = len(self._head) < _ZLIB_HEADER
        try:
            return self._inner.decompress(data, PIECE_BYTES)
        except zlib.error:  # some servers omit the header
            self._inner = zlib.decompressobj(_RAW)
            return self._inner.decompress(self._head, PIECE_BYTES)


def codings(header: str) -> list[str]:
    """The codings of a `content-encoding`, in the order in which they were applied.

    Raises StreamError for a coding that was not requested, and for too many codings.
    """
    named = [name for name in re.split(r"[\s,]+", header.lower()) if name not in ("", "identity")]
    for name in named:
        if name not in ("gzip", "x-gzip", "deflate"):
            raise StreamError(f"the reply is packed as {name[:40]!r}, which was not asked for", retryable=False)
    if len(named) > MOST_CODINGS:
        raise StreamError(f"the reply is packed {len(named)} times over", retryable=False)
    return named


class Unpacker:
    """A decoder for a body with one or more content codings.

    Raises:
        StreamError: A coding is not supported.
    """

    def __init__(self, header: str) -> None:
        self._inflaters = [_Inflater(coding) for coding in reversed(codings(header))]

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """The decoded bytes, piece by piece. Raises StreamError if they are corrupt."""
        pieces: Iterator[bytes] = iter((data,))
        for inflater in self._inflaters:
            pieces = chain.from_iterable(map(inflater.unpack, pieces))
        try:
            yield from pieces
        except zlib.error as error:
            raise StreamError(f"the reply's compression is broken: {error}") from error


async def unpacked(header: str, stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The decoded body. Raises StreamError for unsupported codings."""
    unpacker = Unpacker(header)
    async for data in stream:
        for number, piece in enumerate(unpacker.unpack(data)):
            if number:
                await anyio.lowlevel.checkpoint()
            yield piece


class FormPart(NamedTuple):
    """A field or a file of a form."""

    name: str
    """The name of the field, in plain ASCII without quotes."""
    content: bytes
    filename: str | None = None
    """The name of the file, in plain ASCII without quotes; None for another field."""
    media_type: str | None = None
    """The media type of the content; None leaves it out."""


def write_form(parts: Sequence[FormPart]) -> tuple[bytes, str]:
    """The body and its content type. Equal parts produce equal bytes, so all attempts send the same body.

    The boundary is a hash of all contents, so no content can contain it.
    """
    from hashlib import sha256  # most programs send no form

    digest = sha256()
    for part in parts:
        digest.update(b"%d:" % len(part.content) + part.content)
    boundary = digest.hexdigest()[:48]
    pieces: list[bytes] = []
    for part in parts:
        head = f'--{boundary}\r\ncontent-disposition: form-data; name="{part.name}"'
        if part.filename is not None:
            head += f'; filename="{part.filename}"'
        if part.media_type is not None:
            head += f"\r\ncontent-type: {part.media_type}"
        pieces += [head.encode("ascii"), b"\r\n\r\n", part.content, b"\r\n"]
    pieces.append(f"--{boundary}--\r\n".encode("ascii"))
    return b"".join(pieces), f"multipart/form-data; boundary={boundary}"


MAX_REPLY_BYTES = 128 * 1024 * 1024
"""The largest reply in memory, in bytes after unpacking, also for a single event or line."""


def too_large(limit: int = MAX_REPLY_BYTES, what: str = "the reply") -> StreamError:
    """The error for a reply beyond a limit. The request is not retried, because the next reply would be as
    large.
    """
    return StreamError(f"{what} is larger than {limit} bytes, and was not read further", retryable=False)


_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def with_clean_headers(config: AdapterConfig, name: str) -> AdapterConfig:
    """The configuration without white space around keys and header values."""
    key = config.api_key
    if isinstance(key, str):
        key = _clean(key, f"{name}: api_key")
    keys = {
        each: _clean(keys, f"{name}: keys[{each!r}]") if isinstance(keys, str) else keys
        for each, keys in config.keys.items()
    }
    for header in config.extra_headers:
        if not _NAME.fullmatch(header):
            raise ConfigurationError(f"{name}: extra_headers has an invalid header name: {header[:40]!r}")
    headers = {
        header: _clean(value, f"{name}: extra_headers[{header!r}]")
        for header, value in config.extra_headers.items()
    }
    if key == config.api_key and headers == config.extra_headers and keys == config.keys:
        return config
    return msgspec.structs.replace(config, api_key=key, extra_headers=headers, keys=keys)


def check_sendable(headers: Mapping[str, str]) -> None:
    """Raise InvalidRequestError for a header that can't be sent. The error names the header without its value."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()) and fault_of(value) is not None:
            raise InvalidRequestError(f"the header {name!r} has {fault_of(value)}, which can't be sent")


def _clean(value: str, field: str) -> str:
    value = value.strip()
    found = fault_of(value)
    if found is not None:
        raise ConfigurationError(f"{field} has {found}, which is not allowed in an HTTP header")
    return value


def fault_of(value: str) -> str | None:
    """Why a value can't be a header; None if it can. The text does not contain the value."""
    for at, character in enumerate(value):
        if character in "\r\n":
            return f"a line break (character {at + 1} of {len(value)})"
        if not character.isascii():
            return f"a character outside ASCII (character {at + 1} of {len(value)})"
        if not character.isprintable() and character != "\t":
            return f"a control character (character {at + 1} of {len(value)})"
    return None


# --- Masking of keys ---

MASK = "***"

_SECRET_HEADERS = ("auth", "key", "token", "cookie")
_MOST_SECRETS = 1000
_SHORTEST_SECRET = 6  # shorter secrets may occur in ordinary text


def given_keys(config: AdapterConfig) -> list[str]:
    """The keys with a value in the configuration. The keys that functions return are not known yet."""
    return [key for key in (config.api_key, *config.keys.values()) if isinstance(key, str) and key]


def secrets(config: AdapterConfig) -> tuple[str, ...]:
    """The values to mask: the key, and extra headers with a key."""
    values = given_keys(config)
    for name, value in config.extra_headers.items():
        if any(part in name.lower() for part in _SECRET_HEADERS):
            values.append(value)
            values.append(value.rpartition(" ")[2])  # the key without a prefix such as "Bearer"
    return tuple(dict.fromkeys(value for value in values if len(value) >= _SHORTEST_SECRET))


def with_secret(hidden: tuple[str, ...], value: str) -> tuple[str, ...]:
    """Add a secret. Above a limit, the oldest is dropped."""
    if len(value) < _SHORTEST_SECRET or value in hidden:
        return hidden
    return (*hidden, value)[-_MOST_SECRETS:]


def masked(text: str, hidden: Sequence[str]) -> str:
    """Mask all secrets in a text."""
    for secret in hidden:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def mask_error(error: AdapterError, hidden: Sequence[str]) -> None:
    error.args = (masked(str(error), hidden),)
    for field in ("provider_message", "provider_code", "provider_param", "provider_request_id"):
        value = getattr(error, field)
        if value:
            setattr(error, field, masked(value, hidden))
    if error.provider_details and hidden:
        value = msgspec.json.encode(error.provider_details).decode()
        if (plain := masked(value, hidden)) != value:
            error.provider_details = msgspec.json.decode(plain)


def masked_headers(headers: Mapping[str, str], hidden: Sequence[str]) -> Mapping[str, str]:
    """Mask all secrets in a reply's headers. Headers without secrets are returned unchanged."""
    for secret in hidden:
        if any(secret in value for value in headers.values()):
            headers = {name: value.replace(secret, MASK) for name, value in headers.items()}
    return headers


class _Filter(logging.Filter):
    """Masks the secrets of all living adapters in httpcore's log of headers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: WeakKeyDictionary[object, tuple[str, ...]] = WeakKeyDictionary()

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str):
            for hidden in list(self.hidden.values()):
                record.msg = masked(record.msg, hidden)
        return True


_FILTER = _Filter()


def hide_in_logs(owner: object, hidden: tuple[str, ...]) -> None:
    """Mask secrets in httpcore's debug log as long as their owner lives."""
    logging.getLogger("httpcore.http11").addFilter(_FILTER)  # adding it twice has no effect
    if hidden:
        _FILTER.hidden[owner] = hidden


ERROR_BODY_BYTES = 1024 * 1024
"""The number of bytes that are read of an error's body."""

_LONG_READ_BYTES = 1024 * 1024
"""After this many bytes of a body, other tasks get time to run."""


class HttpRequest(msgspec.Struct, frozen=True):
    """An HTTP request. Its headers may contain keys, so a request is never logged."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    """The body; empty if there is none."""
    connect_timeout: float = 10.0
    """Seconds to connect."""
    once: bool = False
    """Whether the request must not arrive twice. If so, it gets a new connection, because a request over a kept
    connection may have to be sent again.
    """
    on_resend: Callable[[], object] | None = None
    """Called when the request is sent again."""
    public_only: bool = False
    """Whether the address comes from a reply. The request then gets a new connection, to a public address only.
    """

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.url}, {len(self.body)} bytes)"


class HttpReply(Protocol):
    """A reply whose head has arrived. Always close it."""

    status: int
    """The HTTP status."""
    headers: Mapping[str, str]
    """The headers, with lower-case names."""

    async def chunk(self) -> bytes | None:
        """The next bytes of the body, decompressed; None at its end."""
        ...

    async def aclose(self) -> None:
        """Return the connection, or close it if the body was not read to its end."""
        ...


class ClosableReply:
    """A reply that reports whether it is closed, so that callers can skip a second close."""

    closed = False
    """Whether the connection was returned or closed, for example at the body's end."""


class TransportStatistics(msgspec.Struct, frozen=True):
    """A transport's connections, without idle ones."""

    clients: int
    """Open connection pools: one for each server, or for each httpx client."""
    in_use: int
    """Connections with a request or a reply."""


class Transport(Protocol):
    """Sends requests. Many calls may use it concurrently."""

    async def send(self, request: HttpRequest) -> HttpReply:
        """Send, and wait for the reply's head. Raises AdapterError only."""
        ...

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        ...


async def exchange(transport: Transport, request: HttpRequest) -> tuple[HttpReply, bytes]:
    """Send, read the whole reply, and close it. Raises AdapterError."""
    reply = await transport.send(request)
    try:
        return reply, await (read_body(reply) if reply.status < 300 else read_error_body(reply))
    finally:
        await close_reply(reply)


async def read_body(reply: HttpReply, limit: int = MAX_REPLY_BYTES) -> bytes:
    """The whole body. Raises StreamError if it is larger than `limit` bytes."""
    body = await _read(reply, limit)
    if len(body) > limit:
        raise too_large(limit)
    return body


async def read_error_body(reply: HttpReply) -> bytes:
    """The body of an error, cut at the usual size of errors."""
    return (await _read(reply, ERROR_BODY_BYTES))[:ERROR_BODY_BYTES]


async def _read(reply: HttpReply, limit: int) -> bytes:
    """The body up to the piece that exceeds the limit."""
    parts: list[bytes] = []
    size, pause = 0, _LONG_READ_BYTES
    while size <= limit and (chunk := await reply.chunk()) is not None:
        parts.append(chunk)
        size += len(chunk)
        if size > pause:
            pause = size + _LONG_READ_BYTES
            await anyio.lowlevel.checkpoint()
    return b"".join(parts)


async def close_reply(reply: HttpReply) -> None:
    """Close a reply even if the task is cancelled, within one second."""
    if isinstance(reply, ClosableReply) and reply.closed:
        return
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
        await reply.aclose()


def not_in_time(host: str) -> RequestTimeoutError:
    """The error for a connection timeout."""
    error = RequestTimeoutError(f"no connection to {host} within the connect timeout")
    error.before_sending = True
    return error


def unreachable(host: str, reason: str) -> NetworkError:
    error = NetworkError(f"could not connect to {host}: {reason}")
    error.before_sending = True
    return error


def broken(host: str, reason: str) -> StreamError:
    """The error for an invalid or incomplete reply."""
    return StreamError(f"the connection to {host} broke: {reason}")


def failed(host: str, reason: str) -> NetworkError:
    """The error for a network failure during a request."""
    return NetworkError(f"the connection to {host} failed: {reason}")


def unsendable(what: str) -> InvalidRequestError:
    """The error for a request that can't be written. The text must not quote the request."""
    return InvalidRequestError(f"base_url, api_key or extra_headers can't be sent ({what})")


def not_made(error: Exception) -> AdapterError:
    return AdapterError(f"the request could not be built: {type(error).__name__}: {error}")
