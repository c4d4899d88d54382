"""What the trace knows of batches, where an engine has one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from callboard.bus import Log
from callboard.bus.errors import StoreError
from callboard.tracestore import CountedCall, StoredBatch

from ..runtime.runtime import Runtime, settled_store

_log = Log("engine.batches")


@asynccontextmanager
async def creating(runtime: Runtime, batch_id: str) -> AsyncIterator[None]:
    """A block in which nobody else with the same trace creates this batch. It waits for its turn.

    Whoever comes next reads in the trace what was done here.

    Raises:
        StoreError: The trace can't be read.
    """
    store = await settled_store(runtime)
    if store is None:
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
    store = await settled_store(runtime)
    return None if store is None else await store.batch(batch_id)


async def stored_batches(runtime: Runtime, limit: int) -> list[StoredBatch]:
    """The latest batches of the trace, the latest first.

    Raises:
        StoreError: The trace can't be read.
    """
    store = await settled_store(runtime)
    return [] if store is None else await store.batches(limit)


async def counted_calls(runtime: Runtime, call_ids: Sequence[str]) -> dict[str, CountedCall]:
    """Those of some calls that are in the trace already, by their ids.

    Raises:
        StoreError: The trace can't be read.
    """
    store = await settled_store(runtime)
    return {} if store is None else await store.counted_calls(call_ids)
