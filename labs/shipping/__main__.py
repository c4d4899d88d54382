"""Faults while a trace file is shipped, derived from seeds.

    python -m labs.shipping [--rounds N] [--seed N]
    python -m labs.shipping --stopped SECONDS | --hanging SECONDS | --full-server | --full-log

A round has a writer that fills a file with calls and captured content, and one or two shippers of the file. Some
shippers are processes that are killed with -9. Others run here: their connections are cut and their server is
restarted between copy and insert, between insert and commit, and after the commit. Meanwhile the server is stopped
and started, and sessions are deleted and started again. Each tenth round fills the server's disk, if a small one
can be mounted.

Afterwards the shared store must have each event once, the sums of the file, the same sums computed from the
events, and all content except deleted content. The program exits with 1 if a round failed.

Long faults have options of their own. With `--stopped` and `--hanging`, an engine makes calls while its server is
stopped or hangs for that time. With `--full-server` and `--full-log`, the server's disk or only the disk of its
write-ahead log is full.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import anyio

from tests.support.postgres_server import own_server

from .full_disk import run_full_disk
from .full_server import run_full_server
from .outages import run_outage
from .round import run_round

FULL_DISK_EVERY = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--stopped", type=float, metavar="SECONDS", help="only this: the server is gone so long")
    parser.add_argument("--hanging", type=float, metavar="SECONDS", help="only this: it doesn't answer so long")
    parser.add_argument("--full-server", action="store_true", help="only this: the server's whole disk is full")
    parser.add_argument("--full-log", action="store_true", help="only this: there is no room for its log")
    options = parser.parse_args()
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    if options.stopped or options.hanging or options.full_server or options.full_log:
        return _play_long(options)
    total, failed = play(options.seed, options.rounds)
    for what, number in sorted(total.items()):
        print(f"{number:10,}  {what}")
    print(f"{options.rounds} rounds, {len(failed)} failed{f': seeds {failed}' if failed else ''}")
    return 1 if failed else 0


def _play_long(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="callboard-shipping-") as folder:
        trace = Path(folder) / "trace.db"
        if options.full_server or options.full_log:
            full = partial(run_full_server, options.seed, trace, log_only=options.full_log)
            seen, failures = anyio.run(full)
        else:
            with own_server() as server, server.database() as dsn:
                kind = "stopped" if options.stopped else "hanging"
                seconds = options.stopped or options.hanging
                seen, failures = anyio.run(run_outage, kind, seconds, server, dsn, trace)
    for what, number in sorted(seen.items()):
        print(f"{number:10,}  {what}")
    print("; ".join(failures) or "ok")
    return 1 if failures else 0


def play(first: int, rounds: int) -> tuple[Counter[str], list[int]]:
    """Play all rounds. Returns the counts of faults, and the seeds of the rounds that failed."""
    total: Counter[str] = Counter()
    failed: list[int] = []
    with own_server() as server:
        for seed in range(first, first + rounds):
            began = time.monotonic()
            play_round = run_full_disk if seed % FULL_DISK_EVERY == 0 else run_round
            with server.database() as dsn, tempfile.TemporaryDirectory(prefix="callboard-shipping-") as folder:
                counts, failures = anyio.run(play_round, seed, server, dsn, Path(folder) / "trace.db")
            total += counts
            if failures:
                failed.append(seed)
            outcome = "; ".join(failures) or "ok"
            print(f"seed {seed}: {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
    return total, failed


if __name__ == "__main__":
    raise SystemExit(main())
