"""The screen "Costs": sums by any dimension, under two price versions, and repricings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from callboard.bus import (
    CallboardError,
    ConfigurationError,
    DropOldest,
    Latest,
    PricingProgress,
    PricingRepriced,
    StoreError,
    Subscription,
)
from callboard.tracestore import CallFilter, CostRow, PriceTable, RepriceReport, RepriceRun
from callboard.tracestore.home import home_folder, published_table

from .access import EventStream, Refused, answer, as_json, body_of, frame
from .calls import call_filter
from .subject import Subject

AT_CALL_TIME = "call-time"
PUBLISHED = "published"
OWN = "engine"
MOST_ROWS = 1000


class Reprice(msgspec.Struct, forbid_unknown_fields=True):
    """A page's request for a repricing."""

    version: str  # the version of a table in the trace, ``published`` or ``engine``
    dry_run: bool = True
    where: CallFilter = CallFilter()
    as_model: str | None = None
    for_new_calls: bool = False  # whether new calls also use that table


async def costs(subject: Subject, request: Request) -> Response:
    """Sums by dimensions, each under two price versions."""
    where = call_filter(request)
    by = [each for each in request.query_params.get("by", "day").split(",") if each]
    sides = [request.query_params.get(side) or None for side in ("left", "right")]
    await subject.flush()
    async with subject.reading() as store:
        try:
            versions = [None if side == AT_CALL_TIME else side for side in sides]
            rows = [await store.costs(where, by, under=version) for version in versions]
        except ValueError as error:
            raise Refused(400, str(error)) from None
    return answer(merged(rows[0], rows[1], at_call_time=[side == AT_CALL_TIME for side in sides]))


def merged(left: Sequence[CostRow], right: Sequence[CostRow], *, at_call_time: Sequence[bool]) -> list[object]:
    """The rows of two price versions next to each other, in the order of `left`."""
    others = {row.key: row for row in right}
    rows = [(row, others.pop(row.key, None)) for row in left]
    both = [*rows, *((None, row) for row in others.values())]
    return [_pair(first, second, at_call_time) for first, second in both[:MOST_ROWS]]


def _pair(left: CostRow | None, right: CostRow | None, at_call_time: Sequence[bool]) -> object:
    row = left or right
    assert row is not None
    return {
        "key": row.key,
        "calls": row.calls,
        "input_tokens": row.total_input_tokens,
        "output_tokens": row.output_tokens,
        "cached_input_tokens": row.cached_input_tokens,
        "estimated": row.estimated,
        "unknown": row.unknown,
        "left": _sum(left, at_call_time[0]),
        "right": _sum(right, at_call_time[1]),
    }


def _sum(row: CostRow | None, at_call_time: bool) -> object:
    if row is None:
        return None
    if at_call_time:
        return {"nano_usd": row.at_call_time_nano_usd, "unpriced": row.at_call_time_unpriced}
    return {"nano_usd": row.cost_nano_usd, "unpriced": row.unpriced}


async def clients(subject: Subject, request: Request) -> Response:
    """The clients of a gateway with their spending, without their keys."""
    from ..gateway.clients import spending_of, tables_of

    await subject.flush()
    async with subject.reading() as store:
        engine = subject.engine
        tables = getattr(store, "gateway", None) if engine is None else await tables_of(engine._runtime)
        found = [] if tables is None else await spending_of(store, tables, subject.clock.now_us())
    return answer(
        [
            {
                **msgspec.structs.asdict(each.client),
                "calls": each.calls,
                "cost_nano_usd": each.cost_nano_usd,
                "spent_nano_usd": each.spent_nano_usd,
                "left_nano_usd": each.left_nano_usd,
            }
            for each in found[:MOST_ROWS]
        ]
    )


async def prices(subject: Subject, request: Request) -> Response:
    """The available price tables, the history of repricings, and the current costs."""
    async with subject.reading() as store:
        tables = await store.price_tables()
        runs, current = await store.reprice_runs(), await store.current_prices()
    engine = subject.engine
    engine_table = None if engine is None else _table(engine.prices)
    published = published_table(home_folder())
    return answer(
        {
            "tables": [_table(table) for table in tables],
            "published": _table(published),
            "engine": engine_table,
            "runs": [{**msgspec.to_builtins(run), "state": run.state} for run in runs[:100]],
            "current": current.versions,
        }
    )


def _table(table: PriceTable) -> dict[str, object]:
    return {"version": table.version, "label": table.label, "rows": len(table)}


async def reprice(subject: Subject, request: Request) -> Response:
    """Start a repricing or its dry run. `progress` reports its progress."""
    reprice_request = await body_of(request, Reprice)
    jobs: Repricings = request.state.repricings
    if jobs.running:
        raise Refused(409, "a repricing is in progress")
    table = await _chosen(subject, reprice_request.version)
    if reprice_request.for_new_calls and subject.engine is None:
        raise Refused(409, "new calls belong to the process that writes the trace. Change its prices there")
    jobs.begin(table, reprice_request)
    return answer(jobs.state, 202)


