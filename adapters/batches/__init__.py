"""Batches: many requests that a provider answers later and for less, as jobs."""

from .contract import (
    BatchAdapter,
    BatchItem,
    BatchJob,
    BatchLimits,
    BatchOutcome,
    BatchRequest,
    BatchStatus,
)

__all__ = [
    "BatchAdapter",
    "BatchItem",
    "BatchJob",
    "BatchLimits",
    "BatchOutcome",
    "BatchRequest",
    "BatchStatus",
]
