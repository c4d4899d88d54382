"""Work that runs to its end, whoever is cancelled meanwhile; or to the end of somebody's patience."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio
import msgspec

from callboard.bus.log import Log

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


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long work may take that waits for somebody else. None is for ever."""

    work: float | None = None
    """The longest time for a piece of work, in seconds."""
    cancelled: float | None = None
    """The longest time that it still has when its caller is cancelled, in seconds."""


async def bounded(work: Coroutine[Any, Any, _T], patience: Patience, cut: Callable[[], None]) -> _T:
    """Run `work` to its end, which comes soon after `cut` was called because patience is at its end.

    Args:
        work: The work.
        patience: The patience.
        cut: Makes `work` fail soon. It is called in the event loop.
    """
    task = asyncio.ensure_future(work)
    timers = [] if patience.work is None else [_cut_after(patience.work, cut)]
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        if patience.cancelled is not None:
            timers.append(_cut_after(patience.cancelled, cut))
        await uninterrupted(_end_of(task))
        raise
    finally:
        for timer in timers:
            timer.cancel()
    return task.result()


def _cut_after(seconds: float, cut: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, cut)


async def _end_of(task: asyncio.Future[_T]) -> None:
    await asyncio.wait((task,))
    if not task.cancelled() and task.exception() is not None:
        _log.warning("failed_while_cancelled", error=repr(task.exception()))
