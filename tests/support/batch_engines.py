"""Engines that create batches on the server of `tests.support.batch_server`."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from callboard.adapters import CanonicalRequest, Message
from callboard.adapters.videos import PollPolicy
from callboard.engine import BatchResults, Budget, Engine, ModelRegistry
from callboard.tracestore import PriceRow, PriceTable
from tests.support.batch_server import tokens_of
from tests.support.batch_wires import MODELS, config_of, type_of
from tests.support.engines import entry, model, serving

OFTEN = PollPolicy(first=0.001, longest=0.002, jitter=False, give_up_after=5.0)

RATES = {wire: (333_333 + number, 1_777_777 + number) for number, wire in enumerate(MODELS)}
"""The rates of each wire's model in batches, in pico-USD per input and per output token."""

PRICES = PriceTable(
    [row for wire, (sent, said) in RATES.items() for row in (PriceRow(model=f"{wire}:{MODELS[wire]}", input=sent,
        output=said, service_tier="batch"), PriceRow(model=f"{wire}:{MODELS[wire]}", input=10**9, output=10**9))],
)  # fmt: skip
"""Batch prices that give odd sums, and other prices that must not be used for batches."""


def nano_of(wire: str, *texts: str) -> int:
    """The cost of these requests with answers, each rounded half up, computed independently."""
    sent_rate, said_rate = RATES[wire]
    total = 0
    for text in texts:
        sent, said = tokens_of(text)
        total += (sent * sent_rate + said * said_rate + 500) // 1000
    return total


def registry(url: str) -> ModelRegistry:
    adapters = {wire: entry(wire, type_of(wire), config_of(wire, url)) for wire in MODELS}
    return serving(*[model(name_of(wire)) for wire in MODELS], **adapters)


def name_of(wire: str) -> str:
    return f"{wire}:{MODELS[wire]}"


TEXTS = ["one", "fail", *(f"night {place}" for place in range(30))]
"""The requests of a program that is killed. No other batch has this number of requests."""


@asynccontextmanager
async def engine_at(
    url: str, store: Path | str | None = None, budgets: Sequence[Budget] = (), **options: Any
) -> AsyncIterator[Engine]:
    engine = Engine(
        models=registry(url), store=store, trace=store is not None, prices=PRICES, budgets=budgets, **options
    )
    async with engine:
        yield engine


async def run_to_the_end(url: str, store: str, wire: str, batch_id: str) -> BatchResults:
    """The steps of a host's program, which are the same at each start."""
    async with engine_at(url, store) as engine:
        requests = requests_of(wire, *TEXTS)
        batch = await engine.create_batch(requests, batch_id=batch_id, polling=OFTEN, settle_seconds=0.0)
        return await batch.wait()


def die_when(happened: Callable[[], object]) -> None:
    """Kill this process as soon as a condition is true. The condition is checked continuously."""

    def watch() -> None:
        while not happened():
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=watch, daemon=True).start()


def requests_of(wire: str, *texts: str, ids: bool = True) -> list[CanonicalRequest]:
    return [
        CanonicalRequest(
            request_id=f"r{place}" if ids else "",
            model=name_of(wire),
            messages=(Message.user(text),),
            max_output_tokens=500,
        )
        for place, text in enumerate(texts)
    ]
