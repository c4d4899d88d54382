"""Attempts of one HTTP request: time limits, retries, keys and cancellation.

    attempting    an attempt was reported, and is sent or read
    waiting       the attempt has failed, and the time until the next one passes
    ended         there are no more waits: a reply arrived, the last attempt failed, or the reader left
    draining      the request was cancelled, and its reply is read further for its usage

Each wait has its own cancel scope. No scope is held across a `yield`, so a reader may leave at any point. This
module is independent of requests and replies: `call` and `operations` add those.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

import anyio
import msgspec

from callboard.bus.backend import MovingDeadline, WaitScope, new_scope, time_source
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CancelledError,
    InvalidRequestError,
    NetworkError,
    OutcomeUnknownError,
    RequestTimeoutError,
    ServerError,
    StreamError,
)
from callboard.bus.values.usage import TokenUsage, UsageSource

from ..contract import (
    AttemptFailed,
    AttemptFirstEvent,
    AttemptObserver,
    AttemptReason,
    AttemptReport,
    AttemptResent,
    AttemptStarted,
    CallRequest,
    NextAttempt,
    RateLimitInfo,
)
from ..keys import Key, KnownKey
from ..replies.usage import NOTHING_USED, usage_of_failure
from ..requests.history_target import WireCall
from ..transport.transport import HttpRequest, exchange, mask_error, masked_headers
from .errors import error_without_status, find_error
from .retry import log_retry, retry_delay
from .wire import HttpClient

T = TypeVar("T")


class Limit(NamedTuple):
    seconds: float
    of: float
    """Seconds of the whole limit, for the error text. `seconds` may be only the last part of this limit."""


class HttpAttempts:
    """One request with all its attempts.

    `cancel()` ends it. If no wait is in progress at that moment, `on_cancel` closes the reply.
    """

    # Python stores up to thirty attributes of an instance compactly. So a rarely used attribute is a class
    # attribute until it is set. A test counts those of a usual call.
    cancelled = False
    ended = False
    """Whether the request is over."""
    draining = False
    """Whether a cancelled reply is being read to learn its usage, within `drain_for_usage`."""
    repaired = 0
    """The number of attempts that followed a repair or a new key. Such attempts don't count as retries."""
    rate_limit: RateLimitInfo | None = None
    """The limits in the headers of the current attempt's reply."""
    on_cancel: Callable[[], Awaitable[None]] | None = None
    _estimate_input: Callable[[], int] | None = None
    _tried_keys: frozenset[str] = frozenset()  # keys of a pool that were rejected or rate-limited in this call
    _keys_replaced: frozenset[str | None] = frozenset()
    _first_event_reported = False
    _known_key: KnownKey | None = None  # the key of the current attempt
    _limit: Limit | None = None
    _moving: MovingDeadline | None = None  # the deadline of the current step

    def __init__(
        self,
        client: HttpClient,
        terms: CallRequest,
        on_attempt: AttemptObserver | None,
        estimate_input: Callable[[], int] | None = None,
    ) -> None:
        self.client = client
        if estimate_input is not None:
            self._estimate_input = estimate_input
        self.attempt = 0
        self.sent = False  # the request of the current attempt has been sent, or is about to be
        self.timeout_seconds = value_or(terms.timeout_seconds, client.config.timeout_seconds)
        self._terms = terms
        self._key = client.keys.own
        self._on_attempt = on_attempt
        self._scope: anyio.CancelScope | WaitScope | None = None
        self._time: Callable[[], float] = anyio.current_time
        self._deadline: float | None = None
        self._limit_ends = math.inf
        self._started_ns = client.clock.monotonic_ns()
        self._next_reason: AttemptReason = "first"

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Run `attempt` until it succeeds or no retry is left. Return its result. Raises AdapterError."""
        try:
            while True:
                self.begin_attempt()
                try:
                    return await attempt()
                except AdapterError as error:
                    await self.back_off_or_raise(error)
        finally:
            self.ended = True

    def report(self, report: AttemptReport) -> NextAttempt | None:
        """Send a report to the observer. The result, if any, must be awaited before the next attempt."""
        return None if self._on_attempt is None else self._on_attempt(report)

    def elapsed_ms(self) -> int:
        return (self.client.clock.monotonic_ns() - self._started_ns) // 1_000_000

    def begin_attempt(self) -> None:
        """Count and report another attempt.

        Raises CancelledError, ConfigurationError or InvalidRequestError.
        """
        if self.attempt == 0:
            running = self.client.running.get(self._terms.request_id)
            if running is not None and not running.ended:
                raise InvalidRequestError(f"request_id {self._terms.request_id!r} is already running")
            self.client.running.add(self._terms.request_id, self)
            self._time = time_source()
            self._deadline = self._time() + self.timeout_seconds
        if self.cancelled:
            raise self._cancelled_error()
        if self._next_reason != "key":
            self._key = self._choose_key() or self._key
        self.attempt += 1
        self.sent = False
        self._first_event_reported = False
        self.rate_limit = None
        self.prepare_attempt()
        self.report(AttemptStarted(self.attempt, self._next_reason, self._key.name))

    async def prepare_request(self, call: WireCall, *, accept: str = "application/json") -> HttpRequest:
        """The HTTP request of the current attempt, with the current key.

        Raises AuthError, CancelledError or RequestTimeoutError.
        """
        cached_key = self._key.known
        if cached_key is None:
            cached_key = await self.wait(self._key.get, what="the key")
        self._known_key = cached_key
        return self.client.request(call, cached_key.value, accept=accept, on_resend=self.resend_observer())

    def resend_observer(self) -> Callable[[], object] | None:
        """Return a function that reports that the current attempt was sent again. The function holds no reference
        to the call.
        """
        observer, attempt = self._on_attempt, self.attempt
        return None if observer is None else lambda: observer(AttemptResent(attempt))

    def prepare_attempt(self) -> None:
        """Reset the state of the previous attempt."""

    def first_event(self, headers: Mapping[str, str]) -> None:
        """Report the first content of the attempt's reply and its rate limits, once."""
        if not self._first_event_reported:
            self._first_event_reported = True
            self.rate_limit = self.client.rate_limit(headers)
            self.report(AttemptFirstEvent(self.attempt, self.rate_limit))

    async def wait(
        self,
        step: Callable[[], Awaitable[T]],
        limit: Limit | float | None = None,
        *,
        what: str,
        moves: bool = False,
        over: HttpRequest | None = None,
    ) -> T:
        """Wait for the network, at most `limit` seconds and within the call's own time.

        Raises CancelledError or RequestTimeoutError.
        """
        assert self._deadline is not None
        if self.cancelled and not self.draining:
            raise self._cancelled_error()
        now = self._time()
        self._limit = limit if isinstance(limit, Limit) or limit is None else Limit(limit, limit)
        self._limit_ends = now + self._limit.seconds if self._limit is not None else self._deadline
        if now >= self._deadline:  # checked here, because a scope cannot cancel a step that does not wait
            raise self._out_of_time_error()
        ends = min(self._limit_ends, self._deadline)
        with self._new_scope(math.inf if moves else ends, over) as scope:
            self._scope = scope
            if moves:
                self._moving = MovingDeadline(scope, ends)
            try:
                return await step()
            finally:
                self._scope = None
                if self._moving is not None:
                    self._moving.stop()
                    self._moving = None
        if self._limit is not None and self._limit_ends < self._deadline and not self.cancelled:
            what = what.removeprefix("the ")
            raise RequestTimeoutError(f"{self.client.name}: no {what} within {self._limit.of:g} s")
        raise self._out_of_time_error()

    def _new_scope(self, ends: float, over: HttpRequest | None) -> anyio.CancelScope | WaitScope:
        if over is not None and self.client.is_own(over):
            return self.client.wait_scopes.until(ends)
        return new_scope(ends)

    def move_on(self, now: float, limit: Limit) -> None:
        """Restart the limit of the current `wait`, because data has arrived. Data that was already received needs
        no wait, so this method also checks the call's time limit. Raises the errors of `wait`.
        """
        if self._moving is not None and self._deadline is not None:
            if now >= self._deadline:
                raise self._out_of_time_error()
            self._limit, self._limit_ends = limit, now + limit.seconds
            self._moving.move(min(self._limit_ends, self._deadline))

    async def back_off_or_raise(self, error: AdapterError) -> None:
        """Wait before another attempt. A repaired request is sent without a wait. Raises AdapterError."""
        self.identify(error)
        if self.cancelled:
            raise self._cancelled_error() from error
        reason = await self._reason_to_repeat(error)
        if reason is not None:
            self.repaired += 1
            self._next_reason = reason
            await self._wait_for_next(self._failed(error, 0.0))
            return
        config, terms = self.client.config, self._terms
        budget = terms.max_retries if terms.max_retries is not None else config.max_retries
        policy = terms.retry or config.retry
        retries = self.attempt - 1 - self.repaired
        delay = retry_delay(error, retries, budget, policy, self.client.clock.random())
        if delay is None or self.out_of_time(delay):
            raise error
        self._next_reason = "retry"
        next_attempt = self._failed(error, delay)
        log_retry(policy, error, self.attempt, delay)
        await self.wait(lambda: anyio.sleep(delay), what="another attempt")
        await self._wait_for_next(next_attempt)

    async def _reason_to_repeat(self, error: AdapterError) -> AttemptReason | None:
        """The reason to repeat the attempt without a wait: another key or a repair. None if there is none."""
        if not self.out_of_time():
            refuses_key = isinstance(error, AuthError) and not isinstance(error, AccessDeniedError)
            if refuses_key and await self._has_new_key():
                return "key"
            if self._key.name is not None and self._has_other_key(self._key.name, error):
                return "key"
        return "repair" if self.repair_request(error) else None

    async def _has_new_key(self) -> bool:
        """Request a new value of a rejected key, once in a call. Return whether there is a new value."""
        key, last_key, self._known_key = self._key, self._known_key, None
        if last_key is None or key.source is None or key.name in self._keys_replaced:
            return False
        self._keys_replaced |= {key.name}
        try:
            return await self.wait(lambda: key.replaced(last_key), what="another key")
        except AdapterError as failure:
            self.identify(failure)
            raise

    def _has_other_key(self, name: str, error: AdapterError) -> bool:
        """Pause the key that caused a failure. Return whether another key of the pool is available."""
        now_us = self.client.clock.now_us()
        if not self.client.keys.cooldowns.failed(name, self._terms.wire_model, error, now_us):
            return False
        self._tried_keys |= {name}
        other = self._choose_key()
        if other is None or other is self._key:
            return False
        self._key = other
        return True

    def _choose_key(self) -> Key | None:
        """The key of the next attempt; None if the call has tried all available keys."""
        terms, client = self._terms, self.client
        if terms.key is None and client.keys.unnamed is not None:
            return client.keys.unnamed
        session = getattr(terms, "session_id", "")
        return client.keys.choose(
            terms.key, session, terms.wire_model, client.clock.now_us(), without=self._tried_keys
        )

    @property
    def key_name(self) -> str | None:
        """The name of the current attempt's key; None for the adapter's own key."""
        return self._key.name

    def key_was_taken(self) -> None:
        """Record that the provider accepted the key of the current attempt."""
        if self._key.name is not None:
            self.client.keys.cooldowns.taken(self._key.name, self._terms.wire_model)

    def _failed(self, error: AdapterError, delay: float) -> NextAttempt | None:
        self.sent = False
        return self.report(AttemptFailed(self.attempt, error, delay))

    async def _wait_for_next(self, next_attempt: NextAttempt | None) -> None:
        if next_attempt is not None:
            await self.wait(next_attempt, what="another attempt's turn")

    def repair_request(self, error: AdapterError) -> bool:
        """Change the next attempt's request, if the error shows how. Returns whether it was changed."""
        return False

    def out_of_time(self, seconds: float = 0.0) -> bool:
        """Whether the request's time limit passes within `seconds`."""
        return self._deadline is not None and anyio.current_time() + seconds >= self._deadline

    def identify(self, error: AdapterError) -> None:
        """Add ids and usage to an error, and mask keys in its text, because some providers repeat keys."""
        error.request_id = self._terms.request_id
        error.provider = self.client.name
        if error.usage is None:
            error.usage = usage_of_failure(error, self.usage_so_far, received=self.received)
        mask_error(error, self.client.secrets)

    def _out_of_time_error(self) -> AdapterError:
        """The error for a call whose time is up. During a drain, it is the error of the cancellation instead."""
        if self.cancelled:
            return self._cancelled_error()
        text = f"{self.client.name}: the call took longer than {self.timeout_seconds:g} s"
        return RequestTimeoutError(text, retryable=False)

    def _cancelled_error(self) -> CancelledError:
        error = CancelledError("the call was cancelled", request_id=self._terms.request_id)
        error.usage = self.usage_so_far()
        return error

    @property
    def received(self) -> bool:
        """Whether any part of a reply has arrived in this attempt."""
        return False

    def usage_so_far(self) -> TokenUsage | None:
        """The usage of the current attempt, as if the attempt ended now; None if unknown."""
        return self._count_used() if self.sent else NOTHING_USED

    def _count_used(self) -> TokenUsage | None:
        if self._estimate_input is None:
            return None
        return TokenUsage(self._estimate_input(), source=UsageSource.ESTIMATED)

    async def cancel(self, *, at_once: bool = False) -> None:
        self.cancelled = True
        self.draining = False
        if self._scope is not None:
            self._scope.cancel()
        elif self.on_cancel is not None:
            await self.on_cancel()


