"""Generates replies of each form of HTTP/1.1 from a seed, and corrupts them."""

from __future__ import annotations

import gzip
import itertools
import random
import zlib
from collections.abc import Callable
from typing import NamedTuple

from tests.support.http1_replies import BAD, FORMS

REASONS = ("OK", "", "Something else", "caf\xe9", "OK: yes, 100%")
NAMES = (
    "X-A",
    "x-b",
    "SET-COOKIE",
    "Content-Type",
    "Server",
    "Keep-Alive",
    "x-ratelimit-remaining",
    "Date",
    "Vary",
)
VALUES = [
    "",
    "1",
    "a, b",
    "timeout=5, max=100",
    "caf\xe9",
    'a="b; c"',
    "chunked",
    "100",
    "x" * 300,
    "a: b",
    "close",
]
EXTENSIONS = ("", "", "", ";a", ";a=b", ';a="b c";d')
SNIPPETS = (
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b",",
        b";",
        b"0",
        b"-1",
        b"+1",
        b"ffffffffffffffff",
    ),
    *(b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 ", b"0\r\n\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    *(b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: x\r\n", b"HTTP/1.1 101 x\r\n\r\n"),
    *(b"1\r\nx\r\n", b" folded\r\n", b"\xff\xfe"),
)
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "gzip, deflate": lambda body: zlib.compress(gzip.compress(body)),
}


class Made(NamedTuple):
    """A generated reply."""

    sent: bytes
    """The bytes of the reply."""
    status: int
    """The status in the reply."""
    body: bytes
    """The decoded body."""
    packed: bytes
    """The body as it was sent."""
    method: str
    """The method of the request."""
    ends: bool
    """Whether the end of the connection ends the reply."""
    free: bool
    """Whether the connection can be used again afterwards."""


def make_reply(chance: random.Random, body: bytes | None = None, *, packs: bool = True) -> Made:
    """Generate a valid reply.

    Args:
        chance: The random generator.
        body: The body; None generates a random one, or none.
        packs: Whether the body may be compressed.
    """
    method, status = "POST", 200
    if body is None:
        method, status = (
            chance.choice(["POST"] * 8 + ["GET", "HEAD"]),
            chance.choice([200] * 8 + [204, 304, 404, 503]),
        )
        body = chance.randbytes(chance.choice([0, 1, 2, 10, 100, 1000, 5000]))
    version = chance.choice(["HTTP/1.1"] * 9 + ["HTTP/1.0"])
    framing = chance.choice(
        ["sized", "chunked", "chunked", "ends"] if version == "HTTP/1.1" else ["sized", "ends"]
    )
    coding, closes = chance.choice(["", "", "", "", *CODINGS] if packs else [""]), chance.random() < 0.1
    packed = CODINGS[coding](body)
    values = {
        "Content-Length": str(len(packed)) if framing == "sized" else "",
        "Transfer-Encoding": chance.choice(["chunked", "Chunked"]) if framing == "chunked" else "",
        "Content-Encoding": coding,
        "Connection": chance.choice(["close", "Close", "keep-alive, close"]) if closes else "",
    }
    headers = [f"{name}: {value}" for name, value in values.items() if value]
    space = ["", " ", "  ", "\t"]
    headers += [
        f"{chance.choice(NAMES)}:{chance.choice(space)}{chance.choice(VALUES)}"
        for _ in range(chance.randint(0, 6))
    ]
    chance.shuffle(headers)
    head = "\r\n".join([f"{version} {status} {chance.choice(REASONS)}", *headers, "", ""]).encode("latin-1")
    has_body = method != "HEAD" and status not in (204, 304)
    sent = _chunked(chance, packed) if framing == "chunked" else packed
    # whether the end of the body is known only from the end of the connection
    unsaid = framing == "ends" and status not in (204, 304)
    free = version == "HTTP/1.1" and not closes and not unsaid
    return Made(
        sent=_hints(chance) + head + (sent if has_body else b""),
        status=status,
        body=body if has_body else b"",
        packed=packed if has_body else b"",
        method=method,
        ends=framing == "ends" and has_body,
        free=free,
    )


def _hints(chance: random.Random) -> bytes:
    hints = [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: <a>; rel=b\r\n\r\n",
        b"HTTP/1.1 102 \r\n\r\n",
    ]
    return b"".join(chance.choice(hints) for _ in range(chance.choice([0, 0, 0, 0, 1, 2])))


def _chunked(chance: random.Random, body: bytes) -> bytes:
    parts, at = [], 0
    while at < len(body):
        size = min(len(body) - at, chance.choice([1, 2, 15, 16, 17, 100, 1000, 5000]))
        digits = f"{size:x}" if chance.random() < 0.8 else f"{size:05X}"
        parts.append(f"{digits}{chance.choice(EXTENSIONS)}\r\n".encode() + body[at : at + size] + b"\r\n")
        at += size
    trailers = b"".join(b"X-Trailer: %d\r\n" % number for number in range(chance.choice([0, 0, 0, 1, 3])))
    return b"".join(parts) + b"0" + chance.choice(EXTENSIONS).encode() + b"\r\n" + trailers + b"\r\n"


def spoil(chance: random.Random, sent: bytes) -> bytes:
    """Change some bytes of a reply."""
    spoilt = bytearray(sent)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        at = chance.randint(0, len(spoilt)) if chance.random() < 0.5 else chance.randint(0, min(len(spoilt), 200))
        match chance.randint(0, 4):
            case 0:
                spoilt[at : at + 1] = bytes([chance.randint(0, 255)])
            case 1:
                del spoilt[at : at + chance.choice([1, 1, 2, 20])]
            case 2:
                spoilt[at:at] = chance.choice(SNIPPETS)
            case 3:
                spoilt[at : at + chance.randint(0, 4)] = chance.choice(SNIPPETS)
            case _:
                other = chance.choice(list(BAD.values()))
                spoilt[at:at] = other[: chance.randint(0, len(other))]
    return bytes(spoilt)


def any_bytes(chance: random.Random) -> bytes:
    """Random bytes that a server may send instead of a reply."""
    match chance.randint(0, 4):
        case 0:
            return spoil(chance, chance.choice(list(FORMS.values())).sent)
        case 1:
            return spoil(chance, chance.choice(list(BAD.values())))
        case _:
            return spoil(chance, make_reply(chance, packs=False).sent)


def cut(chance: random.Random, sent: bytes) -> list[bytes]:
    """Split the bytes into pieces."""
    if chance.random() < 0.2:
        return [sent] if sent else []
    if chance.random() < 0.1:
        return [sent[at : at + 1] for at in range(len(sent))]
    places = sorted(chance.randint(0, len(sent)) for _ in range(chance.randint(1, 12)))
    edges = [0, *places, len(sent)]
    return [sent[start:end] for start, end in itertools.pairwise(edges) if end > start]
