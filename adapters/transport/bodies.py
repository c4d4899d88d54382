"""Bodies: decompression in bounded pieces, forms, and the limit of a reply.

Three kilobytes may unpack to gigabytes. So no piece is larger than `PIECE_BYTES`, the reader counts them, and
other tasks get a turn between two pieces of the same bytes.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import anyio.lowlevel

from callboard.bus.errors import StreamError

PIECE_BYTES = 64 * 1024
"""The largest unpacked piece in bytes."""

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
        self._head = b""  # set while it may be raw
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
    """The codings of a `content-encoding` in the order of their application.

    Raises StreamError for an unrequested one, and for too many.
    """
    named = [name for name in re.split(r"[\s,]+", header.lower()) if name not in ("", "identity")]
    for name in named:
        if name not in ("gzip", "x-gzip", "deflate"):
            raise StreamError(f"the reply is packed as {name[:40]!r}, which was not requested", retryable=False)
    if len(named) > MOST_CODINGS:
        raise StreamError(f"the reply is packed {len(named)} times", retryable=False)
    return named


class Unpacker:
    """A decoder of all codings of a body.

    Raises:
        StreamError: A coding is not supported.
    """

    def __init__(self, header: str) -> None:
        self._inflaters = [_Inflater(coding) for coding in reversed(codings(header))]

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """The decoded bytes, piece by piece. Raises StreamError if they are corrupt."""
        pieces: Iterator[bytes] = iter((data,))
        for inflater in self._inflaters:
            pieces = _each(inflater, pieces)
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


def _each(inflater: _Inflater, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from inflater.unpack(piece)


class FormPart(NamedTuple):
    """A field of a form, or a file."""

    name: str
    """The name of the field, in plain ASCII without quotes."""
    content: bytes
    filename: str | None = None
    """The name of the file, in plain ASCII without quotes; None for another field."""
    media_type: str | None = None
    """The media type of the content; None leaves it out."""


def write_form(parts: Sequence[FormPart]) -> tuple[bytes, str]:
    """The body and its content type. Equal parts give equal bytes, so that every attempt is the same.

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
    """The error for a reply beyond a limit. It is not retried, because the next reply would be the same."""
    return StreamError(f"{what} is larger than {limit} bytes, and was not read to the end", retryable=False)
