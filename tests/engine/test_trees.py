"""Turns that tools of other turns start: their edges, costs, limits and ends."""

from __future__ import annotations

import asyncio
import functools
import itertools
import operator
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from callboard import (
    AdapterConfig,
    Budget,
    BudgetExceededError,
    CancelledError,
    Engine,
    PriceTable,
    Session,
    Tool,
    ToolResultBlock,
    TurnLimitError,
    TurnLimits,
    agent_tool,
    attach_trace_context,
    detached,
    generate_sync,
    run_sync,
    stream_sync,
    tool,
    trace_context,
)
from callboard.bus import ToolProgress
from callboard.bus.values.usage import CostSum, TokenUsage, UsageSource
from callboard.engine.tree import Caller, TreeNode
from callboard.tracestore import CallFilter, CallRow
from callboard.tracestore.prices.rows import PriceRow
from tests.support import engines
from tests.support.engines import entry, keeping, registry, serving
from tests.support.programs import ended
from tests.support.scripted import Say, scripted_type

pytestmark = pytest.mark.anyio

PRICES = PriceTable([PriceRow(model=f"{name}:m", input=1_000_000, output=1_000_000) for name in "sabc"], "test")
running = functools.partial(engines.running, prices=PRICES)
A_CALL = 15_000
"""The cost of a scripted call of 15 tokens, in nano-USD."""


def asks(*names: str) -> Say:
    """A reply that calls tools without arguments."""
    return Say(calls=[(name, {}) for name in names])


def runs(name: str, work: Callable[[], Awaitable[object]], *, timeout: float | None = None) -> Tool:
    """An async tool with this name that returns the result of `work`."""

    async def run() -> object:
        return await work()

    return tool(run, name=name, description="Works.", timeout=timeout)


def results_of(session: Session) -> list[ToolResultBlock]:
    """The results of all tools in a session's history."""
    return [each for message in session.messages for each in message.content if isinstance(each, ToolResultBlock)]


async def rows_of(engine: Engine) -> dict[str, CallRow]:
    """The calls in the trace by the name of their adapter."""
    await engine.flush()
    return {row.provider: row for row in await engine.store.calls(CallFilter(), 1000)}


async def test_a_call_in_a_tool_is_a_child_of_the_tools_call(tmp_path: Path) -> None:
    """The child's row has the request, the turn and the root above the child."""
    trace = tmp_path / "trace.db"
    async with running(asks("look"), Say("Done."), a=[Say("found")], store=trace) as (engine, _):
        look = runs("look", lambda: engine.generate("a:m", "Look."))
        reply = await engine.session("s:m", tools=[look]).send("Go.")
        rows = await rows_of(engine)
        first = (await engine.store.calls(CallFilter(provider="s"), 10))[-1]
        sums = await engine.store.costs(CallFilter(), ("root",))
    child = rows["a"]
    assert (child.parent_call_id, child.parent_turn_id) == (first.request_id, first.turn_id)
    assert (child.root_turn_id, child.depth) == (first.turn_id, 1)
    assert rows["s"].root_turn_id is rows["s"].parent_turn_id is rows["s"].depth is None
    assert (reply.total_cost.nano_usd, reply.tree_cost) == (2 * A_CALL, CostSum(3 * A_CALL, 3))
    assert reply.tree_usage.total_tokens == 45
    assert [(row.key, row.calls, row.cost_nano_usd) for row in sums] == [((first.turn_id,), 3, 3 * A_CALL)]


async def test_children_of_parallel_tools_have_their_own_tool_call(tmp_path: Path) -> None:
    """The turn lists both children with their streams."""
    script = {"a": [Say("one")], "b": [Say("two")]}
    async with running(asks("a", "b"), Say("."), store=tmp_path / "t.db", **script) as (engine, events):
        tools = [runs(name, lambda name=name: engine.generate(f"{name}:m", "Go.")) for name in "ab"]
        async with engine.session("s:m", tools=tools).stream("Go.") as turn:
            await turn.message()
        rows = await rows_of(engine)
        children = turn.children
        progress = [each.data for each in events.take() if isinstance(each.data, ToolProgress)]
    assert rows["a"].parent_tool_use_id != rows["b"].parent_tool_use_id
    assert [(each.tool_name, each.turn_id) for each in children] == [(name, rows[name].turn_id) for name in "ab"]
    assert [each.stream_id for each in progress] == [child.stream_id for child in children]