def value_or(value: float | None, default: float) -> float:
    """Return the request's value, or the configuration's value if the request has none."""
    return default if value is None else value


# --- A request with a whole reply ---


class SingleReply(NamedTuple):
    """A whole reply of status 2xx."""

    body: bytes
    headers: Mapping[str, str]
    """The headers, with lower-case names and without the key."""

    @property
    def provider_request_id(self) -> str | None:
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
        if call.once and not was_not_processed(error):
            raise OutcomeUnknownError(
                f"{client.name}: the request was sent and may have been run and billed: {error}",
                provider_status=error.provider_status,
                provider_code=error.provider_code,
                provider_message=error.provider_message,
                retry_after_seconds=error.retry_after_seconds,
                provider_request_id=error.provider_request_id,
            ) from error
        raise


def _read(
    client: HttpClient, body: bytes, headers: Mapping[str, str], read: Callable[[bytes, Mapping[str, str]], T]
) -> T:
    try:
        return read(body, headers)
    except StreamError as error:
        stream_error = StreamError(f"{client.name}: {error}", retryable=error.retryable)
        raise error_inside(client, body) or stream_error from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise error_inside(client, body) or client.unreadable(body, headers, error) from error


def error_inside(client: HttpClient, body: bytes) -> AdapterError | None:
    """The error in a reply of status 200; None if it has none."""
    found = find_error(body)
    return None if found is None else error_without_status(found, client.wire.error_codes, client.name)


def was_not_processed(error: AdapterError) -> bool:
    """Whether an error means that the provider certainly did not run the request."""
    status = error.provider_status
    if isinstance(error, NetworkError) and error.before_sending:
        return True
    if isinstance(error, NetworkError | ServerError) or type(error) is AdapterError:
        # 503 is the only 5xx status that certainly means that the request was not accepted
        return status is not None and (300 <= status < 500 or status == 503)
    return True
