"""Plays rounds for consecutive seeds until a time limit, and prints the results."""

from __future__ import annotations

import itertools
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence

_MOST_SHOWN = 10
_LONGEST_SHOWN = 3000


def play(run_round: Callable[[int], tuple[Counter[str], Sequence[str]]], first: int, seconds: float) -> int:
    """Play rounds and print their results.

    Args:
    run_round: Plays the round of a seed. It returns counts and violations. An exception also counts as a
    violation.
    first: The seed of the first round.
    seconds: The time limit; at least one round is played.

    Returns:
    The program's exit code: 1 if a round failed.
    """
    total: Counter[str] = Counter()
    failed: list[int] = []
    until = time.monotonic() + seconds
    for seed in itertools.count(first):
        try:
            counts, failures = run_round(seed)
        except Exception:
            counts, failures = Counter(), [traceback.format_exc(limit=-4)]
        total.update(counts)
        failed += [seed] if failures else []
        for failure in failures[:_MOST_SHOWN]:
            print(f"seed {seed}: {failure[:_LONGEST_SHOWN]}", flush=True)
        if time.monotonic() >= until:
            break
    for what, count in sorted(total.items()):
        print(f"{count:12,}  {what}")
    print(f"{seed - first + 1:,} rounds, {len(failed)} failed{f': seeds {failed}' if failed else ''}")
    return 1 if failed else 0
