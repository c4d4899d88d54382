"""The gateway: an HTTP server for clients of four vendor APIs, with the engine's models behind it.

The core never imports this package. It is plain ASGI without a web framework; `callboard serve` needs the extra
``web``.
"""

from callboard.bus._lazy_names import face

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".application": "Gateway gateway",
        ".http": "GatewayLimits",
    },
)
