"""The live view on the loop of asyncio: it serves real connections, and the store works in threads."""

from __future__ import annotations

from ..support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")
