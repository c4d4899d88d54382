"""Batches and background replies at providers with records, while the hosts' programs are killed.

    python -m labs.later [--seconds S] [--seed N]

A round has up to three batches on the five wires: some with several jobs, some cancelled, some whose results are
read one by one. It also has questions with background replies: streamed or not, in a session, or left at the first
word. A program does all of it concurrently, and is killed with -9 after a given number of lines. The next program
continues, perhaps next to another one that only resumes batches or creates the same ones. Meanwhile responses are
lost, delayed, cut or repeated, jobs fail or expire, and the providers are killed and started again. The last
programs are not killed.

Then the results, the trace, its sums, the budget and the sessions are compared with a model, which is computed
from the plan and the providers' records. Each request must be paid at most once and billed once to the nano-
dollar, and no result may be lost, invented or out of order. The program exits with 1 if a round failed; `--seed N
--seconds 0` runs its plan again.
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
