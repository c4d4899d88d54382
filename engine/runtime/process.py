"""The engines of this process, each on its own event loop, for watchers and for readers of a trace.

An engine is registered when it has started, and removed at its end. The registry has only weak references.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias
from weakref import WeakMethod, WeakSet, WeakValueDictionary

import anyio.to_thread

from callboard.bus import Bus, StoreError
from callboard.tracestore import Store

_FLUSH_SECONDS = 0.5


class RunningEngine:
    """A started engine. The engine's life has the only strong reference to it.

    Args:
        bus: The engine's bus.
        loop: The event loop on which it runs.
        store: The engine's trace; None without a trace.
        flush: A method of the engine's life that commits all published events, on the engine's loop. Only a weak
            reference to the method is stored.
    """

    def __init__(
        self, bus: Bus, loop: asyncio.AbstractEventLoop, store: Store | None, flush: Callable[[], Awaitable[None]]
    ) -> None:
        self.bus = bus
        self.loop = loop
        self.store = store
        self._flush = WeakMethod(flush)

    async def flush(self) -> None:
        """Commit all published events, on the engine's loop. Raises StoreError."""
        flush = self._flush()
        if flush is not None:
            await flush()


Newcomer: TypeAlias = Callable[[RunningEngine], object]
"""A function that is called for each engine of the process.

The function may be called in any thread. A new engine calls it on its own loop.
"""


class RunningEngines:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: WeakValueDictionary[str, RunningEngine] = WeakValueDictionary()
        self._watchers: WeakSet[Watcher] = WeakSet()

    def note(self, engine: RunningEngine) -> RunningEngine:
        """Register an engine that has started on the current event loop.

        Watchers are called before the engine does any work.
        """
        with self._lock:
            self._engines[engine.bus.run_id] = engine
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.tell(engine)
        return engine

    def watch(self, tell: Newcomer) -> Watcher:
        """Call a function for all running engines, and for each new one while the result is referenced."""
        watcher = Watcher(tell)
        with self._lock:
            self._watchers.add(watcher)
            engines = list(self._engines.values())
        for engine in engines:
            tell(engine)
        return watcher

    async def flush(self, path: Path) -> None:
        """Commit all published events of the engines that write to this file, if that is possible now.

        If an event loop is blocked, perhaps by this call, the wait ends after half a second.
        """
        for each in self._writing_to(path):
            with contextlib.suppress(StoreError, RuntimeError, TimeoutError):
                await _on_its_loop(each)

    def _writing_to(self, path: Path) -> list[RunningEngine]:
        with self._lock:
            found = list(self._engines.values())
        place = path.resolve()
        return [each for each in found if each.store is not None and each.store.path.resolve() == place]


async def _on_its_loop(engine: RunningEngine) -> None:
    """Flush an engine, with a limited wait.

    Raises RuntimeError if its loop has ended, and TimeoutError if the loop is blocked.
    """
    if _running_loop() is engine.loop:
        await engine.flush()
    elif engine.loop.is_running():
        flushing = asyncio.run_coroutine_threadsafe(engine.flush(), engine.loop)
        await anyio.to_thread.run_sync(flushing.result, _FLUSH_SECONDS)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Watcher:
    """A subscription to the engines of this process, while it is referenced.

    Args:
        tell: A function that is called for each engine.
    """

    def __init__(self, tell: Newcomer) -> None:
        self.tell = tell


_running = RunningEngines()


def engines() -> RunningEngines:
    return _running


def _forget_after_fork() -> None:
    """Clear the registry in a forked process, because none of the loops runs there."""
    global _running
    _running = RunningEngines()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
