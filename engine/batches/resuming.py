"""Batches are come back to: what the trace knows of one, and the search for jobs of which nobody has heard."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec

from callboard.adapters import CanonicalRequest
from callboard.adapters.batches import BatchAdapter, BatchJob
from callboard.adapters.jobs import PollPolicy
from callboard.bus import BatchSubmitted, RoutingDecision
from callboard.bus.errors import ConfigurationError, InvalidRequestError, NotFoundError
from callboard.tracestore import StoredBatch, StoredSubmission

from ..models.published_prices import published_name
from ..routing.candidates import Named, expand
from ..runtime.runtime import Runtime
from .adapter import taker, with_adapter
from .calls import FoundCreation, JobAsAnswer
from .handle import BatchHandle, Submission
from .known import begun_batches, handles, only_handle
from .plan import BatchPlan, call_id, digest_of
from .stored import counted_calls, stored_batch, stored_batches

SETTLE_SECONDS = 30.0
"""Seconds after which a job is listed, if it was ever created."""

_LOOK_EVERY = 2.0
"""Seconds between two looks for a job whose creation was never confirmed."""

_LATEST = 100
"""So many batches of the trace are asked for their jobs, before one that nobody owns is taken for a lost one."""

MAYBE_SENT = frozenset({"OutcomeUnknownError", "ProcessLost", "CancelledError"})
"""The ends of creations of which nobody knows what became of them."""


async def resume_batch(
    runtime: Runtime,
    batch_id: str,
    requests: Sequence[CanonicalRequest] | None,
    polling: PollPolicy,
    settle_seconds: float,
) -> BatchHandle:
    """See `BatchMethods.resume_batch`."""
    await runtime.host.start()
    runtime.pricing.notice()
    known = handles(runtime).get(batch_id)
    if known is not None:
        await known.refresh()
        return known
    if runtime.store is None:
        raise ConfigurationError("batches are found in the trace, and this engine has none: Engine(trace=True)")
    stored = await stored_batch(runtime, batch_id)
    if stored is None:
        raise NotFoundError(f"the trace knows no batch {batch_id!r}")
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
    """A part whose creation was never confirmed, as the provider lists it.

    Args:
        runtime: The engine's parts.
        plan: The batch's plan.
        part: The number of the part.
        sent: What is known of its sending.
        until: When the job would be listed, if it was ever created, in seconds since the epoch.

    Returns:
        None if it was never created.
    """
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
    FoundCreation(runtime, plan, sent.call_id, None).tell(JobAsAnswer(job, plan.model), job.key)
    tell_submitted(runtime, plan, part, sent.call_id, job)
    await runtime.host.secure()
    return Submission(sent.call_id, sent.began_at, job)


async def known_jobs(runtime: Runtime, plan: BatchPlan, part: int) -> list[str]:
    """The ids of the jobs that belong to other parts or to other batches, as this engine or the trace knows."""
    in_use = handles(runtime).values()
    known = {(handle.id, number): job for handle in in_use for number, job in enumerate(handle.jobs, 1)}
    for name, (_, submissions) in begun_batches(runtime).items():
        known |= {(name, number): sent.job for number, sent in submissions.items() if sent.job is not None}
    jobs = {place: job.id for place, job in known.items() if job is not None}
    for batch in await stored_batches(runtime, _LATEST):
        sent_parts = batch.submissions.items()
        jobs |= {(batch.batch_id, number): sent.job_id for number, sent in sent_parts if sent.job_id is not None}
    return [job_id for place, job_id in jobs.items() if place != (plan.batch_id, part)]


def tell_submitted(runtime: Runtime, plan: BatchPlan, part: int, request_id: str, job: BatchJob) -> None:
    """Publish that a provider has a part."""
    event = BatchSubmitted(
        **about(plan), part=part, job_id=job.id, call_id=request_id, key=job.key, certain=job.certain
    )
    runtime.bus.publish(event, request_id=plan.batch_id, tags=plan.tags)


def decision_of(named: Named, requested: str) -> RoutingDecision:
    """The decision for a batch's model, among which there was no choice."""
    return RoutingDecision(
        requested=requested,
        model=named.model,
        provider=named.entry.adapter,
        resolved_by=named.resolved_by,
        candidates=(),
    )


def plan_of(runtime: Runtime, named: Named, stored: StoredBatch) -> BatchPlan:
    """The plan of a batch that is in the trace."""
    ids = stored.request_ids or tuple(call_id(stored.batch_id, place) for place in range(sum(stored.parts)))
    return BatchPlan(
        batch_id=stored.batch_id,
        decision=decision_of(named, stored.model),
        wire_model=named.entry.wire_name,
        priced_as=published_name(runtime.registry.adapter_of(named.entry), named.entry),
        sizes=stored.parts,
        digest=stored.digest,
        request_ids=ids,
        key=stored.key,
        tags=stored.tags,
    )


def submissions_of(stored: StoredBatch) -> dict[int, Submission]:
    """The parts of a batch that were sent, as the trace knows them."""

    def job_of(sent: StoredSubmission) -> BatchJob | None:
        if sent.job_id is None:
            return None
        return BatchJob(
            id=sent.job_id, provider=stored.provider, status="queued", key=sent.key, certain=sent.certain
        )

    return {
        part: Submission(sent.call_id, sent.began_at, job_of(sent)) for part, sent in stored.submissions.items()
    }


def about(plan: BatchPlan) -> dict[str, str]:
    """What all events of a batch say."""
    return {"batch_id": plan.batch_id, "provider": plan.decision.provider, "model": plan.decision.model}
