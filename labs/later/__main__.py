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
from collections import Counter
from pathlib import Path

from labs.seeds import play

from .round import run_round


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long; at least one round is run")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    options = parser.parse_args()
    return play(in_a_folder, options.seed, options.seconds)


def in_a_folder(seed: int) -> tuple[Counter[str], list[str]]:
    """Play a round with a trace of its own."""
    with tempfile.TemporaryDirectory(prefix="callboard-later-") as folder:
        return run_round(seed, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
