"""The running adapters of an engine: their call slots, their users, and the pool that starts them.

An adapter starts when it is first needed. It is restarted after a crash, and replaced by a reload. Each provider
has a number of slots for concurrent calls. Calls get slots in the order of their turns: the second call of an
earlier turn precedes the first call of a later turn. So new turns cannot starve an admitted turn. A waiting call
can be cancelled at any moment. If it has just received a slot, the next call gets the slot.

`Host` is the interface to the engine's life. The modules that use it are in a lower layer than the engine's life.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import anyio

from callboard.adapters import ProviderAdapter
from callboard.adapters.actor import AdapterActor
from callboard.bus import ActorRef, Clock, ConfigurationError, Cost, Envelope, ShutdownReport, TaskHandle

from ..conversation.results import Reply
from ..models.entries import AdapterEntry, ModelEntry
from ..models.registry import ModelRegistry, published_name_at, published_provider

arrival = itertools.count().__next__
"""Returns increasing numbers, which order turns by the time of their request."""


class _Waiter:
    def __init__(self) -> None:
        self.adapter_ready = anyio.Event()


class CallSlots:
    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._numbers = itertools.count()
        self._queue: list[tuple[int, int, _Waiter]] = []

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def try_acquire(self) -> bool:
        """Take a slot if one is free, without waiting."""
        if self.used < self.total:
            self.used += 1
            return True
        return False

    async def acquire(self, turn: int = 0) -> None:
        """Wait for a slot, which must be released."""
        if self.try_acquire():
            return
        waiter = _Waiter()
        entry = (turn, next(self._numbers), waiter)
        heapq.heappush(self._queue, entry)
        try:
            await waiter.adapter_ready.wait()
        except BaseException:
            if waiter.adapter_ready.is_set():
                self.release()
            else:
                self._queue.remove(entry)
                heapq.heapify(self._queue)
            raise

    def release(self) -> None:
        """Return a slot. If calls wait, the next one gets it."""
        if self._queue:
            _, _, waiter = heapq.heappop(self._queue)
            waiter.adapter_ready.set()
        else:
            self.used -= 1


# --- Running adapters ---


_MOST_NAMES = 256
"""The maximum number of models whose published name a running adapter caches."""

RESTART_SECONDS = 6.0
"""Seconds that a turn waits for an actor that is being restarted: a little longer than the longest backoff."""


async def wait_for_restart(ref: ActorRef) -> None:
    """Wait for the restart of a crashed actor, so that the next use gets the new one."""
    if not ref.coming_up:  # nearly always
        return
    with anyio.move_on_after(RESTART_SECONDS):
        while ref.coming_up:  # noqa: ASYNC110 (rare and short; an event would be one more thing to keep in step)
            await anyio.sleep(0.01)


class RunningAdapter:
    """A provider's actor, the limits for its calls, and the number of turns that use it."""

    def __init__(self, entry: AdapterEntry, ref: ActorRef, slots: CallSlots) -> None:
        self.entry = entry
        self.ref = ref
        self.slots = slots
        self._published: dict[str, str | None] = {}
        self._users = 0
        self._idle: anyio.Event | None = None  # set only while a task waits

    @cached_property
    def _published_provider(self) -> str | None:
        return published_provider(self.entry)

    def published_name(self, model: ModelEntry) -> str | None:
        """The name of a model in published price tables, see `published_name`."""
        name = model.wire_name
        if name not in self._published:
            if len(self._published) >= _MOST_NAMES:
                self._published.clear()
            self._published[name] = published_name_at(self._published_provider, self.entry, model)
        return self._published[name]

    def acquire(self) -> None:
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if self._users == 0 and self._idle is not None:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Return when no turn uses the adapter. The caller must prevent new uses."""
        if self._users:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()


# --- The engine's life as an interface ---


class Startable(Protocol):
    """The part of a turn that the host uses."""

    @property
    def id(self) -> str: ...

    def enter_queue(self) -> None:
        """Enter the queue of waiting turns. Raises SessionBusy."""

    def leave_queue(self, error: BaseException) -> None:
        """Leave the queue, because the turn will not run."""

    async def run(self) -> Reply:
        """The assistant's last message."""


