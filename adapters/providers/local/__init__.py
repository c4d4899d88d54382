"""A model on this machine: llama.cpp in a child process, spoken to over its own HTTP server."""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".adapter": "LocalAdapter",
        ".process": "LocalServer LocalServerStatistics SharedServer",
        ".settings": "LocalServerSettings find_model",
    },
)
