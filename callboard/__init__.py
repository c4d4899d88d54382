"""An embeddable, event-driven actor runtime for LLM calls: every public name, in one place.

The names come from four rooms: `engine` (sessions, turns, functions), `tracestore` (trace, prices), `adapters`
(providers) and `bus` (messages, events, actors). In a checkout the rooms are packages of their own; installed,
they are `callboard.engine` and so on, and this package means the same in both.
"""

from __future__ import annotations

from sys import modules
from types import ModuleType
from typing import TYPE_CHECKING

import adapters as _adapters
import bus as _bus
import engine as _engine
import engine.conversation.context as _context
import engine.middleware as _middleware
import tracestore as _tracestore

if TYPE_CHECKING:
    from adapters import *
    from bus import *
    from engine import *
    from engine.conversation.context import *
    from engine.middleware import *
    from tracestore import *
else:

    def __getattr__(name: str) -> object:
        """A public name of a room, imported when it is asked for."""
        room = _rooms.get(name)
        if room is None:
            raise AttributeError(f"module 'callboard' has no attribute {name!r}", name=name, obj=modules[__name__])
        value = globals()[name] = getattr(room, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


if _bus.__name__ == "bus":  # a checkout
    from ._rooms import open_rooms

    open_rooms()

__all__ = []
__all__ += _adapters.__all__
__all__ += _bus.__all__
__all__ += _engine.__all__
__all__ += _context.__all__
__all__ += _middleware.__all__
__all__ += _tracestore.__all__

_rooms: dict[str, ModuleType] = {
    name: room for room in (_bus, _adapters, _tracestore, _middleware, _context, _engine) for name in room.__all__
}
