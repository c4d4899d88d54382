"""The names under which budgets keep what is reserved: one for each attempt, and one for each job."""

from __future__ import annotations

_JOB = "/job"


def reservation(request_id: str, attempt: int) -> str:
    """The name of the reservation of one attempt."""
    return f"{request_id}/{attempt}"


def job_of(request_id: str) -> str:
    """The name of the reservation of the job that a request has created."""
    return request_id + _JOB


def is_job(name: str) -> bool:
    """Whether a reservation is that of a job."""
    return name.endswith(_JOB)
