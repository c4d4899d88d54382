"""A command of a lighthouse."""

from __future__ import annotations

import argparse
import sys

from callboard import StoreError


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `callboard beam`."""
    parser = commands.add_parser("beam", help="where the beam points")
    parser.add_argument("--at", default="the sea")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Say where the beam points; rocks are an error."""
    if arguments.at == "rocks":
        raise StoreError("the beam points at rocks")
    sys.stdout.write(f"the beam points at {arguments.at}\n")
    return 0
