"""One request over HTTP and its whole reply, in attempts: what adapters do besides conversations.

Vectors, images and jobs are asked for in the same way. The request is written once, every attempt sends the same
bytes, and an error is classified as in a conversation, also an error inside a reply of status 200.

A request that costs money each time it is carried out (`WireCall.once`) is only sent again if the last attempt
surely came to nothing: no connection, or a refusal by the provider. In every other case the error becomes an
`OutcomeUnknownError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from callboard.bus.errors import AdapterError, NetworkError, OutcomeUnknownError, ServerError, StreamError

from ..refusals.classify import error_without_status, find_error
from ..transport.key_masking import masked_headers
from ..transport.transport import exchange
from .attempts import HttpAttempts
from .client import HttpClient
from .wire_call import WireCall

T = TypeVar("T")

_TOO_BUSY = 503
"""The one 5xx that says that the request was not taken on."""


class SingleReply(NamedTuple):
    """A whole reply of status 2xx."""

    body: bytes
    """The body, as it came."""
    headers: Mapping[str, str]
    """The headers, with lower-case names and without the key."""

    @property
    def provider_request_id(self) -> str | None:
        """The provider's own id of the request."""
        return self.headers.get("request-id") or self.headers.get("x-request-id")


async def fetch(
    attempts: HttpAttempts, call: WireCall, read: Callable[[bytes, Mapping[str, str]], T]
) -> tuple[T, SingleReply]:
    """Send a request within the current attempt, and read its reply. Raises AdapterError."""
    client = attempts.client
    request = await attempts.prepare_request(call)
    attempts.sent = True
    try:
        reply, body = await attempts.wait(
            lambda: exchange(client.transport, request), what="the reply", over=request
        )
        if reply.status >= 300:
            raise client.error_of(body, reply)
        attempts.key_was_taken()
        headers = masked_headers(reply.headers, client.secrets)
        return _read(client, body, headers, read), SingleReply(body, headers)
    except AdapterError as error:
        if call.once and not came_to_nothing(error):
            raise _unknown_outcome(client.name, error) from error
        raise


def _read(
    client: HttpClient, body: bytes, headers: Mapping[str, str], read: Callable[[bytes, Mapping[str, str]], T]
) -> T:
    try:
        return read(body, headers)
    except StreamError as error:
        said = StreamError(f"{client.name}: {error}", retryable=error.retryable)
        raise error_inside(client, body) or said from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise error_inside(client, body) or client.unreadable(body, headers, error) from error


def error_inside(client: HttpClient, body: bytes) -> AdapterError | None:
    """The error that a reply of status 200 holds in place of what was asked for; None if it holds none."""
    found = find_error(body)
    return None if found is None else error_without_status(found, client.wire.error_codes, client.name)


def came_to_nothing(error: AdapterError) -> bool:
    """Whether a request that ended so was surely not carried out."""
    status = error.provider_status
    if isinstance(error, NetworkError) and error.before_sending:
        return True
    if isinstance(error, NetworkError | ServerError) or type(error) is AdapterError:
        return status is not None and (300 <= status < 500 or status == _TOO_BUSY)
    return True


def _unknown_outcome(provider: str, error: AdapterError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{provider}: the request was sent, and it may have been carried out and be billed: {error}",
        provider_status=error.provider_status,
        provider_code=error.provider_code,
        provider_message=error.provider_message,
        retry_after_seconds=error.retry_after_seconds,
        provider_request_id=error.provider_request_id,
    )
