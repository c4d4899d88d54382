"""The gateway on a real loop: it serves real connections."""

from __future__ import annotations

from ..support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")
