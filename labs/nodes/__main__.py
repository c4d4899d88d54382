"""Faults of a cluster, derived from seeds.

    python -m labs.nodes [--rounds N] [--seed N] [--fault kill|stop|postgres|nats|clock|budget|both|late]

A round has three nodes in processes of their own, each with a trace file, one PostgreSQL server and one broker.
Most rounds run a conversation whose turns are read on other nodes. At a random piece of text there is a fault: the
owner is killed with -9, or suspended until another node has taken over; PostgreSQL is restarted; the broker is
stopped and its store deleted; or a clock is wrong by an hour. In other rounds, 50 callers share a budget for 10
calls, and a node is killed.

Afterwards, each reader must have one end, and a text that the provider's text begins with. The shared store must
have each event of the files once, a row for each attempt, and the files' sums. The conversation must have no gap.
The program exits with 1 if a round failed, and keeps the round's folder.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
from pathlib import Path

import anyio

from tests.support.nats_server import own_nats_server
from tests.support.postgres_server import own_server

from .provider import PER_SECOND, lab_provider
from .round import FAULTS, Round
from .servers import Servers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--fault", choices=FAULTS, help="only this; without it they take turns")
    options = parser.parse_args()
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    failed = play(options.seed, options.rounds, options.fault)
    print(f"{options.rounds} rounds, {len(failed)} failed{f': seeds {failed}' if failed else ''}")
    return 1 if failed else 0


def play(first: int, rounds: int, fault: str | None = None, *, per_second: float = PER_SECOND) -> list[int]:
    """Play the rounds.

    Args:
        first: The seed of the first one.
        rounds: Their number.
        fault: The fault; None uses each fault in turn.
        per_second: The number of text pieces that the provider sends per second.

    Returns:
        The seeds of those that failed.
    """
    failed = []
    with own_server() as postgres, own_nats_server() as nats, lab_provider(per_second) as provider:
        for seed in range(first, first + rounds):
            began = time.monotonic()
            folder = Path(tempfile.mkdtemp(prefix=f"callboard-nodes-{seed}-"))
            with postgres.database() as dsn:
                servers = Servers(postgres, nats, dsn, provider)
                game = Round(seed, fault or FAULTS[seed % len(FAULTS)], folder, servers)
                anyio.run(game.play)
            if game.failures:
                failed.append(seed)
                game.failures.append(f"kept: {folder}")
            else:
                shutil.rmtree(folder)
            told = "; ".join(game.failures) or "ok"
            print(
                f"seed {seed}: {game.fault} ({game.told}): {told} ({time.monotonic() - began:.1f} s)", flush=True
            )
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
