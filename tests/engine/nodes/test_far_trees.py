"""A tool on another node: the tree, costs, budgets, limits and the end of a turn span both nodes."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import anyio
import pytest

from callboard.adapters import ToolResultBlock
from callboard.bus import CancelledError
from callboard.engine import (
    Budget,
    BudgetExceededError,
    Cluster,
    Engine,
    Tool,
    TurnLimits,
    attach_trace_context,
    tool,
    trace_context,
)
from callboard.tracestore import PriceTable
from callboard.tracestore.prices.rows import PriceRow

from ...support.cluster_engines import node_of
from ...support.engines import registry
from ...support.nats_server import NatsServer
from ...support.scripted import Say

pytestmark = pytest.mark.anyio
PRICES = PriceTable([PriceRow(model=f"{name}:m", input=1_000_000, output=1_000_000) for name in "sa"], "test")
A_CALL = 15_000
"""The cost of a scripted call of 15 tokens, in nano-USD."""

Work = Callable[[Engine], Awaitable[Any]]


@asynccontextmanager
async def nodes(
    server: NatsServer, home: list[Say], far: list[Say], **options: Any
) -> AsyncIterator[list[Engine]]:
    """Two nodes of a cluster that are connected. The first has the model `s:m`, the second `a:m`."""
    cluster = Cluster(nats=server.url)
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                Engine(models=models, trace=False, cluster=cluster, prices=PRICES, **options)
            )
            for models in (registry(*home), registry(Say("."), a=far))
        ]
        for engine in engines:
            node = node_of(engine)
            assert node is not None
            assert node.broker is not None
            assert node.trees is not None
            with anyio.fail_after(10):
                while not node.broker.connected_seconds:  # noqa: ASYNC110 (it may be connected already)
                    await anyio.sleep(0.005)
        yield engines


def elsewhere(other: Engine, work: Work, begun: Callable[[asyncio.Task[str]], object] | None = None) -> Tool:
    """A tool that runs its work on another node. The request carries the tool's trace context."""

    @tool
    async def look() -> str:
        """Run the work."""
        carried = trace_context()

        async def there() -> str:
            with attach_trace_context(carried):
                try:
                    return str(await work(other))
                except (BudgetExceededError, CancelledError) as error:
                    return type(error).__name__

        # The task inherits nothing from its caller, as at a server. It is not cancelled with its caller either.
        task = asyncio.get_running_loop().create_task(there(), context=contextvars.Context())
        if begun is not None:
            begun(task)
        return await asyncio.shield(task)

    return look


def ask(**options: Any) -> Work:
    """The work of one call."""

    async def work(engine: Engine) -> str:
        return (await engine.generate("a:m", "Look.", max_output_tokens=5, **options)).text

    return work


ASKS = Say(calls=[("look", {})])


async def test_costs_of_children_on_another_node_are_in_the_tree(server: NatsServer) -> None:
    """At its end, the turn has the costs of its children and of deeper calls. Its stream lists its children."""

    async def deep(engine: Engine) -> str:
        @tool
        async def dig() -> str:
            """Dig."""
            return (await engine.generate("a:m", "Dig.")).text

        session = engine.session("a:m", tools=[dig])
        return (await session.send("Look.")).text

    far = [Say(calls=[("dig", {})]), Say("deep"), Say("found")]
    async with nodes(server, [ASKS, Say(".")], far) as (home, other):
        stream = home.session("s:m", tools=[elsewhere(other, deep)]).stream("Go.")
        reply = await stream.message()
    assert reply.tree_cost.calls == 5
    assert reply.tree_cost.nano_usd == 5 * A_CALL
    assert reply.tree_usage.total_tokens == 75
    assert [child.model for child in stream.children] == ["a:m"]


