"""In a cluster another node goes on with a session, and with the reply that its last node left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from callboard.bus.errors import CallboardError
from tests.support.background_engines import MODEL, PRICES, calls_in, engine_at, nano_of, registry
from tests.support.background_server import WORDS, BackgroundServer, background_server
from tests.support.cluster_engines import node_engine
from tests.support.virtual_time import backend

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return backend("asyncio")


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    with background_server(0.01) as running:
        yield running


async def test_another_node_takes_up_what_a_closed_node_left(
    server: BackgroundServer, postgres_dsn: str, tmp_path: Path
) -> None:
    """With the question in its history, and as the same call."""
    first = node_engine("one", postgres_dsn, tmp_path, models=registry(server.url), prices=PRICES)
    async with first, anyio.create_task_group() as tasks:

        async def ask() -> None:
            session = await first.open_session("s1", model=MODEL)
            with pytest.raises(CallboardError):
                await session.send("the moon?", background=True)

        with first.bus.subscribe("llm.call_accepted") as events:
            tasks.start_soon(ask)
            await anext(aiter(events))
        await first.aclose()
    second = node_engine("two", postgres_dsn, tmp_path, models=registry(server.url), prices=PRICES)
    async with second:
        session = await second.open_session("s1")
        assert [message.text for message in session.messages] == ["the moon?"]
        reply = await session.open_reply()
        assert reply is not None
        assert (await session.take_up(reply)).text == WORDS
        assert [message.text for message in session.messages] == ["the moon?", WORDS]
    books = server.books()
    assert len(books["made"]) == 1
    async with engine_at(server.url, postgres_dsn) as reading:
        (row,) = await calls_in(reading)
        assert row.status == "completed"
        assert row.cost is not None
        assert row.cost.nano_usd == nano_of(*books["bill"][row.response_id or ""])
        assert row.started_us == reply.started_us
