"""Create and resume batches. A part is sent again only if the first request certainly had no effect.

The trace records each part before it is sent. If a process dies before the answer, the next process searches the
provider's list for the job, by its mark. If the list has no such job after `settle_seconds`, the job was never
created, and the part is sent again. Only one program at a time creates a batch. Other programs with the same trace
wait, and then read the result. An engine without a trace stores its parts in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias, cast
from weakref import WeakValueDictionary

import anyio
import msgspec

from callboard.adapters import AdapterError, AttemptObserver, CanonicalRequest, CapabilityError
from callboard.adapters.batches import BatchAdapter, BatchItem, BatchJob, BatchRequest
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.http.retry import PollPolicy
from callboard.bus import BatchPlanned, BatchSubmitted, BatchSubmitting, Log
from callboard.bus.errors import ConfigurationError, InvalidRequestError, NotFoundError, StoreError
from callboard.tracestore import StoredBatch, StoredSubmission

from ..budgets.ledger import Amount
from ..budgets.worst_case import Priced, most_output, tiers_of, tool_fees, worst_case_of_reply
from ..calls.outcome import texts_of
from ..routing.candidates import Named, Route, expand
from ..routing.model_choice import overridden
from ..runtime.runtime import Runtime, settled_store
from ..tree import tags_here
from .batch_handle import NOT_BILLED, USUAL_BATCH_POLLING, BatchHandle, Submission, counted_calls
from .batch_plan import BatchPlan, call_id, check_id, digest_of, ids_of
from .plain_calls import (
    GRACE_SECONDS,
    CallOptions,
    EndedCall,
    JobAnswer,
    Models,
    PerEngine,
    PlainCalls,
    decision_of,
    priced_as,
    require_known,
    with_adapter,
)

Started: TypeAlias = tuple[BatchPlan, dict[int, Submission]]
"""A planned batch, and the parts of it that were already sent."""

started_batches: PerEngine[dict[str, Started]] = PerEngine(dict)

handles: PerEngine[WeakValueDictionary[str, BatchHandle]] = PerEngine(WeakValueDictionary)

_TURNS: PerEngine[WeakValueDictionary[str, anyio.Lock]] = PerEngine(WeakValueDictionary)
"""A lock for each batch, so that only one task of this engine creates it at a time."""


def has_job(sent: Submission | None) -> bool:
    return sent is not None and sent.job is not None


def only_handle(runtime: Runtime, handle: BatchHandle) -> BatchHandle:
    """The single handle of a batch in this engine, so that the batch's end is published once."""
    return handles[runtime].setdefault(handle.id, handle)


def taker(adapter: ProviderAdapter, named: Named) -> BatchAdapter:
    """The adapter, if it supports batches. Otherwise raise CapabilityError."""
    if not isinstance(adapter, BatchAdapter):
        raise CapabilityError(f"{named.model} does not support batches: its adapter has no batch support")
    return adapter


_log = Log("engine.batches")


@asynccontextmanager
async def creating(runtime: Runtime, batch_id: str) -> AsyncIterator[None]:
    """A context in which no other program with the same trace creates this batch. Entering waits until other
    programs have left it.

    The next program reads the finished steps from the trace.
    """
    store = await settled_store(runtime)
    if store is None:
        yield
        return
    async with store.exclusive(f"batch {batch_id}"):
        try:
            yield
        finally:
            await share(runtime)


async def share(runtime: Runtime) -> None:
    """Wait until published events are in the trace, for other processes. While the trace can't be written, they
    are stored where they survive the end of this process.
    """
    try:
        await runtime.host.flush()
    except StoreError as error:
        _log.warning("batch_not_shared", error=str(error))
    await runtime.host.secure()


async def stored_batch(runtime: Runtime, batch_id: str) -> StoredBatch | None:
    store = await settled_store(runtime)
    return None if store is None else await store.batch(batch_id)


async def stored_batches(runtime: Runtime, limit: int) -> list[StoredBatch]:
    """The latest batches of the trace, the latest first."""
    store = await settled_store(runtime)
    return [] if store is None else await store.batches(limit)


SETTLE_SECONDS = 30.0
"""Seconds after which the provider lists every job that was created."""

_LOOK_EVERY = 2.0
"""Seconds between two searches for an unconfirmed job."""

_LATEST = 100
"""The maximum number of batches in the trace whose jobs are excluded from a search."""

MAYBE_SENT = frozenset({"OutcomeUnknownError", "ProcessLost", "CancelledError"})
"""The errors after which the outcome of a creation is unknown."""


