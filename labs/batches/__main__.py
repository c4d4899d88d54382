"""Programs that make a batch are killed again and again, at a provider that loses connections and is restarted.

    python -m labs.batches [--seconds S] [--seed N]

A round is one batch on one of the five wires. A program creates it, or goes on with it, and waits for its results;
its seed decides when it is killed, whether another looks on over the same trace, which faults strike (answers lost
before and after the job was made, results cut, told twice or broken off, looks without an answer), and when the
provider is killed and started again. The last program is left alone. Then the provider's books and the trace must
agree: one job, no request billed twice, each result there once and in order, and the sum right to the nano-dollar.
Exits with 1 if a round failed; `--seed N --seconds 0` runs one again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .round import run_round


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    failed: list[int] = []
    seed, ends = options.seed, time.monotonic() + options.seconds
    while seed == options.seed or time.monotonic() < ends:
        with tempfile.TemporaryDirectory(prefix="callboard-batches-") as folder:
            counts, failures = run_round(seed, Path(folder))
        total += counts
        for failure in failures:
            print(f"seed {seed}: {failure}", flush=True)
        failed += [seed] if failures else []
        seed += 1
    for what, count in sorted(total.items()):
        print(f"{count:10,}  {what}")
    print(f"{seed - options.seed} rounds, {len(failed)} failed{f': seeds {failed}' if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
