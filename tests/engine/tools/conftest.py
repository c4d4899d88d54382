"""Rounds of tools run on the loop of asyncio, because plain functions run in threads."""

from __future__ import annotations

from ...support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")