async def test_the_text_of_a_tree_has_the_text_of_children_on_another_node(server: NatsServer) -> None:
    delivered = anyio.Event()

    async def deep(engine: Engine) -> str:
        @tool
        async def dig() -> str:
            """Dig."""
            return (await engine.stream("a:m", "Dig.").message()).text

        return (await engine.session("a:m", tools=[dig]).stream("Look.").message()).text

    far = [Say("let me ", calls=[("dig", {})]), Say("deep"), Say("found ", "it", pause=delivered.wait)]
    async with nodes(server, [ASKS, Say("Done.")], far) as (home, other):
        turn = home.session("s:m", tools=[elsewhere(other, deep)]).stream("Go.")
        pieces: list[tuple[int, str]] = []
        with anyio.fail_after(20):
            async for piece in turn.text_stream(tree=True):
                pieces.append((piece.depth, piece.text))
                if piece.text == "let me ":
                    delivered.set()
    texts = {depth: "".join(text for at, text in pieces if at == depth) for depth, _ in pieces}
    assert texts == {0: "Done.", 1: "let me found it", 2: "deep"}


async def test_a_turn_that_is_cancelled_cancels_its_children_on_another_node(server: NatsServer) -> None:
    """The call on the other node ends as cancelled, and further calls there are refused."""
    started, after = anyio.Event(), list[str]()
    far_tasks: list[asyncio.Task[str]] = []

    async def work(engine: Engine) -> str:
        try:
            await ask()(engine)
        except CancelledError:
            try:
                await engine.generate("a:m", "Again.")
            except CancelledError as error:
                after.append(str(error))
            raise
        return "never"

    async def pause() -> None:
        started.set()
        await anyio.sleep(30)

    slow = Say("one", "two", pause=pause)
    async with nodes(server, [ASKS, Say(".")], [slow, Say("again")]) as (home, other):
        session = home.session("s:m", tools=[elsewhere(other, work, far_tasks.append)])
        stream = session.stream("Go.")

        async def run() -> None:
            with contextlib.suppress(CancelledError):
                await stream.message()

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            with anyio.fail_after(10):
                await started.wait()
                await stream.cancel()
        with anyio.fail_after(10):
            await asyncio.wait(far_tasks)
    assert len(after) == 1
    assert "has ended" in after[0]


@pytest.mark.parametrize("by_budget", [False, True], ids=["limits of the turn", "a budget per root"])
async def test_money_of_a_tree_is_spent_once_over_all_nodes(server: NatsServer, by_budget: bool) -> None:
    most = Decimal(24 * A_CALL).scaleb(-9)
    answers: list[str] = []

    async def many(engine: Engine) -> str:
        async def one() -> None:
            try:
                answers.append(await ask()(engine))
            except BudgetExceededError:
                answers.append("refused")

        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(one)
        return "."

    budgets = [Budget(max_cost_usd=most, per="root")] if by_budget else []
    limits = None if by_budget else TurnLimits(max_cost_usd=most)
    far = [Say("found", pause=lambda: anyio.sleep(0.01)) for _ in range(30)]
    async with nodes(server, [ASKS, Say(".")], far, budgets=budgets) as (home, other):
        session = home.session("s:m", tools=[elsewhere(other, many)])
        reply = await session.send("Go.", limits=limits, max_output_tokens=5)
    made = answers.count("found")
    assert 0 < made < 30
    assert answers.count("refused") == 30 - made
    assert reply.tree_cost.nano_usd == (2 + made) * A_CALL
    assert reply.tree_cost.nano_usd <= 24 * A_CALL


async def test_without_a_broker_no_money_is_granted(server: NatsServer) -> None:
    """A call on the other node under a limit on cost is refused, and the turn continues."""

    async def work(engine: Engine) -> str:
        await anyio.to_thread.run_sync(server.stop)
        return str(await ask()(engine))

    async with nodes(server, [ASKS, Say("Done.")], [Say("found")]) as (home, other):
        session = home.session("s:m", tools=[elsewhere(other, work)])
        reply = await session.send("Go.", limits=TurnLimits(max_cost_usd=1), max_output_tokens=5)
        (result,) = [
            block.text
            for message in session.messages
            for block in message.content
            if isinstance(block, ToolResultBlock)
        ]
    assert reply.text == "Done."
    assert result == "BudgetExceededError"
