"""The repricing that a page has begun: one at a time, to its end, whoever still looks.

    idle ──begin──▶ running ──▶ done, with its report
                       └──────▶ failed, with the reason

A page that goes and comes again finds it as it is by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from callboard.bus import CallboardError, DropOldest, Latest, PricingProgress, PricingRepriced, StoreError, Subscription
from callboard.tracestore import CallFilter, PriceTable, RepriceReport, RepriceRun

from .subject import Subject


class RepricingState(msgspec.Struct, frozen=True, kw_only=True):
    """How far the repricing is."""

    state: Literal["idle", "running", "done", "failed"] = "idle"
    """As the module's head has it."""
    dry_run: bool = True
    """Whether it is only tried."""
    version: str = ""
    """The version of the table."""
    done: int = 0
    """The number of the last call that is done."""
    last: int = 0
    """The number of the last call."""
    report: RepriceReport | None = None
    """The report, once it is done."""
    error: str | None = None
    """The reason why it failed."""
    changed: int = 0
    """How often the costs of the trace have changed since the live view began, by anybody."""


class Repricings:
    """The repricings of one live view.

    Args:
        subject: What is shown.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.state = RepricingState()
        """How far the repricing is."""
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether one is under way."""
        return self._task is not None and not self._task.done()

    def begin(
        self,
        table: PriceTable | str,
        *,
        where: CallFilter,
        dry_run: bool,
        as_model: str | None,
        for_new_calls: bool,
    ) -> None:
        """Begin one; it goes on by itself."""
        version = table if isinstance(table, str) else table.version
        self._set(state="running", dry_run=dry_run, version=version, done=0, last=0, report=None, error=None)
        work = self._run(table, where, dry_run, as_model, for_new_calls)
        self._task = asyncio.create_task(work, name="callboard live view: repricing")

    async def undo(self) -> RepriceRun:
        """Take the latest one back.

        Raises:
            StoreError: There is none.
        """
        engine = self._subject.engine
        if engine is not None:
            run = await engine.undo_reprice()
        else:
            async with self._subject.writing() as store:
                run = await store.undo_reprice()
        self._set(state="idle", report=None, error=None, changed=self.state.changed + 1)
        return run

    async def changes(self) -> AsyncIterator[RepricingState]:
        """The state at once, and whenever it changes. Other people's repricings on the engine's bus count, too."""
        heard = asyncio.create_task(self._hear()) if self._subject.engine is not None else None
        try:
            while True:
                news = self._news
                yield self.state
                await news.wait()
                await asyncio.sleep(0.05)
        finally:
            if heard is not None:
                heard.cancel()

    async def _hear(self) -> None:
        """Tell the page when somebody else has changed the costs."""
        engine = self._subject.engine
        assert engine is not None
        with engine.bus.subscribe(PricingRepriced.topic_of(), policy=DropOldest(1), name="live view") as events:
            async for _ in events:
                self._set(changed=self.state.changed + 1)

    async def _run(
        self,
        table: PriceTable | str,
        where: CallFilter,
        dry_run: bool,
        as_model: str | None,
        for_new_calls: bool,
    ) -> None:
        try:
            if self._subject.engine is not None:
                report = await self._on_engine(table, where, dry_run, as_model, for_new_calls)
            else:
                report = await self._on_trace(table, where, dry_run, as_model)
        except (CallboardError, StoreError, ValueError) as error:
            self._set(state="failed", error=str(error))
        except BaseException:
            self._set(state="failed", error="it was interrupted; nothing has changed yet")
            raise
        else:
            kept = not report.dry_run and report.run_id is not None
            self._set(state="done", report=report, version=report.version, changed=self.state.changed + kept)

    async def _on_engine(
        self, table: PriceTable | str, where: CallFilter, dry_run: bool, as_model: str | None, for_new_calls: bool
    ) -> RepriceReport:
        engine = await self._subject.started()
        policy = Latest(key=lambda envelope: envelope.topic)
        with engine.bus.subscribe(PricingProgress.topic_of(), policy=policy, name="live view") as events:
            following = asyncio.create_task(self._follow(events))
            try:
                return await engine.reprice(
                    table, where=where, dry_run=dry_run, as_model=as_model, for_new_calls=for_new_calls
                )
            finally:
                following.cancel()

    async def _follow(self, events: Subscription) -> None:
        async for envelope in events:
            if isinstance(envelope.data, PricingProgress):
                self._set(done=envelope.data.done, last=envelope.data.last)

    async def _on_trace(
        self, table: PriceTable | str, where: CallFilter, dry_run: bool, as_model: str | None
    ) -> RepriceReport:
        opened = self._subject.reading() if dry_run or as_model else self._subject.writing()
        async with opened as store:
            return await store.reprice(
                table,
                where=where,
                dry_run=dry_run,
                as_model=as_model,
                progress=lambda done, last: self._set(done=done, last=last),
            )

    def _set(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)
        news, self._news = self._news, asyncio.Event()
        news.set()
