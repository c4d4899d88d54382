"""The gateway: clients of any wire, served by the engine's models.

An annex: the core never imports it. It is plain ASGI and needs no web framework; `callboard serve` needs the extra
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
