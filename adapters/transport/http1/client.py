"""HTTP/1.1 over connections of our own. On asyncio alone, without a proxy between."""

from __future__ import annotations

import asyncio
import ssl

from callboard.bus.errors import AdapterError, NetworkError

from ..errors import not_made, unsendable
from ..transport import HttpReply, HttpRequest, TransportStatistics
from .connecting import tls_context
from .connection import AgedConnectionError
from .pool import Pool
from .request_head import Origin, Target, target_of, write_head


class Http1Transport:
    """Connections kept alive, to any number of servers. For one event loop at a time."""

    def __init__(self) -> None:
        self._pools: dict[Origin, Pool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: ssl.SSLContext | None = None
        self._closed = False

    def statistics(self) -> TransportStatistics:
        """A snapshot."""
        pools = self._pools.values()
        return TransportStatistics(clients=len(pools), in_use=sum(pool.in_use for pool in pools))

    async def send(self, request: HttpRequest) -> HttpReply:
        """See `adapters.transport.transport.Transport`."""
        if self._closed:
            raise NetworkError("this adapter is closed", retryable=False)
        try:
            target = target_of(request.url)
            head = write_head(request.method, target, request.headers, len(request.body))
            return await self._send(request, target, head)
        except AdapterError:
            raise
        except Exception as error:
            failure = unsendable("UnicodeError") if isinstance(error, UnicodeError) else not_made(error)
        raise failure  # out here, or the original, which may quote a key, would stay attached as its context

    async def _send(self, request: HttpRequest, target: Target, head: bytes) -> HttpReply:
        pool = self._pool(target)
        if request.once or request.public_only:
            connection = await pool.open(request.connect_timeout, single_use=True, public_only=request.public_only)
            return await connection.exchange(request.method, head, request.body)
        connection = pool.pick() or await pool.open(request.connect_timeout)
        try:
            return await connection.exchange(request.method, head, request.body)
        except AgedConnectionError:
            pass
        if request.on_resend is not None:
            request.on_resend()
        fresh = await self._pool(target).open(request.connect_timeout)  # of the idle ones, others may have ended
        return await fresh.exchange(request.method, head, request.body)

    def _pool(self, target: Target) -> Pool:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the connections of a loop that ended are of no use to another
            self._pools, self._loop = {}, loop
        pool = self._pools.get(target.origin)
        if pool is None:
            self._pools = {each: kept for each, kept in self._pools.items() if not kept.is_empty}
            pool = self._pools[target.origin] = Pool(target.origin, target.authority, self._tls_context)
        return pool

    def _tls_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = tls_context()
        return self._context

    async def aclose(self) -> None:
        """Close all connections, also those in use. Idempotent."""
        self._closed = True
        pools, self._pools = self._pools, {}
        if pools and asyncio.get_running_loop() is self._loop:
            for pool in pools.values():
                pool.close()
            for pool in pools.values():
                await pool.wait_closed()
