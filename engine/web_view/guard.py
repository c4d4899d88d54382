"""What is refused before anything is looked at, and the headers that every answer has.

A page of another origin may send requests here, and with DNS rebinding even under our own name as it sees it. So
every request must name a host from a list, and whatever a browser says of the request's origin must be this page.
The headers let the page load nothing from elsewhere, run no code in line, and stand in no frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from callboard.bus import ConfigurationError

THIS_MACHINE = ("127.0.0.1", "localhost", "::1")
"""The hosts that are always allowed."""

POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""The headers of every answer."""


def host_name(host: str) -> str:
    """The name or address of a Host header, without its port and in lower case; empty if it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # which is checked when it is asked for
    except ValueError:
        return ""
    return (parts.hostname or "") if parts.netloc == host and "@" not in host else ""


def checked_hosts(hosts: Iterable[str]) -> frozenset[str]:
    """The names in a list of hosts.

    Raises:
        ConfigurationError: One of them is no plain name or address.
    """
    for host in hosts:
        plain = f"[{host}]" if ":" in host else host
        if not host or host_name(plain) != host.lower() or "*" in host:
            raise ConfigurationError(f"hosts: {host!r} is no name or address of a host, without a port")
    return frozenset(host.lower() for host in hosts)


def refusal(headers: Headers, hosts: frozenset[str]) -> str | None:
    """The reason why a request is refused; None if it may go on."""
    named = headers.getlist("host")
    if len(named) != 1 or host_name(named[0]) not in hosts:
        return "this host is not on the list of hosts"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != named[0].lower():
        return "the request comes from a page of another origin"
    site, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
    if site not in (None, "same-origin", "none") and mode != "navigate":
        return "the request comes from a page of another origin"
    return None


class Guard:
    """An ASGI application around another one.

    Args:
        app: The application behind it.
        hosts: The names under which it may be asked.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        why = refusal(Headers(scope=scope), self._hosts)
        if why is None:
            await self._app(scope, receive, with_headers)
        else:
            await JSONResponse({"error": why}, status_code=403)(scope, receive, with_headers)
