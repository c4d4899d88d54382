"""`callboard doctor`: the configuration, whether it works, and the remedy for each part that doesn't."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import anyio
import msgspec

from callboard.bus import SYSTEM_CLOCK, ConfigurationError
from callboard.engine import Check, Engine, HealthReport
from callboard.engine.health import check_key_file, check_store, unreadable
from callboard.engine.health_report import report_of
from callboard.tracestore.health import sqlite_version
from callboard.tracestore.home import home_folder

from ...nodes.health import check_broker
from ...opening import store_to_write
from ...store_address import TracePlace, is_address
from ..common.arguments import add_models_file, add_trace, named_trace
from ..common.harmless import one_line, write_json
from ..common.output import json_text
from ..common.places import TRACE_NAME
from ..common.screen import folded, make_console
from .price_age import check_prices

FAILED = 1
UNREADABLE = 2

_PACKAGES = ("callboard", "httptools", "httpx", "xllamacpp")
_NAME_WIDTH = 26


class Findings(msgspec.Struct, frozen=True):
    """The output of `--json`."""

    ok: bool
    """Whether every check is ok."""
    readable: bool
    """Whether there is a configuration that can be read."""
    versions: dict[str, str | None]
    """The versions of programs and libraries; None for one that is not installed."""
    places: dict[str, str]
    """The paths of the files."""
    checks: tuple[Check, ...]
    """The checks."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="Check configuration, keys, providers and the trace",
        description="Looks, and mends nothing. Exit code: 0 all is well, 1 a check failed, 2 the configuration "
        "can't be read.",
    )
    add_models_file(parser)
    add_trace(parser, "$CALLBOARD_HOME/trace.db")
    parser.add_argument("--offline", action="store_true", help="ask no provider")
    parser.add_argument("--nats", metavar="URL", help="check this broker of a cluster, too [$CALLBOARD_NATS]")
    parser.add_argument("--cluster", metavar="NAME", default="callboard", help="the cluster's name there")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    trace = named_trace(arguments) or home_folder() / TRACE_NAME
    models: Path | None = arguments.models_file
    console = None if arguments.json else make_console()
    nats = arguments.nats or os.environ.get("CALLBOARD_NATS")
    readable, report = anyio.run(_examine, models, trace, arguments.offline)
    if nats:
        report = report_of([*report.checks, *anyio.run(check_broker, nats, arguments.cluster)])
    report = report_of([*report.checks, check_prices(home_folder(), SYSTEM_CLOCK)])
    places = {
        "installation": installation(),
        "python": sys.executable,
        "configuration": str(models or home_folder() / "models.yaml"),
        "trace": str(trace),
    }
    findings = Findings(report.ok, readable, versions(), places, report.checks)
    if console is None:
        write_json(msgspec.json.format(json_text(findings)))
    else:
        terminal = console.is_terminal
        for line, style in lines_of(findings, signs=("✓", "✗", "·") if terminal else ("ok", "FAIL", "-")):
            text = folded(one_line(line), sys.stdout, indent=_NAME_WIDTH + 3)
            console.print(text, style=style, soft_wrap=True)
    if not readable:
        return UNREADABLE
    return 0 if report.ok else FAILED


async def _examine(models: Path | None, trace: TracePlace, offline: bool) -> tuple[bool, HealthReport]:
    """Whether the configuration can be read, and all that could be checked."""
    store = store_to_write(trace)
    try:
        engine = Engine(models=models, store=store)
    except ConfigurationError as error:
        return False, report_of([unreadable(error), *check_key_file(), *await check_store(store)])
    return True, await engine.health(offline=offline)


def installation() -> str:
    """The folder of the Callboard that looks: of a checkout, or of an installed package."""
    home = Path(__file__).parents[3]
    return str(home if (home / "pyproject.toml").exists() else Path(__file__).parents[2])


def versions() -> dict[str, str | None]:
    """The versions of the programs and libraries that matter for a fault; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "sqlite": sqlite_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _absence(place: str) -> str:
    return "" if is_address(place) or Path(place).exists() else " (not there)"


def lines_of(findings: Findings, *, signs: tuple[str, str, str]) -> list[tuple[str, str | None]]:
    """The report as lines, each with its style.

    Args:
        findings: The findings.
        signs: The sign of a check that is ok, of one that failed, and of what nobody uses.
    """
    good, bad, unused = signs
    width = max(map(len, signs)) + 1
    lines: list[tuple[str, str | None]] = [
        (", ".join(f"{name} {found or '(not installed)'}" for name, found in findings.versions.items()), "dim"),
        *((f"{name}: {place}{_absence(place)}", "dim") for name, place in findings.places.items()),
        ("", None),
    ]
    for check in findings.checks:
        sign, style = (bad, "bold red") if not check.ok else (unused, "dim") if check.unused else (good, None)
        lines.append((f"{sign:<{width}}{check.name:<{_NAME_WIDTH}} {' '.join(check.detail.split())}", style))
        if check.fix:
            lines.append((f"{'':<{width}}{'':<{_NAME_WIDTH}} -> {' '.join(check.fix.split())}", "yellow"))
    failed = sum(not check.ok for check in findings.checks)
    last = f"{failed} of {len(findings.checks)} checks failed." if failed else "All is well."
    return [*lines, ("", None), (last, "bold")]
