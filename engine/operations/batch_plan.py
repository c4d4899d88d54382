"""The plan of a batch, its states, and its results.

The requests of a batch have indexes from 0. They are divided into parts. Each part is one job at the provider. In
the job, a request has its call id, which consists of the batch's id and the index. The call in the trace has the
same id. A job's mark consists of the batch's id, the digest of all requests and the part's number.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import accumulate

import msgspec

from callboard.adapters import AdapterError, CanonicalRequest, CanonicalResponse
from callboard.adapters.batches import BatchJob, BatchStatus
from callboard.bus import Cost
from callboard.bus.errors import CallboardError, InvalidRequestError
from callboard.bus.values.usage import CostSum, usage_is_unknown

from .plain_calls import JobOrigin

_ID = re.compile(r"[A-Za-z0-9_-]{1,48}")


class BatchPlan(JobOrigin, frozen=True, kw_only=True):
    batch_id: str
    sizes: tuple[int, ...]
    """The number of requests in each part, in order."""
    digest: str
    """The start of the hash of all requests."""
    request_ids: tuple[str, ...]
    key: str | None = None
    """The name of the key that the caller chose."""

    @property
    def total(self) -> int:
        return sum(self.sizes)

    def parts(self) -> range:
        """The numbers of the parts, from 1."""
        return range(1, len(self.sizes) + 1)

    def places(self, part: int) -> range:
        ends = list(accumulate(self.sizes, initial=0))
        return range(ends[part - 1], ends[part])

    def about(self) -> dict[str, str]:
        """The fields that all events of the batch have."""
        return {"batch_id": self.batch_id, "provider": self.decision.provider, "model": self.decision.model}

    def mark(self, part: int) -> str:
        return f"{self.batch_id}/{self.digest}/{part}"

    def call_id(self, place: int) -> str:
        return call_id(self.batch_id, place)


def call_id(batch_id: str, place: int) -> str:
    return f"{batch_id}-{place}"


class BatchState(msgspec.Struct, frozen=True, kw_only=True):
    """A batch at the last check."""

    batch_id: str
    """The batch's id."""
    status: BatchStatus
    """The status of the batch. It is final once all jobs have ended."""
    total: int
    """The number of requests."""
    succeeded: int
    """The number of answered requests, if the provider counts them."""
    failed: int
    """The number of failed requests, if the provider counts them."""
    done: bool
    """Whether all jobs have ended, and their results were read and counted."""


_ENDS: tuple[BatchStatus, ...] = ("cancelled", "expired", "completed", "failed")


def status_of(jobs: Sequence[BatchJob | None]) -> BatchStatus:
    """The status of a batch with these jobs. None is a part without a known job."""
    jobs_of_batch = [job for job in jobs if job is not None]
    if all(job.done for job in jobs_of_batch):
        ended = {job.status for job in jobs_of_batch}
        return next((status for status in _ENDS if status in ended), "failed")
    if any(job.status == "cancelling" for job in jobs_of_batch):
        return "cancelling"
    return "queued" if all(job.status == "queued" for job in jobs_of_batch) else "in_progress"


def digest_of(requests: Sequence[CanonicalRequest]) -> str:
    """12 hex digits of the hash of all request contents. Ids and delivery options are not included."""
    digest = sha256()
    for request in requests:
        contents = [(message.role, message.content) for message in request.messages]
        about = msgspec.structs.replace(
            request,
            request_id="",
            message_id="",
            session_id="",
            messages=(),
            max_retries=None,
            retry=None,
            timeout_seconds=None,
            capabilities=None,
            wire=None,
        )
        digest.update(msgspec.json.encode((about, contents), enc_hook=repr, order="deterministic") + b"\n")
    return digest.hexdigest()[:12]


def check_id(batch_id: str) -> None:
    """Check that a batch id is valid. Raises InvalidRequestError."""
    if _ID.fullmatch(batch_id) is None:
        raise InvalidRequestError(f"invalid batch id {batch_id!r}: expected 1 to 48 letters, digits, '_' and '-'")


