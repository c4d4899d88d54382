"""`batch.*`: many requests that a provider answers later. With a batch's id anybody can come back to it.

The events of a batch have the batch's id as their request, so that they are found by it. Only `batch.part_ended`
has the id of the call that created the part, which then holds nothing of a budget any more.
"""

from __future__ import annotations

from .envelope import Event


class _BatchEvent(Event, frozen=True, kw_only=True):
    """An event of one batch, with the model that answers it."""

    batch_id: str
    """The batch's id."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""


class BatchPlanned(_BatchEvent, frozen=True, kw_only=True, tag="batch.planned"):
    """It is decided how a batch is split into jobs. Nothing was sent yet."""

    parts: tuple[int, ...]
    """The number of requests in each part, in their order."""
    digest: str
    """The beginning of the hash of all requests: the same batch has the same requests."""
    request_ids: tuple[str, ...] = ()
    """The caller's ids of the requests; empty if the caller gave none."""
    key: str | None = None
    """The name of the key that the caller wants; None for the adapter's own key."""


class BatchSubmitting(_BatchEvent, frozen=True, kw_only=True, tag="batch.submitting"):
    """A part of a batch is about to be sent. Without an answer, the provider's list is searched for it."""

    part: int
    """The part's number, from 1."""
    call_id: str
    """The id of the call that creates the job."""
    began_at: int
    """The moment, in seconds since the epoch."""


class BatchSubmitted(_BatchEvent, frozen=True, kw_only=True, tag="batch.submitted"):
    """A provider has accepted a part of a batch as a job."""

    part: int
    """The part's number, from 1."""
    job_id: str
    """The provider's identifier of the job."""
    call_id: str
    """The id of the call that created the job."""
    key: str | None = None
    """The name of the key that the job was created with; None for the adapter's own key."""
    certain: bool = True
    """Whether it is known that the job is this part; False for a job that was found by its size alone."""


class BatchProgress(_BatchEvent, frozen=True, kw_only=True, tag="batch.progress"):
    """A batch was seen to change."""

    status: str
    """``queued``, ``in_progress``, ``cancelling``, ``completed``, ``failed``, ``expired`` or ``cancelled``."""
    total: int
    """The number of requests."""
    succeeded: int
    """The number of requests that are answered, as far as the provider counts."""
    failed: int
    """The number of requests that came to nothing, as far as the provider counts."""


class BatchPartEnded(_BatchEvent, frozen=True, kw_only=True, tag="batch.part_ended"):
    """All results of a part are counted: each is a call of the operation ``batch``."""

    part: int
    """The part's number, from 1."""
    job_id: str
    """The provider's identifier of the job."""
    status: str
    """``completed``, ``failed``, ``expired`` or ``cancelled``."""


class BatchCompleted(_BatchEvent, frozen=True, kw_only=True, tag="batch.completed"):
    """All results of a batch were read, and are counted."""

    status: str
    """``completed``, ``failed``, ``expired`` or ``cancelled``."""
    succeeded: int
    """The number of requests that were answered."""
    failed: int
    """The number of requests that came to nothing."""
    cost_nano_usd: int
    """The known cost of all requests, in nano-USD."""
    unpriced: int = 0
    """The number of requests whose cost is unknown."""