async def undo(subject: Subject, request: Request) -> Response:
    """Undo the latest repricing."""
    await body_of(request, dict[str, object])
    jobs: Repricings = request.state.repricings
    if jobs.running:
        raise Refused(409, "a repricing is in progress")
    return answer(await jobs.undo())


async def progress(subject: Subject, request: Request) -> Response:
    """The state of the repricing, now and after each change, and a notice when costs have changed."""
    return EventStream(_states(request.state.repricings))


async def _states(jobs: Repricings) -> AsyncGenerator[bytes]:
    async for state in jobs.changes():
        yield frame("repricing", as_json(state))


async def _chosen(subject: Subject, version: str) -> PriceTable | str:
    if version == PUBLISHED:
        try:
            return published_table(home_folder())
        except ConfigurationError as error:
            raise Refused(409, str(error)) from None
    if version == OWN:
        if subject.engine is None:
            raise Refused(409, "no engine runs here")
        return subject.engine.prices
    return version


# --- A repricing in progress ---
# There is only one at a time. It continues without a page:
#
#   idle ──start──▶ running ──▶ done, with its report
#                      └──────▶ failed, with the reason
#
# A page that reconnects gets the current state.


class RepricingState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the repricing."""

    state: Literal["idle", "running", "done", "failed"] = "idle"
    dry_run: bool = True
    version: str = ""
    done: int = 0  # the number of the last call that was repriced
    last: int = 0  # the number of the last call to reprice
    report: RepriceReport | None = None
    error: str | None = None
    changed: int = 0  # how often the live view has seen the trace's costs change, through any process


class Repricings:
    """Runs the repricings of one live view."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.state = RepricingState()
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, table: PriceTable | str, job: Reprice) -> None:
        """Start a repricing. It continues in the background."""
        version = table if isinstance(table, str) else table.version
        self._set(state="running", dry_run=job.dry_run, version=version, done=0, last=0, report=None, error=None)
        self._task = asyncio.create_task(self._run(table, job), name="callboard live view: repricing")

    async def undo(self) -> RepriceRun:
        """Undo the latest repricing."""
        engine = self._subject.engine
        if engine is not None:
            run = await engine.undo_reprice()
        else:
            async with self._subject.writing() as store:
                run = await store.undo_reprice()
        self._set(state="idle", report=None, error=None, changed=self.state.changed + 1)
        return run

    async def changes(self) -> AsyncIterator[RepricingState]:
        """Yield the state now, and after each change.

        Repricings by other code are also changes. They are reported on the engine's bus.
        """
        watcher = asyncio.create_task(self._watch_events()) if self._subject.engine is not None else None
        try:
            while True:
                news = self._news
                yield self.state
                await news.wait()
                await asyncio.sleep(0.05)
        finally:
            if watcher is not None:
                watcher.cancel()

    async def _watch_events(self) -> None:
        """Report to the page when another process has changed the costs."""
        engine = self._subject.engine
        assert engine is not None
        with engine.bus.subscribe(PricingRepriced.topic_of(), policy=DropOldest(1), name="live view") as events:
            async for _ in events:
                self._set(changed=self.state.changed + 1)

    async def _run(self, table: PriceTable | str, job: Reprice) -> None:
        try:
            run = self._on_trace if self._subject.engine is None else self._on_engine
            report = await run(table, job)
        except (CallboardError, StoreError, ValueError) as error:
            self._set(state="failed", error=str(error))
        except BaseException:
            self._set(state="failed", error="it was interrupted. Nothing has changed yet")
            raise
        else:
            stores_costs = not report.dry_run and report.run_id is not None
            self._set(
                state="done", report=report, version=report.version, changed=self.state.changed + stores_costs
            )

    async def _on_engine(self, table: PriceTable | str, job: Reprice) -> RepriceReport:
        engine = await self._subject.started()
        policy = Latest(key=lambda envelope: envelope.topic)
        with engine.bus.subscribe(PricingProgress.topic_of(), policy=policy, name="live view") as events:
            following = asyncio.create_task(self._follow(events))
            try:
                return await engine.reprice(
                    table,
                    where=job.where,
                    dry_run=job.dry_run,
                    as_model=job.as_model,
                    for_new_calls=job.for_new_calls,
                )
            finally:
                following.cancel()

    async def _follow(self, events: Subscription) -> None:
        async for envelope in events:
            if isinstance(envelope.data, PricingProgress):
                self._set(done=envelope.data.done, last=envelope.data.last)

    async def _on_trace(self, table: PriceTable | str, job: Reprice) -> RepriceReport:
        opened = self._subject.reading() if job.dry_run or job.as_model else self._subject.writing()
        async with opened as store:
            return await store.reprice(
                table,
                where=job.where,
                dry_run=job.dry_run,
                as_model=job.as_model,
                progress=lambda done, last: self._set(done=done, last=last),
            )

    def _set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        news, self._news = self._news, asyncio.Event()
        news.set()