def ids_of(batch_id: str, requests: Sequence[CanonicalRequest]) -> tuple[str, ...]:
    """The request ids for the results: the caller's ids. A request without an id gets its call id."""
    ids = tuple(request.request_id or call_id(batch_id, place) for place, request in enumerate(requests))
    if len(set(ids)) < len(ids):
        twice = next(each for each in ids if ids.count(each) > 1)
        raise InvalidRequestError(f"two requests of the batch have the id {twice!r}")
    return ids


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one request: a response or an error."""

    request_id: str
    """The id of the request; if the caller set none, the id of its call."""
    call_id: str
    """The id of the request's call in the trace."""
    response: CanonicalResponse | None = None
    """The response; None if there is an error."""
    error: AdapterError | None = None
    """The reason why there is no response."""
    cost: Cost | None = None
    """The cost; None if it is unknown whether the request is billed."""

    @property
    def text(self) -> str:
        """All text of the response. Raises `error` if there is no response."""
        return self.unwrap().text

    def unwrap(self) -> CanonicalResponse:
        """The response.

        Raises:
            AdapterError: There is no response.
        """
        if self.response is None:
            raise self.error or AdapterError(f"request {self.request_id} has no result")
        return self.response

    @property
    def cost_sum(self) -> CostSum:
        """The result's part in a sum."""
        if self.response is not None:
            return CostSum.of_call(self.response.usage, self.cost)
        error = self.error
        unknown = error is not None and usage_is_unknown(error.error_class, error.provider_status)
        return CostSum.of_call(None if error is None else error.usage, self.cost, unknown=unknown)


class BatchResults(msgspec.Struct, frozen=True, kw_only=True):
    """All results of a batch, in the order of its requests."""

    batch_id: str
    """The batch's id."""
    status: BatchStatus
    """How the batch ended."""
    results: tuple[BatchResult, ...]
    """The results."""

    def __iter__(self) -> Iterator[BatchResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, place: int) -> BatchResult:
        return self.results[place]

    @property
    def cost(self) -> CostSum:
        """The cost of all requests."""
        total = CostSum()
        for result in self.results:
            total += result.cost_sum
        return total


OnResult = Callable[[BatchResult], Awaitable[object] | object]


class HandOutFailedError(Exception):
    """An exception of the caller's own function."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class CollectedResults:
    """The results by their index in the batch. Of a result that was passed on, only the cost is kept."""

    def __init__(self, batch_id: str) -> None:
        self._batch_id = batch_id
        self._stored: dict[int, BatchResult] = {}
        # for each result that was passed on: whether it is a response, and its cost
        self._handed_out: dict[int, tuple[bool, CostSum]] = {}

    def __len__(self) -> int:
        return len(self._stored) + len(self._handed_out)

    def __contains__(self, place: int) -> bool:
        return place in self._stored or place in self._handed_out

    def get(self, place: int) -> BatchResult | None:
        """The result at an index; None if it is missing, or was passed on."""
        return self._stored.get(place)

    @property
    def answered(self) -> int:
        stored = sum(result.response is not None for result in self._stored.values())
        return stored + sum(is_answer for is_answer, _ in self._handed_out.values())

    @property
    def cost(self) -> CostSum:
        """The cost of all results, including results that were passed on."""
        stored = [result.cost_sum for result in self._stored.values()]
        return sum((*stored, *(spent for _, spent in self._handed_out.values())), CostSum())

    def all(self) -> tuple[BatchResult, ...]:
        """All results in the order of the requests."""
        if self._handed_out:
            raise CallboardError(f"results of batch {self._batch_id} were read with for_each() and are not stored")
        return tuple(self._stored[place] for place in sorted(self._stored))

    def forget(self, places: Iterable[int]) -> None:
        """Remove the results at some indexes, because other results will replace them."""
        for place in places:
            self._stored.pop(place, None)
            self._handed_out.pop(place, None)

    async def add(self, place: int, result: BatchResult, on_result: OnResult | None) -> None:
        if on_result is None:
            self._stored[place] = result
        else:
            await self._hand_out(place, result, on_result)

    async def hand_out_kept(self, on_result: OnResult) -> None:
        """Pass on the stored results, in the order of the requests."""
        for place in sorted(self._stored):
            await self._hand_out(place, self._stored[place], on_result)
            del self._stored[place]

    async def _hand_out(self, place: int, result: BatchResult, on_result: OnResult) -> None:
        try:
            pending = on_result(result)
            if isinstance(pending, Awaitable):
                await pending
        except Exception as error:
            raise HandOutFailedError(error) from error
        self._handed_out[place] = result.response is not None, result.cost_sum
