"""`job.*`: work that takes a provider minutes. With a job's id and its provider anybody can come back to it."""

from __future__ import annotations

from .envelope import Event


class _JobEvent(Event, frozen=True, kw_only=True):
    """An event of one job, with the provider that works on it."""

    job_id: str
    """The provider's identifier of the job."""
    kind: str
    """The kind of the job, ``video``."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""


class JobCreated(_JobEvent, frozen=True, kw_only=True, tag="job.created"):
    """A provider has accepted a job."""

    status: str
    """The status as the provider gave it, mostly ``queued``."""
    seconds: int | None = None
    """The length of the result in seconds, if it is known."""
    size: str | None = None
    """The size of the result, if it is known."""
    audio: bool | None = None
    """Whether the result has sound, if that is known."""
    key: str | None = None
    """The name of the key that the job was created with; None for the adapter's own key."""


class JobProgress(_JobEvent, frozen=True, kw_only=True, tag="job.progress"):
    """A job's status or its progress was seen to change."""

    status: str
    """``queued``, ``in_progress``, ``completed``, ``failed`` or ``cancelled``."""
    progress: float | None = None
    """The part of the work that is done, from 0 to 1; None if nobody says."""


class JobCompleted(_JobEvent, frozen=True, kw_only=True, tag="job.completed"):
    """The result of a job can be downloaded."""

    cost_nano_usd: int | None = None
    """The job's cost in nano-USD, counted with a call of the operation ``video``; None if it is unknown."""
    expires_at: int | None = None
    """The end of the time for downloading, in seconds since the epoch, if it is known."""


class JobFailed(_JobEvent, frozen=True, kw_only=True, tag="job.failed"):
    """A job ended without a result."""

    status: str
    """``failed`` or ``cancelled``."""
    error_type: str
    """The class of the error that says why."""
    message: str
    """The text of that error."""
