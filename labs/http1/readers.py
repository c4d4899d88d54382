"""Reads a reply with our client, and with httpcore as the reference."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import httpcore

from callboard.bus.errors import NetworkError
from tests.support.http1_wire import Line, turns, whole


class Read(NamedTuple):
    """The result of reading a reply: three fields of a complete reply, or only the error."""

    status: int = 0
    headers: Mapping[str, str] = {}
    body: bytes = b""
    error: str | None = None
    """The error, if the reply is not complete."""


class Outcome(NamedTuple):
    """The result of an exchange."""

    read: Read
    """The reply as it was read."""
    line: Line
    """The connection after the exchange."""


async def read_by_ours(parts: Sequence[bytes], method: str, *, reset: bool = False) -> Outcome:
    """Read a reply that arrives in these parts with our client. The connection ends afterwards.

    Raises errors that are not network errors.
    """
    line = Line()
    task = line.ask(method)
    await asyncio.sleep(0)
    body = b""
    for part in parts:
        if line.wire.ended:
            break
        line.connection.data_received(part)
    free = line.free
    if not free and not line.wire.ended:
        if not reset:
            line.connection.eof_received()
        line.connection.connection_lost(ConnectionResetError("reset") if reset else None)
    try:
        reply = await task
        body = await whole(reply)
    except NetworkError as error:
        return Outcome(Read(error=str(error)), line)
    await reply.aclose()
    await turns()
    return Outcome(Read(reply.status, reply.headers, body), line)


def read_by_httpcore(sent: bytes, method: str) -> Read:
    """Read the same bytes with httpcore."""
    stream = httpcore.MockStream([sent])
    origin = httpcore.Origin(b"http", b"api.test", 80)
    with httpcore.HTTP11Connection(origin, stream) as connection:
        try:
            head = [(b"Host", b"api.test"), (b"Content-Length", b"0")]
            response = connection.handle_request(httpcore.Request(method, "http://api.test/", headers=head))
            body = response.read()
        except (httpcore.RemoteProtocolError, httpcore.ReadError) as error:
            return Read(error=str(error) or type(error).__name__)
        headers: dict[str, str] = {}
        for name, value in response.headers:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return Read(response.status, headers, body)


def differs(ours: Read, theirs: Read) -> bool:
    """Whether two complete readings differ. The transfer coding is not compared, because h11 rewrites it."""
    both = [
        {name: value for name, value in each.headers.items() if name != "transfer-encoding"}
        for each in (ours, theirs)
    ]
    return (ours.status, ours.body) != (theirs.status, theirs.body) or both[0] != both[1]
