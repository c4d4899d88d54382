"""Watching an engine: what is under way, when something changes, who is cancelled, what would be sent."""

from __future__ import annotations

import anyio
import pytest

from callboard import (
    CancelledError,
    Engine,
)
from callboard.engine.watching.now import made_us
from tests.support.engines import registry, running
from tests.support.scripted import CALLS_ADD, Say

from .slow_engines import an_engine

pytestmark = pytest.mark.anyio


async def test_an_idle_engine_has_nothing_under_way() -> None:
    """Before its start, and after a turn."""
    fresh = Engine(models=registry(Say("Hello")), trace=False)
    assert (fresh.under_way().items, fresh.under_way().total) == ((), 0)
    async with fresh:
        await fresh.session("s:m").send("Hi")
        assert fresh.under_way().total == 0


async def test_a_reply_under_way_tells_what_it_has_said_and_cost() -> None:
    """Its stage, its first token, its characters and an estimate of the cost; nothing is counted twice."""
    steps = [anyio.Event() for _ in range(3)]
    waits = iter(steps)
    script = Say("Hello, ", "world!", pause=lambda: next(waits, steps[-1]).wait())
    async with running(script) as (engine, _):
        session = engine.session("s:m", name="greeting", tags={"team": "a"})
        async with anyio.create_task_group() as group:
            stream = session.stream("Hi")
            group.start_soon(stream.message)
            await anyio.wait_all_tasks_blocked()
            (asking,) = engine.under_way().items
            steps[0].set()
            await anyio.wait_all_tasks_blocked()
            (first,) = engine.under_way().items
            (again,) = engine.under_way().items
            characters = engine.under_way().characters
            for step in steps[1:]:
                step.set()
        assert (asking.stage, asking.characters, asking.kind) == ("asking", 0, "turn")
        assert (first.stage, first.characters, again.characters, characters) == ("replying", 7, 7, 7)
        assert (first.session_name, first.tags, first.model) == ("greeting", {"team": "a"}, "s:m")
        assert (first.id, first.calls, first.attempt) == (stream.stream_id, 1, 1)
        assert first.output_tokens == 7 // 4
        assert (first.cost.calls, first.cost.estimated, first.cost.unpriced) == (1, 1, 1)
        assert engine.under_way().total == 0


async def test_turns_behind_one_are_queued_and_a_limit_only_counts_the_rest() -> None:
    """In the order in which they were asked for."""
    go = anyio.Event()
    async with running(Say("one", pause=go.wait), Say("two"), Say("three")) as (engine, _):
        session = engine.session("s:m")
        async with anyio.create_task_group() as group:
            for text in ("first", "second", "third"):
                group.start_soon(session.send, text)
            await anyio.wait_all_tasks_blocked()
            seen = engine.under_way()
            some = engine.under_way(limit=2)
            go.set()
        assert [item.stage for item in seen.items] == ["asking", "queued", "queued"]
        assert (len(some.items), some.total) == (2, 3)


async def test_a_turn_with_tools_sums_its_calls() -> None:
    """What is over counts with its usage, and the call under way with an estimate."""
    go = anyio.Event()
    seen: list[tuple[str, int, int]] = []

    async def tool(arguments: dict[str, int]) -> int:
        (item,) = engine.under_way().items
        seen.append((item.stage, item.calls, item.output_tokens))
        return 3

    from callboard import Tool, ToolDefinition

    async with running(CALLS_ADD, Say("Three.", pause=go.wait)) as (engine, _):
        adder = Tool(ToolDefinition("add", "Adds two numbers"), tool)  # type: ignore[arg-type]
        session = engine.session("s:m", tools=[adder])
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: session.send("Hi", max_tool_rounds=2))
            await anyio.wait_all_tasks_blocked()
            (item,) = engine.under_way().items
            go.set()
    assert seen == [("working", 1, 5)]
    assert (item.calls, item.steps, item.output_tokens, item.cost.calls) == (2, 1, 5, 2)


async def test_a_call_without_a_turn_is_under_way() -> None:
    """Embeddings, for example; it can't be cancelled from elsewhere."""
    async with an_engine() as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: engine.embed(["a"], model="s:m"))
            await anyio.wait_all_tasks_blocked()
            (item,) = engine.under_way().items
            assert (item.kind, item.operation, item.model) == ("call", "embeddings", "s:m")
            assert await engine.cancel(item.id) is False
            group.cancel_scope.cancel()
        assert engine.under_way().total == 0


async def test_anybody_cancels_a_turn_by_its_id() -> None:
    """Its caller gets the error with the content so far; a second time, or another id, is nobody's."""
    async with an_engine() as engine:
        stream = engine.session("s:m").stream("Hi")
        caught: list[CancelledError] = []

        async def read() -> None:
            try:
                await stream.message()
            except CancelledError as error:
                caught.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            assert await engine.cancel(stream.stream_id) is True
        assert caught[0].content
        assert await engine.cancel(stream.stream_id) is False
        assert await engine.cancel("trn_other") is False


async def test_changes_come_with_events_and_with_streams_and_end_with_the_engine() -> None:
    """At once, then at most one in an interval; an idle engine gives none."""
    go = anyio.Event()
    times: list[float] = []
    async with running(Say("one", pause=go.wait)) as (engine, _):
        began = anyio.current_time()

        async def watch() -> None:
            async for _ in engine.changes(min_interval=1.0):
                times.append(anyio.current_time() - began)  # noqa: PERF401 (it never ends)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await anyio.sleep(10)
            assert len(times) <= 2  # at once, and perhaps for what the start had published
            idle = len(times)
            group.start_soon(engine.session("s:m").send, "Hi")
            await anyio.sleep(5)
            assert idle + 4 <= len(times) <= idle + 6  # while the call is under way
            go.set()
            await anyio.sleep(10)
            ended = len(times)
            await anyio.sleep(10)
            assert len(times) == ended
            await engine.aclose()
    assert not [name for name in [sub.name for sub in engine.bus.statistics().subscriptions] if name == "changes"]


async def test_a_watcher_that_leaves_costs_nothing() -> None:
    """Its subscription goes with it."""
    async with running() as (engine, _):
        watching = engine.changes()
        await anext(watching)
        assert "changes" in [each.name for each in engine.bus.statistics().subscriptions]
        await watching.aclose()  # type: ignore[attr-defined]
        assert "changes" not in [each.name for each in engine.bus.statistics().subscriptions]


def test_the_time_of_an_identifier_is_read_from_it() -> None:
    """Of a ULID; anything else has none."""
    assert made_us("trn_01ARZ3NDEKTSV4RRFFQ69G5FAV") == 1_469_922_850_259_000
    assert made_us("ses_mine") is None
    assert made_us("ses_01ARZ3NDEKTSV4RRFFQ69G5FA!") is not None
    assert made_us("ses_ilou3NDEKTSV4RRFFQ69G5FAVx") is None
