"""Tests run on asyncio. Those of the transport, of the conformance kit and of cancelling run on trio too."""

from __future__ import annotations

from ..support.virtual_time import runs_on

anyio_backend = runs_on("virtual-asyncio")
