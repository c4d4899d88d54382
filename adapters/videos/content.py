"""Downloads: over HTTP, whole or from some byte on, and of files that came with the job's description."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping

import anyio

from callboard.adapters.transport.transport import HttpReply, close_reply
from callboard.bus.errors import RequestTimeoutError

_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_GOOGLE_MD5 = re.compile(r"md5=([A-Za-z0-9+/=]+)")
_SHA_256 = re.compile(r"sha-256=:?([A-Za-z0-9+/=]+?):?(?:,|$)")


class HttpVideoContent:
    """A reply to a download; see `contract.VideoContent`."""

    def __init__(self, reply: HttpReply, seconds: float, provider: str) -> None:
        self._reply = reply
        self._seconds = seconds
        self._provider = provider
        headers = reply.headers
        self.media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self.etag = headers.get("etag", "")
        self.start = 0
        self.total: int | None = None
        partial = _RANGE.match(headers.get("content-range", "")) if reply.status == 206 else None
        if partial is not None:
            self.start = int(partial[1])
            self.total = int(partial[2]) if partial[2] != "*" else None
        elif reply.status == 200 and headers.get("content-length", "").isdecimal():
            self.total = int(headers["content-length"])
        self.digest = _digest(headers, whole=reply.status == 200)

    def usable(self, asked: int) -> bool:
        """Whether the reply begins at the byte that was asked for, or at the beginning of the file."""
        return self.start in (0, asked) and (self._reply.status == 200 or self._reply.status == 206)

    async def chunk(self) -> bytes | None:
        try:
            with anyio.fail_after(self._seconds):
                return await self._reply.chunk()
        except TimeoutError as error:
            what = f"{self._provider}: the download stalled for {self._seconds:g} s"
            raise RequestTimeoutError(what) from error

    async def aclose(self) -> None:
        await close_reply(self._reply)


class InlineVideoContent:
    """Bytes that came with the job."""

    digest = None
    etag = ""

    def __init__(self, media_type: str, data: bytes, start: int = 0) -> None:
        self.media_type = media_type
        self.start = min(start, len(data))
        self.total: int | None = len(data)
        self._rest: bytes | None = data[self.start :]

    async def chunk(self) -> bytes | None:
        rest, self._rest = self._rest, None
        return rest or None

    async def aclose(self) -> None:
        self._rest = None


def _digest(headers: Mapping[str, str], *, whole: bool) -> tuple[str, bytes] | None:
    """The checksum of the whole file, where a header has one.

    Args:
        headers: The reply's headers.
        whole: Whether the reply is the whole file, and not a part of it.
    """
    found = _SHA_256.search(headers.get("repr-digest", "")) or _SHA_256.search(headers.get("digest", ""))
    if found:
        return _decoded("sha256", found[1])
    google = _GOOGLE_MD5.search(headers.get("x-goog-hash", ""))
    if google:
        return _decoded("md5", google[1])
    if whole and "content-md5" in headers:
        return _decoded("md5", headers["content-md5"])
    return None


def _decoded(algorithm: str, text: str) -> tuple[str, bytes] | None:
    try:
        return algorithm, b64decode(text, validate=True)
    except ValueError:
        return None
