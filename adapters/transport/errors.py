"""What the HTTP libraries raise, as AdapterErrors. httpx and httpcore name the same failures alike."""

from __future__ import annotations

from bus.errors import AdapterError, InvalidRequestError, NetworkError, RequestTimeoutError, StreamError

from .addresses import host_of


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
            return _unsent(RequestTimeoutError(f"no connection to {host} within the connect timeout"))
        case httpx.TimeoutException() | httpcore.TimeoutException():
            return RequestTimeoutError(f"{host} took too long: {said}")
        case httpx.ConnectError() | httpcore.ConnectError():
            return _unsent(NetworkError(f"could not connect to {host}: {said}"))
        case httpx.RemoteProtocolError() | httpcore.RemoteProtocolError():
            return StreamError(f"the connection to {host} broke: {said}")
        case (
            httpx.LocalProtocolError()
            | httpcore.LocalProtocolError()
            | httpx.UnsupportedProtocol()
            | httpcore.UnsupportedProtocol()
            | httpx.InvalidURL()
            | UnicodeError()
        ):
            reason = "base_url, api_key or extra_headers can't be sent as they are"
            return InvalidRequestError(f"{reason} ({type(error).__name__})")
        case (
            httpx.TransportError()
            | httpx.StreamError()
            | httpcore.NetworkError()
            | httpcore.ProxyError()
            | httpcore.ConnectionNotAvailable()
            | OSError()
        ):
            return NetworkError(f"the connection to {host} failed: {said}")
        case _:
            return AdapterError(f"the request could not be made: {type(error).__name__}: {said}")


def _unsent(error: NetworkError) -> NetworkError:
    error.before_sending = True
    return error


def harmless(error: Exception) -> Exception | None:
    """The error as the cause to show, unless its text may quote a header, and with it a key."""
    import httpcore
    import httpx

    quoting = httpx.LocalProtocolError | httpcore.LocalProtocolError | UnicodeError | ValueError
    return None if isinstance(error, quoting) else error
