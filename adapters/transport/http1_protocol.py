"""Parsing replies and writing requests, without sockets or clocks.

    waiting     the reply's head is incomplete; heads of status 1xx don't change that
    body        `status` and `headers` are set, and `pieces` has the body so far
    complete    the reply has ended, and the connection is free if `keeps_open`
    failed      `error` has the reason; earlier data remain valid

Data after a complete reply would be mistaken for the next reply, so `keeps_open` is then false.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

from .transport import check_sendable, unsendable

MOST_HEAD_BYTES = 100 * 1024
"""The largest number of consecutive bytes that are not body data, such as headers, early hints, trailers and chunk
extensions.
"""

_TOO_LONG = f"more than {MOST_HEAD_BYTES} bytes of headers"
_TIMEOUT = re.compile(r"(?:^|[,;\s])timeout\s*=\s*\"?(\d{1,9})")


class ReplyParser:
    """Parses the replies of one connection, one after the other."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append  # called by httptools
        self.waits = False
        self.complete = True
        self.error: str | None = None
        self.keeps_open = True
        self.status = 0
        self.headers: Mapping[str, str] = {}
        """Headers by lower-case name. The values of a repeated header are joined by commas."""
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_head = False
        self._informs = False  # the current head has a 1xx status
        self._until_close = False
        self._ends_at = 0  # the number of pieces of this reply, set at its end
        self._barren = 0
        self._parser = httptools.HttpResponseParser(self)

    def begin(self, method: str) -> None:
        """Expect the reply to a request with this method. The earlier reply must have ended."""
        self.waits, self.complete, self.error, self.keeps_open = True, False, None, True
        self.status, self.headers, self._headers = 0, {}, []
        self._is_head, self._informs, self._until_close = method == "HEAD", False, False
        self._barren = 0

    def feed(self, data: bytes) -> None:
        """Parse received bytes."""
        if self.complete or self.error is not None:
            self.keeps_open = False
            return
        before, self._barren = len(self.pieces), self._barren + len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(str(error) or type(error).__name__)
        if self.complete:
            self._end_here()
        elif len(self.pieces) > before:
            self._barren = 0
        elif self._barren > MOST_HEAD_BYTES:
            self._fail(_TOO_LONG)

    def end(self) -> bool:
        """Handle the end of the connection. Return whether the reply is complete."""
        self.keeps_open = False
        if self._until_close and self.error is None:
            self.complete = True
        return self.complete

    def close(self) -> None:
        """Release httptools' parser, which references this object. Nothing can be parsed afterwards."""
        del self._parser, self.on_body

    # --- Callbacks of httptools ---

    def on_message_begin(self) -> None:
        if self.complete:  # another, unrequested reply
            self.keeps_open = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.waits:
            self._headers.append((name, value))
        elif name.lower() == b"transfer-encoding":
            self._fail("a transfer coding among its trailers")

    def on_headers_complete(self) -> None:
        if not self.waits or self.error is not None:
            return
        status, version = self._parser.get_status_code(), self._parser.get_http_version()
        if version not in ("1.1", "1.0") or status < 100 or status == 101:
            self._fail(f"a reply of HTTP/{version} with status {status}, which was not requested")
        elif status < 200:
            if any(name.lower() == b"transfer-encoding" for name, _ in self._headers):
                self._fail(f"a body after status {status}")
            self._informs, self._headers = True, []
        else:
            self._begin_body(status, version == "1.1")

    def on_message_complete(self) -> None:
        if self._informs:
            self._informs = False
        elif not (self.waits or self.complete or self.error):
            self.complete, self._ends_at = True, len(self.pieces)

    def _begin_body(self, status: int, may_stay: bool) -> None:
        headers: dict[str, str] = {}
        size = 0
        for name, value in self._headers:
            size += len(name) + len(value) + 4
            if size > MOST_HEAD_BYTES:
                self._fail(_TOO_LONG)
                return
            key, text = name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            self._fail(f"the transfer coding {coding[:40]!r}, which was not requested")
        else:
            self.status, self.headers, self.waits = status, headers, False
            self.keeps_open = may_stay and self._parser.should_keep_alive()
            self._until_close = coding is None and "content-length" not in headers
            if self._is_head:
                self.complete, self._ends_at = True, len(self.pieces)

    def _end_here(self) -> None:
        """Drop data after the reply."""
        if len(self.pieces) > self._ends_at:
            del self.pieces[self._ends_at :]
            self.keeps_open = False
        if self._is_head:  # httptools can't parse a reply without a body: it would wait for the body
            self._parser = httptools.HttpResponseParser(self)

    def _fail(self, message: str) -> None:
        self.keeps_open = False
        if not self.complete and self.error is None:
            self.error = message


