"""Compressed bodies, unpacked in pieces of a bounded size.

Three kilobytes may unpack to gigabytes. So no piece is larger than `PIECE_BYTES`, whoever reads counts them, and
between two of them that came of the same bytes everybody else has a turn.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from typing import NamedTuple

import anyio.lowlevel

from callboard.bus.errors import StreamError

PIECE_BYTES = 64 * 1024
"""The largest piece that is unpacked at once."""

MOST_CODINGS = 4
"""A body that was packed more often than this is not read."""

_GZIP = zlib.MAX_WBITS | 16
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS
_ZLIB_HEADER = 2


class _Inflater:
    """One coding, undone: gzip, or deflate with or without its header."""

    def __init__(self, coding: str) -> None:
        self._may_be_raw = coding == "deflate"
        self._head = b""  # as long as it may be raw
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
        except zlib.error:  # some servers leave the header out
            self._inner = zlib.decompressobj(_RAW)
            return self._inner.decompress(self._head, PIECE_BYTES)


def codings(header: str) -> list[str]:
    """The codings of a `content-encoding` that have to be undone, in the order in which they were applied.

    Raises StreamError for one that was not asked for, and for too many.
    """
    named = [name for name in re.split(r"[\s,]+", header.lower()) if name not in ("", "identity")]
    for name in named:
        if name not in ("gzip", "x-gzip", "deflate"):
            raise StreamError(f"the reply is packed as {name[:40]!r}, which was not asked for", retryable=False)
    if len(named) > MOST_CODINGS:
        raise StreamError(f"the reply is packed {len(named)} times over", retryable=False)
    return named


class Unpacker:
    """All codings of a body, undone.

    Args:
        header: The `content-encoding`.

    Raises:
        StreamError: A coding can't be undone.
    """

    def __init__(self, header: str) -> None:
        self._inflaters = [_Inflater(coding) for coding in reversed(codings(header))]

    def unpack(self, data: bytes) -> Iterator[bytes]:
        """What comes of these bytes, piece by piece. Raises StreamError if they are broken."""
        pieces: Iterator[bytes] = iter((data,))
        for inflater in self._inflaters:
            pieces = _each(inflater, pieces)
        try:
            yield from pieces
        except zlib.error as error:
            raise StreamError(f"the reply's compression is broken: {error}") from error


async def unpacked(header: str, stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The body behind a `content-encoding`. Raises StreamError for codings that can't be undone."""
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
    """The content."""
    filename: str | None = None
    """The name of the file, in plain ASCII without quotes; None for a field that is no file."""
    media_type: str | None = None
    """The media type of the content; None leaves it out."""


def write_form(parts: Sequence[FormPart]) -> tuple[bytes, str]:
    """The body, and its content type. Equal parts give equal bodies, so that every attempt sends the same.

    The boundary is a hash of all contents: nothing that it separates can hold it.
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
"""The largest reply that is read into memory, in bytes after unpacking. Its largest event and its longest line
have the same limit."""


def too_large(limit: int = MAX_REPLY_BYTES, what: str = "the reply") -> StreamError:
    """The error for a reply beyond a limit. It is not retried, because another attempt would bring the same."""
    return StreamError(f"{what} is larger than {limit} bytes, and was not read further", retryable=False)
