"""Engines that use the server of `tests.support.background_server`."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callboard.adapters import AdapterConfig
from callboard.engine import Budget, Engine, ModelRegistry
from callboard.tracestore import CallFilter, CallRow, PriceRow, PriceTable
from tests.support.batch_wires import QUICKLY
from tests.support.engines import entry, model, serving

MODEL = "openai:gpt-5.2"
SENT_RATE, SAID_RATE = 333_337, 1_777_783
PRICES = PriceTable([PriceRow(model=MODEL, input=SENT_RATE, output=SAID_RATE)])


def nano_of(sent: int, said: int) -> int:
    """The cost of this number of tokens, rounded half up, computed independently."""
    return (sent * SENT_RATE + said * SAID_RATE + 500) // 1000


def registry(url: str) -> ModelRegistry:
    config = AdapterConfig(api_key="sk-1", base_url=url, retry=QUICKLY, options={"quirks": "openai"})
    return serving(model(MODEL), openai=entry("openai", "openai", config))


@asynccontextmanager
async def engine_at(
    url: str, store: Path | str | None, budgets: Sequence[Budget] = (), **options: Any
) -> AsyncIterator[Engine]:
    engine = Engine(
        models=registry(url), store=store, trace=store is not None, budgets=budgets,
        **{"prices": PRICES, "capture_content": store is not None, **options},
    )  # fmt: skip
    async with engine:
        yield engine


async def calls_in(engine: Engine) -> list[CallRow]:
    assert engine.store is not None
    await engine.flush()
    return list(await engine.store.calls(CallFilter(), limit=None))


async def die_in_a_turn(url: str, store: str, kind: str, died_after: str) -> None:
    """Request a background reply, and be killed in the middle of it."""
    async with engine_at(url, store) as engine:
        session = await engine.open_session("s1", model=MODEL)
        if kind == "streamed":
            async with session.stream("the moon?", background=True) as turn:
                async for event in turn:
                    if type(event).__name__ == died_after:
                        os.kill(os.getpid(), signal.SIGKILL)
        with engine.bus.subscribe("llm.call_accepted") as events:
            import anyio

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: session.send("the moon?", background=True))
                await anext(aiter(events))
                os.kill(os.getpid(), signal.SIGKILL)
