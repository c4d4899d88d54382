"""Each form of a reply: the server's bytes and the expected reading."""

from __future__ import annotations

from typing import NamedTuple


class Form(NamedTuple):
    """A form of a reply."""

    sent: bytes
    """The bytes that the server sends."""
    status: int = 200
    """The reply's status."""
    body: bytes = b""
    """The reply's body."""
    headers: dict[str, str] = {}  # noqa: RUF012 (never changed)
    """Some of the reply's headers."""
    free: bool = True
    """Whether the connection can be used again."""
    method: str = "POST"
    """The method of the request."""
    ends: bool = False
    """Whether the end of the connection ends the reply."""


OK = b"HTTP/1.1 200 OK\r\n"
TEXT = b"data: one\n\ndata: \xe2\x98\x83\n\n"
CHUNKS = b"b\r\ndata: one\n\n\r\nb\r\ndata: \xe2\x98\x83\n\n\r\n"

FORMS = {
    "sized": Form(OK + b"Content-Length: 22\r\nX-A: 1\r\n\r\n" + TEXT, body=TEXT, headers={"x-a": "1"}),
    "sized, empty": Form(OK + b"Content-Length: 0\r\n\r\n"),
    "chunked": Form(OK + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"0\r\n\r\n", body=TEXT),
    "chunked, loudly": Form(OK + b"TRANSFER-ENCODING: Chunked\r\n\r\n" + CHUNKS + b"000\r\n\r\n", body=TEXT),
    "chunked, empty": Form(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunked, with extensions": Form(
        OK + b'Transfer-Encoding: chunked\r\n\r\n5;a=b;c="d e"\r\nhello\r\n0;x\r\n\r\n', body=b"hello"
    ),
    "chunked, with trailers": Form(
        OK + b"Transfer-Encoding: chunked\r\nX-A: 1\r\n\r\n5\r\nhello\r\n0\r\nX-A: 2\r\nX-B: 3\r\n\r\n",
        body=b"hello",
        headers={"x-a": "1"},
    ),
    "until the end": Form(OK + b"X-A: 1\r\n\r\n" + TEXT, body=TEXT, free=False, ends=True),
    "until the end, empty": Form(OK + b"\r\n", free=False, ends=True),
    "HTTP/1.0, until the end": Form(b"HTTP/1.0 200 OK\r\n\r\n" + TEXT, body=TEXT, free=False, ends=True),
    "HTTP/1.0, sized": Form(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", body=b"ok", free=False),
    "HTTP/1.0, which would be kept": Form(
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", body=b"ok", free=False
    ),
    "closing": Form(OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", body=b"ok", free=False),
    "closing, among others": Form(
        OK + b"Connection: x-a, Close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        body=b"ok",
        free=False,
    ),
    "no content": Form(b"HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n", 204, headers={"x-a": "1"}),
    "no content, with a length": Form(b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", 204),
    "not modified": Form(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nETag: x\r\n\r\n", 304),
    "head, sized": Form(OK + b"Content-Length: 500\r\n\r\n", method="HEAD", headers={"content-length": "500"}),
    "head, chunked": Form(OK + b"Transfer-Encoding: chunked\r\n\r\n", method="HEAD"),
    "continue": Form(b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok", body=b"ok"),
    "early hints": Form(
        b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\nX-A: 1\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
        + OK
        + b"X-A: 2\r\nContent-Length: 2\r\n\r\nok",
        body=b"ok",
        headers={"x-a": "2"},
    ),
    "error": Form(
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 2\r\n\r\n{}",
        429,
        b"{}",
        {"retry-after": "3"},
    ),
    "no reason": Form(b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", body=b"ok"),
    "an empty reason": Form(b"HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nok", body=b"ok"),
    "repeated headers": Form(
        OK
        + b"Set-Cookie: a\r\nset-cookie: b\r\nX-E:\r\nX-S:  a b \t\r\nX-L: caf\xe9\r\nContent-Length: 0\r\n\r\n",
        headers={"set-cookie": "a, b", "x-e": "", "x-s": "a b", "x-l": "café"},
    ),
    "an upgrade that nobody takes": Form(
        OK + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok", body=b"ok"
    ),
    "something behind it": Form(
        OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\nmore", body=b"ok", free=False
    ),
    "another reply behind it": Form(
        OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 204 No Content\r\n\r\n", body=b"ok", free=False
    ),
    "the beginning of another behind it": Form(
        OK + b"Content-Length: 2\r\n\r\nokHTTP/1.1 2", body=b"ok", free=False
    ),
    "something behind its chunks": Form(
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nx", body=b"ok", free=False
    ),
    "something behind a head": Form(OK + b"Content-Length: 2\r\n\r\nok", method="HEAD", free=False),
}

BAD = {
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "a version that is none": b"HTTP/1.x 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "a status that is none": b"HTTP/1.1 2x0 OK\r\nContent-Length: 2\r\n\r\nok",
    "a status below a hundred": b"HTTP/1.1 099 OK\r\nContent-Length: 2\r\n\r\nok",
    "other protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\nx",
    "hints in chunks": (
        b"HTTP/1.1 103 Early Hints\r\nTransfer-Encoding: chunked\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok"),
    "other protocols, without a word": b"HTTP/1.1 101 Switching Protocols\r\n\r\nx",
    "a reply behind other protocols": (
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nok"),
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
    "a list of lengths": OK + b"Content-Length: 2, 3\r\n\r\nok!",
    "a negative length": OK + b"Content-Length: -2\r\n\r\nok",
    "a length with a sign": OK + b"Content-Length: +2\r\n\r\nok",
    "a length in other digits": OK + "Content-Length: ٢\r\n\r\nok".encode(),
    "a length beyond all": OK + b"Content-Length: 99999999999999999999999\r\n\r\nok",
    "no length": OK + b"Content-Length:\r\n\r\nok",
    "length and chunks": OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "chunks and length": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "chunked twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "packed chunks": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "another transfer coding": OK + b"Transfer-Encoding: gzip\r\n\r\nok",
    "a space before the colon": OK + b"Content-Length : 2\r\n\r\nok",
    "a folded header": OK + b"X-A: 1\r\n 2\r\nContent-Length: 2\r\n\r\nok",
    "a header without a colon": OK + b"X-A\r\nContent-Length: 2\r\n\r\nok",
    "a header without a name": OK + b": 1\r\nContent-Length: 2\r\n\r\nok",
    "a name of other characters": OK + b"X\xe4: 1\r\nContent-Length: 2\r\n\r\nok",
    "a zero in a value": OK + b"X-A: 1\x002\r\nContent-Length: 2\r\n\r\nok",
    "a bare return in a value": OK + b"X-A: 1\r2\r\nContent-Length: 2\r\n\r\nok",
    "a chunk's length that is none": OK + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "a negative chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n-2\r\nok\r\n",
    "a chunk beyond all": OK + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nok",
    "a chunk that is longer than it says": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nokay\r\n0\r\n\r\n",
    "a transfer coding among the trailers": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "a length among the trailers": OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n",
}  # fmt: skip
"""Invalid replies. None may be read as a complete reply."""