async def test_the_spend_of_tools_counts_in_the_budget_of_the_turns_tag(tmp_path: Path) -> None:
    """A child has the tags of its parent turn, and its own tags replace them. A detached call is no child."""
    budgets = [Budget(max_cost_usd="1", per="tag:tenant")]
    script = {"a": [Say("one"), Say("two")], "b": [Say("three")]}

    async def look() -> str:
        await engine.generate("a:m", "Go.", tags={"part": "one"})
        await engine.session("b:m", tags={"tenant": "blue"}).send("Go.")
        with detached():
            return (await engine.generate("a:m", "Go.")).text

    async with running(asks("look"), Say("."), budgets=budgets, store=tmp_path / "t.db", **script) as (engine, _):
        reply = await engine.session("s:m", tools=[runs("look", look)], tags={"tenant": "red"}).send("Go.")
        spent = {state.scope: state.spent.nano_usd for state in await engine.budgets()}
        await engine.flush()
        detached_row, child = [row for row in await engine.store.calls() if row.provider == "a"]
    assert spent == {"red": 3 * A_CALL, "blue": A_CALL, "": A_CALL}
    assert (child.tags, child.parent_turn_id is None) == ({"tenant": "red", "part": "one"}, False)
    assert (detached_row.tags, detached_row.parent_turn_id, reply.tree_cost.calls) == ({}, None, 4)


async def test_another_process_continues_the_tree(tmp_path: Path) -> None:
    """The context from `trace_context` can be headers or environment variables."""
    carried: dict[str, str] = {}

    async def look() -> str:
        carried.update(trace_context())
        return "."

    async with running(asks("look"), Say(".")) as (engine, _):
        session = engine.session("s:m", tools=[runs("look", look)])
        await session.send("Go.", limits=TurnLimits(max_calls=4, max_cost_usd="1"), max_output_tokens=5)
    there = tmp_path / "there.db"
    environment = {name.upper(): value for name, value in carried.items()}
    async with running(a=[Say("."), Say("."), Say(".")], store=there) as (other, _):
        with attach_trace_context(environment):
            await other.generate("a:m", "Go.", max_output_tokens=5)
            await other.generate("a:m", "Go.", max_output_tokens=5)
            with pytest.raises(TurnLimitError, match="max_calls"):
                await other.generate("a:m", "Go.", max_output_tokens=5)
        row = (await rows_of(other))["a"]
    assert (row.parent_turn_id, row.depth) == (row.root_turn_id, 1)
    assert f"callboard-turn={row.parent_turn_id}" in carried["baggage"]


# -- Limits.


async def test_a_child_above_the_limit_fails_in_its_tool_and_the_parent_continues() -> None:
    async with running(asks("a", "a"), Say("Done."), a=[Say("one"), Say("never")]) as (engine, _):
        session = engine.session("s:m", tools=[runs("a", lambda: engine.generate("a:m", "Go."))])
        reply = await session.send("Go.", limits=TurnLimits(max_calls=3))
        results = results_of(session)
    assert reply.text == "Done."
    assert [result.is_error for result in results] == [False, True]
    assert "TurnLimitError" in results[1].text
    assert "max_calls=3" in results[1].text


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (TurnLimits(max_depth=0), "max_depth=0"),
        (TurnLimits(max_children=0), "max_children=0"),
        (TurnLimits(max_cost_usd="0.0003"), "budget of 0.0003 USD per turn"),
    ],
)
async def test_each_limit_refuses_a_child(limits: TurnLimits, told: str) -> None:
    """The child's call is not sent."""
    async with running(asks("a"), Say("Done."), a=[Say("x")]) as (engine, _):
        work = runs("a", lambda: engine.generate("a:m", "Go.", max_output_tokens=1000))
        session = engine.session("s:m", tools=[work])
        reply = await session.send("Go.", limits=limits, max_output_tokens=5)
        (result,) = results_of(session)
    assert reply.text == "Done."
    assert told in result.text


