"""The tests run on asyncio. Tests of the transport, of the conformance kit and of cancelling also run on trio."""

from __future__ import annotations

from ..support.virtual_time import runs_on

anyio_backend = runs_on("virtual-asyncio")
