"""Cassettes: recorded HTTP exchanges with a provider, for replay.

A cassette is one JSON file for a scenario, meant for review:

    {"format": 1, "scenario": "the subject", "exchanges": [
      {"request": {"method": "POST", "path": "/v1/messages", "headers": {...}, "body": {...}},
       "reply": {"status": 200, "headers": {...}, "chunks": ["data: ...", ...], "end": "whole"}}]}

* body is the request's JSON. Callboard's random ids (``tu_<ulid>`` and similar) are numbered in the order in which
they appear.
* chunks are the pieces from the network, decompressed; a piece that is not UTF-8 is ``{"base64": "..."}``.
* end is ``whole``; ``left`` if the reader left first; otherwise the text of the error.
* Headers are kept by allow-list. Known keys (from headers and `secrets`) are masked everywhere.

A request gets the first unplayed recording with the same method, path and body. Top-level fields in
VOLATILE_FIELDS are ignored. If no recording matches, CassetteMiss shows the most similar one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import msgspec

from callboard.bus.errors import AdapterError, ConfigurationError, StreamError
from callboard.bus.files import write_private
from callboard.bus.values.base import Json, JsonObject

from .transport.transport import HttpReply, HttpRequest, Transport

# --- Differences of JSON values ---


class Difference(msgspec.Struct):
    """A difference between two JSON values."""

    text: str
    """The difference in words."""
    size: int
    """The approximate number of differing characters. An added message weighs more than a changed word."""


def differences(recorded: Json, sent: Json, where: str = "") -> Iterator[Difference]:
    """Yield the changed, added and missing values."""
    if isinstance(recorded, dict) and isinstance(sent, dict):
        for name in sorted({*recorded, *sent}):
            place = f"{where}.{name}" if where else name
            if name not in sent:
                text = f"{place} was recorded ({_short(recorded[name])}) and is not sent"
                yield Difference(text, len(name) + _length(recorded[name]))
            elif name not in recorded:
                text = f"{place} is sent ({_short(sent[name])}) and was not recorded"
                yield Difference(text, len(name) + _length(sent[name]))
            else:
                yield from differences(recorded[name], sent[name], place)
    elif isinstance(recorded, list) and isinstance(sent, list):
        for number, (one, other) in enumerate(zip(recorded, sent, strict=False)):
            yield from differences(one, other, f"{where}[{number}]")
        if len(recorded) != len(sent):
            shorter = min(len(recorded), len(sent))
            surplus = sum(map(_length, [*recorded[shorter:], *sent[shorter:]]))
            yield Difference(f"{where} had length {len(recorded)} and now has length {len(sent)}", surplus)
    elif recorded != sent or type(recorded) is not type(sent):
        yield Difference(f"{where} was {_short(recorded)} and now is {_short(sent)}", _unlike(recorded, sent))


def _length(value: Json) -> int:
    return len(msgspec.json.encode(value))


def _unlike(recorded: Json, sent: Json) -> int:
    """The length of both texts without their common start and their common end."""
    one, other = msgspec.json.encode(recorded), msgspec.json.encode(sent)
    ahead = _alike(one, other)
    one, other = one[ahead:][::-1], other[ahead:][::-1]
    return max(len(one), len(other)) - _alike(one, other)


def _alike(one: bytes, other: bytes) -> int:
    """The length of the common start."""
    unlike = (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(unlike, min(len(one), len(other)))


def _short(value: Json) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."


FORMAT = 1

VOLATILE_FIELDS = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})
"""Fields of a request's body that identify the caller and don't affect the reply. Comparisons ignore them."""

_REQUEST_HEADERS = frozenset({"content-type", "accept", "anthropic-version", "anthropic-beta", "openai-beta"})
_REPLY_HEADERS = frozenset(
    {"content-type", "retry-after", "retry-after-ms", "x-should-retry", "request-id", "x-request-id"}
)
_REPLY_HEADER_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")
_SECRET_HEADER = re.compile(r"authorization|api-?key|token|secret|cookie", re.IGNORECASE)
_SECRET_QUERY = re.compile(r"([?&](?:key|api[_-]?key|access_token)=)[^&]*", re.IGNORECASE)
_OUR_ID = re.compile(r"\b(tu|msg|req|trn|ses|run)_[0-9A-HJKMNP-TV-Z]{26}\b")
_SHORTEST_SECRET = 4


class CassetteMiss(AdapterError):
    """No recording answers this request.

    The class is an AdapterError, because transports raise no other errors. Its `error_class` is ``other``. It is
    never retried, because the cause is in the test.
    """


class Base64Chunk(msgspec.Struct, frozen=True):
    """A piece of a body that is not UTF-8."""

    base64: str
    """The bytes of the piece, as base64."""


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request of a recording."""

    method: str
    """The HTTP method."""
    path: str
    """The path with its query, without keys."""
    headers: dict[str, str]
    """The request's headers that are on the allow-list."""
    body: Json
    """The JSON of the body."""


