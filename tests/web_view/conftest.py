"""The live view on asyncio's loop: the view serves real connections, and the store works in threads."""

from __future__ import annotations

from ..support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")
