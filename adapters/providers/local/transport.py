"""The transport to a server that may not be running yet, or may have ended.

The adapter of the protocol is made before the server has an address and a key, and it outlives servers that die.
So the adapter gets a placeholder for both. When a request is sent, this transport starts the server if need be,
and puts the server's own address and key in place. The adapter's own time limits, cancelling, retries and reports
then hold for the start of the server as for any other wait of a request.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callboard.adapters.health import CountingTransport
from callboard.adapters.transport.opening import new_transport
from callboard.adapters.transport.transport import HttpReply, HttpRequest, Transport, TransportStatistics
from callboard.bus.errors import ConfigurationError, NetworkError, NotFoundError

from .process import LocalServer, SharedServer
from .settings import LocalServerSettings

PLACEHOLDER_URL = "http://local-model.invalid"
PLACEHOLDER_KEY = "key-of-the-local-model"


class LocalTransport:
    """Sends requests to the shared server with the settings that `find_settings` gives when first needed."""

    def __init__(self, find_settings: Callable[[], LocalServerSettings], http: Transport | None = None) -> None:
        self._find_settings = find_settings
        self._http = http or new_transport()
        self._claim: SharedServer | None = None
        self._closed = False

    @property
    def server(self) -> LocalServer | None:
        """The server, once it was needed and until the transport is closed."""
        return self._claim.server if self._claim is not None else None

    def statistics(self) -> TransportStatistics:
        """Of the connections to the server."""
        http = self._http
        return http.statistics() if isinstance(http, CountingTransport) else TransportStatistics(0, 0)

    async def acquire(self) -> LocalServer:
        """The running server. It is started if need be.

        Raises:
            ConfigurationError, AdapterError: The server can't be started, as in `LocalServer.start`.
            NetworkError: The transport is closed.
        """
        if self._closed:
            raise NetworkError("this adapter is closed", retryable=False)
        if self._claim is None:
            self._claim = LocalServer.shared(self._find_settings())
        return await self._claim.acquire()

    async def send(self, request: HttpRequest) -> HttpReply:
        """See `adapters.transport.transport.Transport`. A configuration that can't work is NotFoundError here."""
        try:
            server = await self.acquire()
        except ConfigurationError as error:
            raise NotFoundError(str(error)) from error
        headers = {name: value.replace(PLACEHOLDER_KEY, server.api_key) for name, value in request.headers.items()}
        url = request.url.replace(PLACEHOLDER_URL, server.url, 1)
        return await self._http.send(msgspec.structs.replace(request, url=url, headers=headers))

    async def aclose(self) -> None:
        """Close the connections and give the server back. Idempotent."""
        self._closed = True
        try:
            await self._http.aclose()
        finally:
            if self._claim is not None:
                await self._claim.release()
