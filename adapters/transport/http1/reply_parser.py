"""Replies out of bytes, in whatever pieces they come: httptools, and what it leaves open. No socket, no clock.

    waiting     no byte of the reply's head is through; early hints and other heads of the 1xx kind leave it so
    body        the head is there: `status` and `headers` stand, and what came of the body lies in `pieces`
    complete    the reply is over, and the connection is free if `keeps_open`
    failed      `error` says what was wrong; what came before it stands

What follows a complete reply was asked for by nobody. It would be taken for the beginning of the next reply, so
`keeps_open` is then false.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import httptools

MOST_HEAD_BYTES = 100 * 1024
"""So many bytes may come in a row that bring nothing of a body: heads, early hints, trailers, chunk extensions."""

_TOO_LONG = f"more than {MOST_HEAD_BYTES} bytes of headers"
_TIMEOUT = re.compile(r"(?:^|[,;\s])timeout\s*=\s*\"?(\d{1,9})")


class ReplyParser:
    """Reads the replies of one connection, one after the other."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append  # httptools calls it
        self.waits = False
        self.complete = True
        self.error: str | None = None
        self.keeps_open = True
        self.status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._is_head = False
        self._informs = False  # the head that is read is of the 1xx kind
        self._until_close = False
        self._ends_at = 0  # so many pieces are of this reply, once it is complete
        self._barren = 0
        self._parser = httptools.HttpResponseParser(self)

    def begin(self, method: str) -> None:
        """Expect the reply to a request with this method. Nothing of an earlier reply may be left."""
        self.waits, self.complete, self.error, self.keeps_open = True, False, None, True
        self.status, self._headers = 0, []
        self._is_head, self._informs, self._until_close = method == "HEAD", False, False
        self._barren = 0

    def feed(self, data: bytes) -> None:
        """Take in what came."""
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
        """Take in that nothing more will come. True if the reply is whole."""
        self.keeps_open = False
        if self._until_close and self.error is None:
            self.complete = True
        return self.complete

    def headers(self) -> Mapping[str, str]:
        """Headers by their lower-case names. The values of a repeated header are joined by commas."""
        headers: dict[str, str] = {}
        for name, value in self._headers:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1").rstrip(" \t")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return headers

    def close(self) -> None:
        """Let go of httptools' parser, which holds this one. Nothing can be read any more."""
        del self._parser, self.on_body

    # -- what httptools calls

    def on_message_begin(self) -> None:
        if self.complete:  # another reply, to nothing
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
            self._fail(f"a reply of HTTP/{version} with status {status}, which was not asked for")
        elif status < 200:
            if any(name.lower() == b"transfer-encoding" for name, _ in self._headers):
                self._fail(f"a body behind status {status}")
            self._informs, self._headers = True, []
        else:
            self._begin_body(status, version == "1.1")

    def on_message_complete(self) -> None:
        if self._informs:
            self._informs = False
        elif not (self.waits or self.complete or self.error):
            self.complete, self._ends_at = True, len(self.pieces)

    def _begin_body(self, status: int, may_stay: bool) -> None:
        codings, sized, size = [], False, 0
        for name, value in self._headers:
            size += len(name) + len(value) + 4
            match name.lower():
                case b"transfer-encoding":
                    codings.append(value.strip().lower())
                case b"content-length":
                    sized = True
                case _:
                    pass
        if codings and codings != [b"chunked"]:
            self._fail(f"the transfer coding {b', '.join(codings)[:40]!r}, which was not asked for")
        elif size > MOST_HEAD_BYTES:
            self._fail(_TOO_LONG)
        else:
            self.status, self.waits = status, False
            self.keeps_open = may_stay and self._parser.should_keep_alive()
            self._until_close = not codings and not sized
            if self._is_head:
                self.complete, self._ends_at = True, len(self.pieces)

    # -- ends

    def _end_here(self) -> None:
        """Leave out what came behind the reply."""
        if len(self.pieces) > self._ends_at:
            del self.pieces[self._ends_at :]
            self.keeps_open = False
        if self._is_head:  # httptools can't be told that there is no body, and waits for it
            self._parser = httptools.HttpResponseParser(self)

    def _fail(self, said: str) -> None:
        self.keeps_open = False
        if not self.complete and self.error is None:
            self.error = said


def keep_alive_seconds(header: str) -> float | None:
    """How long a `keep-alive` header says that the server keeps an idle connection; None if it doesn't say."""
    found = _TIMEOUT.search(header.lower())
    return None if found is None else float(found[1])
