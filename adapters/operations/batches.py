"""Batches over HTTP: jobs and their results.

creating    the requests are uploaded, if the provider wants a file, and the job is requested once
searching   the answer was lost; the provider's list is searched for a job with the caller's mark
reading     the results arrive line by line; after a break the download restarts and keeps earlier lines
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, overload

import anyio
import msgspec

from callboard.bus.errors import (
    AdapterError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    OutcomeUnknownError,
    StreamError,
)
from callboard.bus.values.usage import split_tier, tier_in

from ..batches import (
    BatchItem,
    BatchJob,
    BatchLimits,
    BatchLine,
    BatchOutcome,
    BatchRequest,
    BatchWire,
    Written,
    cancelled_item,
    expired_item,
    not_billed,
    split_by_size,
    upload_id,
)
from ..contract import AttemptObserver, CallRequest, CanonicalRequest, CanonicalResponse
from ..http.attempts import HttpAttempts, fetch
from ..http.call import HttpCall
from ..http.retry import backoff_delay
from ..http.wire import HttpClient
from ..requests.emulation import read_response
from ..requests.history_target import WireCall
from ..transport.transport import close_reply, read_error_body
from .answers import CLOCKS_APART, HttpJobs, found_again

_MOST_PAGES = 20
"""The largest number of pages of a provider's list that are searched."""

_READS = 5
"""The largest number of downloads in a row without a new line."""


