"""Engines with a real server. The tests run in real time."""

from __future__ import annotations

from tests.support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")
