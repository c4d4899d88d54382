"""What the trace knows of batches, where an engine has one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from bus import Log
from bus.errors import StoreError
from tracestore import CountedCall, Store, StoredBatch

from ..runtime.runtime import Runtime

_log = Log("engine.batches")


@asynccontextmanager
async def creating(runtime: Runtime, batch_id: str) -> AsyncIterator[None]:
    """A block in which nobody else with the same trace creates this batch. It waits for its turn.

    Whoever comes next reads in the trace what was done here.

    Raises:
        StoreError: The trace can't be used.
    """
    store = runtime.store
    if store is None or not store.is_open:
        yield
        return
    async with store.exclusive(f"batch {batch_id}"):
        try:
            yield
        finally:
            await share(runtime)


async def share(runtime: Runtime) -> None:
    """Return when what was published is in the trace, where others read it. While the trace can't be written, it
    is where it survives the end of this process.
    """
    try:
        await runtime.host.flush()
    except StoreError as error:
        _log.warning("batch_not_shared", error=str(error))
    await runtime.host.secure()


async def stored_batch(runtime: Runtime, batch_id: str) -> StoredBatch | None:
    """A batch as the trace knows it; None if it doesn't.

    Raises:
        StoreError: The trace can't be read.
    """
    store = await _readable(runtime)
    return None if store is None else await store.batch(batch_id)


async def stored_batches(runtime: Runtime, limit: int) -> list[StoredBatch]:
    """The latest batches of the trace, the latest first.

    Raises:
        StoreError: The trace can't be read.
    """
    store = await _readable(runtime)
    return [] if store is None else await store.batches(limit)


async def counted_calls(runtime: Runtime, call_ids: Sequence[str]) -> dict[str, CountedCall]:
    """Those of some calls that are in the trace already, by their ids.

    Raises:
        StoreError: The trace can't be read.
    """
    store = await _readable(runtime)
    return {} if store is None else await store.counted_calls(call_ids)


async def _readable(runtime: Runtime) -> Store | None:
    """The trace with all that is known of batches: a process that died may have sent one just before."""
    if runtime.store is None:
        return None
    if not await runtime.host.settle():
        raise StoreError(
            f"what an earlier process left beside {runtime.store.path} can't be read now; see the log"
        )
    return runtime.store if runtime.store.is_open else None