async def test_a_budget_per_root_counts_a_tree_until_its_end() -> None:
    """The next turn has the whole budget. No budget keeps an account of an ended turn."""
    budgets = [Budget(max_tokens=300, per="root"), Budget(max_tokens=200, per="turn")]
    replies = [asks("a"), Say("Done.")]
    async with running(*replies, *replies, budgets=budgets, a=[Say("x")] * 4) as (engine, _):
        work = runs("a", lambda: engine.generate("a:m", "Go.", max_output_tokens=50))
        for _ in range(2):
            await engine.session("s:m", tools=[work]).send("Go.", max_output_tokens=50)
        await engine.generate("a:m", "Go.", max_output_tokens=50)
        with pytest.raises(BudgetExceededError, match="per root"):
            await engine.generate("a:m", "Go.", max_output_tokens=500)
        assert engine._runtime.budgets.states() == []


async def test_a_child_has_the_remaining_time_of_its_parent() -> None:
    async with running(asks("a"), Say("never"), a=[Say("x", pause=lambda: anyio.sleep(60))]) as (engine, _):
        ended: list[float] = []

        async def work() -> str:
            try:
                return (await engine.generate("a:m", "Go.")).text
            finally:
                ended.append(anyio.current_time())

        began = anyio.current_time()
        with pytest.raises(Exception, match="longer than 5 s"):
            await engine.session("s:m", tools=[runs("a", work)]).send("Go.", limits=TurnLimits(timeout_seconds=5))
        assert ended[0] - began == pytest.approx(5, abs=0.1)


# -- Ends.


async def test_cancelling_a_turn_cancels_and_bills_its_children(tmp_path: Path) -> None:
    """A child is cancelled even if its tool does not wait for it. The children end before the parent."""
    slow = Say("some", pause=lambda: anyio.sleep(60))
    async with running(asks("a"), Say("never"), a=[slow, slow], store=tmp_path / "t.db") as (engine, events):
        kept: list[asyncio.Task[object]] = []

        async def work() -> object:
            kept.append(asyncio.create_task(engine.generate("a:m", "Go.")))
            return await engine.generate("a:m", "Go.")

        session = engine.session("s:m", tools=[runs("a", work)])
        sending = asyncio.create_task(session.send("Go."))
        await anyio.sleep(1)
        await session.cancel()
        with pytest.raises(CancelledError):
            await sending
        await asyncio.gather(*kept, return_exceptions=True)
        await engine.flush()
        rows = await engine.store.calls(CallFilter(provider="a"), 10)
        ends = [each.turn_id for each in events.take() if each.topic == "session.turn_completed"]
    assert [row.status for row in rows] == ["cancelled", "cancelled"]
    assert all(row.cost is not None and row.cost.nano_usd for row in rows)
    assert ends[-1] == rows[0].root_turn_id


async def test_the_time_limit_of_a_tool_ends_its_children() -> None:
    """The child is cancelled, and the turn continues."""
    slow = Say("some", pause=lambda: anyio.sleep(600))
    async with running(asks("a"), Say("Done."), a=[slow]) as (engine, events):
        work = runs("a", lambda: engine.generate("a:m", "Go."), timeout=2)
        reply = await engine.session("s:m", tools=[work]).send("Go.")
        ends = [each.data for each in events.take() if each.topic == "session.turn_completed"]
    assert reply.text == "Done."
    assert [getattr(end, "status", "") for end in ends] == ["cancelled", "completed"]


