"""Tests the HTTP/1.1 client with random replies.

    python -m labs.http1 [--seed N] [--seconds S]

The lab plays the seeds N, N + 1, ... until S seconds are over, each in three kinds of rounds
(`labs.http1.rounds`). The first reads valid replies, complete and broken off, in any pieces. The second reads
corrupt replies and compares the result with httpcore's. The third has concurrent callers, some of which are
cancelled or stop reading, and a server in memory with all kinds of faults. There are no sockets and almost no
clocks, so a seed always gives the same rounds. The program exits with 1 if one failed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable

from labs.seeds import play

from .rounds import read_round, spoil_round, talk_round

ROUNDS: dict[str, tuple[Callable[[int], Awaitable[Counter[str]]], int]] = {
    "read": (read_round, 20),
    "spoil": (spoil_round, 20),
    "talk": (talk_round, 1),
}
"""The function of each kind of round, and the number of its rounds for each seed."""


async def run(seed: int) -> tuple[Counter[str], list[str]]:
    """Run the rounds of a seed. Returns the counts and the failures."""
    counts, failures = Counter[str](), list[str]()
    for name, (one_round, times) in ROUNDS.items():
        for number in range(seed * times, (seed + 1) * times):
            try:
                counts.update({f"{name}: {what}": many for what, many in (await one_round(number)).items()})
            except Exception:
                failures.append(f"{name} {number}: {traceback.format_exc(limit=-3)}")
    return counts, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long; at least one seed is played")
    options = parser.parse_args()
    return play(lambda seed: asyncio.run(run(seed)), options.seed, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
