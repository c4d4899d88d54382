"""The engines that live in this process, each on its own event loop, for whoever watches all of them.

An engine is noted when it has come up, and forgotten with its life. Nothing is kept alive from here, and an engine
pays for it once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import TypeAlias
from weakref import WeakSet, WeakValueDictionary

from bus import Bus


class LivingBus:
    """The bus of an engine that has come up. The engine's life holds it.

    Args:
        bus: The bus.
        loop: The event loop on which the bus is used.
    """

    def __init__(self, bus: Bus, loop: asyncio.AbstractEventLoop) -> None:
        self.bus = bus
        self.loop = loop


Newcomer: TypeAlias = Callable[[LivingBus], object]
"""Is told of each engine of the process, in any thread, and for one that comes up on the engine's own loop."""


class Living:
    """The engines that live."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buses: WeakValueDictionary[str, LivingBus] = WeakValueDictionary()
        self._watchers: WeakSet[Watcher] = WeakSet()

    def note(self, bus: Bus) -> LivingBus:
        """Note that an engine has come up on the loop that runs here. Before anything is asked of it, whoever
        watches learns of it.
        """
        living = LivingBus(bus, asyncio.get_running_loop())
        with self._lock:
            self._buses[bus.run_id] = living
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.tell(living)
        return living

    def watch(self, tell: Newcomer) -> Watcher:
        """Tell somebody of all engines that live, and of each that comes up as long as the result is kept."""
        watcher = Watcher(tell)
        with self._lock:
            self._watchers.add(watcher)
            buses = list(self._buses.values())
        for living in buses:
            tell(living)
        return watcher


class Watcher:
    """Somebody who wants to know of each engine, as long as this is kept.

    Args:
        tell: Is told of them.
    """

    def __init__(self, tell: Newcomer) -> None:
        self.tell = tell


_living = Living()


def engines() -> Living:
    """The engines of this process."""
    return _living


def _forget_after_fork() -> None:
    """Forget everything in a child process: none of the loops runs there."""
    global _living
    _living = Living()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
