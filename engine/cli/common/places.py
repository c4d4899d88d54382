"""Where the commands keep and find things, and how to write that down for someone who will type it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from callboard.engine.store_address import TracePlace
from callboard.tracestore.home import home_folder

TRACE_NAME = "trace.db"
DEMO_TRACE_NAME = "demo-trace.db"


def default_trace() -> Path:
    """The trace file of whoever names none: the engine's own, or the demo's if that is all there is."""
    own, demo = home_folder() / TRACE_NAME, demo_trace()
    return demo if demo.exists() and not own.exists() else own


def demo_trace() -> Path:
    return home_folder() / DEMO_TRACE_NAME


def demo_prices() -> Path:
    return _shipped("examples/demo-prices.yaml", "demo-prices.yaml")


def cassette(adapter: str) -> Path:
    """The recording of what one of the demo's adapters was answered."""
    return _near(_shipped("cassettes/local", "cassettes") / f"demo-{adapter}.json")


def _shipped(in_checkout: str, in_wheel: str) -> Path:
    home = Path(__file__).parents[3]
    return home / in_checkout if (home / "pyproject.toml").exists() else Path(__file__).parents[1] / in_wheel


def command_name() -> str:
    """How this command was called, for the next one."""
    called = Path(sys.argv[0])
    if called.name != "callboard":
        return "python -m callboard"
    return called.name if shutil.which("callboard") == str(called) else short(called)


def short(path: Path) -> str:
    """A path as one would type it from here, quoted if need be."""
    return shlex.quote(str(_near(path)))


def option_of(trace: TracePlace) -> str:
    """The option that names a trace, as one would type it from here. It holds no password."""
    return f"--db {short(trace)}" if isinstance(trace, Path) else f"--store {shlex.quote(str(trace))}"


def _near(path: Path) -> Path:
    """Relative, if it is below the working directory."""
    shorter = os.path.relpath(path)
    return path if shorter.startswith("..") else Path(shorter)
