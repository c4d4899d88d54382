"""The engine of those who name none: one for each event loop, made when it is first needed.

Nobody closes it. Its root task is a task of the loop, and ends in order when `asyncio.run` cancels the tasks that
are left.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from callboard.bus import CallboardError

from ..engine import Engine

if TYPE_CHECKING:
    from .sync_host import SyncHost

_chosen: Engine | None = None
_of_loops: dict[asyncio.AbstractEventLoop, Engine] = {}


def default_engine() -> Engine:
    """The engine that `generate` and the like use without ``engine=``: the one of `set_default_engine`, else the
    running loop's own, like `Engine.from_env()`.

    Raises:
        CallboardError: No event loop runs here.
        ConfigurationError: The configuration is wrong.
    """
    if _chosen is not None:
        return _chosen
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise CallboardError(
            "no event loop runs here, so there is no engine to use: call this in a coroutine, or take "
            "generate_sync(), stream_sync() and the like"
        ) from None
    engine = _of_loops.get(loop)
    if engine is None or engine.closed:
        for old in [old for old in _of_loops if old.is_closed()]:
            del _of_loops[old]
        engine = _of_loops[loop] = Engine.from_env()
    return engine


def set_default_engine(engine: Engine | None) -> None:
    """Use an engine where none is named, in the whole process. Who sets it closes it.

    Args:
        engine: The engine; None goes back to one for each loop.
    """
    global _chosen
    _chosen = engine


def engine_on(host: SyncHost, engine: Engine | None) -> Engine:
    """The engine that a sync function uses, which is closed when the program ends. Called on the host's loop.

    Args:
        host: The thread of the sync functions.
        engine: The engine that was named; None is `default_engine()`.

    Raises:
        WrongLoop: The engine belongs to another event loop.
    """
    used = engine or default_engine()
    host.keep(used._runtime.host)
    return used
