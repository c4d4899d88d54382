"""Random trees of turns against a plain model, on both stores.

A plan sets for each turn the turns that its tools start, and its end. The model is computed from the plan alone.
The trace and the replies must agree with the model, also after a repricing and in the files of a killed process.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import anyio
import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard import AbortController, Budget, CallFilter, Engine, PriceTable, TraceStore, TurnLimits, tool
from callboard.adapters import AdapterConfig, CanonicalRequest, Role
from callboard.adapters.providers.scripted import ScriptedAdapter, ScriptedCall, ScriptedFailure, ScriptedReply
from callboard.bus import CallboardError, Envelope, Lossless, SessionTurnCompleted
from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.values.usage import CostSum, TokenUsage
from callboard.engine import Tool
from callboard.engine.tree import GRACE_SECONDS
from callboard.tracestore import CallRow, PostgresStore, Store
from callboard.tracestore.call_columns import TurnTree, trees
from callboard.tracestore.prices.rows import PriceRow
from tests.support.engines import entry, serving
from tests.support.postgres_server import PostgresServer
from tests.support.scripted import CAPABILITIES, adapter_type
from tests.support.virtual_time import run_virtual

ONCE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=1_000_000)], "once")
DOUBLE = PriceTable([PriceRow(model="s:m", input=2_000_000, output=2_000_000)], "double")
USAGE = TokenUsage(10, 5)
MOST_TOKENS = 50
MOST_OF_A_CALL = 1_000 * 1_000
"""An amount above the largest reservation of a call, in nano-USD."""

Fate = Literal["ok", "fails", "retries", "hangs", "left"]
"""``hangs``: the tool of the parent ends the turn after two seconds. ``left``: the tool of the parent does not
wait for the turn.
"""


class Plan(msgspec.Struct):
    """One turn: its name, its fate, and the turns that its tools start."""

    name: str
    fate: Fate
    below: list[Plan]

    def walk(self) -> Iterator[Plan]:
        yield self
        for child in self.below:
            yield from child.walk()


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A tree with at most 5 levels below the root, at most 6 children of each turn, and at most 40 turns."""
    left = [40]

    def node(name: str, level: int) -> Plan:
        left[0] -= 1
        most = min(6, max(left[0], 0)) if level < 5 else 0
        width = draw(st.integers(0, most)) if level else draw(st.integers(1, 6))
        fates: list[Fate] = ["ok", "ok", "ok", "fails", "retries", "hangs", "left"]
        fate = draw(st.sampled_from(fates)) if level else "ok"
        if fate in ("fails", "hangs", "left"):
            width = min(width, 1)
        return Plan(name, fate, [node(f"{name}.{place}", level + 1) for place in range(width) if left[0] > 0])

    return node("0", 0)


class Scripted(ScriptedAdapter):
    """Calls the tool for each child of the plan, and then ends."""

    plan: dict[str, Plan]
    second: float

    def __init__(self, config: AdapterConfig, *, name: str = "s", clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config, name=name, clock=clock, replies=self.answer, capabilities=CAPABILITIES)
        self._tried: Counter[str] = Counter()

    def answer(self, request: CanonicalRequest) -> ScriptedReply:
        node = self.plan[request.messages[0].text]
        asked = any(message.role is Role.TOOL for message in request.messages)
        self._tried[node.name] += 1
        if node.fate == "retries" and self._tried[node.name] == 1:
            return ScriptedReply(fails=ScriptedFailure(kind="server"))
        if node.below and not asked:
            calls = tuple(ScriptedCall("go", {"node": child.name}) for child in node.below)
            return ScriptedReply(calls=calls, usage=USAGE)
        if node.fate == "fails":
            return ScriptedReply(fails=ScriptedFailure(kind="invalid_request"))
        if node.fate in ("hangs", "left"):
            return ScriptedReply(text=("part", "never"), usage=USAGE, pause=lambda: anyio.sleep(100 * self.second))
        return ScriptedReply(text="done", usage=USAGE)


