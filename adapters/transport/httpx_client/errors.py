"""What the HTTP libraries raise, as AdapterErrors. httpx and httpcore name the same failures alike."""

from __future__ import annotations

from callboard.bus.errors import AdapterError, RequestTimeoutError

from ..addresses import host_of
from ..errors import broken, failed, not_in_time, not_made, unreachable, unsendable


def translate(error: Exception, url: str = "") -> AdapterError:
    """The AdapterError for any exception of the transport. The most specific class wins. It never holds request
    headers.

    Args:
        error: The exception.
        url: The URL that was asked. The text names only its host.
    """
    import httpcore
    import httpx

    if isinstance(error, AdapterError):
        return error
    said, host = str(error) or type(error).__name__, host_of(url)
    match error:
        case httpx.ConnectTimeout() | httpx.PoolTimeout() | httpcore.ConnectTimeout() | httpcore.PoolTimeout():
            return not_in_time(host)
        case httpx.TimeoutException() | httpcore.TimeoutException():
            return RequestTimeoutError(f"{host} took too long: {said}")
        case httpx.ConnectError() | httpcore.ConnectError():
            return unreachable(host, said)
        case httpx.RemoteProtocolError() | httpcore.RemoteProtocolError():
            return broken(host, said)
        case (
            httpx.LocalProtocolError()
            | httpcore.LocalProtocolError()
            | httpx.UnsupportedProtocol()
            | httpcore.UnsupportedProtocol()
            | httpx.InvalidURL()
            | UnicodeError()
        ):
            return unsendable(type(error).__name__)
        case (
            httpx.TransportError()
            | httpx.StreamError()
            | httpcore.NetworkError()
            | httpcore.ProxyError()
            | httpcore.ConnectionNotAvailable()
            | OSError()
        ):
            return failed(host, said)
        case _:
            return not_made(error)


def harmless(error: Exception) -> Exception | None:
    """The error as the cause to show, unless its text may quote a header, and with it a key."""
    import httpcore
    import httpx

    quoting = httpx.LocalProtocolError | httpcore.LocalProtocolError | UnicodeError | ValueError
    return None if isinstance(error, quoting) else error
