"""Virtual time on asyncio, where the engine runs."""

from __future__ import annotations

from ..support.virtual_time import runs_on

anyio_backend = runs_on("virtual-asyncio")