class RecordedReply(msgspec.Struct, frozen=True):
    """A reply of a recording."""

    status: int
    """The HTTP status."""
    headers: dict[str, str]
    """The reply's headers that are on the allow-list."""
    chunks: tuple[str | Base64Chunk, ...]
    """The pieces of the body."""
    end: str = "whole"
    """How the body ended: ``whole``, ``left`` or the text of an error."""


class Exchange(msgspec.Struct, frozen=True):
    """One request and its reply."""

    request: RecordedRequest
    reply: RecordedReply


class Cassette(msgspec.Struct, frozen=True):
    """The contents of a file."""

    format: int
    """The number of the format, 1."""
    scenario: str
    """The subject of the recording, for people."""
    exchanges: tuple[Exchange, ...]
    """The requests and their replies."""


def load_cassette(path: str | Path) -> Cassette:
    """Read a cassette. Raises ConfigurationError for an invalid file, OSError if it can't be read."""
    try:
        cassette = msgspec.json.decode(Path(path).read_bytes(), type=Cassette)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigurationError(f"{path}: not a cassette: {error}") from error
    if cassette.format != FORMAT:
        raise ConfigurationError(f"{path}: cassette format {cassette.format}; this version reads {FORMAT}")
    return cassette


def save_cassette(path: str | Path, cassette: Cassette) -> None:
    """Write a cassette, whole or not at all, replacing any file there. Only its owner can read it.

    Raises OSError.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_private(path, msgspec.json.format(msgspec.json.encode(cassette), indent=1) + b"\n")


class RecordingTransport:
    """A transport that records all requests to another one. `aclose` writes the file.

    A request without any reply is not recorded.

    Args:
        inner: The real transport. `aclose` closes it.
        scenario: The subject of the recording, for people.
        secrets: Texts to mask, of at least four characters, besides the keys in headers.
    """

    def __init__(
        self, inner: Transport, path: str | Path, *, scenario: str = "", secrets: Sequence[str] = ()
    ) -> None:
        self._inner = inner
        self._path = Path(path)
        self._scenario = scenario
        self._secrets = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
        self._replies: list[tuple[HttpRequest, _RecordingReply]] = []

    async def send(self, request: HttpRequest) -> HttpReply:
        self._secrets |= set(_secrets_in(request.headers))
        reply = _RecordingReply(await self._inner.send(request))
        self._replies.append((request, reply))
        return reply

    def save(self) -> None:
        """Write all recordings of this transport to its file. Raises OSError."""
        exchanges = tuple(self._exchange(request, reply) for request, reply in self._replies)
        save_cassette(self._path, Cassette(FORMAT, self._scenario, exchanges))

    async def aclose(self) -> None:
        await self._inner.aclose()
        self.save()

    def _exchange(self, request: HttpRequest, reply: _RecordingReply) -> Exchange:
        secrets = self._secrets
        sent = {name: _mask(text, secrets) for name, text in request.headers.items() if name in _REQUEST_HEADERS}
        got = {
            name: _mask(text, secrets)
            for name, text in reply.headers.items()
            if name in _REPLY_HEADERS or name.startswith(_REPLY_HEADER_PREFIXES)
        }
        chunks = tuple(_write_chunk(chunk) for chunk in self._mask_chunks(reply.chunks))
        return Exchange(
            _recorded(request, sent, secrets), RecordedReply(reply.status, got, chunks, _mask(reply.end, secrets))
        )

    def _mask_chunks(self, chunks: Sequence[bytes]) -> Iterator[bytes]:
        """Mask keys, including a key that is split across two chunks. Each chunk keeps its length."""
        body = b"".join(chunks)
        for secret in sorted(self._secrets, key=len, reverse=True):
            body = body.replace(secret.encode(), b"*" * len(secret.encode()))
        at = 0
        for chunk in chunks:
            yield body[at : at + len(chunk)]
            at += len(chunk)


class _RecordingReply:
    def __init__(self, inner: HttpReply) -> None:
        self._inner = inner
        self.status = inner.status
        self.headers = inner.headers
        self.chunks: list[bytes] = []
        self.end = "left"

    async def chunk(self) -> bytes | None:
        try:
            chunk = await self._inner.chunk()
        except AdapterError as error:
            self.end = str(error)
            raise
        if chunk is None:
            self.end = "whole"
        else:
            self.chunks.append(chunk)
        return chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class CassetteTransport:
    """A transport that answers requests from a cassette. A request without a recording raises CassetteMiss.

    Raises:
        OSError: The file can't be read.
        ConfigurationError: The file is not a cassette.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._exchanges = load_cassette(path).exchanges
        self._keys = [_key(each.request) for each in self._exchanges]
        self._played = [False] * len(self._exchanges)

    @property
    def unplayed(self) -> int:
        """The number of unplayed recordings."""
        return self._played.count(False)

    async def send(self, request: HttpRequest) -> HttpReply:
        await anyio.lowlevel.checkpoint()
        to_send = _recorded(request, {}, set(_secrets_in(request.headers)))
        key = _key(to_send)
        for number, recorded in enumerate(self._keys):
            if recorded == key and not self._played[number]:
                self._played[number] = True
                return _ReplayedReply(self._exchanges[number].reply)
        raise CassetteMiss(self._explain(to_send), retryable=False)

    async def aclose(self) -> None:
        pass

    def _explain(self, recorded: RecordedRequest) -> str:
        key = _key(recorded)
        call = f"{recorded.method} {recorded.path}"
        message = f"{self._path}: no recording of {call}"
        if not self._keys:
            return f"{message}: the cassette is empty"
        if key in self._keys:
            return f"{self._path}: this {call} was sent more often than it was recorded ({self._keys.count(key)})"
        request_fields = _compared(recorded)
        found = [list(differences(_compared(each.request), request_fields)) for each in self._exchanges]
        nearest = min(
            range(len(found)), key=lambda number: (sum(each.size for each in found[number]), self._played[number])
        )
        name = self._exchanges[nearest].request.path + (", already played" if self._played[nearest] else "")
        shown = "; ".join(each.text for each in found[nearest][:6])
        more = len(found[nearest]) - 6
        return (
            f"{message} as it was sent. The nearest is exchange {nearest} ({name}); it differs in: "
            f"{shown}{f'; and {more} more' if more > 0 else ''}. If you made this change on purpose, record again."
        )