class Story:
    """One run of a plan, and the results of the run."""

    def __init__(
        self,
        plan: Plan,
        limits: TurnLimits | None,
        die_after: float = 0,
        second: float = 1.0,
        cancel_after: float | None = None,
    ) -> None:
        self.plan = plan
        self.second = second
        """The length of a second of the plan. A loop in real time shortens it."""
        self.limits = limits
        self.die_after = die_after
        self.cancel_after = cancel_after
        """The time at which the root is cancelled, or None for never."""
        self.abort = AbortController()
        self.nodes = {node.name: node for node in plan.walk()}
        self.whole: dict[str, CostSum] = {}
        """The sum of the tree of each turn that completed."""
        self.events: list[Envelope] = []
        self.left: list[asyncio.Task[None]] = []

    def engine(self, store: Store) -> Engine:
        kind = adapter_type(type("Planned", (Scripted,), {"plan": self.nodes, "second": self.second}))
        config = AdapterConfig(max_retries=1)
        budget = Budget(max_tokens=100_000, per="root")
        return Engine(models=serving(s=entry("s", kind, config)), store=store, prices=ONCE, budgets=[budget])  # type: ignore[arg-type]

    async def run(self, engine: Engine, killed: Path | None, folder: Path) -> None:
        events = engine.bus.subscribe(">", policy=Lossless(), name="story")
        async with engine:
            copying = asyncio.ensure_future(self._copy(engine, folder, killed))
            cancelling = asyncio.ensure_future(self._cancel())
            with suppress(CallboardError):
                await self._turn(engine, self.plan)
            cancelling.cancel()
            await asyncio.gather(copying, *self.left, return_exceptions=True)
        self.events = events.take()

    async def _copy(self, engine: Engine, folder: Path, killed: Path | None) -> None:
        """Copy the files as a kill at that moment would leave them."""
        await anyio.sleep(self.die_after)
        if killed is not None:
            shutil.copytree(folder, killed)

    async def _cancel(self) -> None:
        if self.cancel_after is not None:
            await anyio.sleep(self.cancel_after * self.second)
            self.abort.abort()

    async def _turn(self, engine: Engine, node: Plan) -> str:
        result = await engine.generate(
            "s:m",
            node.name,
            tools=[self._tool(engine)],
            tags={"node": node.name},
            max_output_tokens=MOST_TOKENS,
            limits=self.limits if node is self.plan else None,
            signal=self.abort.signal if node is self.plan else None,
        )
        self.whole[node.name] = result.tree_cost
        return result.text

    def _tool(self, engine: Engine) -> Tool:
        @tool
        async def go(node: str) -> str:
            """Start a turn.

            Args:
                node: Its name.
            """
            plan = self.nodes[node]
            if plan.fate == "left":
                self.left.append(asyncio.ensure_future(self._let_go(engine, plan)))
                await anyio.sleep(0.1 * self.second)
                return "left alone"
            with anyio.move_on_after(2 * self.second if plan.fate == "hangs" else None):
                return await self._turn(engine, plan)
            return "took too long"

        return go

    async def _let_go(self, engine: Engine, plan: Plan) -> None:
        with suppress(CallboardError):
            await self._turn(engine, plan)


def parent_of(name: str) -> str:
    return name.rpartition(".")[0]


def check_rows(rows: list[CallRow]) -> TurnTree:
    """Check that every attempt has the parent, root and depth of its name, and that no row occurs twice."""
    assert len({(row.request_id, row.attempt) for row in rows}) == len(rows)
    turns = {row.tags["node"]: row.turn_id for row in rows}
    requests = {row.request_id: row.tags["node"] for row in rows}
    for row in rows:
        name = row.tags["node"]
        if name == "0":
            assert row.parent_turn_id is row.parent_call_id is row.root_turn_id is row.depth is None
            continue
        assert row.parent_turn_id == turns[parent_of(name)]
        assert requests[row.parent_call_id or ""] == parent_of(name)
        assert (row.root_turn_id, row.depth) == (turns["0"], name.count("."))
    (tree,) = trees(rows)
    assert sum((row.sum for row in rows), CostSum()) == tree.whole
    assert sum((node.own for node in tree.walk()), CostSum()) == tree.whole
    return tree


