"""Turns that tools of other turns start: their edges, costs, limits and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import Engine, generate_sync
from callboard.bus import CancelledError, Lossless, LlmCallStarted, SessionTurnStarted, ToolProgress
from callboard.engine import Budget, Tool, TurnLimits, attach_trace_context, detached, tool, trace_context
from callboard.engine.tree import TurnLimitError
from callboard.tracestore import CallFilter, CallRow, PriceTable
from tests.support.engines import running
from tests.support.scripted import Say

PRICES = PriceTable.from_yaml(
    "version: 1\nrows:\n  - {model: 's:*', input: 1000, output: 1000}\n" if False else Path(__file__)
) if False else None


def asks(*names: str) -> Say:
    """A reply that calls tools."""
    return Say(calls=[(name, {}) for name in names])


def runs(name: str, work: Any) -> Tool:
    """A tool with that name and no arguments."""

    async def run() -> object:
        """Do the work."""
        return await work()

    return tool(run, name=name)


async def rows_of(engine: Engine) -> list[CallRow]:
    """All calls in the trace, the earliest first."""
    await engine.flush()
    assert engine.store is not None
    return list(reversed(await engine.store.calls(CallFilter(), 1000)))
