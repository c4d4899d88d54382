"""The handle of a batch: check it, wait for its end, read and count its results, cancel it.

Each part of a batch has its own state:

    unsent     no job is known: the part was never sent, or its creation was never confirmed
    running    the provider works on its job; each check may change the job's status
    over       the job has ended, and its results were not read yet
    counted    its results are read, each is a call in the trace, and nothing is reserved for it

A check moves running parts to over, and then to counted. Each result has a fixed id, so the trace shows the
results that another process has counted. They are not counted again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import msgspec

from callboard.adapters import AdapterError, CanonicalRequest, CanonicalResponse, TokenUsage
from callboard.adapters.batches import BatchAdapter, BatchItem, BatchJob, BatchOutcome, BatchStatus
from callboard.adapters.http.retry import PollPolicy, is_passing, wait_for_job
from callboard.adapters.operations.batches import bare_request
from callboard.adapters.replies.usage import NOTHING_USED
from callboard.bus import BatchCompleted, BatchPartEnded, BatchProgress, Cost, CostSource, LlmCallFailed
from callboard.bus.errors import (
    CallboardError,
    CancelledError,
    OutcomeUnknownError,
    RequestTimeoutError,
    StoreError,
)
from callboard.bus.log import takes_old_names
from callboard.bus.values.messages import CallWarning
from callboard.tracestore import CountedCall

from ..budgets.budgets import job_of
from ..runtime.runtime import Runtime, settled_store
from .batch_plan import (
    BatchPlan,
    BatchResult,
    BatchResults,
    BatchState,
    CollectedResults,
    HandOutFailedError,
    OnResult,
    status_of,
)
from .plain_calls import EndedCall, with_adapter

NOT_BILLED = Cost(0, CostSource.COMPUTED, None, "a failed request of a batch is not billed")


class ItemCall(EndedCall):
    """One request of a batch as a call. It is priced when its result is read."""

    def publish(self, outcome: BatchOutcome, key: str | None) -> Cost | None:
        """Publish the end of the request. Returns its cost; None if the cost is unknown."""
        if isinstance(outcome, CanonicalResponse):
            return self.complete(
                outcome, key, stop_reason=outcome.stop_reason, raw_stop_reason=outcome.raw_stop_reason
            )
        self.fail(outcome, key)
        return outcome.cost

    def _failed(self, error: AdapterError, *, will_retry: bool, delay: float) -> LlmCallFailed:
        failure = super()._failed(error, will_retry=will_retry, delay=delay)
        return msgspec.structs.replace(failure, of_batch=True)

    def cost_of(self, usage: TokenUsage) -> Cost:
        return NOT_BILLED if usage is NOTHING_USED else self.price(usage)

    def account(self, error: AdapterError) -> None:
        """Keep the usage from the provider's results."""


async def counted_calls(runtime: Runtime, call_ids: Sequence[str]) -> dict[str, CountedCall]:
    """The given calls that are already in the trace, by id."""
    store = await settled_store(runtime)
    return {} if store is None else await store.counted_calls(call_ids)


T = TypeVar("T")

OnProgress = Callable[[BatchState], object]

USUAL_BATCH_POLLING = PollPolicy(first=5.0, longest=60.0)
"""The default intervals of the checks."""

_EVENTS_AT_ONCE = 200
"""The number of results after which other tasks may run, and the trace is searched again for counted results."""


class Submission(msgspec.Struct):
    call_id: str
    """The id of the call that creates the job."""
    began_at: int
    """The time when the part was sent, in seconds since the epoch."""
    job: BatchJob | None = None
    """The job at the last check; None if the creation was never answered."""


