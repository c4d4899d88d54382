"""What a batch is to do, and what is seen of it. All is pure.

A batch's requests have places from 0, and go into parts, each of which is one job at the provider. A request is
known there by its call id, the batch's id with the place, which is also its call's id in the trace. A job is known
by its mark: the batch's id, the digest of all requests, and the part's number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate

import msgspec

from callboard.adapters import CanonicalRequest
from callboard.adapters.batches import BatchJob, BatchStatus
from callboard.bus import RoutingDecision
from callboard.bus.errors import InvalidRequestError

_ID = re.compile(r"[A-Za-z0-9_-]{1,48}")


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is decided on."""

    batch_id: str
    """The batch's id."""
    decision: RoutingDecision
    """The decision for the model."""
    wire_model: str
    """The model's name at its provider."""
    priced_as: str | None
    """The provider whose published prices the model has."""
    sizes: tuple[int, ...]
    """The number of requests in each part, in their order."""
    digest: str
    """The beginning of the hash of all requests."""
    request_ids: tuple[str, ...]
    """The ids of the requests, as the results have them."""
    key: str | None = None
    """The name of the key that the caller wants."""
    tags: dict[str, str] | None = None
    """The tags of the batch's calls."""

    @property
    def model(self) -> str:
        """The model as ``provider:name``, by its name at the provider."""
        return f"{self.decision.provider}:{self.wire_model}"

    @property
    def total(self) -> int:
        """The number of requests."""
        return sum(self.sizes)

    def parts(self) -> range:
        """The numbers of the parts, from 1."""
        return range(1, len(self.sizes) + 1)

    def places(self, part: int) -> range:
        """The places of a part's requests."""
        ends = list(accumulate(self.sizes, initial=0))
        return range(ends[part - 1], ends[part])

    def mark(self, part: int) -> str:
        """The mark of a part's job."""
        return f"{self.batch_id}/{self.digest}/{part}"

    def call_id(self, place: int) -> str:
        """The id of one request's call."""
        return call_id(self.batch_id, place)


def call_id(batch_id: str, place: int) -> str:
    """The id of the call of one request of a batch."""
    return f"{batch_id}-{place}"


class BatchState(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it was at the last look."""

    batch_id: str
    """The batch's id."""
    status: BatchStatus
    """How the batch stands: an end once all of its jobs have ended."""
    total: int
    """The number of requests."""
    succeeded: int
    """The number of requests that are answered, as far as the provider counts them."""
    failed: int
    """The number of requests that came to nothing, as far as the provider counts them."""
    done: bool
    """Whether all jobs have ended, and their results are read and counted."""


_ENDS: tuple[BatchStatus, ...] = ("cancelled", "expired", "completed", "failed")


def status_of(jobs: Sequence[BatchJob | None]) -> BatchStatus:
    """The status of a batch with these jobs. None stands for a part without a job that is known."""
    known = [job for job in jobs if job is not None]
    if all(job.done for job in known):
        ended = {job.status for job in known}
        return next((status for status in _ENDS if status in ended), "failed")
    if any(job.status == "cancelling" for job in known):
        return "cancelling"
    return "queued" if all(job.status == "queued" for job in known) else "in_progress"


def digest_of(requests: Sequence[CanonicalRequest]) -> str:
    """12 hex digits of the hash of all that the requests ask for. Ids and ways of asking are no part of it."""
    digest = sha256()
    for request in requests:
        said = [(message.role, message.content) for message in request.messages]
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
        )
        digest.update(msgspec.json.encode((about, said), enc_hook=repr, order="deterministic") + b"\n")
    return digest.hexdigest()[:12]


def check_id(batch_id: str) -> None:
    """Require that an id of a batch can be one.

    Raises:
        InvalidRequestError: It can't.
    """
    if _ID.fullmatch(batch_id) is None:
        raise InvalidRequestError(f"batch id {batch_id!r} is none: 1 to 48 letters, digits, '_' and '-'")


def ids_of(batch_id: str, requests: Sequence[CanonicalRequest]) -> tuple[str, ...]:
    """The ids of requests as results have them: the caller's, or else those of their calls.

    Raises:
        InvalidRequestError: Two requests have one id.
    """
    ids = tuple(request.request_id or call_id(batch_id, place) for place, request in enumerate(requests))
    if len(set(ids)) < len(ids):
        twice = next(each for each in ids if ids.count(each) > 1)
        raise InvalidRequestError(f"two requests of the batch have the id {twice!r}")
    return ids
