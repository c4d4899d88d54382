"""The handle of a batch: look at it, wait for its end, read and count its results, end it.

Each part of a batch goes its own way:

    unsent     no job is known; it was never sent, or its creation was never confirmed
    running    the provider works on its job; each look may change the job's status
    over       the job has ended, and its results are not read yet
    counted    its results are read, each is a call in the trace, and nothing is reserved for it any more

A look leads running parts to over, and then to counted. A result that another process has counted is not counted
again: the trace is asked first, and its calls have ids of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import anyio.lowlevel
import msgspec

from adapters import AdapterError, CanonicalRequest, CanonicalResponse
from adapters.batches import BatchAdapter, BatchItem, BatchJob, BatchOutcome, BatchStatus
from adapters.batches.http import bare_request
from adapters.contract import CallWarning
from adapters.videos import PollPolicy
from adapters.videos.waiting import is_passing, wait_for_job
from bus import BatchCompleted, BatchPartEnded, BatchProgress
from bus.errors import CancelledError, OutcomeUnknownError, RequestTimeoutError
from tracestore import CountedCall

from ..budgets.reservation_names import job_of
from ..runtime.runtime import Runtime
from .adapter import with_adapter
from .calls import ItemCall
from .plan import BatchPlan, BatchState, status_of
from .results import BatchResult, BatchResults
from .stored import counted_calls

OnProgress = Callable[[BatchState], object]

USUAL_BATCH_POLLING = PollPolicy(first=5.0, longest=60.0)
"""When a batch is looked at, unless the caller says otherwise."""

_EVENTS_AT_ONCE = 200
"""After so many results everybody else has a turn."""


class Submission(msgspec.Struct):
    """One part, as far as it was sent."""

    call_id: str
    """The id of the call that creates the job."""
    began_at: int
    """When it was sent, in seconds since the epoch."""
    job: BatchJob | None = None
    """The job as it was last seen; None if no answer came to its creation."""


class BatchHandle:
    """A batch at its provider. The batch goes on without its handle, and `Engine.resume_batch` makes another one.

    Only `wait()` and `refresh()` look at the batch. They publish its progress (`batch.*`), and count each result
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
        self._results: dict[int, BatchResult] = {}
        self._looking = anyio.Lock()
        self._told: tuple[BatchStatus, int, int] | None = None
        self._completed = False

    @property
    def id(self) -> str:
        """The batch's id, for `resume_batch`."""
        return self._plan.batch_id

    @property
    def model(self) -> str:
        """The model that answers, as models.yaml or the caller names it."""
        return self._plan.decision.model

    @property
    def jobs(self) -> tuple[BatchJob | None, ...]:
        """The provider's jobs of the parts, as they were at the last look; None for a part that has none."""
        return tuple(self._job(part) for part in self._plan.parts())

    @property
    def status(self) -> BatchStatus:
        """The status at the last look."""
        return status_of(self.jobs)

    @property
    def state(self) -> BatchState:
        """The batch at the last look."""
        jobs = [job for job in self.jobs if job is not None]
        counted = len(self._results) == self._plan.total
        answered = sum(result.response is not None for result in self._results.values())
        return BatchState(
            batch_id=self.id,
            status=self.status,
            total=self._plan.total,
            succeeded=answered if counted else sum(job.succeeded for job in jobs),
            failed=self._plan.total - answered if counted else sum(job.failed for job in jobs),
            done=counted,
        )

    @property
    def results(self) -> tuple[BatchResult | None, ...]:
        """The results in the order of the requests; None for those that are not there yet."""
        return tuple(self._results.get(place) for place in range(self._plan.total))

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """Warnings, such as ``found_again`` of a job whose creation was never confirmed."""
        return tuple(warning for job in self.jobs if job is not None for warning in job.warnings)

    # -- looking

    async def refresh(self) -> BatchState:
        """Look at each job once, and read the results of those that have ended.

        Raises:
            AdapterError: The look failed.
        """
        async with self._looking:
            for part in self._plan.parts():
                await self._look_at(part)
                self._tell_progress()
            if len(self._results) == self._plan.total and not self._completed:
                self._completed = True
                self._tell_end()
                await self._runtime.host.secure()
        return self.state

    async def wait(
        self, *, on_progress: OnProgress | None = None, timeout_seconds: float | None = None
    ) -> BatchResults:
        """Wait for the end of the batch. Any number of tasks may wait.

        Lost connections and faults of the provider are waited out, see `PollPolicy`. Whatever ends the wait, the
        batch goes on.

        Args:
            on_progress: Is given the progress at every look. Its exceptions are raised here.
            timeout_seconds: Seconds to wait; None is without end.

        Returns:
            The results, in the order of the requests.

        Raises:
            RequestTimeoutError: The time is up. The batch goes on.
            AdapterError: Looking can't succeed, or has failed for too long. The batch goes on.
        """
        try:
            await self.refresh()  # at once: it may be over
        except AdapterError as error:
            if not is_passing(error):
                raise
        try:
            with anyio.fail_after(timeout_seconds):
                await wait_for_job(
                    self.refresh,
                    self.state,
                    policy=self._polling,
                    random=self._runtime.clock.random,
                    on_look=on_progress,
                )
        except TimeoutError as error:
            said = f"batch {self.id} is {self.status} after {timeout_seconds:g} s; it goes on"
            raise RequestTimeoutError(said, provider=self._plan.decision.provider, retryable=False) from error
        results = tuple(self._results[place] for place in range(self._plan.total))
        return BatchResults(batch_id=self.id, status=self.status, results=results)

    async def cancel(self) -> bool:
        """End the batch. What was answered by then is billed, and is among the results when `wait()` returns.

        Returns:
            False if there was nothing to end.

        Raises:
            OutcomeUnknownError: A job was found by its size alone, and may be another's.
            AdapterError: The provider can't be reached, or refuses. The batch goes on.
        """
        ended = False
        for part in self._plan.parts():
            job = self._job(part)
            if job is not None and not job.done:
                ended = await self._cancel(job) or ended
        return ended

    async def _cancel(self, job: BatchJob) -> bool:
        async def end(adapter: BatchAdapter) -> bool:
            return await adapter.cancel_batch(job, model=self._plan.wire_model)

        return await with_adapter(self._runtime, self._plan.decision.provider, end)

    def _take_over(self, submissions: dict[int, Submission], requests: Sequence[CanonicalRequest]) -> None:
        """Learn of parts that were sent since, whose requests had errors in place of results."""
        self._requests = requests
        for part, sent in submissions.items():
            if self._job(part) is None and sent.job is not None:
                self._submissions[part] = sent
                self._completed = False
                for place in self._plan.places(part):
                    self._results.pop(place, None)

    def _job(self, part: int) -> BatchJob | None:
        sent = self._submissions.get(part)
        return None if sent is None else sent.job

    async def _look_at(self, part: int) -> None:
        places = self._plan.places(part)
        if all(place in self._results for place in places):
            return
        sent = self._submissions.get(part)
        if sent is None or sent.job is None:
            self._leave_out(part, sent)
            return
        if not sent.job.done:
            sent.job = await self._retrieved(sent.job)
        if sent.job.done:
            outcomes = await self._read(part, sent.job)
            await self._count(part, sent, sent.job, outcomes)

    def _leave_out(self, part: int, sent: Submission | None) -> None:
        """Give the requests of a part without a job their errors."""
        provider = self._plan.decision.provider
        how = f"engine.create_batch(requests, batch_id={self.id!r})"
        for place in self._plan.places(part):
            error: AdapterError
            if sent is None:
                error = CancelledError(f"part {part} of batch {self.id} was never sent; {how} sends it")
            else:
                error = OutcomeUnknownError(
                    f"part {part} of batch {self.id} was never confirmed, and {provider} lists no such batch; "
                    f"{how} sends it",
                    provider=provider,
                )
            self._keep(place, error, None)

    async def _retrieved(self, job: BatchJob) -> BatchJob:
        async def look(adapter: BatchAdapter) -> BatchJob:
            return await adapter.retrieve_batch(job.id, model=self._plan.wire_model, key=job.key)

        seen = await with_adapter(self._runtime, self._plan.decision.provider, look)
        return msgspec.structs.replace(seen, certain=job.certain, warnings=job.warnings)

    # -- results

    async def _read(self, part: int, job: BatchJob) -> Sequence[BatchOutcome]:
        items = [BatchItem(self._plan.call_id(place), self._request(place)) for place in self._plan.places(part)]

        async def read(adapter: BatchAdapter) -> Sequence[BatchOutcome]:
            return await adapter.read_batch(job, items)

        try:
            return await with_adapter(self._runtime, self._plan.decision.provider, read)
        except OutcomeUnknownError as error:  # the job is another's, and ours was never found
            return [OutcomeUnknownError(str(error), provider=job.provider) for _ in items]

    def _request(self, place: int) -> CanonicalRequest:
        request_id = self._plan.request_ids[place]
        if self._requests is None:
            return bare_request(request_id, self._plan.model)
        return msgspec.structs.replace(self._requests[place], request_id=request_id, model=self._plan.model)

    async def _count(self, part: int, sent: Submission, job: BatchJob, outcomes: Sequence[BatchOutcome]) -> None:
        """Make a call of each result that isn't one yet."""
        places = self._plan.places(part)
        counted = await counted_calls(self._runtime, [self._plan.call_id(place) for place in places])
        for number, (place, outcome) in enumerate(zip(places, outcomes, strict=True), 1):
            before = counted.get(self._plan.call_id(place))
            if before is None and not isinstance(outcome, OutcomeUnknownError):
                call = ItemCall(self._runtime, self._plan, self._plan.call_id(place), sent.call_id)
                before = CountedCall(call.tell(outcome, job.key), None)
            self._keep(place, outcome, before)
            if number % _EVENTS_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        ended = BatchPartEnded(**self._about(), part=part, job_id=job.id, status=job.status)
        self._runtime.bus.publish(ended, request_id=sent.call_id, tags=self._plan.tags)
        self._runtime.budgets.release(job_of(sent.call_id))
        await self._runtime.host.secure()

    def _keep(self, place: int, outcome: BatchOutcome, counted: CountedCall | None) -> None:
        answered = isinstance(outcome, CanonicalResponse)
        self._results[place] = BatchResult(
            request_id=self._plan.request_ids[place],
            call_id=self._plan.call_id(place),
            response=outcome if isinstance(outcome, CanonicalResponse) else None,
            error=None if answered or not isinstance(outcome, AdapterError) else outcome,
            cost=None if counted is None else counted.cost,
        )

    # -- what is told

    def _about(self) -> dict[str, str]:
        decision = self._plan.decision
        return {"batch_id": self.id, "provider": decision.provider, "model": decision.model}

    def _tell_progress(self) -> None:
        seen = self.state
        state = (seen.status, seen.succeeded, seen.failed)
        if state == self._told:
            return
        self._told = state
        event = BatchProgress(
            **self._about(), status=seen.status, total=seen.total, succeeded=seen.succeeded, failed=seen.failed
        )
        self._runtime.bus.publish(event, request_id=self.id, tags=self._plan.tags)

    def _tell_end(self) -> None:
        results = [self._results[place] for place in range(self._plan.total)]
        whole = BatchResults(batch_id=self.id, status=self.status, results=tuple(results))
        cost, seen = whole.cost, self.state
        event = BatchCompleted(
            **self._about(),
            status=seen.status,
            succeeded=seen.succeeded,
            failed=seen.failed,
            cost_nano_usd=cost.nano_usd,
            unpriced=cost.unpriced + cost.unknown,
        )
        self._runtime.bus.publish(event, request_id=self.id, tags=self._plan.tags)
