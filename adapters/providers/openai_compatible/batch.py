"""Batches of Chat Completions: which servers support them, and Mistral's own jobs.

OpenAI, Groq and many servers share `adapters.protocols.openai_batches`. Sources for Mistral's ``/v1/batch/jobs``:

* One model a job, lines without it, statuses, files of output and errors: docs.mistral.ai/capabilities/batch and
the
  OpenAPI description (`BatchJobIn`, `BatchJobOut`). The list has `created_after` and pages from 0.
* A million requests a file: docs.mistral.ai/capabilities/batch. 512 MB a file: the description of ``/v1/files``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar
from urllib.parse import urlencode

import msgspec

from callboard.adapters.batches import BatchJob, BatchLimits, BatchStatus
from callboard.adapters.http.wire_call import WireCall, get
from callboard.adapters.protocols.openai_batches import MARK, FileBatches, OpenAIBatches, mark_of, places
from callboard.bus.values.base import Json

from ...operations.jobs_wire import BatchWire, ListPage, Written, fields_of
from ...requests.text import encode_json
from .data import ERROR_CODES

ENDPOINT = "/v1/chat/completions"
"""The endpoint in the lines, wherever the server has it."""

_STATUSES: dict[str, BatchStatus] = {
    "QUEUED": "queued",
    "RUNNING": "in_progress",
    "SUCCESS": "completed",
    "FAILED": "failed",
    "TIMEOUT_EXCEEDED": "expired",
    "CANCELLATION_REQUESTED": "cancelling",
    "CANCELLED": "cancelled",
}
_PAGE = 100


class _Job(msgspec.Struct, gc=False):
    id: str
    status: str
    output_file: str | None = None
    error_file: str | None = None
    errors: list[Json] | None = None
    total_requests: int | None = None
    succeeded_requests: int | None = None
    failed_requests: int | None = None
    created_at: float | None = None
    metadata: dict[str, Json] | None = None


class _List(msgspec.Struct, gc=False):
    data: list[_Job] | None = None
    total: int = 0


_decode = msgspec.json.Decoder(_Job).decode
_decode_list = msgspec.json.Decoder(_List).decode


class MistralBatches(FileBatches, frozen=True, kw_only=True):
    JOBS: ClassVar[str] = "batch/jobs"

    limits: BatchLimits = BatchLimits(max_requests=1_000_000, max_bytes=512 * 1000 * 1000)

    def line(self, item: Written, model: str) -> bytes:
        return encode_json({"custom_id": item.id, "body": fields_of(item.call, "stream", "model")})

    def create(
        self, lines: Sequence[bytes], uploaded: str, items: Sequence[Written], model: str, mark: str
    ) -> WireCall:
        body: Json = {
            "input_files": [uploaded],
            "endpoint": ENDPOINT,
            "model": model,
            "metadata": {MARK: mark},
            "timeout_hours": 24,
        }
        return WireCall(self._jobs, encode_json(body))

    def read(self, body: bytes, provider: str) -> BatchJob:
        return self._job(_decode(body), provider)

    def latest(self, mark: str, since: int) -> WireCall:
        moment = datetime.fromtimestamp(since, UTC).isoformat().replace("+00:00", "Z")
        query = urlencode({"page": 0, "page_size": _PAGE, "created_after": moment})
        return get(f"{self._jobs}?{query}")

    def read_latest(self, body: bytes, provider: str) -> ListPage:
        # The filter leaves only jobs created close to our own, so one page of a hundred is enough.
        return ListPage([self._job(job, provider) for job in _decode_list(body).data or []])

    def _job(self, job: _Job, provider: str) -> BatchJob:
        error = None
        if job.status == "FAILED":
            error = self._failure(job.errors[0] if job.errors else {}, provider)
        return BatchJob(
            id=job.id,
            provider=provider,
            status=_STATUSES.get(job.status, "in_progress"),
            total=job.total_requests,
            succeeded=job.succeeded_requests or 0,
            failed=job.failed_requests or 0,
            error=error,
            created_at=None if job.created_at is None else int(job.created_at),
            mark=mark_of(job.metadata),
            places=places(job.output_file, job.error_file),
        )


def batches_of(kind: str, path: str) -> BatchWire | None:
    match kind:
        case "openai":
            return OpenAIBatches(endpoint=ENDPOINT, path=path, codes=ERROR_CODES)
        case "mistral":
            return MistralBatches(path=path, codes=ERROR_CODES)
        case _:
            return None