async def resume_batch(
    runtime: Runtime,
    batch_id: str,
    requests: Sequence[CanonicalRequest] | None,
    polling: PollPolicy,
    settle_seconds: float,
) -> BatchHandle:
    await runtime.host.start()
    runtime.pricing.notice()
    open_handle = handles[runtime].get(batch_id)
    if open_handle is not None:
        await open_handle.refresh()
        return open_handle
    if runtime.store is None:
        raise ConfigurationError(
            "batches are recorded in the trace, and this engine keeps none. Use Engine(trace=True)"
        )
    stored = await stored_batch(runtime, batch_id)
    if stored is None:
        raise NotFoundError(f"the trace has no batch {batch_id!r}")
    named = expand(runtime.registry, stored.model, ()).named[0]
    taker(runtime.adapters.consult(runtime.registry.adapter_of(named.entry)), named)
    if requests is not None:
        digest = digest_of([msgspec.structs.replace(each, model=named.model) for each in requests])
        if digest != stored.digest:
            raise InvalidRequestError(f"batch {batch_id!r} was created with other requests")
    plan = plan_of(runtime, named, stored)
    submissions = submissions_of(stored)
    for part, sent in list(submissions.items()):
        if sent.job is None:
            until = sent.began_at + settle_seconds
            submissions[part] = await find_part(runtime, plan, part, sent, until) or sent
    handle = only_handle(runtime, BatchHandle(runtime, plan, requests, polling, submissions))
    await handle.refresh()
    return handle


async def find_part(
    runtime: Runtime, plan: BatchPlan, part: int, sent: Submission, until: float
) -> Submission | None:
    """Search the provider's list for an unconfirmed part; None if it is not listed."""
    before = (await counted_calls(runtime, [sent.call_id])).get(sent.call_id)
    if before is not None and before.error_type is not None and before.error_type not in MAYBE_SENT:
        return None  # the provider refused the part
    others = await known_jobs(runtime, plan, part)

    def find(adapter: BatchAdapter) -> Awaitable[BatchJob | None]:
        mark, size = plan.mark(part), plan.sizes[part - 1]
        return adapter.find_batch(plan.wire_model, mark, size, sent.began_at, key=plan.key, known=others)

    while True:
        job = await with_adapter(runtime, plan.decision.provider, find)
        if job is not None:
            break
        remaining = until - runtime.clock.now_us() / 1e6
        if remaining <= 0:
            return None
        await anyio.sleep(min(remaining, _LOOK_EVERY))
    creation = EndedCall(runtime, "batch_create", plan, sent.call_id, None)
    creation.complete(JobAnswer(job, plan.model), job.key, NOT_BILLED)
    publish_submitted(runtime, plan, part, sent.call_id, job)
    await runtime.host.secure()
    return Submission(sent.call_id, sent.began_at, job)


async def known_jobs(runtime: Runtime, plan: BatchPlan, part: int) -> list[str]:
    """The ids of the jobs of other parts and other batches, as found in this engine and in the trace."""
    in_use = handles[runtime].values()
    jobs_by_part = {(handle.id, number): job for handle in in_use for number, job in enumerate(handle.jobs, 1)}
    for name, (_, submissions) in started_batches[runtime].items():
        jobs_by_part |= {(name, number): sent.job for number, sent in submissions.items() if sent.job is not None}
    jobs = {place: job.id for place, job in jobs_by_part.items() if job is not None}
    for batch in await stored_batches(runtime, _LATEST):
        sent_parts = batch.submissions.items()
        jobs |= {(batch.batch_id, number): sent.job_id for number, sent in sent_parts if sent.job_id is not None}
    return [job_id for place, job_id in jobs.items() if place != (plan.batch_id, part)]


def publish_submitted(runtime: Runtime, plan: BatchPlan, part: int, request_id: str, job: BatchJob) -> None:
    event = BatchSubmitted(
        **plan.about(), part=part, job_id=job.id, call_id=request_id, key=job.key, certain=job.certain
    )
    runtime.bus.publish(event, request_id=plan.batch_id, tags=plan.tags)


def plan_of(runtime: Runtime, named: Named, stored: StoredBatch) -> BatchPlan:
    ids = stored.request_ids or tuple(call_id(stored.batch_id, place) for place in range(sum(stored.parts)))
    return BatchPlan(
        batch_id=stored.batch_id,
        decision=decision_of(named, stored.model),
        wire_model=named.entry.wire_name,
        priced_as=priced_as(runtime, named),
        sizes=stored.parts,
        digest=stored.digest,
        request_ids=ids,
        key=stored.key,
        tags=stored.tags,
    )


