"""A pooler of PostgreSQL connections that works by the transaction, as PgBouncer does in that mode.

After each transaction, its connection moves to the end of the queue, and the next transaction uses the first
connection in the queue. So settings outside of a transaction, or of a connection, are lost in the client's next
transaction.
"""

from __future__ import annotations

import queue
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

import psycopg

_SSL, _GSS = 80877103, 80877104
_TOLD = {"server_version": "18.0", "client_encoding": "UTF8", "standard_conforming_strings": "on"}


@contextmanager
def pooler(dsn: str, connections: int = 3) -> Iterator[str]:
    """Run a pooler for a database.

    Args:
        dsn: The database.
        connections: The number of connections to it.

    Yields:
        The address of the pooler, which accepts any user.
    """
    with ExitStack() as ending:
        free: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        for _ in range(connections):
            made = ending.enter_context(psycopg.connect(dsn, autocommit=True, sslmode="disable"))
            ending.callback(made.pgconn.finish)
            free.put(ending.enter_context(socket.socket(fileno=made.pgconn.socket)))
        door = ending.enter_context(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=_welcome, args=(door, free), daemon=True).start()
        ending.callback(door.shutdown, socket.SHUT_RDWR)
        host, port = door.getsockname()
        parts = urlsplit(dsn)
        user = parts.username or ""
        yield urlunsplit(parts._replace(netloc=f"{user}@{host}:{port}", query="pooler=transaction"))


def _welcome(door: socket.socket, free: queue.SimpleQueue[socket.socket]) -> None:
    with suppress(OSError):
        while True:
            client, _ = door.accept()
            threading.Thread(target=_serve, args=(client, free), daemon=True).start()


def _serve(client: socket.socket, free: queue.SimpleQueue[socket.socket]) -> None:
    # `select` raises ValueError for a socket that was closed at the end
    with suppress(OSError, ValueError), client:
        _begin(client)
        while data := client.recv(65536):
            if data[:1] == b"X":
                return
            server = free.get()
            if not _transaction(client, server, data):
                return  # the connection is lost, because the state of its transaction is unknown
            free.put(server)


def _begin(client: socket.socket) -> None:
    while True:
        length, code = struct.unpack("!ii", _exactly(client, 8))
        _exactly(client, length - 8)
        if code not in (_SSL, _GSS):
            break
        client.sendall(b"N")
    told = b"".join(_message(b"S", f"{name}\0{value}\0".encode()) for name, value in _TOLD.items())
    client.sendall(_message(b"R", bytes(4)) + told + _message(b"K", bytes(8)) + _message(b"Z", b"I"))


def _transaction(client: socket.socket, server: socket.socket, data: bytes) -> bool:
    """Pass on the data of both sides until the server's transaction has ended. Returns whether it has."""
    server.sendall(data)
    waiting = b""
    while True:
        readable, _, _ = select.select([client, server], [], [])
        if server in readable:
            if not (said := server.recv(65536)):
                return False
            waiting, is_over = _after_messages(waiting + said)
            client.sendall(said)
            if is_over and not waiting:
                return True
        if client in readable:
            if not (said := client.recv(65536)):
                return False
            server.sendall(said)


def _after_messages(data: bytes) -> tuple[bytes, bool]:
    """The bytes after the last complete message, and whether that message says that no transaction is open."""
    is_over = False
    while len(data) >= 5 and len(data) > (length := struct.unpack("!i", data[1:5])[0]):
        is_over = data[: length + 1] == _message(b"Z", b"I")
        data = data[length + 1 :]
    return data, is_over


def _message(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack("!i", len(payload) + 4) + payload


def _exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := client.recv(count - len(data))):
            raise ConnectionError
        data += more
    return data
