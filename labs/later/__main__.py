"""Batches and replies in the background, at providers that keep books: hosts are killed, and others go on.

    python -m labs.later [--seconds S] [--seed N]

A round is up to three batches on the five wires, some in several jobs, some cancelled, some handed out one by
one, and questions whose replies are made in the background: whole, streamed, in a session, or left at the first
word. A program does all of it side by side and is killed with -9 when it has told so many lines; the next one
goes on, perhaps beside another one that only resumes, or creates the same batches. Meanwhile answers are lost
before and after the providers took the requests, held, cut, told twice or by halves; jobs fail and expire as a
whole; and the providers are killed and started again. The last programs are left alone. Then a model of what
must be, worked out from the plan and the providers' books, is held against all that was ever told, the trace,
its sums, the budget and the sessions: each request paid once at most and billed once to the nano-dollar, no
result lost, none invented, all in their order.
Exits with 1 if a round failed; `--seed N --seconds 0` runs its plan again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from .round import run_round


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long; at least one round is run")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    failed: list[int] = []
    seed, ends = options.seed, time.monotonic() + options.seconds
    while seed == options.seed or time.monotonic() < ends:
        with tempfile.TemporaryDirectory(prefix="callboard-later-") as folder:
            try:
                counts, failures = run_round(seed, Path(folder))
            except Exception:
                counts, failures = Counter(), [traceback.format_exc(limit=-4)]
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