async def test_a_call_of_a_tool_after_the_end_of_its_turn_is_a_root() -> None:
    async with running(asks("a"), Say("Done."), Say("x"), Say("x"), a=[Say("late")]) as (engine, _):
        late: list[asyncio.Task[str]] = []

        async def later() -> str:
            await anyio.sleep(10)
            return (await engine.generate("a:m", "Go.")).text

        async def work() -> str:
            late.append(asyncio.create_task(later()))
            return "."

        reply = await engine.session("s:m", tools=[runs("a", work)]).send("Go.")
        assert await late[0] == "late"
    assert reply.tree_cost.calls == 2


# -- Agents.


async def test_an_agent_tool_runs_its_own_session(tmp_path: Path) -> None:
    trace = tmp_path / "t.db"
    researcher = agent_tool("researcher", model="a:m", system_prompt="You research.")
    async with running(
        Say(calls=[("researcher", {"task": "Find it."})]),
        Say("Done."),
        a=[Say("Found.")],
        store=trace,
        prices=PRICES,
    ) as (engine, _):
        session = engine.session("s:m", tools=[researcher], tags={"tenant": "red"})
        await session.send("Go.")
        row = (await rows_of(engine))["a"]
        results = [each.text for each in results_of(session)]
    assert results == ["Found."]
    assert row.session_id not in (None, session.id)
    assert row.tags["tenant"] == "red"
    assert row.parent_turn_id is not None


async def test_a_killed_agent_continues_its_session(tmp_path: Path) -> None:
    """The agent's session has the key of the tool call. A tool that ran before the kill does not run again."""
    died = ended(Path(__file__).with_name("dying_agent.py").read_text(), tmp_path)
    assert died.returncode == 9, died.stderr
    ran: list[str] = []
    agent = agent_tool("agent", model="a:m", tools=[runs("act", lambda: ran.append("again"))])  # type: ignore[arg-type,func-returns-value]
    async with keeping(tmp_path / "t.db", models=registry(Say("Done."), a=[Say("Nothing known.")])) as engine:
        session = await engine.resume("lead", tools=[agent])
        (call,) = session.pending_calls
        reply = await session.approve(call)
        answers = [each.text for each in results_of(session)]
        sessions = await engine.sessions()
        assert len(sessions) == 2
        await engine.delete_session("lead")
        assert await engine.sessions() == []
    assert (reply.text, answers, ran) == ("Done.", ["Nothing known."], [])


async def test_one_stream_has_the_text_of_the_whole_tree() -> None:
    """Each piece has its depth. A reader can still read only the turn's own text."""
    agent = agent_tool("agent", model="a:m")
    calls = Say("Wait. ", calls=[("agent", {"task": "Do it."})])
    async with running(calls, Say("Done."), a=[Say("By ", "me.")]) as (engine, _):
        async with engine.session("s:m", tools=[agent]).stream("Go.") as turn:
            pieces = [(piece.depth, piece.text) async for piece in turn.text_stream(tree=True)]
            own = [text async for text in turn.text_stream]
    assert "".join(text for depth, text in pieces if depth == 0) == "".join(own) == "Wait. Done."
    assert "".join(text for depth, text in pieces if depth == 1) == "By me."


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_the_text_of_a_tree_has_the_children_of_another_engine_and_event_loop() -> None:
    """A tool in a thread uses the sync functions. Its child has a child on that loop."""
    below = runs("b", lambda: other.session("b:m").send("Go."))
    script = {"a": [Say("By ", calls=[("b", {})]), Say("me.")], "b": [Say("And me.")]}
    other = Engine(models=registry(**script), trace=False, prices=PRICES)

    @tool
    def look() -> str:
        """Look."""
        with stream_sync("a:m", "Look.", engine=other, tools=[below]) as stream:
            return stream.result().text

    async with running(asks("look"), Say("Done.")) as (engine, _):
        async with engine.session("s:m", tools=[look]).stream("Go.") as turn:
            pieces = [(piece.depth, piece.text) async for piece in turn.text_stream(tree=True)]
    assert "".join(text for depth, text in pieces if depth == 0) == "Done."
    assert "".join(text for depth, text in pieces if depth == 1) == "By me."
    assert "".join(text for depth, text in pieces if depth == 2) == "And me."
    await anyio.to_thread.run_sync(lambda: run_sync(other.aclose()))


