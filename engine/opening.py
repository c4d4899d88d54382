"""The one place of the engine that knows which store stands behind a path. All other parts know a `Store`."""

from __future__ import annotations

from pathlib import Path

from bus.clock import SYSTEM_CLOCK, Clock
from tracestore import Store, TraceStore

from .home import home_folder


def store_for(store: Store | Path | None, clock: Clock) -> Store:
    """The store of an engine: a host's own, the one at a path, or the one in the home folder."""
    if store is None:
        store = home_folder() / "trace.db"
    return TraceStore(store, clock=clock) if isinstance(store, Path | str) else store


def store_to_read(path: Path) -> Store:
    """A store that only reads the trace at a path, which must exist. It is not open yet."""
    return TraceStore.open_readonly(path)


def store_to_write(path: Path) -> Store:
    """The store at a path, made when it is opened. It is not open yet."""
    return TraceStore(path, clock=SYSTEM_CLOCK)
