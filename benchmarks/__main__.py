"""Prints a table of Callboard's CPU time. Each figure has a floor, which is measured in the same run.

    python -m benchmarks [NAMES...] [--quick] [--plain] [--peers] [--core N]
    python -m benchmarks table [NAMES...] [--quick]

No time is asserted. The table shows each gate with its ratio, and whether this machine meets it now.
benchmarks/README.md explains the rows. `table` measures each subject in its own environment and writes the figures
into that page.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence

from .subjects import SUBJECTS, rows_of
from .table import machine, render


def arguments_of(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    names = f"of {', '.join(SUBJECTS)}; `table` before them writes README's figures"
    parser.add_argument("names", nargs="*", metavar="NAMES", help=names)
    parser.add_argument("--quick", action="store_true", help="small numbers: does it run, not what does it cost")
    parser.add_argument(
        "--plain", action="store_true", help="in a new environment, with the wheel's plain install"
    )
    parser.add_argument("--peers", action="store_true", help="the vendors' SDKs and frameworks that are installed")
    parser.add_argument(
        "--core", type=int, help="measure on this core alone; servers of replies stay on the others"
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each subject")
    arguments = parser.parse_args(words)
    arguments.table = arguments.names[:1] == ["table"]
    del arguments.names[: arguments.table]
    unknown = [name for name in arguments.names if name not in SUBJECTS]
    if unknown:
        parser.error(f"no subject {', '.join(unknown)}; there are {', '.join(SUBJECTS)}")
    return arguments


def main() -> None:
    arguments = arguments_of(sys.argv[1:])
    if arguments.table or arguments.plain:
        from . import figures  # it builds a wheel, which an installed copy can't

        if arguments.table:
            figures.renew(arguments.names or list(SUBJECTS), quick=arguments.quick)
            return
        sys.exit(figures.in_plain_environment([word for word in sys.argv[1:] if word != "--plain"]))
    if arguments.core is not None:
        os.sched_setaffinity(0, {arguments.core})
    names = arguments.names or [name for name in SUBJECTS if name != "peers"]
    if arguments.peers and "peers" not in names:
        names.append("peers")
    if not arguments.json:
        print(machine() + (", quick" if arguments.quick else ""))
        print(f"{'':60}{'figure':>14}{'floor':>14}{'ratio':>10}   gate", flush=True)
    failed = [not shown(name, arguments) for name in names]
    sys.exit(any(failed))


def shown(name: str, arguments: argparse.Namespace) -> bool:
    """Measure a subject and print its rows. Returns whether it could be measured."""
    begun = time.perf_counter()
    try:
        found = rows_of(name, quick=arguments.quick)
    except Exception as error:  # one failed subject should not stop the others
        print(f"{SUBJECTS[name].title}\n  FAILED: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return False
    took = f"{time.perf_counter() - begun:.0f} s"
    if arguments.json:
        print(json.dumps({"name": name, "machine": machine(), "rows": found}), flush=True)
        print(f"{name}, {took}", file=sys.stderr, flush=True)
    else:
        print(render(f"{SUBJECTS[name].title}, {took}", found), flush=True)
    return True


if __name__ == "__main__":
    main()