class _ReplayedReply:
    def __init__(self, reply: RecordedReply) -> None:
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers
        self._chunks = iter(reply.chunks)
        self._end = reply.end
        self._closed = False

    async def chunk(self) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        if self._closed:
            raise StreamError("the reply is closed")
        chunk = next(self._chunks, None)
        if chunk is not None:
            return _read_chunk(chunk)
        if self._end == "whole":
            return None
        end = "its reader left" if self._end == "left" else self._end
        raise StreamError(f"the recording ends here: {end}")

    async def aclose(self) -> None:
        self._closed = True


def number_ids(body: str) -> str:
    """Replace Callboard's random ids in a body by numbers in order of appearance, so that every run has the same
    body.
    """
    numbers: dict[str, str] = {}
    return _OUR_ID.sub(lambda found: numbers.setdefault(found[0], f"{found[1]}_{len(numbers) + 1}"), body)


def _recorded(request: HttpRequest, headers: dict[str, str], secrets: set[str]) -> RecordedRequest:
    text = number_ids(_mask(request.body.decode("utf-8", "replace"), secrets))
    body: Json
    try:
        body = msgspec.json.decode(text)
    except msgspec.DecodeError:
        body = text
    parts = urlsplit(request.url)
    path = _SECRET_QUERY.sub(r"\1***", parts.path + (f"?{parts.query}" if parts.query else ""))
    return RecordedRequest(request.method, _mask(path, secrets), headers, body)


def _compared(request: RecordedRequest) -> JsonObject:
    body = request.body
    if isinstance(body, dict):
        body = {name: value for name, value in body.items() if name not in VOLATILE_FIELDS}
    return {"method": request.method, "path": request.path, "body": body}


def _key(request: RecordedRequest) -> bytes:
    return msgspec.json.encode(_compared(request), order="sorted")  # compared as text, because True == 1 in Python


def _mask(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets_in(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in headers.items():
        if _SECRET_HEADER.search(name):
            for word in value.split():
                if len(word) >= _SHORTEST_SECRET and word not in ("Bearer", "Basic"):
                    yield word


def _write_chunk(chunk: bytes) -> str | Base64Chunk:
    try:
        return chunk.decode()
    except UnicodeDecodeError:
        return Base64Chunk(base64.b64encode(chunk).decode())


def _read_chunk(chunk: str | Base64Chunk) -> bytes:
    return chunk.encode() if isinstance(chunk, str) else base64.b64decode(chunk.base64)
