"""The host program: it creates batches and requests replies, or resumes them, and reports all results."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Literal, TypeAlias
from unittest.mock import patch

import anyio
import msgspec

from callboard.adapters import AdapterConfig
from callboard.adapters.batches import BatchItem
from callboard.adapters.operations import background
from callboard.adapters.operations.batches import HttpBatches
from callboard.bus import Envelope, Lossless
from callboard.bus.errors import CallboardError, NotFoundError, OutcomeUnknownError
from callboard.engine import BatchResult, Budget, Engine
from callboard.tracestore import OpenReply, PriceRow, PriceTable
from tests.support import background_engines, batch_engines
from tests.support.batch_engines import OFTEN, requests_of
from tests.support.batch_wires import MODELS, QUICKLY, config_of, type_of
from tests.support.engines import entry, model, serving

from .plan import Batch, Question

REPLIES = "replies:gpt-5.2"
PRICES = PriceTable(
    [
        *batch_engines.PRICES.rows,
        PriceRow(model=REPLIES, input=background_engines.SENT_RATE, output=background_engines.SAID_RATE),
    ]
)
SETTLE_SECONDS = 2.0
MOST_TOKENS = 500


Does: TypeAlias = Literal["hosts", "creates", "resumes"]
"""A host creates batches, asks questions and resumes everything. The others create or resume batches, and resume
the replies that have no session.
"""


class Orders(msgspec.Struct, frozen=True):
    """The orders for a program."""

    batch_url: str
    reply_url: str
    store: str
    does: Does
    batches: tuple[Batch, ...]
    asks: tuple[Question, ...]


@asynccontextmanager
async def engine_at(batch_url: str, reply_url: str, store: str) -> AsyncIterator[Engine]:
    """An engine with all wires of batches, and a model for background replies."""
    adapters = {wire: entry(wire, type_of(wire), config_of(wire, batch_url)) for wire in MODELS}
    config = AdapterConfig(
        api_key="sk-1", base_url=reply_url, retry=QUICKLY, stream_read_timeout=1.0, options={"quirks": "openai"}
    )
    models = [model(batch_engines.name_of(wire)) for wire in MODELS]
    registry = serving(model(REPLIES), *models, replies=entry("replies", "openai", config), **adapters)
    async with Engine(
        models=registry, store=store, capture_content=True, prices=PRICES, budgets=[Budget(max_cost_usd="1000")]
    ) as engine:
        yield engine


def tell(*what: object) -> None:
    """Print a line."""
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


async def run(orders: Orders) -> None:
    """Run all batches and questions concurrently, until each has ended."""
    async with engine_at(orders.batch_url, orders.reply_url, orders.store) as engine:
        await engine.start()
        with engine.bus.subscribe("batch.*", "llm.*", policy=Lossless()) as events:
            async with anyio.create_task_group() as watching:
                watching.start_soon(_watch, events)
                tell("up")
                async with anyio.create_task_group() as works:
                    for batch in orders.batches:
                        works.start_soon(
                            _attempt, batch.name, _batch(engine, batch, create=orders.does != "resumes")
                        )
                    for reply in await engine.open_replies():
                        if orders.does == "hosts" or reply.session_id is None:
                            works.start_soon(_attempt, (reply.tags or {})["question"], _take_up(engine, reply))
                    for question in orders.asks:
                        works.start_soon(_attempt, question.name, _ask(engine, question))
                await engine.flush()
                watching.cancel_scope.cancel()
    tell("end")


async def _watch(events: AsyncIterator[Envelope]) -> None:
    async for envelope in events:
        tell("event", envelope.topic, getattr(envelope.data, "response_id", None))


async def _attempt(name: str, work: Awaitable[None]) -> None:
    try:
        await work
    except CallboardError as error:
        tell("failed", name, type(error).__name__, str(error)[:300])


# -- batches


async def _batch(engine: Engine, batch: Batch, *, create: bool) -> None:
    requests = requests_of(batch.wire, *batch.texts)
    if create:
        handle = await engine.create_batch(
            requests, batch_id=batch.name, polling=OFTEN, settle_seconds=SETTLE_SECONDS
        )
    else:
        try:
            handle = await engine.resume_batch(
                batch.name, requests=requests, polling=OFTEN, settle_seconds=SETTLE_SECONDS
            )
        except NotFoundError:
            return  # the batch was not created yet
    if batch.cancelled:
        try:
            tell("cancel", batch.name, await handle.cancel())
        except OutcomeUnknownError as error:  # another program may have created it
            tell("not cancelled", batch.name, str(error))
    results: list[BatchResult] = []
    if batch.handed_out:
        await handle.for_each(results.append)
    else:
        results += await handle.wait()
    tell("results", batch.name, [_told(result) for result in results])


def _told(result: BatchResult) -> tuple[str, str | None, str | None, int | None]:
    text = None if result.response is None else result.response.text
    error = None if result.error is None else type(result.error).__name__
    return result.request_id, text, error, None if result.cost is None else result.cost.nano_usd


def split_as_ordered(batches: Sequence[Batch]) -> AbstractContextManager[object]:
    """A context in which each batch uses its planned job size."""
    most = {batch.name: batch.most for batch in batches}

    def split(_: HttpBatches, items: Sequence[BatchItem]) -> tuple[int, ...]:
        size = most[items[0].id.rpartition("-")[0]]
        return tuple(min(size, len(items) - start) for start in range(0, len(items), size))

    return patch.object(HttpBatches, "split", split)


# -- replies in the background


async def _ask(engine: Engine, question: Question) -> None:
    tags = {"question": question.name}
    if question.how == "session":
        session = await engine.open_session(question.name, model=REPLIES, tags=tags)
        reply = await session.send(question.words, background=True, max_output_tokens=MOST_TOKENS)
        tell("answered", question.name, reply.text, None)
    elif question.how == "whole":
        result = await engine.generate(
            REPLIES, question.words, background=True, tags=tags, max_output_tokens=MOST_TOKENS
        )
        tell("answered", question.name, result.text, result.total_cost.nano_usd)
    else:
        async with engine.stream(
            REPLIES, question.words, background=True, tags=tags, max_output_tokens=MOST_TOKENS
        ) as stream:
            text = ""
            async for piece in stream.text_stream:
                text += piece
                if question.how == "cancelled":
                    break
            else:
                tell("answered", question.name, text, (await stream.result()).total_cost.nano_usd)
        tell("left", question.name)


async def _take_up(engine: Engine, reply: OpenReply) -> None:
    name = (reply.tags or {})["question"]
    if reply.session_id is not None:
        session = await engine.open_session(reply.session_id)
        tell("answered", name, (await session.take_up(reply)).text, None)
    elif len(reply.request_id + name) % 2:
        stream = engine.take_up_stream(reply)
        text = "".join([piece async for piece in stream.text_stream])
        tell("answered", name, text, (await stream.result()).total_cost.nano_usd)
    else:
        result = await engine.take_up(reply)
        tell("answered", name, result.text, result.total_cost.nano_usd)


class _Told(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell("log", record.levelname, record.getMessage()[:300])


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    logging.getLogger("callboard").addHandler(_Told(logging.WARNING))
    background.POLLING = OFTEN
    with split_as_ordered(orders.batches):
        anyio.run(run, orders)


if __name__ == "__main__":
    main()
