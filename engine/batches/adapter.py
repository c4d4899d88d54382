"""How a batch reaches its adapter: the kind that takes batches, at work in its actor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from callboard.adapters import AdapterError, CapabilityError
from callboard.adapters.actor import start_work
from callboard.adapters.batches import BatchAdapter
from callboard.adapters.contract import ProviderAdapter

from ..routing.candidates import Named
from ..runtime.runtime import Runtime

T = TypeVar("T")


def taker(adapter: ProviderAdapter, named: Named) -> BatchAdapter:
    """The adapter, which takes batches. Raises CapabilityError if it doesn't."""
    if not isinstance(adapter, BatchAdapter):
        raise CapabilityError(f"{named.model} takes no batches: its adapter has none")
    return adapter


async def with_adapter(runtime: Runtime, provider: str, work: Callable[[BatchAdapter], Awaitable[T]]) -> T:
    """The result of work with a provider's present adapter. An earlier one may have been replaced or have crashed.

    Raises:
        AdapterError: The work failed. It is retryable if the adapter crashed: the next try finds another one.
    """

    async def on_it(adapter: ProviderAdapter) -> T:
        assert isinstance(adapter, BatchAdapter)
        return await work(adapter)

    with runtime.in_flight.call():
        running = await runtime.adapters.acquire(provider)
        try:
            handle = start_work(running.ref, runtime.clock.new_id("req"), on_it)
            try:
                return await handle.wait()
            except AdapterError as error:
                if type(error) is AdapterError and error.provider_status is None:
                    error.retryable = True
                raise
            finally:
                handle.kill()  # which does nothing if it is done
        finally:
            running.release()
