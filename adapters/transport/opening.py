"""The choice of the client for requests.

On asyncio it is our own, `http1`. With a proxy in the environment, and on trio, it is httpx or httpcore. A host's
own client is always used.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING

from callboard.bus.backend import on_asyncio

from .addresses import UrlKind, has_proxy, kind_of
from .http1.client import Http1Transport
from .transport import HttpReply, HttpRequest, Transport, TransportStatistics

if TYPE_CHECKING:
    import httpx

    from .httpx_transport import HttpxTransport


def new_transport(client: httpx.AsyncClient | None = None) -> Transport:
    """Our own connections, or those of the host's client."""
    if client is None:
        return HttpTransport()
    from .httpx_transport import ClientTransport

    return ClientTransport(client)


class HttpTransport:
    """Kept-alive connections to any number of servers, over the client that each request needs."""

    def __init__(self) -> None:
        self._own = Http1Transport()
        self._other: HttpxTransport | None = None
        self._ways: dict[UrlKind, Transport] = {}
        self._closed = False

    def statistics(self) -> TransportStatistics:
        own = self._own.statistics()
        if self._other is None:
            return own
        other = self._other.statistics()
        return TransportStatistics(own.clients + other.clients, own.in_use + other.in_use)

    def send(self, request: HttpRequest) -> Coroutine[object, object, HttpReply]:
        """Send, and wait for the reply's head. Raises AdapterError only."""
        return self._way(request.url).send(request)

    def is_own(self, url: str) -> bool:
        """Whether requests to a URL use our own connections."""
        return self._way(url) is self._own

    def _way(self, url: str) -> Transport:
        kind = kind_of(url)
        way = self._ways.get(kind)
        if way is None:
            way = self._ways[kind] = self._chosen(kind)
        return way

    def _chosen(self, kind: UrlKind) -> Transport:
        """Chosen with the first request of a kind, because an adapter stays on one event loop's library."""
        if self._closed or (on_asyncio() and not has_proxy(kind)):
            return self._own  # it reports when it is closed
        if self._other is None:
            from .httpx_transport import HttpxTransport

            self._other = HttpxTransport()
        return self._other

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        self._closed, self._ways = True, {}
        try:
            await self._own.aclose()
        finally:
            if self._other is not None:
                await self._other.aclose()
