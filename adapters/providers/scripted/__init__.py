"""A provider whose replies are written down beforehand, for tests and demos of hosts."""

from typing import TYPE_CHECKING

from callboard.bus._lazy_names import later

if TYPE_CHECKING:
    from .adapter import ScriptedAdapter
    from .replies import ScriptedCall, ScriptedFailure, ScriptedReply
else:
    __getattr__, __dir__ = later(
        __name__,
        {".adapter": ("ScriptedAdapter",), ".replies": ("ScriptedCall", "ScriptedFailure", "ScriptedReply")},
    )

__all__ = ["ScriptedAdapter", "ScriptedCall", "ScriptedFailure", "ScriptedReply"]
