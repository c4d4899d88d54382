"""The fixtures of this folder. Time is virtual, and the engine runs on asyncio."""

from __future__ import annotations

from ..support.virtual_time import runs_on

anyio_backend = runs_on("virtual-asyncio")
