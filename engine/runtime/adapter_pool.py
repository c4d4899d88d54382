"""The adapters of an engine: started when first asked for, revived when they gave up, replaced by a reload."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import anyio

from callboard.adapters import ProviderAdapter
from callboard.adapters.actor import AdapterActor
from callboard.bus import Clock, ConfigurationError

from ..models.entries import AdapterEntry
from ..models.registry import ModelRegistry
from .host import Host
from .running_adapter import RunningAdapter, come_up


def make_spare(entry: AdapterEntry, clock: Clock) -> ProviderAdapter:
    """An adapter that is never started.

    Raises:
        ConfigurationError: No adapter can be made as configured.
    """
    try:
        return entry.create(clock)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"adapter {entry.name!r} can't be made: {type(error).__name__}: {error}"
        ) from error


class AdapterPool:
    """The adapters that were needed so far, each started once for all its users."""

    running: dict[str, RunningAdapter]
    """The adapters by provider. One of them may be down just now."""

    def __init__(self, host: Host, registry: Callable[[], ModelRegistry], clock: Clock) -> None:
        self._host = host
        self._registry = registry
        self._clock = clock
        self.running = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._spares: dict[str, tuple[AdapterEntry, ProviderAdapter]] = {}

    def __getitem__(self, provider: str) -> RunningAdapter:
        return self.running[provider]

    async def acquire(self, provider: str) -> RunningAdapter:
        """The running adapter of a provider. Call its `release()` when it is no longer needed.

        An exception of the adapter's start is raised here.

        Raises:
            ConfigurationError: The provider isn't configured.
        """
        if not self._host.runs_here:
            await self._host.start()
        ready = self.running.get(provider)
        if ready is not None and ready.ref.running:  # nearly always: without waiting for the lock
            ready.acquire()
            return ready
        async with self._lock(provider):
            running = await self._current(provider)
            running.acquire()
        return running

    def consult(self, entry: AdapterEntry) -> ProviderAdapter:
        """An adapter for questions that need no network: the running one, or else a spare that is never started.

        Raises:
            ConfigurationError: No adapter can be made as configured.
        """
        running = self.running.get(entry.name)
        if running is not None and (running.entry is entry or running.entry == entry):
            actor = running.ref.actor
            if isinstance(actor, AdapterActor):
                return actor.adapter
        known, spare = self._spares.get(entry.name, (None, None))
        if spare is None or known != entry:
            spare = make_spare(entry, self._clock)
            self._spares[entry.name] = entry, spare
        return spare

    async def replace(self, names: Iterable[str]) -> None:
        """Use the running adapters of these names no more, and let them finish their calls."""
        await self._host.start()
        for name in names:
            self._spares.pop(name, None)
            async with self._lock(name):  # one that is just starting is replaced as well
                running = self.running.pop(name, None)
                if running is not None:
                    self._host.retire(running)

    def _lock(self, provider: str) -> anyio.Lock:
        return self._locks.setdefault(provider, anyio.Lock())

    async def _current(self, provider: str) -> RunningAdapter:
        entry = self._entry(provider)
        running = self.running.get(provider)
        if running is None:
            running = self.running[provider] = await self._host.start_adapter(entry)
            self._spares.pop(provider, None)
        elif not running.ref.running:
            await self._host.revive_adapter(running)
            await come_up(running.ref)
        return running

    def _entry(self, provider: str) -> AdapterEntry:
        registry = self._registry()
        entry = registry.adapters.get(provider)
        if entry is None:
            raise ConfigurationError(f"{registry.source}: there is no adapter {provider!r} any more")
        return entry
