"""Rounds of tools run on asyncio's loop, because plain functions run in threads."""

from __future__ import annotations

from ...support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")
