"""Random histories of repricings, compared with a plain model that stores the cost of each call in a dict.

The model has no sums, layers or versions. For each repricing it stores the cost of each call. The cost of a call
comes from its last repricing that was not undone. After each step, the file must have the same costs.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus import Cost, CostSource, StoreError, SystemClock, TokenUsage
from callboard.bus.clock import iso_day
from callboard.tracestore import (
    CallFilter,
    CallRow,
    CostRow,
    PriceRow,
    PriceTable,
    RepriceReport,
    RepriceRun,
    Store,
    TraceStore,
)
from callboard.tracestore.postgres.store import PostgresStore
from callboard.tracestore.rows import SpendingQuery
from callboard.tracestore.sql import repricing
from callboard.tracestore.sql.store import SqlStore
from callboard.tracestore.sql.sums import sum_up
from tests.support.depth import first_is_quick
from tests.support.postgres_server import PostgresServer

from .trace_making import DAY_US, T0, Maker

MODELS = ("openai:gpt-5", "openai:gpt-4o", "other:thing")
TABLES = (
    PriceTable([PriceRow(model="*:*", input=1_000_000, output=2_000_000)], "all"),
    PriceTable([PriceRow(model="openai:*", input=3_000_000, output=5_000_000)], "of one provider"),
    PriceTable([PriceRow(model="openai:gpt-5", input=7_000_000, output=11_000_000)], "of one model"),
)
CHUNK = 2
WHERE = (CallFilter(), CallFilter(provider="openai"), CallFilter(unpriced=True), CallFilter(tags={"team": "a"}))
SPENT_BY = (None, "session_id", "model", "tag:team")
GROUPINGS = ((), ("model",), ("provider",), ("day",), ("model", "day"), ("session_id",))


class Ticking(SystemClock):
    """A clock that only advances on request."""

    def __init__(self) -> None:
        self._now_us = T0

    def now_us(self) -> int:
        return self._now_us

    def advance(self) -> None:
        self._now_us += 1_000_000


Opener: TypeAlias = Callable[[Ticking], SqlStore]
"""Creates new stores with a clock."""


@pytest.fixture
def server_of(postgres_server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """New stores on a server, each with its own database."""
    made = ExitStack()

    def opener(clock: Ticking) -> SqlStore:
        made.close()  # the story before has ended
        dsn = made.enter_context(postgres_server.clean_database(postgres_server.template("stories", _migrate)))
        return PostgresStore(dsn, path=tmp_path_factory.mktemp("model") / "trace", clock=clock)

    with made:
        yield opener


def _migrate(dsn: str) -> None:
    async def opened() -> None:
        async with PostgresStore(dsn):
            pass

    anyio.run(opened)


class Call(msgspec.Struct):
    """A call in the model."""

    name: str
    model: str
    began_us: int
    usage: TokenUsage
    at_call: int | None
    """The cost at call time. None if the call was unpriced."""
    ended: bool = False
    """Whether the call has its usage."""

    @property
    def session(self) -> str:
        return f"s{len(self.name) % 2}"


class Act(msgspec.Struct):
    """A repricing."""

    table: PriceTable
    where: CallFilter
    gave: dict[str, int | None]
    """The cost of each call in this repricing."""
    lies_on: list[Act]
    """The repricings that were current before this one."""
    finished_us: int | None = None
    stands: bool = True

    @property
    def of_all(self) -> bool:
        return self.where == CallFilter()

    def covers(self, call: Call) -> bool:
        return (self.where.model is None or call.model == self.where.model) and (
            self.where.session_id is None or call.session == self.where.session_id
        )

    def price(self, call: Call) -> int | None:
        return self.table.price(call.model, call.usage, call.began_us).nano_usd


class Model:
    """The cost of every call, in the simplest form."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.acts: list[Act] = []  # in the order of their ends
        self.current: list[Act] = []

    def cost(self, call: Call) -> int | None:
        return self._cost_under(self.current, call)

    @staticmethod
    def _cost_under(acts: list[Act], call: Call) -> int | None:
        return next((act.gave[call.name] for act in acts if call.name in act.gave), call.at_call)

    def compare(self, table: PriceTable, where: CallFilter) -> dict[str, list[int]]:
        """The figures of a repricing's report, by model and in total."""
        act = Act(table, where, {}, [])
        told: dict[str, list[int]] = defaultdict(lambda: [0] * 9)
        for call in self.calls.values():
            if call.ended and act.covers(call):
                for name in ("", call.model):
                    for place, more in enumerate(parts_of(self.cost(call), act.price(call))):
                        told[name][place] += more
        return dict(told)

    def finish(self, act: Act, now_us: int) -> None:
        act.gave = {call.name: act.price(call) for call in self.calls.values() if call.ended and act.covers(call)}
        act.finished_us, act.lies_on = now_us, self.current
        self.acts.append(act)
        self.current = [act] if act.of_all else [act, *self.current]

    def undo(self) -> bool:
        act = next((act for act in reversed(self.acts) if act.stands), None)
        if act is None or self.current != ([act] if act.of_all else [act, *act.lies_on]):
            return False
        act.stands, self.current = False, act.lies_on
        return True

    def use(self, table: PriceTable | None) -> bool:
        """Select the finished repricings with this table, the latest first, up to the last one of all calls."""
        acts: list[Act] = []
        for act in reversed(self.acts):
            if act.table == table and not (acts and acts[-1].of_all):
                acts.append(act)
        if table is not None and not acts:
            return False
        self.current = acts
        return True

    def end(self, call: Call) -> None:
        call.ended = True
        for act in self.acts:
            if act.stands and act.finished_us is not None and call.began_us < act.finished_us and act.covers(call):
                act.gave[call.name] = act.price(call)


