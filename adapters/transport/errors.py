"""What can go wrong between here and a server, as AdapterErrors. None holds a header of a request."""

from __future__ import annotations

from callboard.bus.errors import AdapterError, InvalidRequestError, NetworkError, RequestTimeoutError, StreamError


def not_in_time(host: str) -> RequestTimeoutError:
    """No connection within its time."""
    error = RequestTimeoutError(f"no connection to {host} within the connect timeout")
    error.before_sending = True
    return error


def unreachable(host: str, said: str) -> NetworkError:
    """No connection at all."""
    error = NetworkError(f"could not connect to {host}: {said}")
    error.before_sending = True
    return error


def broken(host: str, said: str) -> StreamError:
    """What came is no reply, or only the beginning of one."""
    return StreamError(f"the connection to {host} broke: {said}")


def failed(host: str, said: str) -> NetworkError:
    """The network failed under a request."""
    return NetworkError(f"the connection to {host} failed: {said}")


def unsendable(what: str) -> InvalidRequestError:
    """A request that can't be written. The text must not quote it.

    Args:
        what: The kind of what is wrong.
    """
    return InvalidRequestError(f"base_url, api_key or extra_headers can't be sent as they are ({what})")


def not_made(error: Exception) -> AdapterError:
    """What nobody foresaw."""
    return AdapterError(f"the request could not be made: {type(error).__name__}: {error}")
