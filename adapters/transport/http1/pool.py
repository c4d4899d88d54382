"""The connections to one server: one for each request under way, and idle ones for later requests.

No request waits for another's connection. How many are under way at once the host limits, where it knows why.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from ..errors import not_in_time, unreachable
from .connecting import connect
from .connection import Connection
from .request_head import Origin


class Pool:
    """The connections to one server.

    Args:
        origin: The server.
        name: The server, as errors name it.
        context: Makes the settings of TLS.
    """

    def __init__(self, origin: Origin, name: str, context: Callable[[], ssl.SSLContext]) -> None:
        self._origin = origin
        self._host = name
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._open: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # the one that was used last is the last
        self._closing: list[Connection] = []
        self._opening = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def in_use(self) -> int:
        """The connections with a request or a reply on them."""
        return self._opening + len(self._open) - len(self._idle)

    @property
    def is_empty(self) -> bool:
        """Whether there is no connection, and none about to be."""
        return not self._open and not self._opening

    def pick(self) -> Connection | None:
        """The idle connection that was used last; None if there is none."""
        now = self._loop.time()
        while self._idle:
            connection, _ = self._idle.popitem()
            if now < connection.kept_until:
                return connection
            connection.close()
        return None

    async def open(self, timeout: float, *, single_use: bool = False, public_only: bool = False) -> Connection:
        """A new connection.

        Args:
            timeout: Seconds that it may take.
            single_use: Whether it is closed after its first reply.
            public_only: Whether to connect to public addresses alone.

        Raises:
            NetworkError: There is none.
            StreamError: An address is not public and has to be.
        """

        def make() -> Connection:
            return Connection(self._host, Connection.close if single_use else self._keep, self._forget)

        context = self._context() if self._origin.secure else None
        self._opening += 1
        try:
            async with asyncio.timeout(timeout):
                connection = await connect(self._origin, context, make, public_only=public_only)
        except TimeoutError:
            late = not_in_time(self._host)
        except OSError as error:  # ssl.SSLError is one
            raise unreachable(self._host, str(error) or type(error).__name__) from error
        else:
            return self._admit(connection)
        finally:
            self._opening -= 1
        raise late

    def _admit(self, connection: Connection) -> Connection:
        if connection.is_over:
            raise unreachable(self._host, "the server ended the connection before the request")
        if self._closed:
            connection.close()
            raise unreachable(self._host, "this adapter was closed meanwhile")
        self._open.add(connection)
        return connection

    def close(self) -> None:
        """Close all connections, also those in use, and those that are being opened."""
        self._closed = True
        self._closing = list(self._open)
        for connection in self._closing:
            connection.close()

    async def wait_closed(self) -> None:
        """Wait until none of the connections that were closed has a socket any more."""
        for connection in self._closing:
            await connection.wait_closed()

    def _keep(self, connection: Connection) -> None:
        self._idle[connection] = None
        if self._timer is None:
            self._timer = self._loop.call_at(connection.kept_until, self._expire)

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)
        if not self._idle:
            self._stop_timer()

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for connection in [each for each in self._idle if each.kept_until <= now]:
            connection.close()
        if self._idle:
            self._timer = self._loop.call_at(min(each.kept_until for each in self._idle), self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
