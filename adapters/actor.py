"""An adapter as a supervised actor, with a task for each call.

The actor publishes no events. Each call reports to the code that started it. Starting a call is synchronous and
sends no message, so a thousand calls started together do not fill the mailbox. An exception in a call fails only
that call. A crash of the actor fails all its calls, and the next call uses a new adapter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import anyio

from callboard.bus import Actor, ActorContext, ActorRef, ActorStopped, AdapterError, TaskCancelled, TaskHandle
from callboard.bus.errors import CancelledError, RequestTimeoutError
from callboard.bus.streams.events import StreamEvent

from .contract import AttemptObserver, CanonicalRequest, CanonicalResponse, ProviderAdapter, PumpedStream

T = TypeVar("T")

INITIALIZE_SECONDS = 120.0


class AdapterActor(Actor):
    """Creates its adapter when it starts, initializes it, and closes it when it stops."""

    def __init__(self, factory: Callable[[], ProviderAdapter]) -> None:
        self._factory = factory
        self._made: ProviderAdapter | None = None

    @property
    def adapter(self) -> ProviderAdapter:
        """The running adapter, which exists between `started` and `stopping`."""
        assert self._made is not None
        return self._made

    @property
    def made(self) -> ProviderAdapter | None:
        return self._made

    async def started(self, context: ActorContext) -> None:
        self._made = self._factory()
        initialize = getattr(self._made, "initialize", None)
        if initialize is not None:  # the contract makes `initialize` optional
            try:
                with anyio.fail_after(INITIALIZE_SECONDS):
                    await initialize()
            except TimeoutError as error:
                raise RequestTimeoutError(f"the adapter did not start within {INITIALIZE_SECONDS:g} s") from error

    async def receive(self, message: object) -> object:
        raise TypeError(f"the actor of an adapter accepts no messages, got {type(message).__name__}")

    async def stopping(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            await made.close()  # the supervisor shields this step and limits its time


class CallHandle(Generic[T]):
    """A call in progress in an adapter's actor."""

    def __init__(self, ref: ActorRef, request_id: str, task: TaskHandle[T], *, in_place: bool = False) -> None:
        self._ref = ref
        self._request_id = request_id
        self._task = task
        self._in_place = in_place
        self._abandoned = False

    def ended(self) -> Awaitable[object]:
        """Wait for the end of the call. Afterwards `result` returns or raises."""
        return self._task.run_here() if self._in_place else self._task.over()

    def result(self) -> T:
        """The adapter's answer. Raises AdapterError, also for a crash of the adapter or its actor."""
        try:
            return self._task.result()
        except AdapterError:
            raise
        except TaskCancelled as error:
            raise CancelledError("the call was cancelled", request_id=self._request_id) from error
        except ActorStopped as error:
            raise self._broken(f"the adapter's actor stopped during the call: {error}") from error
        except Exception as error:
            raise self._broken(f"the adapter crashed: {type(error).__name__}: {error}") from error

    async def wait(self) -> T:
        """Wait for the end of the call, and return its `result`."""
        await self.ended()
        return self.result()

    def cancel(self) -> None:
        """Request the end of the call. `wait()` then raises or returns, as the contract describes. Idempotent."""
        actor = self._ref.actor
        if self._task.done or not isinstance(actor, AdapterActor):
            return
        with contextlib.suppress(ActorStopped):  # if the actor has stopped, the call has ended too
            self._ref.spawn(actor.adapter.cancel, self._request_id, name=f"cancel {self._request_id}")

    @property
    def done(self) -> bool:
        """True if the call has ended, so that `wait` does not block."""
        return self._task.done

    def abandon(self) -> None:
        """Make `wait` raise CancelledError immediately. A call in a separate task continues until `kill`."""
        if self._in_place:
            self._task.cancel()
        else:
            self._abandoned = True
            self._task.abandon()

    def kill(self) -> None:
        """Cancel the task of the call, for an adapter that ignores `cancel`. After its end this does nothing."""
        if self._abandoned or not self._task.done:
            self._task.cancel()

    def _broken(self, message: str) -> AdapterError:
        return AdapterError(message, retryable=False, request_id=self._request_id)


def start_call(
    ref: ActorRef,
    request: CanonicalRequest,
    sink: Callable[[Sequence[StreamEvent]], object] | None,
    *,
    on_attempt: AttemptObserver | None = None,
) -> CallHandle[CanonicalResponse]:
    """Start a call in an adapter's actor immediately.

    If the adapter's method is marked with `ends_when_cancelled`, the call runs in the task that waits for it.
    Otherwise the call gets a separate task. This task can be abandoned if the adapter ignores the cancellation.
    """

    adapter = _adapter_of(ref, request.request_id)

    def complete() -> Awaitable[CanonicalResponse]:
        return adapter.complete(request, on_attempt=on_attempt)

    async def streamed() -> CanonicalResponse:
        assert sink is not None
        async with adapter.stream(request, on_attempt=on_attempt) as stream:
            if isinstance(stream, PumpedStream):
                await stream.pump(sink)
            else:
                async for event in stream:
                    sink((event,))
            if stream.response is None:
                raise CancelledError("the stream ended without a response", request_id=request.request_id)
            return stream.response

    method, work = (adapter.complete, complete) if sink is None else (adapter.stream, streamed)
    in_place = getattr(method, "ends_when_cancelled", False)
    task = (ref.hold if in_place else ref.spawn)(work, name=f"call {request.request_id}")
    return CallHandle(ref, request.request_id, task, in_place=in_place)


def start_work(ref: ActorRef, request_id: str, work: Callable[[ProviderAdapter], Awaitable[T]]) -> CallHandle[T]:
    """Start any work with the adapter in a separate task immediately. Raises the errors of `start_call`."""
    adapter = _adapter_of(ref, request_id)
    return CallHandle(ref, request_id, ref.spawn(work, adapter, name=f"call {request_id}"))


def _adapter_of(ref: ActorRef, request_id: str) -> ProviderAdapter:
    actor = ref.actor
    if not isinstance(actor, AdapterActor):
        raise AdapterError(f"adapter {ref.name!r} is not running", request_id=request_id, retryable=True)
    return actor.adapter
