"""A background reply survives its process: it is resumed, added to its session, and paid once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callboard.adapters.operations import background
from callboard.adapters.videos import PollPolicy
from callboard.bus.errors import CallboardError, CancelledError, OutcomeUnknownError, StoreError
from callboard.bus.streams.events import TextDelta
from callboard.engine import Budget, Engine
from callboard.tracestore import OpenReply, PriceRow, PriceTable
from callboard.tracestore.writing import writer
from tests.support.depth import first_is_quick, quick_if

from ...support.background_engines import MODEL, PRICES, calls_in, engine_at, nano_of, registry
from ...support.background_server import SENT, WORDS, BackgroundServer, background_server
from ...support.cluster_engines import node_engine
from ...support.present import present
from ...support.programs import ended
from ...support.virtual_time import runs_on

OFTEN = PollPolicy(first=0.02, longest=0.05, jitter=False)

anyio_backend = runs_on("asyncio")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "POLLING", OFTEN)


@pytest.fixture(scope="module")
def server() -> Iterator[BackgroundServer]:
    with background_server(0.01) as running:
        yield running


def made_by(server: BackgroundServer) -> set[str]:
    return set(server.books()["made"])


async def check_one_call(engine: Engine, server: BackgroundServer, before: set[str]) -> None:
    """Check that one reply was made, and that the trace has one completed call with the billed usage and price."""
    (made,) = made_by(server) - before
    sent, said = server.books()["bill"][made]
    (row,) = await calls_in(engine)
    assert (row.status, row.attempt, row.response_id) == ("completed", 1, made)
    assert (row.usage.input_tokens, row.usage.output_tokens) == (sent, said)
    assert row.cost.nano_usd == nano_of(sent, said)


KILLED = """
    import sys
    import anyio
    from tests.support.background_engines import die_in_a_turn

    anyio.run(die_in_a_turn, *sys.argv[1:])