def keep_alive_seconds(header: str) -> float | None:
    found = _TIMEOUT.search(header.lower())
    return None if found is None else float(found[1])


# --- Heads of requests and targets of URLs ---

_PORTS = {"http": 80, "https": 443}
_MOST_URL_BYTES = 65536
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(r"[!$&'()*+,;=\-._~0-9a-z%]+")
_UNSAFE = re.compile(r"[^\x21-\x7e]|[\"#<>]")  # in a query
_UNSAFE_IN_PATH = re.compile(r"[^\x21-\x7e]|[\"#<>?`{}]")
_ACCEPTED = "gzip, deflate"


class Origin(NamedTuple):
    """A server. Requests to the same origin share connections."""

    secure: bool
    host: str
    port: int


class Target(NamedTuple):
    """The server and path of a URL."""

    origin: Origin
    path: str
    """The path and the query, as sent."""
    authority: str
    """Host and port for the header `Host`."""


@lru_cache(maxsize=256)
def target_of(url: str) -> Target:
    """Parse a URL. A user, a password and a fragment are dropped."""
    try:
        return _parsed(url)
    except (ValueError, KeyError) as error:  # UnicodeError is a ValueError, and idna's errors are UnicodeErrors
        reason = type(error).__name__
    # raised outside of `except`: the original error would become the context, and may quote a key
    raise unsendable(reason)


def write_head(method: str, target: Target, headers: Mapping[str, str], length: int) -> bytes:
    """The request line and the headers."""
    check_sendable(headers)
    if not _is_token(method):
        raise unsendable("the method")
    lines = [f"{method} {target.path} HTTP/1.1", f"Host: {target.authority}", f"Content-Length: {length}"]
    packed = True
    for name, value in headers.items():
        match _framing_header(name):
            case None:
                pass
            case "host":
                lines[1] = f"Host: {value}"
                continue
            case "accept-encoding":
                packed = False
            case "content-length" if value.strip() == str(length):
                continue
            case _:  # this header would contradict the header written above
                raise unsendable(f"a reserved header {name}")
        lines.append(f"{name}: {value}")
    if packed:
        lines.append(f"Accept-Encoding: {_ACCEPTED}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


class HeadWriter:
    """Writes heads like `write_head`. The latest is kept, because the next often differs only in its length."""

    def __init__(self) -> None:
        self._latest: tuple[str, Target, Mapping[str, str]] | None = None
        self._before = self._after = b""  # the parts of the latest head around the length

    def write(self, method: str, target: Target, headers: Mapping[str, str], length: int) -> bytes:
        if self._latest == (method, target, headers):
            return b"%bContent-Length: %d%b" % (self._before, length, self._after)
        head = write_head(method, target, headers, length)
        if "content-length" not in map(str.lower, headers):
            self._before, _, self._after = head.partition(b"Content-Length: %d" % length)
            self._latest = method, target, dict(headers)
        return head


@lru_cache(maxsize=512)
def _framing_header(name: str) -> str | None:
    """The lower-case name of a header with special handling; None for all others."""
    if not _is_token(name):
        raise unsendable("a header's name")
    header = name.lower()
    return header if header in ("host", "content-length", "transfer-encoding", "accept-encoding") else None


@lru_cache(maxsize=32)
def _is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def _parsed(url: str) -> Target:
    if len(url) > _MOST_URL_BYTES or any(character < " " or character == "\x7f" for character in url):
        raise ValueError("too long, or a control character")
    parts = urlsplit(url)
    host, port = _host_of(parts.hostname or ""), parts.port
    standard = _PORTS[parts.scheme]
    path = _UNSAFE_IN_PATH.sub(_encoded, parts.path) or "/"
    if "?" in url.partition("#")[0]:
        path += "?" + _UNSAFE.sub(_encoded, parts.query)
    named = f"[{host}]" if ":" in host else host
    authority = named if port in (None, standard) else f"{named}:{port}"
    return Target(Origin(parts.scheme == "https", host, standard if port is None else port), path, authority)


def _host_of(host: str) -> str:
    if ":" in host:
        return str(ipaddress.IPv6Address(host.replace("%25", "%")))
    if not host.isascii():
        import idna

        host = idna.encode(host).decode("ascii")
    if not _HOST.fullmatch(host):
        raise ValueError("no host")
    if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", host):
        ipaddress.IPv4Address(host)
    return host


def _encoded(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode())
