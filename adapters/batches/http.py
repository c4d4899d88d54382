"""Batches over HTTP: jobs are created, found again, looked at and ended, and their results are read.

creating    the requests are uploaded, if the provider wants a file, and the job is asked for once
searching   the answer was lost; the provider's list is looked through for a job with our mark
reading     the results come line by line; a break begins the download anew, and keeps the lines that came
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar, overload

import anyio
import msgspec

from callboard.adapters.http import emulated_tools
from callboard.adapters.http.attempts import HttpAttempts
from callboard.adapters.http.client import HttpClient
from callboard.adapters.http.retry import backoff_delay
from callboard.adapters.http.single_reply import fetch
from callboard.adapters.http.wire_call import WireCall
from callboard.bus.errors import (
    AdapterError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    OutcomeUnknownError,
)
from callboard.bus.values.warning_codes import WarningCode

from ..calls import CallRequest
from ..contract import AttemptObserver, CallWarning, CanonicalRequest
from .contract import BatchItem, BatchJob, BatchLimits, BatchOutcome, BatchRequest
from .reading import Downloads, read_reply, unanswered
from .wire import BatchWire, Written, split_by_size, upload_id

T = TypeVar("T")

QUESTION_SECONDS = 30.0
"""The longest time of a question about a job, in seconds. Then a silent connection is given up."""

CLOCKS_APART = 60
"""Seconds by which the provider's clock may be behind ours."""

_LOOKS = 3
"""The number of looks for a job whose creation was never confirmed. Before each look there is a retry's wait."""

_MOST_PAGES = 20
"""So many pages of a provider's list are looked through."""

_READS = 5
"""So often a download that breaks is begun, though each brings no more lines than the one before."""


class _JobQuestion(CallRequest, frozen=True, kw_only=True):
    """A question about a job. It is asked once, and its caller may ask again."""

    max_retries: int | None = 0
    timeout_seconds: float | None = QUESTION_SECONDS


