"""Simulates many nodes from a seed.

    python -m labs.simulation [--seed N] [--seeds N] [--steps N] [--nodes N] [--sessions N]

Nodes take sessions from each other, write in them, share budgets, ship their files, and read each other's streams
and events. Meanwhile messages are lost, duplicated, delayed and reordered; processes are killed, stopped and
continued; hosts lose their connection; database and broker are unreachable; clocks are wrong by hours. The program
exits with 1 if an invariant is violated: two owners write in one epoch, a budget is overspent, a reader has no
end, two ends or a gap, or an event is shipped or delivered twice or never.
"""

from __future__ import annotations

import argparse
import logging
import time

from .kernel import BrokenPromise
from .play import play
from .world import Size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--seeds", type=int, default=1, help="the number of runs")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=500)
    options = parser.parse_args()
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    size = Size(nodes=options.nodes, sessions=options.sessions, steps=options.steps)
    failed = []
    for seed in range(options.seed, options.seed + options.seeds):
        began = time.monotonic()
        try:
            figures = play(seed, size)
        except BrokenPromise as error:
            failed.append(seed)
            print(f"seed {seed}: {error}", flush=True)
            continue
        print(f"seed {seed}: ok ({time.monotonic() - began:.1f} s)", flush=True)
        if options.seeds == 1:
            for what, number in figures.items():
                print(f"{number:12,}  {what}")
    print(f"{options.seeds} runs, {len(failed)} failed{f': seeds {failed}' if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
