"""Batches whose requests are uploaded as a file and whose results are files: what OpenAI's and Mistral's share.

A line of results has ``custom_id`` and either ``response`` with ``status_code`` and ``body``, or ``error``.
Requests that were not answered in time stand in the error file with the code ``batch_expired``. The order of lines
may differ from that of the requests: developers.openai.com/api/docs/guides/batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote

import msgspec

from callboard.adapters.batches import BatchJob
from callboard.adapters.http.wire_call import WireCall, get
from callboard.adapters.operations.batch_wire import BatchLine, error_of_item, expired_item, json_lines
from callboard.adapters.refusals.classify import ErrorType, error_without_status, read_error_value
from callboard.adapters.transport.multipart import FormPart, write_form
from callboard.bus.errors import AdapterError
from callboard.bus.values.json import Json

MARK = "callboard_batch"
"""The name of our mark among a job's metadata."""

_EXPIRED = "batch_expired"


class _Response(msgspec.Struct, gc=False):
    status_code: int | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    response: _Response | None = None
    error: Json = None


_decode_line = msgspec.json.Decoder(_Line).decode


class FileBatches(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a wire that has to do with files, and with one job by its id."""

    JOBS: ClassVar[str]
    """The path of the jobs, below `path`."""

    path: str = "/v1"
    """The path below which files and jobs are."""
    codes: Mapping[str, ErrorType] = {}
    """The exceptions for error codes."""
    marks: bool = True
    in_lines: bool = True

    def upload(self, lines: Sequence[bytes], mark: str) -> WireCall | None:
        """The upload of a file of the purpose ``batch``. It costs nothing, and may be repeated."""
        file = FormPart("file", json_lines(lines), "batch.jsonl", "application/jsonl")
        body, media_type = write_form([FormPart("purpose", b"batch"), file])
        return WireCall(f"{self.path}/files", body, headers={"content-type": media_type})

    def retrieve(self, job_id: str) -> WireCall:
        return get(self._one(job_id))

    def cancel(self, job_id: str) -> WireCall:
        return WireCall(f"{self._one(job_id)}/cancel", b"")

    def results(self, job: BatchJob) -> Sequence[WireCall]:
        return [get(f"{self.path}/files/{quote(file_id, safe='')}/content") for file_id in job.places.values()]

    def read_results(self, text: bytes, provider: str) -> Iterable[BatchLine]:
        return [_read_line(text, provider, self.codes)]

    @property
    def _jobs(self) -> str:
        return f"{self.path}/{self.JOBS}"

    def _one(self, job_id: str) -> str:
        return f"{self._jobs}/{quote(job_id, safe='')}"

    def _failure(self, told: Json, provider: str) -> AdapterError:
        """The error of a job that failed as a whole."""
        return error_without_status(read_error_value(told), self.codes, provider)


def places(output: str | None, error: str | None) -> dict[str, str]:
    """The ids of the files with a job's results, those that there are."""
    files = {"output": output, "error": error}
    return {name: file_id for name, file_id in files.items() if file_id}


def mark_of(metadata: Mapping[str, Json] | None) -> str | None:
    """Our mark of a job; None if it has none."""
    mark = (metadata or {}).get(MARK)
    return mark if isinstance(mark, str) else None


def _read_line(text: bytes, provider: str, codes: Mapping[str, ErrorType]) -> BatchLine:
    """A line of results. Raises msgspec's decoding errors."""
    line = _decode_line(text)
    response = line.response
    if response is not None and (response.status_code or 200) < 300:
        return BatchLine(line.custom_id, reply=bytes(response.body))
    if isinstance(line.error, dict) and line.error.get("code") == _EXPIRED:
        return BatchLine(line.custom_id, error=expired_item(provider))
    if response is not None and line.error is None:
        told: Json = msgspec.json.decode(response.body)
        return BatchLine(line.custom_id, error=error_of_item(told, provider, codes, response.status_code))
    status = None if response is None else response.status_code
    return BatchLine(line.custom_id, error=error_of_item(line.error, provider, codes, status))