class HttpBatches:
    """A provider's batches, over the client that its conversations use, too."""

    def __init__(self, client: HttpClient, wire: BatchWire) -> None:
        self._client = client
        self.wire = wire
        self._handed_out: set[str] = set()  # the ids of the jobs that were created or found here

    @property
    def limits(self) -> BatchLimits:
        """How large a job may be."""
        return self.wire.limits

    def split(self, items: Sequence[BatchItem]) -> tuple[int, ...]:
        """See `BatchAdapter.split_batch`."""
        sizes = [len(self.wire.line(self._written(item), item.request.wire_model)) for item in items]
        return split_by_size(sizes, self.wire.limits)

    def _written(self, item: BatchItem) -> Written:
        wire, request = self._client.wire, item.request
        if request.capabilities is None:
            request = msgspec.structs.replace(request, capabilities=wire.get_capabilities(request.wire_model))
        try:
            return Written(item.id, emulated_tools.write_request(wire, request, stream=False))
        except (UnicodeError, msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidRequestError(f"{wire.name}: the request can't be written as JSON: {error}") from error

    # -- creating

    async def create(self, request: BatchRequest, on_attempt: AttemptObserver | None) -> BatchJob:
        """See `BatchAdapter.create_batch`."""
        client, wire, model = self._client, self.wire, request.wire_model
        items = [self._written(item) for item in request.items]
        lines = [wire.line(item, model) for item in items]
        began = client.clock.now_us() // 1_000_000
        uploaded: str | None = None  # the file is kept for further attempts

        async def attempt() -> BatchJob:
            nonlocal uploaded
            if uploaded is None:
                uploaded = await self._upload(attempts, lines, request.mark)
            creation = msgspec.structs.replace(wire.create(lines, uploaded, items, model, request.mark), once=True)
            try:
                job, reply = await fetch(attempts, creation, self._read_job)
            except OutcomeUnknownError as error:
                found = await self._created_all_the_same(attempts, request, began)
                if found is None:
                    raise
                job = _found_again(found, str(error))
            else:
                job = msgspec.structs.replace(job, provider_request_id=reply.provider_request_id)
            attempts.first_event({})
            self._handed_out.add(job.id)
            return msgspec.structs.replace(job, key=attempts.key_name)

        attempts = HttpAttempts(client, request, on_attempt)
        return await attempts.run(attempt)

    async def _upload(self, attempts: HttpAttempts, lines: Sequence[bytes], mark: str) -> str:
        call = self.wire.upload(lines, mark)
        if call is None:
            return ""
        file_id, _ = await fetch(attempts, call, lambda body, headers: upload_id(body))
        return file_id

    def _read_job(self, body: bytes, headers: Mapping[str, str]) -> BatchJob:
        return self.wire.read(body, self._client.name)

    # -- searching

    async def _created_all_the_same(
        self, attempts: HttpAttempts, request: BatchRequest, began: int
    ) -> BatchJob | None:
        """The job of a request whose reply was lost, if the provider lists it."""
        policy = request.retry or self._client.config.retry
        for look in range(_LOOKS):
            seconds = backoff_delay(look, policy, self._client.clock.random())
            await attempts.wait(partial(anyio.sleep, seconds), what="another look")
            try:
                found = await self._search(attempts, request.mark, len(request.items), began, self._handed_out)
            except OutcomeUnknownError:
                raise
            except AdapterError:
                continue
            if found is not None:
                return found
        return None

    async def _search(
        self, attempts: HttpAttempts, mark: str, count: int, since: int, known: set[str]
    ) -> BatchJob | None:
        """The one job of the provider's list that may be ours. Raises OutcomeUnknownError if there are several."""
        wire, provider = self.wire, self._client.name
        question: WireCall | None = wire.latest(mark, since - CLOCKS_APART)
        candidates: list[BatchJob] = []
        for _ in range(_MOST_PAGES):
            if question is None:
                break
            page, _ = await fetch(attempts, question, lambda body, headers: wire.read_latest(body, provider))
            young = [job for job in page.jobs if (job.created_at or since) >= since - CLOCKS_APART]
            candidates += [job for job in young if job.id not in known and self._may_be(job, mark, count)]
            question = page.following if len(young) == len(page.jobs) else None
        if len(candidates) > 1:
            ids = ", ".join(job.id for job in candidates)
            raise OutcomeUnknownError(f"{provider}: several batches may be the one that was asked for: {ids}")
        return msgspec.structs.replace(candidates[0], certain=wire.marks) if candidates else None

    def _may_be(self, job: BatchJob, mark: str, count: int) -> bool:
        return job.mark == mark if self.wire.marks else job.total == count

    async def find(
        self, model: str, mark: str, count: int, since: int, key: str | None, known: Sequence[str]
    ) -> BatchJob | None:
        """See `BatchAdapter.find_batch`."""
        attempts = HttpAttempts(self._client, self._question(model, key), None)
        found = await attempts.run(lambda: self._search(attempts, mark, count, since, set(known)))
        if found is None:
            return None
        self._handed_out.add(found.id)
        return _found_again(msgspec.structs.replace(found, key=key), "its process ended before it came")

    # -- looking and ending

    async def retrieve(self, job_id: str, model: str, key: str | None) -> BatchJob:
        """See `BatchAdapter.retrieve_batch`."""
        job = await self._inquire(self.wire.retrieve(job_id), self._read_job, self._question(model, key))
        return msgspec.structs.replace(job, key=key)

    async def cancel(self, job: BatchJob, model: str) -> bool:
        """See `BatchAdapter.cancel_batch`."""
        if not job.certain:
            raise OutcomeUnknownError(f"batch {job.id} may be another's, so it isn't cancelled")
        asked = self._question(model, job.key)
        try:
            await self._inquire(self.wire.cancel(job.id), lambda body, headers: None, asked)
        except NotFoundError:
            return False
        except InvalidRequestError:  # it is over by now, or being ended already
            return (await self.retrieve(job.id, model, job.key)).status == "cancelling"
        return True

    def _question(self, model: str, key: str | None) -> _JobQuestion:
        name = f"{self._client.name}:{model}"
        return _JobQuestion(request_id=self._client.clock.new_id("req"), model=name, key=key)

    async def _inquire(
        self, call: WireCall, read: Callable[[bytes, Mapping[str, str]], T], asked: CallRequest
    ) -> T:
        attempts = HttpAttempts(self._client, asked, None)
        found, _ = await attempts.run(lambda: fetch(attempts, call, read))
        return found

    # -- results

    async def read(self, job: BatchJob, items: Sequence[BatchItem]) -> Sequence[BatchOutcome]:
        """See `BatchAdapter.read_batch`."""
        downloads = Downloads(self._client, self.wire, job)
        without_gain = 0
        while without_gain < _READS:
            before = len(downloads.lines)
            error = await self._download(downloads, job)
            if error is None and not downloads.short:
                break
            without_gain = 0 if len(downloads.lines) > before else without_gain + 1
            if error is not None and without_gain == _READS:
                raise error
            downloads.begin_anew()
            await anyio.sleep(backoff_delay(without_gain, self._client.config.retry, self._client.clock.random()))
        if len(downloads.lines) and not any(item.id in downloads.lines for item in items):
            said = f"{self._client.name}: the results of batch {job.id} are those of other requests"
            raise OutcomeUnknownError(said)
        return _Outcomes(items, lambda item: self._outcome(job, item, downloads))

    async def _download(self, downloads: Downloads, job: BatchJob) -> AdapterError | None:
        """Download what is left. Returns the error of a download that may be begun anew, and raises any other."""
        client = self._client
        asked = CallRequest(
            request_id=client.clock.new_id("req"), model=f"{client.name}:batch", max_retries=0, key=job.key
        )
        attempts = HttpAttempts(client, asked, None)
        try:
            await attempts.run(partial(downloads.run, attempts))
        except AdapterError as error:
            if error.retryable or isinstance(error, NetworkError):
                return error
            raise
        return None

    def _outcome(self, job: BatchJob, item: BatchItem, downloads: Downloads) -> BatchOutcome:
        line = downloads.lines.get(item.id)
        if line is None:
            return unanswered(job, short=downloads.short)
        if line.error is not None or line.reply is None:
            error = line.error or unanswered(job)
            error.request_id = item.request.request_id
            return error
        try:
            written = self._written(item).call if item.request.messages else WireCall("", b"")
            return read_reply(self._client, item.request, written, line.reply)
        except AdapterError as error:
            error.request_id = item.request.request_id
            return error


class _Outcomes(Sequence[BatchOutcome]):
    """Outcomes that are made of their replies when they are asked for, each time anew, so that none is kept."""

    def __init__(self, items: Sequence[BatchItem], read: Callable[[BatchItem], BatchOutcome]) -> None:
        self._items, self._read = items, read

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, place: int) -> BatchOutcome: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[BatchOutcome, ...]: ...
    def __getitem__(self, place: int | slice) -> BatchOutcome | tuple[BatchOutcome, ...]:
        if isinstance(place, slice):
            return tuple(self._read(item) for item in self._items[place])
        return self._read(self._items[place])


def bare_request(request_id: str, model: str) -> CanonicalRequest:
    """A request of which only the name is known, to read its result with."""
    return CanonicalRequest(request_id=request_id, model=model, messages=(), max_output_tokens=1)


def _found_again(job: BatchJob, why: str) -> BatchJob:
    said = f"the answer to its creation was lost ({why}); it was found in the provider's list"
    return msgspec.structs.replace(job, warnings=(CallWarning(WarningCode.FOUND_AGAIN, said),))
