"""The fixtures of the tests of faults. Time is virtual. An engine has no store unless a test asks for one."""

from __future__ import annotations

from ..support.virtual_time import runs_on

anyio_backend = runs_on("virtual-asyncio")
