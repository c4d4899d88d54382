"""Helpers for subjects with a network: engines that use the reply server, and their requests."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from callboard.adapters import Message, ToolDefinition
from callboard.engine import Budget, Cluster, Engine, Limits, Tool
from callboard.tracestore import PriceTable
from tests.support.reply_models import registry


@asynccontextmanager
async def engine_on(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    calls: int = 256,
    trace: bool = True,
    keep_streams: bool = True,
    budgets: Sequence[Budget] = (),
    ship_to: str | None = None,
    cluster: Cluster | None = None,
) -> AsyncIterator[Engine]:
    """An engine with a trace in a file or without one, and without log output."""
    logging.getLogger("callboard").setLevel(logging.ERROR)
    keep = Limits(calls_per_provider=calls)
    limits = (
        keep
        if keep_streams
        else Limits(calls_per_provider=calls, retain_streams_seconds=0.0, retain_streams_bytes=0)
    )
    with tempfile.TemporaryDirectory(prefix="callboard-bench-") as folder:
        async with Engine(
            models=registry(url, headers),
            store=Path(folder) / "trace.db" if trace else None,
            trace=trace,
            prices=PriceTable.default(),
            limits=limits,
            budgets=budgets,
            ship_to=ship_to,
            cluster=cluster,
        ) as engine:
            yield engine


@contextmanager
def home_in(folder: Path) -> Iterator[None]:
    """A home of its own. A shipper registers its file there and adopts the files of dead processes."""
    before = os.environ.get("CALLBOARD_HOME")
    os.environ["CALLBOARD_HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["CALLBOARD_HOME"]
        else:
            os.environ["CALLBOARD_HOME"] = before


def history(messages: int) -> list[Message]:
    """This number of messages with about forty words each, the first from the user."""
    text = "What the notice says is read twice, by the clerk and by the actor who waits behind the curtain. " * 2
    return [
        Message.user(f"{index}. {text}") if index % 2 == 0 else Message.assistant(f"{index}. {text}")
        for index in range(messages)
    ]


def tools(count: int) -> list[Tool]:
    """Tools that the host would run itself, each with three parameters."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "place": {"type": "string", "description": "where to look"},
            "day": {"type": "string", "enum": ["today", "tomorrow"]},
            "limit": {"type": "integer", "description": "how many at most"},
        },
        "required": ["place"],
    }
    return [Tool(ToolDefinition(f"look_up_{index}", "Looks something up.", schema)) for index in range(count)]


async def release(url: str) -> None:
    """Let the server continue the streams that it delays."""
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.post(url + "/release")


async def settle() -> None:
    """Let callbacks finish and closed transports disappear."""
    for _ in range(20):
        await asyncio.sleep(0.005)
