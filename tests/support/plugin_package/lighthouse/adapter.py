"""An adapter that answers with its name."""

from __future__ import annotations

from callboard import SYSTEM_CLOCK, AdapterConfig, Clock, ScriptedAdapter


class Lighthouse(ScriptedAdapter):
    """Answers with its name."""

    def __init__(self, config: AdapterConfig, *, name: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config, name=name, clock=clock, replies=[f"{name} shines"])
