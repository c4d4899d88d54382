"""A provider whose replies are written down beforehand, for tests and demos of hosts."""

from typing import TYPE_CHECKING

from bus._lazy_names import later

if TYPE_CHECKING:
    from .adapter import ScriptedAdapter
    from .replies import Call, Failure, Reply
else:
    __getattr__, __dir__ = later(
        __name__, {".adapter": ("ScriptedAdapter",), ".replies": ("Call", "Failure", "Reply")}
    )

__all__ = ["Call", "Failure", "Reply", "ScriptedAdapter"]
