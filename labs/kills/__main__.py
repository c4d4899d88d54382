"""Repeatedly kills whole engines with kill -9 during many calls, then opens and checks their trace file.

    python -m labs.kills [--rounds N] [--seed N]

A round has one victim, or two on one file: processes with a whole engine and many concurrent sessions on the reply
server, with captured content. They report received answers and flushed events. Some write to a full disk and
spill. Each is killed at a time that its seed decides, some while they still start. Then an engine opens the file
as the next process would. These must hold: answered and flushed data is in the file, the events of a run have no
gap, each attempt has one row and one end, runs have ended, sessions can continue, no file is left next to the
trace, and SQLite's integrity check passes. A file is used for 20 rounds. The program exits with 1 if a round
failed; `--seed N --rounds 1` runs one again on a new file.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.reply_server import reply_server

from .round import run_round

ROUNDS_PER_FILE = 20
OF_A_FILE = " in the file"
"""The suffix of counts that are taken from the last round of a file. All other counts are summed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    options = parser.parse_args()
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    total, failed = play(options.seed, options.rounds)
    for what, count in sorted(total.items()):
        print(f"{count:10,}  {what}")
    print(f"{options.rounds} rounds, {len(failed)} failed{f': seeds {failed}' if failed else ''}")
    return 1 if failed else 0


def play(first: int, rounds: int) -> tuple[Counter[str], list[int]]:
    """Play all rounds. Returns the counts, and the seeds of failed rounds."""
    total: Counter[str] = Counter()
    failed: list[int] = []
    began = time.monotonic()
    with reply_server(30) as url, tempfile.TemporaryDirectory(prefix="callboard-kills-") as folder:
        for number in range(rounds):
            path = Path(folder) / f"file-{number // ROUNDS_PER_FILE}" / "trace.db"
            report = run_round(first + number, url, path)
            last_of_file = number % ROUNDS_PER_FILE == ROUNDS_PER_FILE - 1 or number == rounds - 1
            in_the_file = {what for what in report.counts if OF_A_FILE in what or "process_lost" in what}
            for what, count in report.counts.items():
                if what not in in_the_file or last_of_file:
                    total[what] += count
            if report.failures:
                failed.append(report.seed)
                print(f"seed {report.seed}: {len(report.failures)} failures")
                for failure in report.failures[:10]:
                    print(f"  {failure[:3000]}", flush=True)
            if last_of_file:
                print(f"{number + 1} rounds, {time.monotonic() - began:.0f} s, {len(failed)} failed", flush=True)
    return total, failed


if __name__ == "__main__":
    sys.exit(main())
