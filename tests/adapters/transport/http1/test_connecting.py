"""A connection that is given up while it is made leaves nothing behind, and touches nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from callboard.adapters.transport.http1.client import connect, tls_context
from callboard.adapters.transport.http1.connection import Connection
from callboard.adapters.transport.http1.protocol import target_of
from tests.support.certificate import local_tls

from ....support.scripted_server import serving
from ....support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio", "uvloop")

AFTERWARDS = 20
"""Turns of the event loop in which whatever is left of a connection would have its say."""


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def contexts(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[ssl.SSLContext, ssl.SSLContext] | None]:
    """Those of the server and the client; None without TLS."""
    if not request.param:
        yield None
        return
    with local_tls(tmp_path) as server:
        yield server, tls_context()


def made() -> Connection:
    return Connection("a server", lambda connection: None, lambda connection: None)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def talk_over_a_new_socket() -> None:
    """It has the number of the socket that was closed last."""
    ours, theirs = socket.socketpair()
    with theirs, anyio.fail_after(5):
        reader, writer = await asyncio.open_connection(sock=ours)
        await turns(AFTERWARDS)
        theirs.send(b"heard")
        assert await reader.readexactly(5) == b"heard"
        writer.close()
        await writer.wait_closed()


async def test_whoever_has_the_sockets_number_next_is_let_alone(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None,
) -> None:
    """At whatever turn of the event loop it is given up: also at that which ends the handshake."""

    async def silent(connection: object) -> None:
        await anyio.sleep_forever()

    server_context, client_context = contexts or (None, None)
    async with serving(silent, tls=server_context) as server:
        origin = target_of(server.url).origin
        for at in range(1000):
            task = asyncio.create_task(connect(origin, client_context, made, public_only=False))
            await turns(at)
            if task.done():
                (await task).abort()
                break
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await talk_over_a_new_socket()
        assert 1 < at < 999
