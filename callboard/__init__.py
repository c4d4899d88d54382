"""An embeddable, event-driven actor runtime for LLM calls: every public name, in one place.

The names come from four rooms: `engine` (sessions, turns, functions), `tracestore` (trace, prices), `adapters`
(providers) and `bus` (messages, events, actors). In a checkout the rooms are packages of their own; installed,
they are `callboard.engine` and so on, and this package means the same in both. A room is imported when one of its
names is asked for, so that `callboard --help` pays for none.
"""

from __future__ import annotations

from sys import modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import callboard.adapters as _adapters
    import callboard.bus as _bus
    import callboard.engine as _engine
    import callboard.engine.conversation.context as _context
    import callboard.engine.middleware as _middleware
    import callboard.tracestore as _tracestore
    from callboard.adapters import *
    from callboard.bus import *
    from callboard.engine import *
    from callboard.engine.conversation.context import *
    from callboard.engine.middleware import *
    from callboard.tracestore import *

    __all__ = []
    __all__ += _adapters.__all__
    __all__ += _bus.__all__
    __all__ += _engine.__all__
    __all__ += _context.__all__
    __all__ += _middleware.__all__
    __all__ += _tracestore.__all__
else:
    from importlib import import_module as _import_module

    _ROOMS = (".bus", ".adapters", ".tracestore", ".engine.middleware", ".engine.conversation.context", ".engine")

    def __getattr__(name: str) -> object:
        """A room, a public name of one, or `__all__`."""
        if f".{name}" in _ROOMS:
            return _import_module(f".{name}", __name__)
        if name == "__all__":
            value = [name for room in _ROOMS for name in _import_module(room, __name__).__all__]
        elif not name.startswith("_") and (room := _room_of(name)) is not None:
            value = getattr(room, name)
        else:
            raise AttributeError(f"module 'callboard' has no attribute {name!r}", name=name, obj=modules[__name__])
        globals()[name] = value
        return value

    def _room_of(name: str) -> object:
        rooms = (_import_module(room, __name__) for room in _ROOMS)
        return next((room for room in rooms if name in room.__all__), None)

    def __dir__() -> list[str]:
        return sorted({*globals(), *modules[__name__].__all__})

    try:
        from ._rooms import open_rooms as _open_rooms
    except ModuleNotFoundError:  # installed: the rooms stand beside this file
        pass
    else:
        _open_rooms()
