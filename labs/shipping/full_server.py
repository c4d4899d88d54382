"""A server whose whole disk is full, its write-ahead log included: it may go down, and come up only with room."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio

from bus.errors import StoreError
from tests.support.postgres_server import NOBODY, StartedServer, own_server
from tracestore import TraceShipper, TraceStore

from .checks import failures_of
from .round import AFTERWARDS, _write
from .shipper import EAGER

SIZE = "180m"


async def run_full_server(seed: int, trace: Path) -> tuple[Counter[str], list[str]]:
    """Play one round. Returns what befell, and what was wrong. Without a small disk nothing happens."""
    seen: Counter[str] = Counter()
    with _small_disk() as disk:
        if disk is None:
            seen["full server: no small disk can be mounted"] += 1
            return seen, []
        with own_server(disk) as server, server.database() as dsn:
            return seen, await _fill_up(seed, server, dsn, disk, trace, seen)


async def _fill_up(
    seed: int, server: StartedServer, dsn: str, disk: Path, trace: Path, seen: Counter[str]
) -> list[str]:
    shipper = TraceShipper(trace, dsn, options=EAGER)
    try:
        async with TraceStore(trace, clock=AFTERWARDS) as store:
            await _write(store, seed, 10)
            await shipper.ship()
            junk = disk / "junk"
            _fill(junk)
            for number in range(1, 6):
                await _write(store, seed + number * 1_000_000, 40)
                try:
                    await shipper.ship()
                except StoreError as error:
                    seen[f"full server: {_kind(str(error))}"] += 1
                await anyio.sleep(EAGER.longest_retry)
            seen["full server: it went down"] += server.process_id is None
            junk.unlink()
            if server.process_id is None:
                server.start()
            for _ in range(40):
                with suppress(StoreError):
                    await shipper.ship()
                    break
                await anyio.sleep(0.5)
    finally:
        await shipper.close()
    return await failures_of(trace, dsn)


def _kind(error: str) -> str:
    return "no space" if "space" in error else error.partition(": ")[2][:60]


def _fill(junk: Path) -> None:
    with junk.open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(65536))
            file.flush()


@contextmanager
def _small_disk() -> Iterator[Path | None]:
    with tempfile.TemporaryDirectory(prefix="callboard-disk-") as folder:
        os.chmod(folder, 0o755)
        disk = Path(folder) / "disk"
        disk.mkdir()
        options = f"size={SIZE},uid={NOBODY},mode=711"
        mounted = subprocess.run(
            ("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)), check=False, capture_output=True
        )
        if mounted.returncode:
            yield None
            return
        try:
            yield disk
        finally:
            subprocess.run(("umount", "-l", str(disk)), check=False)
