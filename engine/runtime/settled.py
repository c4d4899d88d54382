"""The trace with all that is known, also by processes that have died just before."""

from __future__ import annotations

from callboard.bus.errors import StoreError
from callboard.tracestore import Store

from .runtime import Runtime


async def settled_store(runtime: Runtime) -> Store | None:
    """The trace, with what earlier processes had to leave; None without one, or while it can't be opened.

    Raises:
        StoreError: What they left can't be read now. So what the trace doesn't know may have happened.
    """
    if runtime.store is None:
        return None
    if not await runtime.host.settle():
        raise StoreError(
            f"what an earlier process left beside {runtime.store.path} can't be read now; see the log"
        )
    return runtime.store if runtime.store.is_open else None