class HttpBatches(HttpJobs):
    """A provider's batches. They use the adapter's `HttpClient`."""

    def __init__(self, client: HttpClient, wire: BatchWire) -> None:
        super().__init__(client)
        self.wire = wire

    @property
    def limits(self) -> BatchLimits:
        """The largest size of a job."""
        return self.wire.limits

    def split(self, items: Sequence[BatchItem]) -> tuple[int, ...]:
        sizes = [len(self.wire.line(self._written(item), item.request.wire_model)) for item in items]
        return split_by_size(sizes, self.wire.limits)

    def _written(self, item: BatchItem) -> Written:
        wire, request = self._client.wire, item.request
        if request.capabilities is None or request.wire is not None:
            capabilities = request.capabilities or wire.get_capabilities(request.wire_model)
            request = msgspec.structs.replace(request, capabilities=capabilities, wire=None)
        try:
            return Written(item.id, wire.write(request, stream=False))
        except (UnicodeError, msgspec.MsgspecError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidRequestError(f"{wire.name}: the request can't be written as JSON: {error}") from error

    # --- Creating ---

    async def create(self, request: BatchRequest, on_attempt: AttemptObserver | None) -> BatchJob:
        client, wire, model = self._client, self.wire, request.wire_model
        items = [self._written(item) for item in request.items]
        lines = [wire.line(item, model) for item in items]
        began = client.clock.now_us() // 1_000_000
        uploaded: str | None = None  # the uploaded file, reused by later attempts

        async def search() -> BatchJob | None:
            return await self._listed(attempts, request.mark, len(items), began, self._handed_out)

        async def attempt() -> BatchJob:
            nonlocal uploaded
            if uploaded is None:
                uploaded = await self._upload(attempts, lines, request.mark)
            creation = msgspec.structs.replace(wire.create(lines, uploaded, items, model, request.mark), once=True)
            job = await self._create_once(attempts, creation, self._read_job, request, search)
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

    # --- Searching ---

    async def _listed(
        self, attempts: HttpAttempts, mark: str, count: int, since: int, taken_ids: set[str]
    ) -> BatchJob | None:
        """Find the job in the provider's list that may be the caller's.

        Raises OutcomeUnknownError if there are several such jobs.
        """
        wire, provider = self.wire, self._client.name
        question: WireCall | None = wire.latest(mark, since - CLOCKS_APART)
        candidates: list[BatchJob] = []
        for _ in range(_MOST_PAGES):
            if question is None:
                break
            page, _ = await fetch(attempts, question, lambda body, headers: wire.read_latest(body, provider))
            young = [job for job in page.jobs if (job.created_at or since) >= since - CLOCKS_APART]
            candidates += [job for job in young if job.id not in taken_ids and self._may_be(job, mark, count)]
            question = page.following if len(young) == len(page.jobs) else None
        if len(candidates) > 1:
            ids = ", ".join(job.id for job in candidates)
            raise OutcomeUnknownError(f"{provider}: several batches match the request: {ids}")
        return msgspec.structs.replace(candidates[0], certain=wire.marks) if candidates else None

    def _may_be(self, job: BatchJob, mark: str, count: int) -> bool:
        return job.mark == mark if self.wire.marks else job.total == count

    async def find(
        self, model: str, mark: str, count: int, since: int, key: str | None, taken_ids: Sequence[str]
    ) -> BatchJob | None:
        attempts = HttpAttempts(self._client, self._question(model, key), None)
        found = await attempts.run(lambda: self._listed(attempts, mark, count, since, set(taken_ids)))
        if found is None:
            return None
        self._handed_out.add(found.id)
        return found_again(msgspec.structs.replace(found, key=key), "its process ended before it arrived")

    async def retrieve(self, job_id: str, model: str, key: str | None) -> BatchJob:
        job = await self._ask(self.wire.retrieve(job_id), self._read_job, model, key)
        return msgspec.structs.replace(job, key=key)

    async def cancel(self, job: BatchJob, model: str) -> bool:
        if not job.certain:
            raise OutcomeUnknownError(f"batch {job.id} may belong to another request, so it is not cancelled")
        try:
            await self._ask(self.wire.cancel(job.id), lambda body, headers: None, model, job.key)
        except NotFoundError:
            return False
        except InvalidRequestError:  # the job has ended or is being cancelled
            return (await self.retrieve(job.id, model, job.key)).status == "cancelling"
        return True

    # --- Results ---

    async def read(self, job: BatchJob, items: Sequence[BatchItem]) -> Sequence[BatchOutcome]:
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
            downloads.start_again()
            await anyio.sleep(backoff_delay(without_gain, self._client.config.retry, self._client.clock.random()))
        if len(downloads.lines) and not any(item.id in downloads.lines for item in items):
            message = f"{self._client.name}: the results of batch {job.id} belong to other requests"
            raise OutcomeUnknownError(message)
        return _Outcomes(items, lambda item: self._outcome(job, item, downloads))

    async def _download(self, downloads: Downloads, job: BatchJob) -> AdapterError | None:
        """Download the remaining results. Returns an error after which another download may help, and raises any
        other.
        """
        client = self._client
        call_request = CallRequest(
            request_id=client.clock.new_id("req"), model=f"{client.name}:batch", max_retries=0, key=job.key
        )
        attempts = HttpAttempts(client, call_request, None)
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
    """A sequence of outcomes. Each access parses the outcome, so that no outcome stays in memory."""

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
    """A request without messages, with which a result can be read by its id."""
    return CanonicalRequest(request_id=request_id, model=model, messages=(), max_output_tokens=1)


MOST_LINE_BYTES = 128 * 1024 * 1024
"""The largest number of bytes of one result. A larger one is a server error."""

BATCH_TIER = "batch"
"""The service tier of every batch reply. The reply itself only names its geography."""


class Downloads:
    """The downloads of one job's results. Received lines are kept when a download breaks."""

    def __init__(self, client: HttpClient, wire: BatchWire, job: BatchJob) -> None:
        self._client = client
        self._wire = wire
        self._job = job
        self._remaining = list(wire.results(job))
        self.lines = ReplyFile()

    @property
    def short(self) -> bool:
        """Whether there are fewer replies than the job reports."""
        return self.lines.replies < self._job.succeeded

    def start_again(self) -> None:
        """Restart the download. Received lines are kept."""
        self._remaining = list(self._wire.results(self._job))

    async def run(self, attempts: HttpAttempts) -> None:
        while self._remaining:
            if self._wire.in_lines:
                await self._take_lines(attempts, self._remaining[0])
            else:
                await fetch(attempts, self._remaining[0], lambda body, headers: self._take(body))
            del self._remaining[0]

    async def _take_lines(self, attempts: HttpAttempts, call: WireCall) -> None:
        client = self._client
        request = await attempts.prepare_request(call, accept="*/*")
        seconds = client.config.stream_read_timeout
        reply = await attempts.wait(lambda: client.transport.send(request), seconds, what="the results")
        try:
            if reply.status >= 300:
                body = await attempts.wait(lambda: read_error_body(reply), seconds, what="the error's body")
                raise client.error_of(body, reply)
            started = bytearray()
            while (chunk := await attempts.wait(reply.chunk, seconds, what="the results")) is not None:
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    started += line
                    self._take_line(bytes(started))
                    started.clear()
                started += rest
                if len(started) > MOST_LINE_BYTES:
                    raise StreamError(f"{client.name}: one result has more than {MOST_LINE_BYTES:,} bytes")
            self._take_line(bytes(started))
        finally:
            await close_reply(reply)

    def _take_line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            self._take(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            message = f"{self._client.name}: the results of a batch are cut off or have an invalid line: {error}"
            raise StreamError(message, retryable=True) from error

    def _take(self, text: bytes) -> None:
        for line in self._wire.read_results(text, self._client.name):
            self.lines.add(line)


class _ReplyOfBatch:
    """A line of results in the form of an HTTP reply, for the code that reads replies of single calls."""

    status = 200
    headers: Mapping[str, str] = {}

    async def chunk(self) -> bytes | None:
        return None

    async def aclose(self) -> None:
        return None


def read_reply(client: HttpClient, request: CanonicalRequest, written: WireCall, body: bytes) -> CanonicalResponse:
    """The response in a line of results, with the usage tier ``batch``."""
    call = HttpCall(client, request, None, stream=False)
    call.prepare_attempt()
    call.read_whole(body, _ReplyOfBatch())
    response = call.response(written, None)
    if client.wire.is_constrained(request):
        response = read_response(response, client.clock)
    _, geography = split_tier(response.usage.service_tier)
    usage = msgspec.structs.replace(response.usage, service_tier=tier_in(BATCH_TIER, geography))
    return msgspec.structs.replace(response, usage=usage, latency_ms=0)


def unanswered(job: BatchJob, *, short: bool = False) -> AdapterError:
    """The error for a request that is missing in the results."""
    match job.status:
        case "cancelled" if not short:
            return cancelled_item(job.provider)
        case "expired" if not short:
            return expired_item(job.provider)
        case "failed":
            failure = job.error or AdapterError(f"batch {job.id} failed", provider=job.provider)
            return not_billed(
                type(failure)(
                    str(failure),
                    provider=failure.provider,
                    provider_status=failure.provider_status,
                    provider_code=failure.provider_code,
                    provider_message=failure.provider_message,
                    retryable=failure.retryable,
                )
            )
        case _:
            return StreamError(f"{job.provider}: batch {job.id} has ended without a result for this request")


MOST_IN_MEMORY = 32 * 1024 * 1024
"""The number of bytes of replies kept in memory."""


class _Place(NamedTuple):
    start: int
    size: int


class ReplyFile:
    """The lines of results by request id. If a request has several lines, the first counts.

    Above `MOST_IN_MEMORY` bytes, the lines are stored in a temporary file.
    """

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=MOST_IN_MEMORY)  # noqa: SIM115 (closed with this object)
        weakref.finalize(self, self._file.close)
        self._lines: dict[str, BatchLine | _Place] = {}
        self._end = 0
        self.replies = 0
        """The number of lines without an error."""

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._lines

    def add(self, line: BatchLine) -> None:
        if line.id in self._lines:
            return
        self.replies += line.error is None
        if line.reply is None:
            self._lines[line.id] = line
            return
        self._file.seek(self._end)
        self._file.write(line.reply)
        self._lines[line.id] = _Place(self._end, len(line.reply))
        self._end += len(line.reply)

    def get(self, request_id: str) -> BatchLine | None:
        place = self._lines.get(request_id)
        if not isinstance(place, _Place):
            return place
        self._file.seek(place.start)
        return BatchLine(request_id, self._file.read(place.size))
