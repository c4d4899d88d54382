"""Random conversations over each ordered pair of servers. Each server behaves as the field notes say.

    python -m labs.servers --conversations 2000 [--seed S] [--show]

The notes are `adapters/servers/*.jsonl`: the parts that must be sent back (A), refusals (B) and errors (C). A
conversation has tools, thinking, images, cancels, errors, and swaps of the model. A refusal that Callboard could
have avoided is a failure. It is also a failure if a server does not get its history back unchanged. `--show`
prints the servers with the number of their notes and rules, and plays nothing. The program exits with 1 if a
conversation failed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter

from .conversation import play
from .server import TemperServer
from .tempers import TEMPERS, notes_of

_MOST_SHOWN = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--conversations", type=int, default=60, help="how many; there are as many pairs as --show says"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first conversation")
    parser.add_argument("--show", action="store_true", help="print the servers, and play nothing")
    options = parser.parse_args()
    if options.show:
        for temper in TEMPERS:
            rules = [note.input["rule"] for note in notes_of(temper, "A", "B") if "rule" in note.input]
            print(f"{temper.name:24} {len(notes_of(temper, 'C')):3} errors  {' '.join(rules)}")
        print(f"{len(TEMPERS) * (len(TEMPERS) - 1):,} ordered pairs")
        return 0
    return asyncio.run(run(options.seed, options.conversations))


async def run(first: int, conversations: int) -> int:
    """Play conversations and print their results."""
    total: Counter[str] = Counter()
    failed: list[int] = []
    async with TemperServer() as server:
        for seed in range(first, first + conversations):
            report = await play(seed, server)
            total.update(report.counts)
            failed += [seed] if report.failures else []
            for failure in report.failures if len(failed) <= _MOST_SHOWN else ():
                print(f"seed {seed}: {failure}", flush=True)
    for what, count in sorted(total.items()):
        print(f"{count:10,}  {what}")
    print(f"{conversations:,} conversations, {len(failed)} failed{f': seeds {failed[:100]}' if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
