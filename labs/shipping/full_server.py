"""A server whose disk is full, or only the disk of its write-ahead log. PostgreSQL then stops (PANIC), and starts
only when there is space again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio

from callboard.bus.errors import StoreError
from callboard.tracestore import TraceShipper, TraceStore
from tests.support.postgres_server import NOBODY, StartedServer, own_server

from .checks import failures_of
from .round import AFTERWARDS, _write
from .shipper import EAGER

SIZE, LOG_SIZE = "180m", "96m"


async def run_full_server(seed: int, trace: Path, *, log_only: bool) -> tuple[Counter[str], list[str]]:
    """Play one round. Without a small disk nothing happens.

    Args:
    seed: The seed.
    trace: The path of the new trace file.
    log_only: Whether only the write-ahead log is on the full disk.

    Returns:
    The counts of faults, and the violations.
    """
    seen: Counter[str] = Counter()
    with _small_disk(LOG_SIZE if log_only else SIZE) as disk:
        if disk is None:
            seen["full server: no small disk can be mounted"] += 1
            return seen, []
        with own_server(None if log_only else disk) as server, server.database() as dsn:
            if log_only:
                _move_log(server, disk)
            return seen, await _fill_up(seed, server, dsn, disk, trace, seen)


def _move_log(server: StartedServer, disk: Path) -> None:
    server.stop()
    log = server.data / "pg_wal"
    subprocess.run(("cp", "-a", str(log), str(disk / "log")), check=True)
    shutil.rmtree(log)
    log.symlink_to(disk / "log")
    server.start()


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
                with suppress(Exception):
                    server.execute("SELECT pg_switch_wal()")  # the log needs space now
                try:
                    await shipper.ship()
                except StoreError as error:
                    seen[f"full server: {_kind(str(error))}"] += 1
                await anyio.sleep(EAGER.longest_retry)
            seen["full server: it went down"] += server.process_id is None
            seen["full server: PANIC"] += server.log.read_text(errors="replace").count("PANIC")
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
def _small_disk(size: str) -> Iterator[Path | None]:
    with tempfile.TemporaryDirectory(prefix="callboard-disk-") as folder:
        os.chmod(folder, 0o755)
        disk = Path(folder) / "disk"
        disk.mkdir()
        options = f"size={size},uid={NOBODY},mode=711"
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
