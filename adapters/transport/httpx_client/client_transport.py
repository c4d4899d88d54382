"""HTTP over a client of the host's: its proxies, its certificates, its transport, which may be a test's.

All that the client is set up with holds: headers, cookies, authentication, event hooks, limits. Two things are
ours all the same. A redirect isn't followed, because a key would go with it to whoever is named there. And the
seconds that a reply may take are those of the call.

The client is the host's: nothing here closes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from callboard.bus.errors import NetworkError

from ..public_addresses import check_literal
from ..transport import HttpReply, HttpRequest, TransportStatistics
from .errors import harmless, translate
from .transport import Client, send_built, sendable

if TYPE_CHECKING:
    import httpx


class ClientTransport:
    """Requests over a client of the host's.

    A request is sent once. Which connections are kept alive, and which of them have aged, the client knows alone,
    so one that breaks is told: a call tries again as its policy says, and what must not arrive twice ends in an
    OutcomeUnknownError. What an address that a reply names leads to is for the client's transport to judge;
    addresses that are numbers must be public.

    Args:
        client: The client. It must be open for as long as it is used.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._home = Client(client)
        self._client = client
        self._closed = False

    def statistics(self) -> TransportStatistics:
        """A snapshot."""
        return TransportStatistics(clients=1, in_use=self._home.calls)

    async def send(self, request: HttpRequest) -> HttpReply:
        if self._closed:
            raise NetworkError("this adapter is closed", retryable=False)
        try:
            if request.public_only:
                check_literal(urlsplit(request.url).hostname or "")
            return await send_built(self._home, self._client, self._built(request))
        except Exception as error:
            failure, cause = translate(error, request.url), harmless(error)
        raise failure from cause  # out here, or the original would stay attached as its context

    async def aclose(self) -> None:
        self._closed = True

    def _built(self, request: HttpRequest) -> httpx.Request:
        import httpx

        return self._client.build_request(
            request.method,
            request.url,
            headers=sendable(request),
            content=request.body,
            timeout=httpx.Timeout(None, connect=request.connect_timeout),
        )
