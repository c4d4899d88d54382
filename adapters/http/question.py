"""One question over HTTP and its whole answer, in attempts: what adapters have beside their conversations.

Vectors, images and jobs are asked for in the same way: the request is written once, every attempt sends the same
bytes, and an error, also one inside an answer of status 200, is classified as in a conversation.

A request that costs money each time it is carried out (`WireCall.once`) is only sent again if the last attempt
surely came to nothing: no connection, or a refusal by the provider. In every other case the error becomes an
`OutcomeUnknownError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from bus.errors import AdapterError, NetworkError, OutcomeUnknownError, ServerError, StreamError
from bus.values.json import Json

from ..contract import AttemptObserver
from ..refusals.classify import error_without_status, read_error_value
from ..transport.key_masking import masked_headers
from ..transport.transport import exchange
from .adapter import HttpAdapter
from .attempts import AttemptTerms, HttpAttempts
from .wire_call import WireCall

T = TypeVar("T")

_TOO_BUSY = 503
"""The one 5xx that says that the request was not taken on."""


class Answer(NamedTuple):
    """A whole reply of status 2xx. headers: with lower-case names."""

    body: bytes
    headers: Mapping[str, str]

    @property
    def provider_request_id(self) -> str | None:
        return self.headers.get("request-id") or self.headers.get("x-request-id")


class AskingAdapter(HttpAdapter):
    """Base of the adapters that answer questions of other kinds than conversations."""

    async def in_attempts(
        self,
        terms: AttemptTerms,
        on_attempt: AttemptObserver | None,
        once: Callable[[HttpAttempts], Awaitable[T]],
        *,
        estimate_input: Callable[[], int] | None = None,
    ) -> T:
        """What `once` gives, tried as often as the terms allow. Raises AdapterError.

        estimate_input: see `HttpAttempts`.
        """
        attempts = HttpAttempts(self, terms, on_attempt, estimate_input)
        try:
            while True:
                attempts.begin_attempt()
                try:
                    return await once(attempts)
                except AdapterError as error:
                    await attempts.back_off_or_raise(error)
        finally:
            attempts.ended = True

    async def ask(
        self,
        attempts: HttpAttempts,
        wire: WireCall,
        request_id: str,
        read: Callable[[bytes, Mapping[str, str]], T],
    ) -> tuple[T, Answer]:
        """Send, and what `read` makes of the answer. Raises AdapterError: what an error means, or of no answer."""
        http = self.http_request(wire, accept="application/json", on_resend=attempts.resend_observer())
        attempts.sent = True
        try:
            reply, body = await attempts.wait(lambda: exchange(self._transport, http), what="the reply")
            if reply.status >= 300:
                raise self.error_of(body, reply, request_id)
            headers = masked_headers(reply.headers, self.secrets)
            return self._read(body, headers, read), Answer(body, headers)
        except AdapterError as error:
            if wire.once and not came_to_nothing(error):
                raise self._unknown_outcome(error) from error
            raise

    def _read(self, body: bytes, headers: Mapping[str, str], read: Callable[[bytes, Mapping[str, str]], T]) -> T:
        try:
            return read(body, headers)
        except StreamError as error:
            said = StreamError(f"{self.name}: {error}", retryable=error.retryable)
            raise self._error_inside(body) or said from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise self._error_inside(body) or self.unreadable(body, headers, error) from error

    def _unknown_outcome(self, error: AdapterError) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"{self.name}: the request was sent, and it may have been carried out and be billed: {error}",
            provider_status=error.provider_status,
            provider_code=error.provider_code,
            provider_message=error.provider_message,
            retry_after_seconds=error.retry_after_seconds,
            provider_request_id=error.provider_request_id,
        )

    def _error_inside(self, body: bytes) -> AdapterError | None:
        """The error that a reply of status 200 holds in place of what was asked for; None if it holds none."""
        try:
            value: Json = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None
        if not isinstance(value, dict) or not value.get("error"):
            return None
        return error_without_status(read_error_value(value), self.error_codes, self.name)


def came_to_nothing(error: AdapterError) -> bool:
    """Whether a request that ended so was surely not carried out."""
    status = error.provider_status
    if isinstance(error, NetworkError) and error.before_sending:
        return True
    if isinstance(error, NetworkError | ServerError) or type(error) is AdapterError:
        return status is not None and (300 <= status < 500 or status == _TOO_BUSY)
    return True
