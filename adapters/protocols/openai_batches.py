"""OpenAI's batches, ``/v1/files`` and ``/v1/batches``, and servers like it (Groq, Together, vLLM).

What is known, and from where:

* The fields of jobs, their statuses, 50,000 requests and 200 MB a file, `metadata` of 16 pairs: the types of
  OpenAI's own package (3.54.0, `openai.types.batch`, `batch_create_params`).
* Lines of results, and what a job that ends too late has: `adapters.protocols.batch_files`.
* Groq: the same endpoints below ``/openai``, the same limits, ``/v1/chat/completions`` as the endpoint of lines,
  windows of ``24h`` to ``7d``: console.groq.com/docs/batch, github.com/groq/groq-api-cookbook
  (tutorials/batch-processing).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import urlencode

import msgspec

from callboard.adapters.batches import BatchJob, BatchLimits, BatchStatus
from callboard.adapters.http.wire_call import WireCall, get
from callboard.adapters.operations.batch_wire import ListPage, Written, fields_of
from callboard.adapters.requests.encoding import encode_json
from callboard.bus.values.json import Json

from .batch_files import MARK, FileBatches, mark_of, places

_STATUSES: dict[str, BatchStatus] = {
    "validating": "queued",
    "in_progress": "in_progress",
    "finalizing": "in_progress",
    "cancelling": "cancelling",
    "completed": "completed",
    "failed": "failed",
    "expired": "expired",
    "cancelled": "cancelled",
}
_PAGE = 100


class _Counts(msgspec.Struct, gc=False):
    total: int | None = None
    completed: int | None = None
    failed: int | None = None


class _Problem(msgspec.Struct, gc=False):
    code: str | None = None
    message: str | None = None
    line: int | None = None


class _Problems(msgspec.Struct, gc=False):
    data: list[_Problem] | None = None


class _Batch(msgspec.Struct, gc=False):
    id: str
    status: str
    output_file_id: str | None = None
    error_file_id: str | None = None
    errors: _Problems | None = None
    request_counts: _Counts | None = None
    created_at: float | None = None
    expires_at: float | None = None
    metadata: dict[str, Json] | None = None


class _List(msgspec.Struct, gc=False):
    data: list[_Batch]
    has_more: bool = False
    last_id: str | None = None


_decode = msgspec.json.Decoder(_Batch).decode
_decode_list = msgspec.json.Decoder(_List).decode


class OpenAIBatches(FileBatches, frozen=True, kw_only=True):
    """OpenAI's batches, and servers like it."""

    JOBS: ClassVar[str] = "batches"

    endpoint: str
    """The endpoint that all requests of a job go to, as its lines name it."""
    window: str = "24h"
    """The time that a job may take, in the provider's words."""
    limits: BatchLimits = BatchLimits(max_requests=50_000, max_bytes=200 * 1000 * 1000)

    def line(self, item: Written, model: str) -> bytes:
        body = fields_of(item.call, "stream", "stream_options")
        return encode_json({"custom_id": item.id, "method": "POST", "url": self.endpoint, "body": body})

    def create(
        self, lines: Sequence[bytes], uploaded: str, items: Sequence[Written], model: str, mark: str
    ) -> WireCall:
        body: Json = {
            "input_file_id": uploaded,
            "endpoint": self.endpoint,
            "completion_window": self.window,
            "metadata": {MARK: mark},
        }
        return WireCall(self._jobs, encode_json(body))

    def read(self, body: bytes, provider: str) -> BatchJob:
        return self._job(_decode(body), provider)

    def latest(self, mark: str, since: int) -> WireCall:
        return get(f"{self._jobs}?limit={_PAGE}")

    def read_latest(self, body: bytes, provider: str) -> ListPage:
        page = _decode_list(body)
        last = page.last_id or (page.data[-1].id if page.data else "")
        query = urlencode({"limit": _PAGE, "after": last})
        following = get(f"{self._jobs}?{query}") if page.has_more and last else None
        return ListPage([self._job(batch, provider) for batch in page.data], following)

    def _job(self, batch: _Batch, provider: str) -> BatchJob:
        counts = batch.request_counts or _Counts()
        problems = (batch.errors.data if batch.errors is not None else None) or []
        error = None
        if batch.status == "failed":
            told: Json = {"code": problems[0].code, "message": problems[0].message} if problems else {}
            error = self._failure(told, provider)
        return BatchJob(
            id=batch.id,
            provider=provider,
            status=_STATUSES.get(batch.status, "in_progress"),
            total=counts.total,
            succeeded=counts.completed or 0,
            failed=counts.failed or 0,
            error=error,
            created_at=None if batch.created_at is None else int(batch.created_at),
            expires_at=None if batch.expires_at is None else int(batch.expires_at),
            mark=mark_of(batch.metadata),
            places=places(batch.output_file_id, batch.error_file_id),
        )
