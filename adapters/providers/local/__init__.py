"""A model on this machine: llama.cpp in a child process, spoken to over its own HTTP server."""

from .adapter import LocalAdapter
from .process import LocalServer, LocalServerStatistics, SharedServer
from .settings import LocalServerSettings, find_model

__all__ = [
    "LocalAdapter",
    "LocalServer",
    "LocalServerSettings",
    "LocalServerStatistics",
    "SharedServer",
    "find_model",
]
