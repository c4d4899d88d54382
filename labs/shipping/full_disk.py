"""A round with the shared store on a small disk, which another program fills during the round."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from callboard.bus.errors import StoreError
from callboard.tracestore import TraceShipper, TraceStore
from tests.support.postgres_server import NOBODY, StartedServer

from .checks import failures_of
from .round import AFTERWARDS, _write
from .shipper import EAGER

if TYPE_CHECKING:
    import psycopg


async def run_full_disk(seed: int, server: StartedServer, dsn: str, trace: Path) -> tuple[Counter[str], list[str]]:
    """Play one round. Returns the counts of faults, and the violations. Without a small disk nothing happens."""
    seen: Counter[str] = Counter()
    with _small_disk() as disk:
        if disk is None:
            seen["full disk: no small one can be mounted"] += 1
            return seen, []
        name = f"small_{seed}"
        server.execute(f"CREATE TABLESPACE {name} LOCATION '{disk}'")
        server.execute(f"CREATE DATABASE {name} TABLESPACE {name}")
        try:
            return seen, await _fill_up(server.dsn_of(name), seed, trace, seen)
        finally:
            server.execute(f"DROP DATABASE {name} WITH (FORCE)")
            server.execute(f"DROP TABLESPACE {name}")


async def _fill_up(dsn: str, seed: int, trace: Path, seen: Counter[str]) -> list[str]:
    import psycopg

    shipper = TraceShipper(trace, dsn, options=EAGER)
    try:
        with psycopg.connect(dsn, autocommit=True) as full:  # another client could not connect any more
            async with TraceStore(trace, clock=AFTERWARDS) as store:
                await _write(store, seed, 10)
                await shipper.ship()
                _fill(full, seen)
                await _write(store, seed + 1_000_000, 60)
                try:
                    await shipper.ship()
                except StoreError as error:
                    seen["full disk: refused, and tried again" if "space" in str(error) else str(error)] += 1
                full.execute("DROP TABLE public.junk")
                await anyio.sleep(EAGER.longest_retry)
                await shipper.ship()
    finally:
        await shipper.close()
    return await failures_of(trace, dsn)


def _fill(connection: psycopg.Connection, seen: Counter[str]) -> None:
    import psycopg

    connection.execute("CREATE TABLE public.junk (text text)")
    for size in (100_000, 10_000, 1_000, 100, 10):
        try:
            while True:
                connection.execute(
                    "INSERT INTO public.junk SELECT repeat('x', 100) FROM generate_series(1, %s)", (size,)
                )
        except psycopg.Error as error:
            seen["full disk: " + str(error).partition(" ")[0]] += 1


@contextmanager
def _small_disk() -> Iterator[Path | None]:
    with tempfile.TemporaryDirectory(prefix="callboard-disk-") as folder:
        os.chmod(folder, 0o755)
        disk = Path(folder) / "disk"
        disk.mkdir()
        mounted = subprocess.run(
            ("mount", "-t", "tmpfs", "-o", f"size=40m,uid={NOBODY},mode=700", "tmpfs", str(disk)),
            check=False,
            capture_output=True,
        )
        if mounted.returncode:
            yield None
            return
        place = disk / "tables"
        place.mkdir(mode=0o700)
        os.chown(place, NOBODY, NOBODY)
        try:
            yield place
        finally:
            subprocess.run(("umount", "-l", str(disk)), check=False)