async def check_store(store: Store, story: Story) -> None:
    rows = await store.calls(CallFilter(), None)
    if not rows:
        assert story.cancel_after is not None  # The cancellation came before the first call.
        return
    tree = check_rows(rows)
    names = {node.id: node.calls[0].tags["node"] for node in tree.walk()}
    for node in tree.walk():
        if (said := story.whole.get(names[node.id])) is not None:
            assert said == node.whole
    (sum_of_root,) = await store.costs(CallFilter(), ("root",))
    (total,) = await store.costs(CallFilter(), ())
    assert (sum_of_root.calls, sum_of_root.cost_nano_usd) == (len(rows), tree.whole.nano_usd)
    assert (total.calls, total.cost_nano_usd) == (len(rows), tree.whole.nano_usd)
    if (limits := story.limits) is not None:
        calls = {row.request_id for row in rows}
        assert limits.max_calls is None or len(calls) <= limits.max_calls
        assert limits.max_depth is None or max(row.depth or 0 for row in rows) <= limits.max_depth
        children = Counter(row.parent_turn_id for row in {row.turn_id: row for row in rows}.values())
        del children[None]
        assert limits.max_children is None or max(children.values(), default=0) <= limits.max_children
        if limits.max_cost_usd is not None:
            assert tree.whole.nano_usd <= float(limits.max_cost_usd) * 1e9 + MOST_OF_A_CALL
    elif story.cancel_after is None:
        must = {node.name for node in story.plan.walk() if reached(story, node.name)}
        assert must <= set(names.values())
    await store.reprice(DOUBLE)
    again = check_rows(await store.calls(CallFilter(), None))
    assert again.whole.nano_usd == 2 * tree.whole.nano_usd


def reached(story: Story, name: str) -> bool:
    """Whether the turn certainly starts: every turn above it runs its tools."""
    above = list(itertools.accumulate(name.split("."), lambda left, right: f"{left}.{right}"))[:-1]
    return all(story.nodes[each].fate in ("ok", "retries") for each in above) and "left" not in [
        sibling.fate for each in above for sibling in story.nodes[each].below
    ]


def check_ends(story: Story, rows: list[CallRow]) -> None:
    """Check that a turn ends within its grace time after the turn above it."""
    ended = {each.turn_id: each.mono_ns for each in story.events if isinstance(each.data, SessionTurnCompleted)}
    for row in rows:
        if row.parent_turn_id is not None:
            assert ended[row.turn_id] <= ended[row.parent_turn_id] + GRACE_SECONDS * 1e9


LIMITS = st.one_of(
    st.none(),
    st.builds(
        TurnLimits,
        max_calls=st.none() | st.integers(1, 20),
        max_depth=st.none() | st.integers(0, 4),
        max_children=st.none() | st.integers(0, 5),
        max_cost_usd=st.none() | st.sampled_from(["0.0002", "0.001", "0.01"]),
        timeout_seconds=st.none() | st.sampled_from([1.0, 3.0, 30.0]),
    ),
)


CANCELS = st.none() | st.floats(0, 4)
"""The seconds after which the root is cancelled."""


async def play(story: Story, store: Store, again: Store, folder: Path, killed: Path | None) -> None:
    await story.run(story.engine(store), killed, folder)
    async with again:
        check_ends(story, await again.calls(CallFilter(), None))
        await check_store(again, story)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans(), limits=LIMITS, die_after=st.floats(0, 4), cancel_after=CANCELS)
def test_a_tree_in_a_trace_file_agrees_with_the_model(
    plan: Plan, limits: TurnLimits | None, die_after: float, cancel_after: float | None
) -> None:
    """The two agree for every fate, with limits and cancellations, and after a kill."""
    story = Story(plan, limits, die_after, cancel_after=cancel_after)
    with tempfile.TemporaryDirectory() as place:
        folder, killed = Path(place, "trace"), Path(place, "killed")
        folder.mkdir()

        async def scenario() -> None:
            path = folder / "trace.db"
            await play(story, TraceStore(path), TraceStore(path), folder, killed)
            async with Engine(models=serving(), store=killed / "trace.db") as engine:
                await engine.flush()
                if rows := await engine.store.calls(CallFilter(), None):
                    check_rows(rows)

        run_virtual(scenario)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(plan=plans(), limits=LIMITS, cancel_after=CANCELS)
def test_a_tree_in_postgresql_agrees_with_the_model(
    postgres_server: PostgresServer,
    tmp_path: Path,
    plan: Plan,
    limits: TurnLimits | None,
    cancel_after: float | None,
) -> None:
    story = Story(plan, limits, second=0.02, cancel_after=cancel_after)
    with postgres_server.clean_database() as dsn:

        async def scenario() -> None:
            first, again = (PostgresStore(dsn, path=tmp_path / name) for name in ("first", "again"))
            await play(story, first, again, tmp_path, None)

        asyncio.run(scenario())
