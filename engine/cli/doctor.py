"""`callboard doctor` and `callboard plugins`: check the configuration and the installation."""

from __future__ import annotations

import argparse
import logging
import os
import platform
import sys
from datetime import UTC, date, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import anyio
import msgspec

from callboard.adapters.provider import GROUPS, Plugin, adapter_types, plugins
from callboard.bus import SYSTEM_CLOCK, Clock, ConfigurationError
from callboard.tracestore.health import sqlite_version
from callboard.tracestore.home import OWN_NAME, SNAPSHOT_NAME, home_folder, price_table, published_snapshot
from callboard.tracestore.reports import report_of

from .. import Check, Engine, HealthReport
from ..nodes.broker import check_broker
from ..stores import TracePlace, is_address, store_to_write
from ..watching.health import check_key_file, check_store, unreadable
from .command_line import BADLY_CONFIGURED, COMMANDS, FAILED
from .options import OWN_TRACE, TRACE_NAME, add_models_file, add_trace, flag, named_trace
from .sanitize import one_line, write_json
from .screen import folded, make_console
from .table import Column, add_format, json_text, plural, write_rows

_PACKAGES = ("callboard", "httptools", "httpx", "xllamacpp")
_NAME_WIDTH = 26


class Findings(msgspec.Struct, frozen=True):
    """The output of `--json`."""

    ok: bool  # whether every check is ok
    readable: bool  # whether the configuration can be read
    versions: dict[str, str | None]
    """The versions of programs and libraries; None if one is not installed."""
    places: dict[str, str]  # the paths of the files
    checks: tuple[Check, ...]


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Check the configuration, keys, providers and the trace. This changes nothing. Exit code: 0 all "
        "checks passed, 1 a check failed, 2 the configuration can't be read."
    )
    add_models_file(parser)
    add_trace(parser, OWN_TRACE)
    flag(parser, "--offline", help="contact no provider")
    parser.add_argument("--nats", metavar="URL", help="also check this broker of a cluster [$CALLBOARD_NATS]")
    parser.add_argument("--cluster", metavar="NAME", default="callboard", help="set the name of the cluster")
    flag(parser, "--json", help="print one JSON object")
    parser.set_defaults(run=run_doctor, draws=True)


def run_doctor(arguments: argparse.Namespace) -> int:
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
        return BADLY_CONFIGURED
    return 0 if report.ok else FAILED


async def _examine(models: Path | None, trace: TracePlace, offline: bool) -> tuple[bool, HealthReport]:
    """Make all possible checks. Returns also whether the configuration can be read."""
    store = store_to_write(trace)
    try:
        engine = Engine(models=models, store=store)
    except ConfigurationError as error:
        return False, report_of([unreadable(error), *check_key_file(), *await check_store(store)])
    return True, await engine.health(offline=offline)


def installation() -> str:
    """The folder of the running Callboard: a checkout or an installed package."""
    return str(Path(__file__).resolve().parents[2])


def versions() -> dict[str, str | None]:
    """The versions of programs and libraries that help to find a problem; None if one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "sqlite": sqlite_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def lines_of(findings: Findings, *, signs: tuple[str, str, str]) -> list[tuple[str, str | None]]:
    """The report as lines, each with its style."""
    good, bad, unused = signs
    width = max(map(len, signs)) + 1
    lines: list[tuple[str, str | None]] = [
        (", ".join(f"{name} {found or '(not installed)'}" for name, found in findings.versions.items()), "dim"),
        *(
            (f"{name}: {place}{'' if is_address(place) or Path(place).exists() else ' (not there)'}", "dim")
            for name, place in findings.places.items()
        ),
        ("", None),
    ]
    for check in findings.checks:
        sign, style = (bad, "bold red") if not check.ok else (unused, "dim") if check.unused else (good, None)
        lines.append((f"{sign:<{width}}{check.name:<{_NAME_WIDTH}} {' '.join(check.detail.split())}", style))
        if check.fix:
            lines.append((f"{'':<{width}}{'':<{_NAME_WIDTH}} -> {' '.join(check.fix.split())}", "yellow"))
    failed = sum(not check.ok for check in findings.checks)
    last = f"{failed} of {len(findings.checks)} checks failed." if failed else "All checks passed."
    return [*lines, ("", None), (last, "bold")]


OLD_DAYS = 45
"""The age in days from which the command advises to fetch newer prices."""


def check_prices(home: Path, clock: Clock) -> Check:
    """Check the prices for new calls and the age of the published prices. Old prices are not a failure."""
    try:
        table, published = price_table(home), published_snapshot(home)
    except ConfigurationError as error:
        return Check("prices", False, str(error), "Correct that file, or remove it.")
    days = age_in_days(published.date, clock)
    age = "" if days is None else f", {plural(days, 'day')} old"
    where = f" in {home / SNAPSHOT_NAME}" if (home / SNAPSHOT_NAME).exists() else ", as shipped"
    priority_note = f"; {home / OWN_NAME} has priority" if (home / OWN_NAME).exists() else ""
    fix = "To update them, run `callboard prices update`." if days is not None and days > OLD_DAYS else ""
    detail = f"{published.source} of {published.date}{age}{where}{priority_note} (version {table.version})"
    return Check("prices", True, detail, fix)


def age_in_days(written: str, clock: Clock) -> int | None:
    """The age of a date in days, by the clock in UTC; None if the date can't be read."""
    try:
        day = date.fromisoformat(written)
    except ValueError:
        return None
    return max(0, (datetime.fromtimestamp(clock.now_us() / 1_000_000, UTC).date() - day).days)


# --- Plugins ---


class PluginLine(msgspec.Struct, frozen=True):
    """A line of `callboard plugins --json`."""

    kind: str  # `adapters`, `tools` or `commands`
    name: str
    package: str  # the package that offers the plugin, with its version
    place: str  # the location of the plugin's object: `module:name`
    error: str | None  # the reason why the plugin can't be used


def add_plugins(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the adapters, tools and commands of installed packages, and load each one. They come from "
        "the entry points callboard.adapters, callboard.tools and callboard.commands."
    )
    add_format(parser, "for each plugin")
    parser.set_defaults(run=run_plugins)


_PLUGINS: list[Column[PluginLine]] = [
    Column("kind", lambda line: line.kind),
    Column("name", lambda line: line.name),
    Column("package", lambda line: line.package, may_go=1),
    Column("place", lambda line: line.place, may_go=3),
    Column("state", lambda line: line.error or "ok", folds=True),
]


def run_plugins(arguments: argparse.Namespace) -> int:
    """List the plugins. A broken plugin is listed with its error."""
    log = logging.getLogger("callboard.plugins")
    level = log.level
    log.setLevel(logging.ERROR)  # the list shows the same warnings
    try:
        found = [_plugin_line(plugin) for group in GROUPS for plugin in plugins(group)]
    finally:
        log.setLevel(level)
    return write_rows(
        arguments.format,
        PluginLine,
        found,
        _PLUGINS,
        empty="No plugins are installed.",
        below=plural(len(found), "plugin"),
    )


def _plugin_line(plugin: Plugin) -> PluginLine:
    if plugin.group == "callboard.commands" and plugin.name in COMMANDS:
        fault: str | None = "hidden by a command of Callboard"
    elif plugin.group == "callboard.adapters" and plugin.name in adapter_types():
        fault = "hidden by an adapter of Callboard"
    else:
        fault = plugin.load().fault
    kind = plugin.group.removeprefix("callboard.")
    return PluginLine(kind, plugin.name, plugin.package, plugin.place, fault)
