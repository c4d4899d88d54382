"""Time limits for models that run near by: a CPU reads slowly, and weights may have to be loaded first."""

from __future__ import annotations

import msgspec

from ..contract import AdapterConfig

SLOW_MACHINE_SECONDS = 300.0
"""How long a reply may keep us waiting where the configuration leaves the default."""


def patient(config: AdapterConfig) -> AdapterConfig:
    """The configuration with longer waits for the first and the next event, unless it sets its own."""
    default = AdapterConfig()
    longer = {
        field: SLOW_MACHINE_SECONDS
        for field in ("first_event_timeout", "stream_read_timeout")
        if getattr(config, field) == getattr(default, field)
    }
    return msgspec.structs.replace(config, **longer)
