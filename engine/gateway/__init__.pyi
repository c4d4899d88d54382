# Written by scripts/make_stubs.py.
from .application import Gateway, gateway
from .http import GatewayLimits

__all__ = [
    "Gateway",
    "GatewayLimits",
    "gateway",
]
