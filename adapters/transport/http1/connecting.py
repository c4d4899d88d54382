"""New connections: a host's addresses, the one that answers first, and TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from ipaddress import ip_address

import anyio
from anyio.abc import SocketAttribute

from ..public_addresses import public_addresses
from .connection import Connection
from .request_head import Origin


async def connect(
    origin: Origin, context: ssl.SSLContext | None, make: Callable[[], Connection], *, public_only: bool
) -> Connection:
    """A new connection.

    Args:
        origin: The server.
        context: The settings of TLS; None for none.
        make: Makes the connection's protocol.
        public_only: Whether to connect to public addresses alone.

    Raises:
        StreamError: An address of the host's is not public, and it has to be.
        OSError: There is no connection. The errors of TLS are among them.
    """
    if public_only:
        connected = await _connected_to_public(origin.host, origin.port)
    else:
        connected = await _connected(origin.host, origin.port)
    connection = make()
    name = None if context is None else origin.host.partition("%")[0]
    try:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: connection, sock=connected, ssl=context, server_hostname=name)
    except BaseException:
        # At the end of its handshake, the event loop would yet say good-bye over a socket that is closed here, and
        # whose number may be another's by then.
        connection.give_up()
        connected.close()
        raise
    return connection


async def _connected(host: str, port: int) -> socket.socket:
    """A connected socket.

    anyio races a host's addresses well: asyncio leaks sockets when its own race is cancelled, and uvloop tries one
    address after the other, however long each may take. Where there is nothing to race, it would be a task and a
    stream of its own for each connection: 10 KB while it is made.
    """
    if (family := _family_of(host)) is not None:
        return await _connected_at(family, host, port)
    stream = await anyio.connect_tcp(host, port)
    connected = stream.extra(SocketAttribute.raw_socket).dup()
    try:
        await stream.aclose()
    except BaseException:
        connected.close()
        raise
    return connected


def _family_of(host: str) -> socket.AddressFamily | None:
    """The family of an address; None of a name."""
    try:
        return socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return None


async def _connected_at(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, (address, port))
    except BaseException:
        connected.close()
        raise
    return connected


async def _connected_to_public(host: str, port: int) -> socket.socket:
    failure: OSError = OSError("the name has no address")
    for address in await public_addresses(host, port):
        try:
            return await _connected(address, port)
        except OSError as error:
            failure = error
    raise failure


def tls_context() -> ssl.SSLContext:
    """The settings of TLS: certificates are checked against those that `SSL_CERT_FILE` or `SSL_CERT_DIR` names,
    else against certifi's."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        context = ssl.create_default_context(cafile=file)
    elif folder:
        context = ssl.create_default_context(capath=folder)
    else:
        import certifi

        context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context
