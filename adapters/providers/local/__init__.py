"""A model on this machine: llama.cpp in a child process, spoken to over its own HTTP server."""

from typing import TYPE_CHECKING

from callboard.bus._lazy_names import later

if TYPE_CHECKING:
    from .adapter import LocalAdapter
    from .process import LocalServer, LocalServerStatistics, SharedServer
    from .settings import LocalServerSettings, find_model
else:
    __getattr__, __dir__ = later(
        __name__,
        {
            ".adapter": ("LocalAdapter",),
            ".process": ("LocalServer", "LocalServerStatistics", "SharedServer"),
            ".settings": ("LocalServerSettings", "find_model"),
        },
    )

__all__ = [
    "LocalAdapter",
    "LocalServer",
    "LocalServerSettings",
    "LocalServerStatistics",
    "SharedServer",
    "find_model",
]
