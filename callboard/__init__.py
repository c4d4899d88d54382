"""An embeddable, event-driven actor runtime for LLM calls: every public name, in one place.

The names come from four rooms: `callboard.engine` (sessions, turns, functions), `callboard.tracestore` (trace,
prices), `callboard.adapters` (providers) and `callboard.bus` (messages, events, actors). In the repository the
rooms are folders at the top, and this folder has a link to each. A room is imported when one of its names is
used, so `callboard --help` loads none.
"""

from __future__ import annotations

from importlib import import_module
from sys import modules

_ROOMS = (".bus", ".adapters", ".tracestore", ".engine.middleware", ".engine.gateway", ".engine")


def __getattr__(name: str) -> object:
    """A room, a public name of one, or `__all__`."""
    if f".{name}" in _ROOMS:
        return import_module(f".{name}", __name__)
    if name == "__all__":
        value = [name for room in _ROOMS for name in import_module(room, __name__).__all__]
    elif not name.startswith("_") and (room := _room_of(name)) is not None:
        value = getattr(room, name)
    elif name in ("UnderWay", "WorkUnderWay"):  # old names, which warn
        value = getattr(import_module(".engine", __name__), name)
    else:
        raise AttributeError(f"module 'callboard' has no attribute {name!r}", name=name, obj=modules[__name__])
    globals()[name] = value
    return value


def _room_of(name: str) -> object:
    rooms = (import_module(room, __name__) for room in _ROOMS)
    return next((room for room in rooms if name in room.__all__), None)


def __dir__() -> list[str]:
    return sorted({*globals(), *modules[__name__].__all__})