class Host(Protocol):
    """The interface to an engine's life. The engine starts when first needed, runs turns and adapters, and closes
    everything in order.
    """

    @property
    def started(self) -> bool:
        """Whether the engine was started on an event loop."""

    @property
    def closed(self) -> bool:
        """Whether the engine has ended. An ended engine can't be started again."""

    @property
    def runs_here(self) -> bool:
        """Whether the engine runs on the current event loop. If so, `start` does nothing."""

    def require_loop(self, instead: str = "") -> None:
        """Check that the running event loop is the engine's. Raises WrongLoop."""

    async def aclose(self) -> ShutdownReport | None:
        """Close in order, see `Engine.aclose`."""

    async def start(self) -> None:
        """Start, and return when the engine is ready. Raises CallboardError, WrongLoop, StoreError."""

    async def watch_commits(self, callback: Callable[[Sequence[Envelope]], object]) -> None:
        """Call a function with the events of each commit to the trace. Raises the errors of `start`."""

    async def start_turn(self, turn: Startable) -> TaskHandle[Reply]:
        """Run a turn in a separate task. Raises SessionBusy, ActorStopped, and the exceptions of `start`."""

    async def admit(self) -> None:
        """Return when a turn may start. Raises AdmissionError."""

    async def secure(self, turn_id: str | None = None, *, last: bool = False) -> None:
        """Wait until published events survive the end of this process, if that is possible."""

    def secure_now(self) -> None:
        """Make published events survive the end of this process, without running other tasks."""

    async def flush(self) -> None:
        """Return when all published events are committed to the trace. Raises StoreError."""

    async def share(self) -> bool:
        """Wait until all published events are in the shared store. Return False if they can't be stored there
        now.
        """

    async def settle(self) -> bool:
        """Like `flush`. Returns whether leftover events of earlier processes are in the trace, too."""

    def spawn(self, work: Callable[[], Awaitable[object]], *, name: str) -> None:
        """Run a task for as long as the engine lives. Does nothing before the engine's start."""

    async def show_costs(self, costs: Mapping[str, Cost]) -> None:
        """Update the costs in the histories of open sessions, by the request ids of their calls."""

    async def start_adapter(self, entry: AdapterEntry) -> RunningAdapter:
        """Start the actor of an adapter. Raises the error of its start."""

    async def revive_adapter(self, running: RunningAdapter) -> None:
        """Restart an actor that exhausted its restarts. Raises the error of its start."""

    def retire(self, running: RunningAdapter) -> None:
        """Stop an adapter when the last turn or call that uses it has ended."""


# --- The pool ---


def make_spare(entry: AdapterEntry, clock: Clock) -> ProviderAdapter:
    """Make an adapter that is never started, for questions without network. Raises ConfigurationError."""
    try:
        return entry.create(clock)
    except ConfigurationError:
        raise
    except Exception as error:
        raise ConfigurationError(
            f"adapter {entry.name!r} can't be created: {type(error).__name__}: {error}"
        ) from error


class AdapterPool:
    """The adapters that were used. Each is started once for all its users."""

    running: dict[str, RunningAdapter]
    """The adapters by provider. Some may be stopped at the moment."""

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

        Raises the exception of the adapter's start.

        Raises ConfigurationError.
        """
        if not self._host.runs_here:
            await self._host.start()
        ready = self.running.get(provider)
        if ready is not None and ready.ref.running:  # the usual case, without waiting for the lock
            ready.acquire()
            return ready
        async with self._lock(provider):
            running = await self._current(provider)
            running.acquire()
        return running

    def consult(self, entry: AdapterEntry) -> ProviderAdapter:
        """An adapter for questions that need no network. This is the running adapter, or a spare adapter that is
        never started.

        Raises ConfigurationError.
        """
        running = self.running.get(entry.name)
        if running is not None and (running.entry is entry or running.entry == entry):
            actor = running.ref.actor
            if isinstance(actor, AdapterActor):
                return actor.adapter
        configured, spare = self._spares.get(entry.name, (None, None))
        if spare is None or configured != entry:
            spare = make_spare(entry, self._clock)
            self._spares[entry.name] = entry, spare
        return spare

    async def replace(self, names: Iterable[str]) -> None:
        """Retire the running adapters of these names. They finish their calls."""
        await self._host.start()
        for name in names:
            self._spares.pop(name, None)
            async with self._lock(name):  # wait for an adapter that is starting, so that it is also replaced
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
            await wait_for_restart(running.ref)
        return running

    def _entry(self, provider: str) -> AdapterEntry:
        registry = self._registry()
        entry = registry.adapters.get(provider)
        if entry is None:
            raise ConfigurationError(f"{registry.source}: adapter {provider!r} no longer exists")
        return entry