def parts_of(before: int | None, after: int | None) -> tuple[int, ...]:
    """The numbers that one call adds to a report."""
    if before is not None and after is not None:
        return (1, 0, 0, before, after, 0, 0, 0, 0)
    one_sided = (int(after is not None), after or 0, int(before is not None), before or 0)
    return (1, int(after is None), int(before is None), 0, 0, *one_sided)


def stop(_done: int, _last: int) -> None:
    raise InterruptedError


NAMES = (
    *("calls", "unpriced", "unpriced_before", "before_nano_usd", "after_nano_usd"),
    *("newly_priced", "newly_priced_nano_usd", "no_longer_priced", "no_longer_priced_nano_usd"),
)


def told_by(report: RepriceReport) -> dict[str, list[int]]:
    told = {of.model: [getattr(of, name) for name in NAMES] for of in report.models}
    return {"": [getattr(report.total, name) for name in NAMES], **told} if told else {}


class Story:
    """One trace and its model, with the steps that change both."""

    def __init__(self, store: SqlStore, clock: Ticking) -> None:
        self.store, self.clock, self.model = store, clock, Model()
        self._make = Maker()
        self._begun: list[Act] = []

    async def begin(self, kind: int, at_call: int | None) -> Call:
        """Start a call now."""
        self.clock.advance()
        usage = TokenUsage(100 + kind, 10)
        call = Call("c" * (len(self.model.calls) + 1), MODELS[kind % 3], self.clock.now_us(), usage, at_call)
        self.model.calls[call.name] = call
        ids = {"ts_us": call.began_us, "session_id": call.session}
        await self.store.write([self._make.started(call.name, call.model, **ids)])
        return call

    async def end(self, call: Call) -> None:
        """End the call, some time after its start."""
        source = CostSource.UNPRICED if call.at_call is None else CostSource.COMPUTED
        self.clock.advance()
        ended = self._make.completed(
            *(call.name, call.model),
            usage=call.usage,
            cost=Cost(call.at_call, source, "0123456789ab"),
            ts_us=call.began_us + 900_000,
            session_id=call.session,
        )
        await self.store.write([ended])
        self.model.end(call)

    async def end_some(self, number: int) -> None:
        running = [call for call in self.model.calls.values() if not call.ended]
        if running:
            await self.end(running[number % len(running)])

    async def reprice(self, table: PriceTable, where: CallFilter) -> None:
        self.clock.advance()
        tried = await self.store.reprice(table, where=where, dry_run=True)
        expected = self.model.compare(table, where)
        report = await self.store.reprice(table, where=where)
        assert told_by(tried) == told_by(report) == expected
        running = [call for call in self.model.calls.values() if not call.ended]
        act = Act(table, where, {}, [])
        assert report.in_flight == len([call for call in running if act.covers(call)])
        self.model.finish(act, self.clock.now_us())

    async def interrupt(self, table: PriceTable, where: CallFilter) -> None:
        """Stop a repricing after its first chunk. Without calls, it completes."""
        self.clock.advance()
        try:
            await self.store.reprice(table, where=where, progress=stop)
        except InterruptedError:
            self._begun.append(Act(table, where, {}, []))
        else:
            self.model.finish(Act(table, where, {}, []), self.clock.now_us())

    async def resume(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Resume the last interrupted repricing. Its report compares the costs at its end."""
        if not self._begun:
            with pytest.raises(StoreError):
                await self.store.resume_reprice()
            return
        act = self._begun[-1]
        self.clock.advance()
        expected = self.model.compare(act.table, act.where)
        with contextlib.suppress(InterruptedError):
            assert told_by(await self.store.resume_reprice(progress=progress)) == expected
            self.model.finish(self._begun.pop(), self.clock.now_us())

    async def resume_a_chunk(self) -> None:
        """Resume a repricing, and stop it after its next chunk."""
        await self.resume(stop)

    async def undo(self) -> None:
        if self.model.undo():
            await self.store.undo_reprice()
        else:
            with pytest.raises(StoreError):
                await self.store.undo_reprice()

    async def use(self, table: PriceTable | None) -> None:
        version = None if table is None else table.version
        if self.model.use(table):
            await self.store.use_prices(version)
        else:
            with pytest.raises(StoreError):
                await self.store.use_prices(version)

    async def prune(self) -> None:
        """Prune the file, and remove the deleted calls from the model. Another test checks which calls are
        deleted.
        """
        await self.store.prune(before=self.clock.now_us() - 20_000_000)
        left = {row.request_id for row in await self.store.calls()}
        for name in self.model.calls.keys() - left:
            del self.model.calls[name]
            for act in (*self.model.acts, *self._begun):
                act.gave.pop(name, None)

    async def sum_up(self) -> None:
        await self.store._database.write(sum_up)

    async def check(self) -> None:
        """Check every call's cost and every sum."""
        model = self.model
        found = {row.request_id: row.cost and row.cost.nano_usd for row in await self.store.calls() if row.usage}
        assert found == {call.name: model.cost(call) for call in model.calls.values() if call.ended}
        for by in GROUPINGS:
            assert {row.key: sums_of(row) for row in await self.store.costs(by=by)} == self._sums(by)

    def _sums(self, by: tuple[str, ...]) -> dict[tuple[str, ...], list[int]]:
        sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        for call in self.model.calls.values():
            day = iso_day(call.began_us // DAY_US)
            values = {"model": call.model, "provider": call.model.partition(":")[0], "day": day}
            cost = self.model.cost(call) if call.ended else None
            sums_here = sums[tuple((values | {"session_id": call.session})[name] for name in by)]
            more = (1, cost or 0, int(call.ended and cost is None), int(not call.ended))
            sums_here[:] = [old + new for old, new in zip(sums_here, more, strict=True)]
        return dict(sums) if sums or by else {(): [0, 0, 0, 0]}


def sums_of(row: CostRow) -> list[int]:
    return [row.calls, row.cost_nano_usd, row.unpriced, row.unknown]


tables = st.sampled_from(TABLES)
some = st.sampled_from(
    [CallFilter(model="openai:gpt-5"), CallFilter(model="other:thing"), CallFilter(session_id="s1")]
)
filters = st.one_of(st.just(CallFilter()), some)
kinds = st.integers(0, 5)
at_calls = st.none() | st.integers(0, 10**6)
acts = st.one_of(
    st.tuples(st.just("call"), kinds, at_calls),
    st.tuples(st.just("call"), kinds, at_calls),
    st.tuples(st.just("begin"), kinds, at_calls),
    st.tuples(st.just("end"), kinds),
    st.tuples(st.just("reprice"), tables, filters),
    st.tuples(st.just("reprice"), tables, filters),
    st.tuples(st.just("interrupt"), tables, filters),
    st.tuples(st.sampled_from(["resume", "go on", "undo", "undo", "prune", "sum up"])),
    st.tuples(st.just("use"), st.none() | tables),
)


async def do(story: Story, act: tuple[object, ...]) -> None:
    match act:
        case "call", int(kind), at_call:
            await story.end(await story.begin(kind, at_call))  # type: ignore[arg-type]
        case "begin", int(kind), at_call:
            await story.begin(kind, at_call)  # type: ignore[arg-type]
        case "end", int(number):
            await story.end_some(number)
        case "reprice", PriceTable() as table, CallFilter() as where:
            await story.reprice(table, where)
        case "interrupt", PriceTable() as table, CallFilter() as where:
            await story.interrupt(table, where)
        case "use", table:
            await story.use(table)  # type: ignore[arg-type]
        case ("sum up",):
            await story.sum_up()
        case ("go on",):
            await story.resume_a_chunk()
        case (str(name),):
            await getattr(story, name)()


def folder_of(factory: pytest.TempPathFactory) -> Opener:
    """New trace files."""
    return lambda clock: TraceStore(factory.mktemp("model") / "t.db", clock=clock)


async def told(opened: SqlStore, clock: Ticking, acts: list[tuple[object, ...]], *, ask: bool) -> object:
    """Return the results of a store after a story, if requested. The model is checked after each step."""
    async with opened as store:
        story = Story(store, clock)
        for act in acts:
            await do(story, act)
            await story.check()
        return await everything(store) if ask else None


def tell(opener: Opener, acts: list[tuple[object, ...]], *, ask: bool = True) -> object:
    """Run a story on a new store."""
    clock = Ticking()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repricing, "CHUNK", CHUNK)
        return anyio.run(partial(told, opener(clock), clock, acts, ask=ask))


def unnumbered(calls: list[CallRow]) -> list[CallRow]:
    """Calls without their numbers, which have gaps on a server."""
    return [msgspec.structs.replace(call, call_id=0) for call in calls]


def of_run(run: RepriceRun) -> RepriceRun:
    return msgspec.structs.replace(run, last_call=None, done=0)


async def everything(store: Store) -> dict[str, object]:
    """The results of a store's queries for calls, costs, repricings and events."""
    runs, current = await store.reprice_runs(), await store.current_prices()
    under = [run.version for run in runs if run.state == "finished"][:1]
    queries = [SpendingQuery(by=by, slot_us=5_000_000, since_us=T0, current=by is None) for by in SPENT_BY]
    return {
        "calls": unnumbered(await store.calls()),
        "pages": unnumbered(await store.calls_after(0, CallFilter(model="gpt-*"), 3)),
        "costs": [await store.costs(where, by) for where in WHERE for by in GROUPINGS],
        "under": [await store.costs(by=by, under=version) for version in under for by in GROUPINGS],
        "statistics": [await store.statistics(where, ("model", "tag:team")) for where in WHERE],
        "errors": await store.errors(),
        "sessions": await store.sessions(),
        "spending": await store.spending(queries, "run_test"),
        "runs": [of_run(run) for run in runs],
        "current": (current.runs, current.versions, current.run and of_run(current.run)),
        "events": [of for _, of in await store.numbered_events()],
        "tables": [table.version for table in await store.price_tables()],
    }


@given(story=st.lists(acts, min_size=4, max_size=18))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_cost_and_sum_is_that_of_the_model_after_every_act(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[object, ...]]
) -> None:
    """Repricings of all and of some calls are undone, chosen, interrupted and resumed, while calls are written and
    pruned.
    """
    tell(folder_of(tmp_path_factory), story, ask=False)