class BatchHandle:
    """The handle of a batch at its provider. The batch continues without a handle. `Engine.resume_batch` creates
    another one.

    Only `wait()` and `refresh()` check the batch. They publish its progress (`batch.*`), and count each result
    once, in a call of the operation ``batch``.
    """

    def __init__(
        self,
        runtime: Runtime,
        plan: BatchPlan,
        requests: Sequence[CanonicalRequest] | None,
        polling: PollPolicy,
        submissions: dict[int, Submission],
    ) -> None:
        self._runtime = runtime
        self._plan = plan
        self._requests = requests
        self._polling = polling
        self._submissions = submissions
        self._results = CollectedResults(plan.batch_id)
        # The results that this handle has counted. Without a trace, this is the only record.
        self._counted: dict[int, CountedCall] = {}
        self._handing_out = False
        self._looking = anyio.Lock()
        self._published: tuple[BatchStatus, int, int] | None = None
        self._completed = False

    @property
    def id(self) -> str:
        """The batch's id, for `resume_batch`."""
        return self._plan.batch_id

    @property
    def model(self) -> str:
        """The model's name, as in models.yaml or in the call."""
        return self._plan.decision.model

    @property
    def jobs(self) -> tuple[BatchJob | None, ...]:
        """The provider's job of each part at the last check; None for a part without a job."""
        return tuple(self._job(part) for part in self._plan.parts())

    @property
    def status(self) -> BatchStatus:
        """The status at the last check."""
        return status_of(self.jobs)

    @property
    def state(self) -> BatchState:
        """The batch at the last check."""
        jobs = [job for job in self.jobs if job is not None]
        counted = self._is_counted
        answered = self._results.answered
        return BatchState(
            batch_id=self.id,
            status=self.status,
            total=self._plan.total,
            succeeded=answered if counted else sum(job.succeeded for job in jobs),
            failed=self._plan.total - answered if counted else sum(job.failed for job in jobs),
            done=counted,
        )

    @property
    def _is_counted(self) -> bool:
        return len(self._results) == self._plan.total

    @property
    def results(self) -> tuple[BatchResult | None, ...]:
        """The results in the order of the requests. An item is None if the result is missing or was passed to
        `for_each`.
        """
        return tuple(self._results.get(place) for place in range(self._plan.total))

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """Warnings, such as ``found_again`` for a job whose creation was not confirmed."""
        return tuple(warning for job in self.jobs if job is not None for warning in job.warnings)

    # --- Checking ---

    async def refresh(self) -> BatchState:
        """Check each job once, and read the results of jobs that have ended.

        Raises:
            AdapterError: The check failed.
        """
        return await self._refresh(None)

    async def _refresh(self, on_result: OnResult | None) -> BatchState:
        async with self._looking:
            if on_result is not None:
                await self._results.hand_out_kept(on_result)  # Another check has read these results.
            for part in self._plan.parts():
                await self._look_at(part, on_result)
                self._publish_progress()
            if self._is_counted and not self._completed:
                self._completed = True
                self._publish_end()
                await self._runtime.host.secure()
        return self.state

    @takes_old_names(timeout_seconds="timeout")
    async def wait(self, *, on_progress: OnProgress | None = None, timeout: float | None = None) -> BatchResults:
        """Wait for the end of the batch. Any number of tasks may wait.

        After lost connections and provider errors, checks are retried, see `PollPolicy`. The batch continues even
        if the wait ends early.

        Args:
            on_progress: Called with the progress at every check. Its exceptions are raised here.
            timeout: Seconds to wait; None waits without limit.

        Returns:
            The results, in the order of the requests.

        Raises:
            RequestTimeoutError: The time is up. The batch continues.
            CancelledError: The engine was closed. The batch continues.
            AdapterError: Checks failed permanently, or for too long. The batch continues.
            CallboardError: `for_each` has already passed on the results and dropped them.
        """
        self._results.all()  # raises now, and not after a day
        await self._wait_for_end(self.refresh, on_progress, timeout)
        return BatchResults(batch_id=self.id, status=self.status, results=self._results.all())

    @takes_old_names(timeout_seconds="timeout")
    async def for_each(
        self,
        on_result: OnResult,
        *,
        on_progress: OnProgress | None = None,
        timeout: float | None = None,
    ) -> BatchState:
        """Wait for the end of the batch, and pass each result to a function. Results are not kept.

        Use it if the results don't fit into memory. Results of one job arrive in the order of its requests; jobs
        arrive in the order in which they end. If `on_result` raises an exception, you can call this again: it
        continues with the same result. A new handle of the batch starts with the first result.

        Args:
            on_result: Called with each result, and awaited if it is async. Its exceptions are raised here. It must
                not check the batch or wait for it. Closing the engine cancels a call that is awaited.
            on_progress: As in `wait`.
            timeout: Seconds to wait, including the time of `on_result`; None waits without limit.

        Returns:
            The batch at its end.

        Raises:
            RequestTimeoutError: As in `wait`.
            CancelledError: As in `wait`.
            AdapterError: As in `wait`.
            CallboardError: Results are already being read.
        """
        if self._handing_out:
            raise CallboardError(f"the results of batch {self.id} are already being read")
        self._handing_out = True
        try:
            await self._wait_for_end(lambda: self._refresh(on_result), on_progress, timeout)
        except HandOutFailedError as failed:
            raise failed.error from None
        finally:
            self._handing_out = False
        return self.state

    async def _wait_for_end(
        self,
        look: Callable[[], Awaitable[BatchState]],
        on_progress: OnProgress | None,
        timeout: float | None,
    ) -> None:
        closed = f"the engine was closed, and batch {self.id} continues. Call engine.resume_batch({self.id!r})"
        with self._runtime.in_flight.call(closed):
            try:
                await look()  # first without a wait, because the batch may have ended
            except AdapterError as error:
                if not is_passing(error):
                    raise
            try:
                with anyio.fail_after(timeout):
                    await wait_for_job(
                        look,
                        self.state,
                        policy=self._polling,
                        random=self._runtime.clock.random,
                        on_look=on_progress,
                    )
            except TimeoutError as error:
                late = f"batch {self.id} is {self.status} after {timeout:g} s. It continues"
                raise RequestTimeoutError(late, provider=self._plan.decision.provider, retryable=False) from error

    async def cancel(self) -> bool:
        """Cancel the batch. Results that exist are billed, and `wait()` returns them.

        Returns:
            False if the batch has already ended.

        Raises:
            OutcomeUnknownError: A job was only identified by its size, and may belong to another batch.
            AdapterError: The provider can't be reached, or refuses. The batch continues.
        """
        ended = False
        for part in self._plan.parts():
            job = self._job(part)
            if job is not None and not job.done:
                ended = await self._cancel(job) or ended
        return ended

    async def _cancel(self, job: BatchJob) -> bool:
        model = self._plan.wire_model
        return await self._with_adapter(lambda adapter: adapter.cancel_batch(job, model=model))

    def _with_adapter(self, work: Callable[[BatchAdapter], Awaitable[T]]) -> Awaitable[T]:
        return with_adapter(self._runtime, self._plan.decision.provider, work)

    def _take_over(self, submissions: dict[int, Submission], requests: Sequence[CanonicalRequest]) -> None:
        """Add parts that other tasks have sent, and remove the placeholder errors of their requests."""
        self._requests = requests
        for part, sent in submissions.items():
            if self._job(part) is None and sent.job is not None:
                self._submissions[part] = sent
                self._completed = False
                self._results.forget(self._plan.places(part))

    def _job(self, part: int) -> BatchJob | None:
        sent = self._submissions.get(part)
        return None if sent is None else sent.job

    async def _look_at(self, part: int, on_result: OnResult | None) -> None:
        places = self._plan.places(part)
        if all(place in self._results for place in places):
            return
        sent = self._submissions.get(part)
        if sent is None or sent.job is None:
            await self._leave_out(part, sent, on_result)
            return
        if not sent.job.done:
            sent.job = await self._retrieved(sent.job)
        if sent.job.done:
            outcomes = await self._read(part, sent.job)
            await self._count(part, sent, sent.job, outcomes, on_result)

    async def _leave_out(self, part: int, sent: Submission | None, on_result: OnResult | None) -> None:
        """Set the errors for the requests of a part without a job."""
        provider = self._plan.decision.provider
        how = f"engine.create_batch(requests, batch_id={self.id!r})"
        for place in self._plan.places(part):
            error: AdapterError
            if sent is None:
                error = CancelledError(f"part {part} of batch {self.id} was never sent. To send it, call {how}")
            else:
                error = OutcomeUnknownError(
                    f"part {part} of batch {self.id} was never confirmed, and {provider} has no such "
                    f"batch. To send it, call {how}",
                    provider=provider,
                )
            await self._keep(place, error, None, on_result)

    async def _retrieved(self, job: BatchJob) -> BatchJob:
        model = self._plan.wire_model
        progress = await self._with_adapter(
            lambda adapter: adapter.retrieve_batch(job.id, model=model, key=job.key)
        )
        return msgspec.structs.replace(progress, certain=job.certain, warnings=job.warnings)

    # --- Results ---

    async def _read(self, part: int, job: BatchJob) -> Sequence[BatchOutcome]:
        items = [BatchItem(self._plan.call_id(place), self._request(place)) for place in self._plan.places(part)]
        try:
            return await self._with_adapter(lambda adapter: adapter.read_batch(job, items))
        # the job belongs to another batch; the job of this part was not found
        except OutcomeUnknownError as error:
            return [OutcomeUnknownError(str(error), provider=job.provider) for _ in items]

    def _request(self, place: int) -> CanonicalRequest:
        request_id = self._plan.request_ids[place]
        if self._requests is None:
            return bare_request(request_id, self._plan.model)
        return msgspec.structs.replace(self._requests[place], request_id=request_id, model=self._plan.model)

    async def _count(
        self,
        part: int,
        sent: Submission,
        job: BatchJob,
        outcomes: Sequence[BatchOutcome],
        on_result: OnResult | None,
    ) -> None:
        """Publish a call for each result that was not published yet.

        Another process may count the results at the same time, so the trace is queried repeatedly. At the end, the
        rows in the trace determine which results count in the budgets.
        """
        counted: dict[str, CountedCall] = {}
        places = list(self._plan.places(part))
        for number, place in enumerate(places):
            if number % _EVENTS_AT_ONCE == 0:
                following = [self._plan.call_id(each) for each in places[number : number + _EVENTS_AT_ONCE]]
                counted = await counted_calls(self._runtime, following)
            if place in self._results:
                continue
            outcome = outcomes[number]
            before = counted.get(self._plan.call_id(place)) or self._counted.get(place)
            if before is None and not isinstance(outcome, OutcomeUnknownError):
                call = ItemCall(self._runtime, "batch", self._plan, self._plan.call_id(place), sent.call_id)
                before = self._counted[place] = CountedCall(call.publish(outcome, job.key), None)
            await self._keep(place, outcome, before, on_result)
        ended = BatchPartEnded(**self._plan.about(), part=part, job_id=job.id, status=job.status)
        self._runtime.bus.publish(ended, request_id=sent.call_id, tags=self._plan.tags)
        self._runtime.budgets.release(job_of(sent.call_id))
        await self._runtime.host.secure()
        if self._runtime.budgets and self._runtime.store is not None:
            with contextlib.suppress(
                StoreError
            ):  # If the store fails, this process's own count is used until the next check.
                await self._runtime.budgets.recount(all_of_them=True)

    async def _keep(
        self, place: int, outcome: BatchOutcome, counted: CountedCall | None, on_result: OnResult | None
    ) -> None:
        answered = isinstance(outcome, CanonicalResponse)
        result = BatchResult(
            request_id=self._plan.request_ids[place],
            call_id=self._plan.call_id(place),
            response=outcome if isinstance(outcome, CanonicalResponse) else None,
            error=None if answered or not isinstance(outcome, AdapterError) else outcome,
            cost=None if counted is None else counted.cost,
        )
        await self._results.add(place, result, on_result)

    def _publish_progress(self) -> None:
        progress = self.state
        state = (progress.status, progress.succeeded, progress.failed)
        if state == self._published:
            return
        self._published = state
        status, succeeded, failed = state
        event = BatchProgress(
            **self._plan.about(), status=status, total=progress.total, succeeded=succeeded, failed=failed
        )
        self._runtime.bus.publish(event, request_id=self.id, tags=self._plan.tags)

    def _publish_end(self) -> None:
        cost = self._results.cost
        progress = self.state
        event = BatchCompleted(
            **self._plan.about(),
            status=progress.status,
            succeeded=progress.succeeded,
            failed=progress.failed,
            cost_nano_usd=cost.nano_usd,
            unpriced=cost.unpriced + cost.unknown,
        )
        self._runtime.bus.publish(event, request_id=self.id, tags=self._plan.tags)
