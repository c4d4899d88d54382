"""The creation of batches. A part is sent again only if the first request certainly had no effect.

The trace records each part before it is sent. If a process dies before it gets the answer, the next one searches
the provider's list for the job, by its mark. If the list has no such job for `settle_seconds`, it was never
created, and it is sent again. One program at a time creates a batch. Others with the same trace wait and then read
the result. An engine without a trace remembers its own parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import msgspec

from callboard.adapters import AdapterError, AttemptObserver, CanonicalRequest
from callboard.adapters.batches import BatchAdapter, BatchItem, BatchJob, BatchRequest
from callboard.adapters.http.retry import PollPolicy
from callboard.bus import BatchPlanned, BatchSubmitting
from callboard.bus.errors import InvalidRequestError

from ..budgets.ledger import Amount
from ..budgets.worst_case import Priced, tool_fees, worst_case_of_reply
from ..calls.outcome import texts_of
from ..calls.plain_call import CallOptions, Models, PlainCalls, require_known
from ..routing.candidates import Named, Route, expand
from ..routing.model_choice import overridden
from ..runtime.runtime import Runtime
from .batch_handle import USUAL_BATCH_POLLING, BatchHandle, Submission
from .batch_plan import BatchPlan, call_id, check_id, digest_of, ids_of
from .batch_resuming import (
    MAYBE_SENT,
    SETTLE_SECONDS,
    Started,
    creating,
    find_part,
    handles,
    has_job,
    only_handle,
    plan_of,
    publish_submitted,
    share,
    started_batches,
    stored_batch,
    submissions_of,
    taker,
    turn,
)
from .jobs import GRACE_SECONDS, JobAnswer, decision_of, priced_as


class BatchOptions(CallOptions, total=False):
    """The options of a batch. Retries and the time limit apply to the creation of each job.

    `fallback` and `provider_options` have no effect: a batch is for one model, and each request has its own
    options.
    """

    polling: PollPolicy
    """The policy for looking at the batch."""
    settle_seconds: float
    """Seconds after which a job is listed, if it was ever created."""


async def create_batch(
    runtime: Runtime,
    requests: Sequence[CanonicalRequest],
    model: Models,
    batch_id: str | None,
    options: BatchOptions,
) -> BatchHandle:
    """See `Engine.create_batch`."""
    options = require_known(options, BatchOptions)
    name = batch_id or runtime.clock.new_id("batch")
    check_id(name)
    if not requests:
        raise InvalidRequestError("a batch has no requests")
    asked: Models = model or [request.model for request in requests if request.model][:1] or None
    common = cast("CallOptions", {**options, "fallback": ()})
    calls = PlainCalls(
        *("batch_create", runtime, asked, common, taker),
        said=lambda: (text for each in requests for text in texts_of(each.messages, each.system_prompt)),
    )
    creation = _Creation(runtime, tuple(requests), calls, name, options)
    return await calls.run(creation.run)


class _Creation:
    """The creation of one batch, or the rest of it."""

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
        """The batch, with all parts sent."""
        self._require_one_model()
        async with turn(self._runtime, self._batch_id), creating(self._runtime, self._batch_id):
            return await self._run_alone()

    async def _run_alone(self) -> BatchHandle:
        runtime = self._runtime
        plan, submissions = await self._begin()
        items = self._items()
        for part in plan.parts():
            before = submissions.get(part)
            if not has_job(before):
                submissions[part] = await self._sent(plan, part, items, before)
        known = handles[runtime].get(self._batch_id)
        if known is not None:
            known._take_over(submissions, self._requests)
            return known
        polling = self._options.get("polling", USUAL_BATCH_POLLING)
        return only_handle(runtime, BatchHandle(runtime, plan, self._requests, polling, submissions))

    async def _begin(self) -> Started:
        """The batch from this engine and the trace, or a new plan."""
        started = started_batches[self._runtime].get(self._batch_id)
        stored = await stored_batch(self._runtime, self._batch_id)
        if stored is not None:
            self._require_same(stored.digest)
            told = submissions_of(stored)
            if started is None:
                started = plan_of(self._runtime, self._named, stored), told
            # Another process may have gone on since this engine left off.
            started[1].update({part: sent for part, sent in told.items() if not has_job(started[1].get(part))})
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
            tags=dict(options.get("tags", {})) or None,
        )

    def _publish_plan(self, plan: BatchPlan) -> None:
        given = any(request.request_id for request in self._requests)
        event = BatchPlanned(
            **plan.about(),
            parts=plan.sizes,
            digest=plan.digest,
            request_ids=plan.request_ids if given else (),
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
        """A part, sent now or found to have been sent before."""
        if before is not None:
            # The sender may have died a moment ago, so the time to settle starts now.
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
            await share(runtime)  # It is recorded before it is sent, so that the next process can search for it.
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
        """The most that a part can cost: the sum of the worst cases of its requests, at the prices of batches."""
        adapter = self._runtime.adapters.consult(self._runtime.registry.adapter_of(self._named.entry))
        at_batch_prices = msgspec.structs.replace(priced, service_tier="batch")
        money: int | None = 0
        tokens = 0
        for item in items:
            request = item.request
            estimate = adapter.estimate_input_tokens(
                request.messages, request.tools, request.system_prompt, model=request.wire_model
            )
            fees = tool_fees(request.provider_options)
            most = worst_case_of_reply(at_batch_prices, estimate, request.max_output_tokens, fees)
            money = None if money is None or most.nano_usd is None else money + most.nano_usd
            tokens += most.tokens
        return Amount(money, tokens)