@pytest.mark.deep("both stores side by side; the contract has each repricing")
@given(story=st.lists(acts, min_size=4, max_size=12))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_and_a_server_give_the_results_of_the_model(
    tmp_path_factory: pytest.TempPathFactory, server_of: Opener, story: list[tuple[object, ...]]
) -> None:
    """The same story runs on both stores. After it, their results are the same."""
    assert tell(server_of, story) == tell(folder_of(tmp_path_factory), story)


ALL, GPT_5 = CallFilter(), CallFilter(model="openai:gpt-5")
CALLS = [("call", kind, 1000 + kind) for kind in range(4)]

STORIES = [
    [
        *CALLS,
        ("interrupt", TABLES[1], ALL),
        ("go on",),
        ("reprice", TABLES[0], GPT_5),
        *CALLS,
        ("resume",),
        ("undo",),
    ],
    [*CALLS, ("reprice", TABLES[0], ALL), ("reprice", TABLES[1], ALL), ("reprice", TABLES[0], GPT_5)],
    [*CALLS, ("reprice", TABLES[1], GPT_5), ("reprice", TABLES[1], ALL), ("undo",), ("undo",), ("undo",)],
    [
        *(*CALLS, ("sum up",), ("begin", 1, 7), ("reprice", TABLES[1], ALL), ("sum up",), ("end", 0), ("sum up",)),
        *(*CALLS * 4, ("prune",), ("sum up",), ("reprice", TABLES[1], GPT_5)),
    ],
    [*CALLS, ("reprice", TABLES[1], ALL), ("undo",), ("reprice", TABLES[1], GPT_5)],
    [("reprice", TABLES[0], ALL), ("begin", 0, 5), ("reprice", TABLES[0], ALL), ("undo",), ("end", 0)],
    [*CALLS, ("begin", 0, 5), ("reprice", TABLES[1], ALL), ("reprice", TABLES[0], GPT_5), ("end", 0), ("undo",)],
    [*CALLS, ("reprice", TABLES[0], ALL), ("begin", 0, 5), ("interrupt", TABLES[1], ALL), ("end", 0), ("resume",)],
    [*CALLS, ("reprice", TABLES[1], ALL), ("use", None), ("undo",), ("use", TABLES[1]), ("undo",)],
]


@pytest.mark.parametrize("story", STORIES)
def test_stories_that_failed_before(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[object, ...]]
) -> None:
    """A price version is used again, or undone after a longer run, or calls end under it."""
    tell(folder_of(tmp_path_factory), story, ask=False)


@pytest.mark.parametrize("story", first_is_quick(STORIES, "more stories", quick=4))
def test_the_stories_give_the_same_results_on_a_server(
    tmp_path_factory: pytest.TempPathFactory, server_of: Opener, story: list[tuple[object, ...]]
) -> None:
    assert tell(server_of, story) == tell(folder_of(tmp_path_factory), story)
