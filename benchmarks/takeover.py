"""The time until a session continues on another node after its owner was killed in the middle of a turn."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support.cluster_engines import node_engine
from tests.support.nats_server import NatsServer
from tests.support.postgres_server import own_server, why_not
from tests.support.programs import CHECKOUT

from .hosts import home_in
from .table import Row, micros

LEASE_SECONDS = 3.0
_OWNER = "tests.engine.nodes.frames.dying_owner"
_DIES_AT = 20


async def rows(server: NatsServer, quick: bool) -> list[Row]:
    """The row of takeovers: the maximum of several."""
    if (reason := why_not()) is not None:
        return [Row("a takeover", reason)]
    with own_server() as postgres, tempfile.TemporaryDirectory() as folder, home_in(Path(folder) / "home"):
        waits = [
            await _takeover(server, postgres.dsn, Path(folder), f"owner{number}")
            for number in range(1 if quick else 5)
        ]
    allowed = LEASE_SECONDS + 1.0
    ratio = max(waits) / allowed
    name = f"a takeover, from the kill on, the longest of {len(waits)} (lease {LEASE_SECONDS:g} s)"
    return [Row(name, micros(max(waits)), micros(allowed), ratio, "≤ 1×", ratio <= 1.0)]


async def _takeover(server: NatsServer, dsn: str, folder: Path, name: str) -> float:
    cluster = {"nats": server.url, "lease_seconds": LEASE_SECONDS}
    async with node_engine(f"taker of {name}", dsn, folder, cluster=cluster) as taker:
        await taker.start()
        program = [sys.executable, "-m", _OWNER, server.url, dsn, str(folder), name]
        process = subprocess.Popen(  # noqa: ASYNC220 - it is waited for in a thread
            [*program, str(_DIES_AT), str(LEASE_SECONDS)],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        await asyncio.to_thread(process.communicate)
        killed = time.perf_counter()
        await taker.resume(f"ses_{name}")
        return time.perf_counter() - killed