"""


MOMENTS = [("streamed", "TextDelta"), ("whole", ""), ("streamed", "MessageStart")]


@pytest.mark.parametrize(("kind", "died_after"), quick_if(MOMENTS, lambda n: n < 2, "another moment", rows=True))
@pytest.mark.parametrize("as_stream", first_is_quick([True, False], "read whole, too"))
async def test_a_killed_session_continues_with_its_reply(
    server: BackgroundServer, tmp_path: Path, kind: str, died_after: str, as_stream: bool
) -> None:
    before = made_by(server)
    killed = ended(KILLED, server.url, tmp_path / "t.db", kind, died_after)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with engine_at(server.url, tmp_path / "t.db") as engine:
        session = await engine.open_session("s1")
        assert [message.text for message in session.messages] == ["the moon?"]
        reply = await session.open_reply()
        if as_stream:
            async with session.take_up_stream(reply) as turn:
                text = "".join([event.text async for event in turn if isinstance(event, TextDelta)])
            assert text == WORDS
            message = await turn.message()
        else:
            message = await session.take_up(reply)
        assert (message.text, message.id) == (WORDS, reply.message_id)
        assert [each.text for each in session.messages] == ["the moon?", WORDS]
        await check_one_call(engine, server, before)
        assert await session.open_reply() is None
        await session.send("and now?")
    async with engine_at(server.url, tmp_path / "t.db") as engine:
        session = await engine.open_session("s1")
        assert [message.text for message in session.messages] == ["the moon?", WORDS, "and now?", WORDS]


async def closed_in_a_reply(engine: Engine, ask: Coroutine[Any, Any, object]) -> None:
    """Close the engine after the provider has accepted the request."""
    with engine.bus.subscribe("llm.call_accepted") as events:
        asking = asyncio.ensure_future(ask)
        await anext(aiter(events))
    await engine.aclose()
    with pytest.raises(CancelledError):
        await asking


async def leave(
    server: BackgroundServer,
    store: Path | str,
    *,
    session: bool = True,
    words: str = "the moon?",
    **options: object,
) -> None:
    """Close an engine in the middle of a reply."""
    async with engine_at(server.url, store, **options) as engine:

        async def ask() -> object:
            if session:
                return (
                    await (await engine.open_session("s1", model=MODEL)).stream(words, background=True).message()
                )
            return await engine.generate(MODEL, words, background=True, tags={"who": "me"})

        await closed_in_a_reply(engine, ask())


async def test_a_closed_engine_does_not_cancel_its_replies(server: BackgroundServer, tmp_path: Path) -> None:
    """The next engine finds the reply and ends its call."""
    before, store = made_by(server), tmp_path / "t.db"
    await leave(server, store, session=False)
    assert not (made_by(server) - before) & set(server.books()["cancels"])
    async with engine_at(server.url, store) as engine:
        (reply,) = await engine.open_replies()
        assert reply.tags == {"who": "me"}
        assert await engine.open_replies("s1") == []
        result = await engine.take_up(reply)
        assert result.text == WORDS
        await check_one_call(engine, server, before)
        assert await engine.open_replies() == []
        again = await engine.take_up(reply)  # Reading it again counts nothing again.
        assert again.text == WORDS
        await check_one_call(engine, server, before)


async def test_the_accepted_attempt_is_the_one_that_ends(server: BackgroundServer, tmp_path: Path) -> None:
    """The failed first attempt has its own row. No row stays open, and the budget counts the cost once."""
    budget = Budget(max_cost_usd="5")
    before, store = made_by(server), tmp_path / "t.db"
    server.fail("busy")
    await leave(server, store, session=False, budgets=[budget])
    async with engine_at(server.url, store, budgets=[budget]) as engine:
        (reply,) = await engine.open_replies()
        assert reply.attempt == 2
        await engine.take_up(reply)
        rows = {row.attempt: row for row in await calls_in(engine)}
        assert {attempt: row.status for attempt, row in rows.items()} == {1: "failed", 2: "completed"}
        (made,) = made_by(server) - before
        paid = nano_of(*server.books()["bill"][made])
        assert rows[2].cost.nano_usd == paid
        assert await engine.open_replies() == []
        (state,) = await engine.budgets()
        assert (state.spent.money, state.held.money, state.unknown.money) == (paid, 0, 0)


async def test_a_budget_counts_the_most_until_a_reply_ends(server: BackgroundServer, tmp_path: Path) -> None:
    budget = Budget(max_cost_usd="5")
    before, store = made_by(server), tmp_path / "t.db"
    await leave(server, store, session=False, budgets=[budget])
    async with engine_at(server.url, store, budgets=[budget]) as engine:
        (reply,) = await engine.open_replies()
        await engine.generate(MODEL, "short", max_output_tokens=50)
        first = await calls_in(engine)
        held = (await engine.budgets())[0]
        assert held.unknown.money > 0
        await engine.take_up(reply)
        spent = (await engine.budgets())[0]
        assert spent.unknown.money == 0
        rows = await calls_in(engine)
        assert spent.spent.money == sum(row.cost.nano_usd or 0 for row in rows if row.cost)
        assert len(rows) == len(first) == 2
        assert len(made_by(server) - before) == 2


async def test_a_cancelled_reply_ends_with_the_providers_usage(server: BackgroundServer) -> None:
    before = made_by(server)
    async with engine_at(server.url, None) as engine:
        async with engine.session(MODEL).stream("the moon?", background=True) as turn:
            async for event in turn:
                if isinstance(event, TextDelta):
                    break
        (made,) = made_by(server) - before
        books = server.books()
        assert books["made"][made]["status"] == "cancelled"
        assert made in books["cancels"]
        usage = turn.usage
        assert (usage.input_tokens, usage.output_tokens) == tuple(books["bill"][made])
        assert usage.input_tokens == SENT
        assert turn.cost.nano_usd == nano_of(*books["bill"][made])


async def test_a_failed_reply_leaves_no_question_in_the_history(server: BackgroundServer, tmp_path: Path) -> None:
    async with engine_at(server.url, tmp_path / "t.db") as engine:
        session = await engine.open_session("s1", model=MODEL)
        with pytest.raises(CallboardError):
            await session.send("fail", background=True, max_retries=1)
        assert session.messages == ()
        await engine.flush()
        topics = [envelope.topic for envelope in await present(engine.store).events(session_id="s1")]
    attempt = ["llm.call_started", "session.message_appended", "llm.call_accepted", "llm.call_failed"]
    starts = ["session.created", "session.configured", "session.turn_started"]
    ended = ["session.configured", "session.turn_completed"]
    assert topics == [*starts, *attempt, "session.configured", *attempt, *ended]
    async with engine_at(server.url, tmp_path / "t.db") as engine:
        session = await engine.open_session("s1")
        assert session.messages == ()
        assert await session.open_reply() is None


async def test_a_resumed_reply_that_fails_leaves_no_question_in_the_history(
    server: BackgroundServer, tmp_path: Path
) -> None:
    await leave(server, tmp_path / "t.db", words="fail")
    async with engine_at(server.url, tmp_path / "t.db") as engine:
        session = await engine.open_session("s1")
        assert [message.text for message in session.messages] == ["fail"]
        reply = await session.open_reply()
        with pytest.raises(CallboardError):
            await session.take_up(reply)
        assert session.messages == ()
    async with engine_at(server.url, tmp_path / "t.db") as engine:
        session = await engine.open_session("s1")
        assert session.messages == ()
        await session.send("and now?")
        assert [message.text for message in session.messages] == ["and now?", WORDS]


async def test_each_message_of_a_session_is_published_once(server: BackgroundServer, tmp_path: Path) -> None:
    """The question is stored before it is part of the history. A reply of another session is refused."""
    async with engine_at(server.url, tmp_path / "t.db") as engine:
        session = await engine.open_session("s1", model=MODEL)
        await session.send("the moon?", background=True)
        await engine.flush()
        assert len(await present(engine.store).events(topic="session.message_appended")) == 2
        other = OpenReply(request_id="req_9", response_id="resp_9", model=MODEL, session_id="s2")
        with pytest.raises(CallboardError, match="s2"):
            await session.take_up(other)


async def test_a_reply_that_the_provider_lost_is_closed(server: BackgroundServer, tmp_path: Path) -> None:
    """The call of the reply ends with an unknown outcome and is not listed again."""
    await leave(server, tmp_path / "t.db", session=False)
    with background_server(0.01) as forgetful:
        async with engine_at(forgetful.url, tmp_path / "t.db") as engine:
            (reply,) = await engine.open_replies()
            with pytest.raises(OutcomeUnknownError, match=reply.response_id):
                await engine.take_up(reply)
            (row,) = await calls_in(engine)
            assert (row.status, row.error_type) == ("failed", "OutcomeUnknownError")
            assert await engine.open_replies() == []


async def test_open_replies_is_an_error_while_files_cannot_be_read(
    server: BackgroundServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_now(*args: object, **options: object) -> bool:
        return False

    await leave(server, tmp_path / "t.db", session=False)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(writer, "adopt_leftovers", not_now)
        async with engine_at(server.url, tmp_path / "t.db") as engine:
            with pytest.raises(StoreError, match="an earlier process left"):
                await engine.open_replies()
    async with engine_at(server.url, tmp_path / "t.db") as engine:
        (reply,) = await engine.open_replies()
        assert (await engine.take_up(reply)).text == WORDS


async def test_a_resumed_reply_has_the_prices_of_its_start(server: BackgroundServer, tmp_path: Path) -> None:
    """Later prices do not apply. The row of the call has the time of its start."""
    before = made_by(server)
    await leave(server, tmp_path / "t.db", session=False)
    now = time.time_ns() // 1000
    then = msgspec.structs.replace(PRICES.rows[0], valid_to=now)
    prices = PriceTable([then, PriceRow(model=MODEL, input=10**9, output=10**9, valid_from=now)])
    async with engine_at(server.url, tmp_path / "t.db", prices=prices) as engine:
        (reply,) = await engine.open_replies()
        await engine.take_up(reply)
        await check_one_call(engine, server, before)
        found = await engine.store.sql("SELECT ts_us, started_us FROM calls")
        assert found.rows[0][0] == found.rows[0][1] == reply.started_us


async def test_another_node_resumes_the_reply_of_a_closed_node(
    server: BackgroundServer, postgres_dsn: str, tmp_path: Path
) -> None:
    """The session has the question, and the call is the same."""
    made_before = len(server.books()["made"])
    first = node_engine("one", postgres_dsn, tmp_path, models=registry(server.url), prices=PRICES)
    async with first:
        session = await first.open_session("s1", model=MODEL)
        await closed_in_a_reply(first, session.send("the moon?", background=True))
    second = node_engine("two", postgres_dsn, tmp_path, models=registry(server.url), prices=PRICES)
    async with second:
        session = await second.open_session("s1")
        assert [message.text for message in session.messages] == ["the moon?"]
        reply = await session.open_reply()
        assert (await session.take_up(reply)).text == WORDS
        assert [message.text for message in session.messages] == ["the moon?", WORDS]
    books = server.books()
    assert len(books["made"]) == made_before + 1
    async with engine_at(server.url, postgres_dsn) as reading:
        (row,) = await calls_in(reading)
        assert row.status == "completed"
        assert row.cost.nano_usd == nano_of(*books["bill"][row.response_id or ""])
        assert row.started_us == reply.started_us
