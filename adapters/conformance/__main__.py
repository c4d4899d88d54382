"""Run a kit's checks: ``python -m callboard.adapters.conformance package.kit:KIT``."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import io
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from . import CHECKS, Kit, checklist, run_check, table


def find_kit(place: str) -> Kit:
    """Return the kit at ``package.module:NAME``, which is a Kit or a subclass of Kit. Raises ValueError with the
    reason.
    """
    module, colon, name = place.partition(":")
    if not colon:
        raise ValueError(f"{place!r} is not package.module:NAME")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{place} can't be imported: {error}") from error
    kit = found() if isinstance(found, type) and issubclass(found, Kit) else found
    if not isinstance(kit, Kit):
        raise ValueError(f"{place} is not a callboard.adapters.conformance.Kit but {type(kit).__name__}")
    return kit


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if nothing failed, 1 if a check failed, 2 if the kit does not exist."""
    parser = argparse.ArgumentParser(
        "python -m callboard.adapters.conformance",
        description="Run the conformance checks of an adapter with its kit.",
    )
    parser.add_argument("kit", help="the kit, as package.module:NAME")
    parser.add_argument("-k", metavar="WORD", default="", help="run only checks with this text in their name")
    parser.add_argument(
        "--patience",
        type=float,
        default=120.0,
        metavar="SECONDS",
        help="stop the run if a check blocks for longer",
    )
    parser.add_argument("--list", action="store_true", help="list the checks without running them")
    given = parser.parse_args(arguments)
    chosen = [check for check in CHECKS if given.k in check.name]
    if given.list:
        sys.stdout.writelines(f"{check.section:<5}{check.name}\n" for check in chosen)
        return 0
    sys.path.insert(0, str(Path.cwd()))
    try:
        kit = find_kit(given.kit)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    outcomes = []
    for check in chosen:
        # Virtual time ends every wait. If the event loop itself is blocked, this timer ends the process with a
        # traceback.
        faulthandler.dump_traceback_later(given.patience, exit=True)
        with contextlib.redirect_stdout(io.StringIO()):  # keep the adapters' log out of the table
            outcomes.append(run_check(check, kit))
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.write(f"{kit.name}\n\n{table(outcomes)}\n\n{checklist(outcomes)}\n")
    return int(any(outcome.result == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
