"""Resuming batches: their state in engine and trace, and the search for unconfirmed jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias
from weakref import WeakValueDictionary

import anyio
import msgspec

from callboard.adapters import (
    CanonicalRequest,
    CapabilityError,
)
from callboard.adapters.batches import BatchAdapter, BatchJob
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.http.retry import PollPolicy
from callboard.bus import BatchSubmitted, Log
from callboard.bus.errors import ConfigurationError, InvalidRequestError, NotFoundError, StoreError
from callboard.tracestore import StoredBatch, StoredSubmission

from ..routing.candidates import Named, expand
from ..runtime.runtime import Runtime, settled_store
from .batch_handle import NOT_BILLED, BatchHandle, Submission, counted_calls
from .batch_plan import BatchPlan, call_id, digest_of
from .jobs import EndedCall, JobAnswer, PerEngine, decision_of, priced_as, with_adapter

Started: TypeAlias = tuple[BatchPlan, dict[int, Submission]]
"""A batch that was planned, and its parts as far as they were sent."""

started_batches: PerEngine[dict[str, Started]] = PerEngine(dict)

handles: PerEngine[WeakValueDictionary[str, BatchHandle]] = PerEngine(WeakValueDictionary)

_TURNS: PerEngine[WeakValueDictionary[str, anyio.Lock]] = PerEngine(WeakValueDictionary)


def has_job(sent: Submission | None) -> bool:
    """Whether a part is known to be with the provider."""
    return sent is not None and sent.job is not None


def turn(runtime: Runtime, batch_id: str) -> anyio.Lock:
    """The lock for which the tasks of this engine queue to create a batch."""
    return _TURNS[runtime].setdefault(batch_id, anyio.Lock())


def only_handle(runtime: Runtime, handle: BatchHandle) -> BatchHandle:
    """The one handle of a batch in this engine, so that its end is published once."""
    return handles[runtime].setdefault(handle.id, handle)


def taker(adapter: ProviderAdapter, named: Named) -> BatchAdapter:
    """The adapter, which takes batches. Raises CapabilityError if it doesn't."""
    if not isinstance(adapter, BatchAdapter):
        raise CapabilityError(f"{named.model} does not support batches: its adapter has no batch support")
    return adapter


_log = Log("engine.batches")


@asynccontextmanager
async def creating(runtime: Runtime, batch_id: str) -> AsyncIterator[None]:
    """A block in which no other program with the same trace creates this batch. It waits for its turn.

    The next program reads in the trace what was done here.
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
    """Return when what was published is in the trace, where others read it. While the trace can't be written, it
    is where it survives the end of this process.
    """
    try:
        await runtime.host.flush()
    except StoreError as error:
        _log.warning("batch_not_shared", error=str(error))
    await runtime.host.secure()


async def stored_batch(runtime: Runtime, batch_id: str) -> StoredBatch | None:
    """A batch in the trace; None if there is none."""
    store = await settled_store(runtime)
    return None if store is None else await store.batch(batch_id)


async def stored_batches(runtime: Runtime, limit: int) -> list[StoredBatch]:
    """The latest batches of the trace, the latest first."""
    store = await settled_store(runtime)
    return [] if store is None else await store.batches(limit)


SETTLE_SECONDS = 30.0
"""Seconds after which a job is listed, if it was ever created."""

_LOOK_EVERY = 2.0
"""Seconds between two searches for an unconfirmed job."""

_LATEST = 100
"""The number of batches in the trace with jobs that are excluded from a search."""

MAYBE_SENT = frozenset({"OutcomeUnknownError", "ProcessLost", "CancelledError"})
"""The errors of creations with an unknown outcome."""


async def resume_batch(
    runtime: Runtime,
    batch_id: str,
    requests: Sequence[CanonicalRequest] | None,
    polling: PollPolicy,
    settle_seconds: float,
) -> BatchHandle:
    """See `Engine.resume_batch`."""
    await runtime.host.start()
    runtime.pricing.notice()
    known = handles[runtime].get(batch_id)
    if known is not None:
        await known.refresh()
        return known
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
    """A part that was never confirmed, as the provider lists it."""
    before = (await counted_calls(runtime, [sent.call_id])).get(sent.call_id)
    if before is not None and before.error_type is not None and before.error_type not in MAYBE_SENT:
        return None  # the provider refused it
    others = await known_jobs(runtime, plan, part)

    async def find(adapter: BatchAdapter) -> BatchJob | None:
        size = plan.sizes[part - 1]
        return await adapter.find_batch(
            plan.wire_model, plan.mark(part), size, sent.began_at, key=plan.key, known=others
        )

    while True:
        job = await with_adapter(runtime, plan.decision.provider, find)
        if job is not None:
            break
        left = until - runtime.clock.now_us() / 1e6
        if left <= 0:
            return None
        await anyio.sleep(min(left, _LOOK_EVERY))
    creation = EndedCall(runtime, "batch_create", plan, sent.call_id, None)
    creation.complete(JobAnswer(job, plan.model), job.key, NOT_BILLED)
    publish_submitted(runtime, plan, part, sent.call_id, job)
    await runtime.host.secure()
    return Submission(sent.call_id, sent.began_at, job)


async def known_jobs(runtime: Runtime, plan: BatchPlan, part: int) -> list[str]:
    """The ids of the jobs of other parts and other batches, as found in this engine and in the trace."""
    in_use = handles[runtime].values()
    known = {(handle.id, number): job for handle in in_use for number, job in enumerate(handle.jobs, 1)}
    for name, (_, submissions) in started_batches[runtime].items():
        known |= {(name, number): sent.job for number, sent in submissions.items() if sent.job is not None}
    jobs = {place: job.id for place, job in known.items() if job is not None}
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
    """The plan of a batch that is in the trace."""
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
    """The parts of a batch that were sent, from the trace."""

    def job_of(sent: StoredSubmission) -> BatchJob | None:
        if sent.job_id is None:
            return None
        return BatchJob(
            id=sent.job_id, provider=stored.provider, status="queued", key=sent.key, certain=sent.certain
        )

    return {
        part: Submission(sent.call_id, sent.began_at, job_of(sent)) for part, sent in stored.submissions.items()
    }
