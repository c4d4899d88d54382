# Written by scripts/make_stubs.py.
from .adapter import LocalAdapter
from .process import LocalServer, LocalServerStatistics, SharedServer
from .child import LocalServerSettings, find_model

__all__ = [
    "LocalAdapter",
    "LocalServer",
    "LocalServerSettings",
    "LocalServerStatistics",
    "SharedServer",
    "find_model",
]
