"""Work that runs to its end, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

from bus.log import Log

_T = TypeVar("_T")

_log = Log("tracestore.database")


async def uninterrupted(work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work` to its end, even if the caller is cancelled. Then the cancellation goes on."""
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    # The scope keeps anyio's cancellation out, the shield asyncio's own `task.cancel()`, which passes the scope.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                interrupted = error
            except BaseException:
                break
    if interrupted is not None and not task.cancelled():
        if task.exception() is not None:
            _log.warning("failed_while_cancelled", error=repr(task.exception()))
        raise interrupted
    return task.result()