def submissions_of(stored: StoredBatch) -> dict[int, Submission]:
    def job_of(sent: StoredSubmission) -> BatchJob | None:
        if sent.job_id is None:
            return None
        return BatchJob(
            id=sent.job_id, provider=stored.provider, status="queued", key=sent.key, certain=sent.certain
        )

    return {
        part: Submission(sent.call_id, sent.began_at, job_of(sent)) for part, sent in stored.submissions.items()
    }


class BatchOptions(CallOptions, total=False):
    """The options of a batch. Retries and the time limit apply to the creation of each job.

    `fallback` and `provider_options` have no effect: a batch is for one model, and each request has its own
    options.
    """

    polling: PollPolicy
    """The intervals between checks of the batch."""
    settle_seconds: float
    """Seconds after which the provider lists every job that was created."""


async def create_batch(
    runtime: Runtime,
    requests: Sequence[CanonicalRequest],
    model: Models,
    batch_id: str | None,
    options: BatchOptions,
) -> BatchHandle:
    options = require_known(options, BatchOptions)
    name = batch_id or runtime.clock.new_id("batch")
    check_id(name)
    if not requests:
        raise InvalidRequestError("a batch has no requests")
    models: Models = model or [request.model for request in requests if request.model][:1] or None
    common = cast("CallOptions", {**options, "fallback": ()})
    calls = PlainCalls(
        *("batch_create", runtime, models, common, taker),
        sent_texts=lambda: (text for each in requests for text in texts_of(each.messages, each.system_prompt)),
    )
    creation = _Creation(runtime, tuple(requests), calls, name, options)
    return await calls.run(creation.run)