def test_the_sync_stream_has_the_text_of_the_tree() -> None:
    agent = agent_tool("agent", model="a:m")
    calls = Say("Wait. ", calls=[("agent", {"task": "Do it."})])
    with Engine(models=registry(calls, Say("Done."), a=[Say("By ", "me.")]), trace=False) as engine:
        with stream_sync("s:m", "Go.", engine=engine, tools=[agent]) as stream:
            pieces = list(stream.text_stream(tree=True))
            own = list(stream.text_stream)
    assert "".join(piece.text for piece in pieces if piece.depth == 0) == "".join(own) == "Wait. Done."
    assert "".join(piece.text for piece in pieces if piece.depth == 1) == "By me."


async def test_an_embedding_in_a_tool_is_a_child(tmp_path: Path) -> None:
    """The embedding has no turn of its own. The tree and the limits of the turn above include the embedding."""
    config = AdapterConfig(options={"replies": ["none"]})
    vectors = "callboard.adapters.providers.scripted:ScriptedAdapter"
    models = serving(s=scripted_type(asks("look", "look"), Say("Done.")), e=entry("e", vectors, config))
    async with Engine(models=models, store=tmp_path / "t.db", prices=PRICES) as engine:

        async def embed() -> int:
            return len((await engine.embed("a cello", model="e:m")).vectors)

        session = engine.session("s:m", tools=[runs("look", embed)])
        reply = await session.send("Go.", limits=TurnLimits(max_calls=3))
        rows = await rows_of(engine)
    assert rows["e"].operation == "embeddings"
    assert (rows["e"].parent_turn_id, rows["e"].turn_id) == (rows["s"].turn_id, None)
    assert reply.tree_cost.calls == 3
    assert [result.is_error for result in results_of(session)] == [False, True]


def test_the_sums_of_many_descendants_equal_single_additions() -> None:
    """Every turn above the descendants adds their costs in batches."""
    usages = [
        TokenUsage(1, 2, 3, 4, 5),
        TokenUsage(1, 2, reasoning_tokens=1, details={"web_search": 1}),
        TokenUsage(1, 2, source=UsageSource.ESTIMATED, upstream_cost_nano_usd=7),
        None,
    ]
    parts = [CostSum(number, 1, number % 2, number % 3, number % 5) for number in range(200)]
    root = TreeNode("trn_1")
    below = TreeNode("trn_2", Caller(root))
    for part, usage in zip(parts, itertools.cycle(usages)):
        below.count(part, usage)
    known = [each for _, each in zip(parts, itertools.cycle(usages)) if each is not None]
    for node in (root, below):
        assert node.below == functools.reduce(operator.add, parts)
        assert node.below_usage == functools.reduce(operator.add, known, TokenUsage())


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_child_on_the_loop_of_the_sync_functions_counts_and_ends_with_its_parent() -> None:
    """A tool in a thread uses another engine there. Cancelling the parent cancels the child on its own loop."""
    started = threading.Event()

    async def hang() -> None:
        started.set()
        await anyio.sleep(60)

    other = Engine(models=registry(a=[Say("one"), Say("part", pause=hang)]), trace=False, prices=PRICES)

    @tool
    def look() -> str:
        """Look."""
        return generate_sync("a:m", "Look.", engine=other).text

    async with running(asks("look"), Say("Done."), asks("look")) as (engine, _):
        session = engine.session("s:m", tools=[look])
        reply = await session.send("Go.")
        assert reply.tree_cost == CostSum(3 * A_CALL, 3)
        async with session.stream("Again.") as turn:
            await anyio.to_thread.run_sync(started.wait)
            await session.cancel()
            with pytest.raises(CancelledError):
                await turn.message()
        assert (turn.tree_cost.calls, turn.tree_cost.estimated) == (2, 1)
    await anyio.to_thread.run_sync(lambda: run_sync(other.aclose()))
