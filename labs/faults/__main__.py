"""The whole engine with a server that breaks its replies, and with crashes, cancels and swaps.

    python -m labs.faults [--seed N] [--seconds S] [--uvloop] [--tls] [--verbose]

The lab plays one round for each of the seeds N, N + 1, ... until S seconds are over. A round has an engine with
its real adapters, sockets and store. Several concurrent sessions swap their provider between turns, and have
fallbacks, tool rounds and readers that come and go. Injected faults crash adapters, calls, the session manager and
the trace writer, and let the store fail. After each round, the invariants of `labs.faults.checks` must hold: no
hang, one end for each attempt on the bus and in the store, valid and equal streams for all readers, histories that
are valid for each provider, no failure that a fallback could have avoided, and nothing left over.

The seed alone decides the faults and their targets; only the timing depends on the machine. The seed of a failed
round is printed, and `--seed N --seconds 0` runs its plan again. The program exits with 1 if a round failed.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

from labs.seeds import play
from tests.support.certificate import local_tls

from .round import run_round


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long; at least one round is run")
    parser.add_argument("--sessions", type=int, default=6)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--uvloop", action="store_true", help="on uvloop instead of asyncio's own loop")
    parser.add_argument("--tls", action="store_true", help="over https, with a certificate made for it")
    parser.add_argument("--verbose", action="store_true", help="show the engine's log")
    options = parser.parse_args()
    if not options.verbose:
        logging.getLogger("callboard").setLevel(logging.CRITICAL)
        # errors of servers that write to a closed connection
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="callboard-faults-") as name, contextlib.ExitStack() as stack:
        folder, tls = Path(name), stack.enter_context(local_tls(Path(name))) if options.tls else None

        def of_seed(seed: int) -> tuple[Counter[str], list[str]]:
            report = run_round(
                seed, folder, sessions=options.sessions, turns=options.turns, tls=tls, uvloop=options.uvloop
            )
            return report.counts, report.failures

        return play(of_seed, options.seed, options.seconds)


if __name__ == "__main__":
    sys.exit(main())