class _Creation:
    def __init__(
        self,
        runtime: Runtime,
        requests: tuple[CanonicalRequest, ...],
        calls: PlainCalls[BatchAdapter],
        batch_id: str,
        options: BatchOptions,
    ) -> None:
        self._runtime = runtime
        self._calls = calls
        self._options = options
        self._batch_id = batch_id
        self._named = calls.plan.named[0]
        self._requests = requests
        self._digest = digest_of([msgspec.structs.replace(each, model=self._named.model) for each in requests])

    async def run(self) -> BatchHandle:
        self._require_one_model()
        runtime = self._runtime
        turn = _TURNS[runtime].setdefault(self._batch_id, anyio.Lock())
        async with turn, creating(runtime, self._batch_id):
            return await self._run_alone(runtime)

    async def _run_alone(self, runtime: Runtime) -> BatchHandle:
        plan, submissions = await self._begin()
        items = self._items()
        for part in plan.parts():
            before = submissions.get(part)
            if not has_job(before):
                submissions[part] = await self._sent(plan, part, items, before)
        handle = handles[runtime].get(self._batch_id)
        if handle is not None:
            handle._take_over(submissions, self._requests)
            return handle
        polling = self._options.get("polling", USUAL_BATCH_POLLING)
        return only_handle(runtime, BatchHandle(runtime, plan, self._requests, polling, submissions))

    async def _begin(self) -> Started:
        """The existing batch from this engine and the trace, or a new plan."""
        started = started_batches[self._runtime].get(self._batch_id)
        stored = await stored_batch(self._runtime, self._batch_id)
        if stored is not None:
            self._require_same(stored.digest)
            stored_parts = submissions_of(stored)
            if started is None:
                started = plan_of(self._runtime, self._named, stored), stored_parts
            # Another process may have continued since this engine stopped.
            started[1].update(
                {part: sent for part, sent in stored_parts.items() if not has_job(started[1].get(part))}
            )
        elif started is None:
            started = self._planned(), {}
            self._publish_plan(started[0])
        self._require_same(started[0].digest)
        return started_batches[self._runtime].setdefault(self._batch_id, started)

    def _require_one_model(self) -> None:
        registry = self._runtime.registry
        for request in self._requests if len(self._calls.plan.named) == 1 else ():
            if request.model and expand(registry, request.model, ()).named[0].model != self._named.model:
                raise InvalidRequestError(
                    f"a batch is for one model: {request.model!r} differs from {self._named.model!r}"
                )

    def _require_same(self, digest: str) -> None:
        if digest != self._digest:
            raise InvalidRequestError(
                f"batch {self._batch_id!r} was created with other requests. Use another batch_id for these"
            )

    # --- The plan ---

    def _planned(self) -> BatchPlan:
        named, options = self._named, self._options
        return BatchPlan(
            batch_id=self._batch_id,
            decision=decision_of(named, self._calls.plan.requested),
            wire_model=named.entry.wire_name,
            priced_as=priced_as(self._runtime, named),
            sizes=self._calls.adapter(named).split_batch(self._items()),
            digest=self._digest,
            request_ids=ids_of(self._batch_id, self._requests),
            key=options.get("key"),
            tags=tags_here(options.get("tags")),
        )

    def _publish_plan(self, plan: BatchPlan) -> None:
        has_ids = any(request.request_id for request in self._requests)
        event = BatchPlanned(
            **plan.about(),
            parts=plan.sizes,
            digest=plan.digest,
            request_ids=plan.request_ids if has_ids else (),
            key=plan.key,
        )
        self._runtime.bus.publish(event, request_id=plan.batch_id, tags=plan.tags)

    def _items(self) -> list[BatchItem]:
        entry = self._named.entry
        adapter = self._runtime.adapters.consult(self._runtime.registry.adapter_of(entry))
        can = overridden(adapter.get_capabilities(entry.wire_name), entry.capabilities)
        ids = ids_of(self._batch_id, self._requests)
        return [
            BatchItem(
                call_id(self._batch_id, place),
                msgspec.structs.replace(
                    request,
                    request_id=ids[place],
                    model=f"{entry.adapter}:{entry.wire_name}",
                    capabilities=request.capabilities or can,
                    stream=False,
                ),
            )
            for place, request in enumerate(self._requests)
        ]

    # --- Sending ---

    async def _sent(
        self, plan: BatchPlan, part: int, items: Sequence[BatchItem], before: Submission | None
    ) -> Submission:
        """Send a part, or find the part that was sent before."""
        if before is not None:
            # The process that sent the part may just have died, so `settle_seconds` starts now.
            until = self._runtime.clock.now_us() / 1e6 + self._options.get("settle_seconds", SETTLE_SECONDS)
            found = await find_part(self._runtime, plan, part, before, until)
            if found is not None:
                return found
        places = plan.places(part)

        async def call(route: Route, request_id: str, caused_by: str | None) -> Submission:
            basics = self._calls.basics(self._named.entry, request_id)
            mine = tuple(items[places.start : places.stop])
            request = BatchRequest(model=plan.model, mark=plan.mark(part), items=mine, **basics)
            return await self._send(plan, part, request, route, caused_by)

        def check(adapter: BatchAdapter, named: Named) -> None:
            adapter.get_batch_limits(named.entry.wire_name)

        try:
            return await self._calls.first_that_works(check, call)
        except Exception as error:
            if part > 1:
                error.add_note(f"batch {plan.batch_id}: {part - 1} of {len(plan.sizes)} parts were sent")
            raise

    async def _send(
        self, plan: BatchPlan, part: int, request: BatchRequest, route: Route, caused_by: str | None
    ) -> Submission:
        runtime, request_id = self._runtime, request.request_id
        submissions = started_batches[runtime][plan.batch_id][1]
        sent = Submission(request_id, runtime.clock.now_us() // 1_000_000)

        async def work(adapter: BatchAdapter, on_attempt: AttemptObserver) -> JobAnswer[BatchJob]:
            submissions[part] = sent
            intent = BatchSubmitting(**plan.about(), part=part, call_id=request_id, began_at=sent.began_at)
            runtime.bus.publish(intent, request_id=plan.batch_id, tags=plan.tags)
            await share(runtime)  # recorded before the request, so that another process can search for the part
            return JobAnswer(await adapter.create_batch(request, on_attempt=on_attempt), plan.model)

        def publish(answer: JobAnswer[BatchJob]) -> None:
            sent.job = answer.job
            publish_submitted(runtime, plan, part, request_id, answer.job)

        most = partial(self._most, request.items)
        try:
            await self._calls.ask(
                route, request_id, caused_by, work, most=most, grace=GRACE_SECONDS, on_answer=publish
            )
        except AdapterError as error:
            if type(error).__name__ not in MAYBE_SENT:
                submissions.pop(part, None)
            raise
        await runtime.host.secure()
        return sent

    def _most(self, items: Sequence[BatchItem], priced: Priced) -> Amount:
        """The maximum cost of a part: the sum over its requests, at batch prices."""
        adapter = self._runtime.adapters.consult(self._runtime.registry.adapter_of(self._named.entry))
        money: int | None = 0
        tokens = 0
        for item in items:
            request = item.request
            estimate = adapter.estimate_input_tokens(
                request.messages, request.tools, request.system_prompt, model=request.wire_model
            )
            fees = tool_fees(request.provider_options)
            output = most_output(request.max_output_tokens, request.provider_options)
            tiers = tiers_of(request.provider_options, only="batch")
            at_batch_prices = msgspec.structs.replace(priced, tiers=tiers)
            most = worst_case_of_reply(at_batch_prices, estimate, output, fees)
            money = None if money is None or most.nano_usd is None else money + most.nano_usd
            tokens += most.tokens
        return Amount(money, tokens)
