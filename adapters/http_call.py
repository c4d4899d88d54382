"""One call to a provider over HTTP: its attempts, its time limits, and the scope that `cancel()` reaches.

attempt → (wait → attempt)* → end. Each wait for the network, and each backoff, runs under a cancel scope of its
own; none is held across a `yield`, so a reader may leave at any point.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio

from bus.errors import AdapterError, CancelledError, InvalidRequestError, RequestTimeoutError

from .assembler import Assembler
from .contract import (
    AdapterConfig,
    AttemptFailed,
    AttemptFirstEvent,
    AttemptObserver,
    AttemptReport,
    AttemptStarted,
    CanonicalRequest,
)
from .retry import retry_delay

if TYPE_CHECKING:
    from .http_adapter import HttpAdapter, WireCall
    from .repair import Repair

T = TypeVar("T")


class HttpCall:
    """One call over all its attempts. assembler: of the current attempt. ended: nothing will be waited for again.

    on_cancel: closes the reply when the call is cancelled while nothing is waited for. on_drain: set while a
    cancelled call may be read on for its usage; told so when that begins, and whether somebody reads now.
    draining: it is being read on; what is waited for then ends at the drain's own time limit. request: as it was
    last repaired. repairs: what was done to it; the attempts that follow one don't count as retries.
    """

    def __init__(
        self,
        adapter: HttpAdapter,
        request: CanonicalRequest,
        on_attempt: AttemptObserver | None,
        *,
        stream: bool,
    ) -> None:
        self.adapter = adapter
        self.request = request
        self.streamed = stream
        self.attempt = 0
        self.cancelled = False
        self.ended = False
        self.assembler: Assembler
        self.wire: WireCall | None = None
        self.repairs: tuple[Repair, ...] = ()
        self.draining = False
        self.on_cancel: Callable[[], Awaitable[None]] | None = None
        self.on_drain: Callable[[bool], Awaitable[None]] | None = None
        self.timeout_seconds = _given(request.timeout_seconds, adapter.config.timeout_seconds)
        self._drain_seconds = _given(request.drain_for_usage, adapter.config.drain_for_usage)
        self._on_attempt = on_attempt
        self._scope: anyio.CancelScope | None = None
        self._deadline: float | None = None
        self._limit_ends = math.inf
        self._started_ns = adapter.clock.monotonic_ns()
        self._first_event_told = False
        self._next_reason: Literal["first", "retry", "repair"] = "first"
        self._message_id = request.message_id or adapter.clock.new_id("msg")

    def new_assembler(self) -> Assembler:
        return Assembler(
            message_id=self._message_id,
            provider=self.adapter.name,
            requested_model=self.request.wire_model,
            clock=self.adapter.clock,
            estimate_usage=lambda output: self.adapter.estimate_usage(self.request, output),
            request=self.request,
        )

    def report(self, report: AttemptReport) -> None:
        if self._on_attempt is not None:
            self._on_attempt(report)

    def elapsed_ms(self) -> int:
        return (self.adapter.clock.monotonic_ns() - self._started_ns) // 1_000_000

    def begin_attempt(self) -> None:
        if self.attempt == 0:
            running = self.adapter.running.get(self.request.request_id)
            if running is not None and not running.ended:
                raise InvalidRequestError(f"request_id {self.request.request_id!r} is already running")
            self.adapter.running[self.request.request_id] = self
            self._deadline = anyio.current_time() + self.timeout_seconds
        if self.cancelled:
            raise self._cancelled_error()
        self.attempt += 1
        self._first_event_told = False
        self.assembler = self.new_assembler()
        self.report(AttemptStarted(self.attempt, self._next_reason))

    def first_event(self) -> None:
        if not self._first_event_told:
            self._first_event_told = True
            self.report(AttemptFirstEvent(self.attempt))

    async def wait(self, step: Callable[[], Awaitable[T]], limit: float | None = None, *, what: str) -> T:
        """Wait for the network, at most `limit` seconds and never beyond the call's own time.

        Raises CancelledError after `cancel()`, RequestTimeoutError when time is up.
        """
        assert self._deadline is not None
        if self.cancelled and not self.draining:
            raise self._cancelled_error()
        self._limit_ends = anyio.current_time() + limit if limit is not None else self._deadline
        with anyio.CancelScope(deadline=min(self._limit_ends, self._deadline)) as scope:
            self._scope = scope
            try:
                return await step()
            finally:
                self._scope = None
        if self.cancelled:  # also when a drain's time is up
            raise self._cancelled_error()
        if self._limit_ends < self._deadline:
            raise RequestTimeoutError(f"{self.adapter.name}: no {what.removeprefix('the ')} within {limit:g} s")
        raise RequestTimeoutError(
            f"{self.adapter.name}: the call took longer than {self.timeout_seconds:g} s", retryable=False
        )

    def move_on(self, limit: float) -> None:
        """What is being waited for comes in parts, and one came: `limit` counts anew."""
        if self._scope is not None and self._deadline is not None:
            self._limit_ends = anyio.current_time() + limit
            self._scope.deadline = min(self._limit_ends, self._deadline)

    async def back_off_or_raise(self, error: AdapterError) -> None:
        """Wait before another attempt, or raise the error, complete with ids and without the key.

        A request that can be mended is tried again at once.
        """
        self.identify(error)
        if self.cancelled:
            raise self._cancelled_error() from error
        if self._repair(error):
            return
        config = self.adapter.config
        budget = self.request.max_retries if self.request.max_retries is not None else config.max_retries
        policy = self.request.retry or config.retry
        retries = self.attempt - 1 - len(self.repairs)
        delay = retry_delay(error, retries, budget, policy, self.adapter.clock.random())
        if delay is None:
            raise error
        assert self._deadline is not None
        if anyio.current_time() + delay >= self._deadline:
            raise error
        self._next_reason = "retry"
        self.report(AttemptFailed(self.attempt, error, delay))
        await self.wait(lambda: anyio.sleep(delay), what="another attempt")

    def _repair(self, error: AdapterError) -> bool:
        """Mend the request, if the error says how and that was not tried before."""
        if self.wire is None or self.adapter.config.options.get("repair") is False:
            return False
        if self._deadline is not None and anyio.current_time() >= self._deadline:
            return False
        found = self.adapter.repair(self.request, self.wire, error, [repair.kind for repair in self.repairs])
        if found is None:
            return False
        self.request = found.request
        self.repairs += (found,)
        self.wire = None
        self._next_reason = "repair"
        self.report(AttemptFailed(self.attempt, error, 0.0))
        return True

    def identify(self, error: AdapterError) -> None:
        """Put ids on an error, and take keys out of it: some providers repeat them."""
        error.request_id = self.request.request_id
        error.provider = self.adapter.name
        for secret in secrets(self.adapter.config):
            error.args = (str(error).replace(secret, "***"),)
            for field in ("provider_message", "provider_code", "provider_param", "provider_request_id"):
                said = getattr(error, field)
                if said:
                    setattr(error, field, said.replace(secret, "***"))

    def _cancelled_error(self) -> CancelledError:
        return CancelledError("the call was cancelled", request_id=self.request.request_id)

    async def cancel(self, *, at_once: bool = False) -> None:
        """End the call. at_once: even if it may, or does, read on for its usage."""
        if self.on_drain is not None and self._drain_seconds > 0 and not at_once:
            if not self.cancelled:
                self.cancelled = self.draining = True
                self._deadline = min(self._deadline or math.inf, anyio.current_time() + self._drain_seconds)
                if self._scope is not None:
                    self._scope.deadline = min(self._scope.deadline, self._deadline)
                await self.on_drain(self._scope is not None)
            return
        self.cancelled = True
        self.draining = False
        if self._scope is not None:
            self._scope.cancel()
        elif self.on_cancel is not None:
            await self.on_cancel()


def _given(own: float | None, default: float) -> float:
    return default if own is None else own


_SECRET_HEADERS = ("auth", "key", "token", "cookie")
_SHORTEST_SECRET = 6  # masking a shorter one would only garble the text


def secrets(config: AdapterConfig) -> list[str]:
    """What must not be seen: the key, and the values of extra headers that carry one."""
    values = [config.api_key or ""]
    for name, value in config.extra_headers.items():
        if any(part in name.lower() for part in _SECRET_HEADERS):
            values.append(value)
    return [value for value in values if len(value) >= _SHORTEST_SECRET]
