"""What an engine knows of the batches that it has in hand: those begun, their handles, and whose turn it is."""

from __future__ import annotations

from typing import TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

import anyio

from ..runtime.runtime import Runtime
from .handle import BatchHandle, Submission
from .plan import BatchPlan

Begun: TypeAlias = tuple[BatchPlan, dict[int, Submission]]
"""A batch that was planned, and its parts as far as they were sent."""

_BEGUN: WeakKeyDictionary[Runtime, dict[str, Begun]] = WeakKeyDictionary()


def begun_batches(runtime: Runtime) -> dict[str, Begun]:
    """The batches that this engine has begun to create."""
    return _BEGUN.setdefault(runtime, {})


def has_job(sent: Submission | None) -> bool:
    """Whether a part is known to be with the provider."""
    return sent is not None and sent.job is not None


_TURNS: WeakKeyDictionary[Runtime, WeakValueDictionary[str, anyio.Lock]] = WeakKeyDictionary()


def turn(runtime: Runtime, batch_id: str) -> anyio.Lock:
    """Whose turn it is, among the tasks of this engine, to create a batch."""
    return _TURNS.setdefault(runtime, WeakValueDictionary()).setdefault(batch_id, anyio.Lock())


_HANDLES: WeakKeyDictionary[Runtime, WeakValueDictionary[str, BatchHandle]] = WeakKeyDictionary()


def handles(runtime: Runtime) -> WeakValueDictionary[str, BatchHandle]:
    """The handles that are in use, by batch."""
    return _HANDLES.setdefault(runtime, WeakValueDictionary())


def only_handle(runtime: Runtime, handle: BatchHandle) -> BatchHandle:
    """The one handle of a batch in this engine, so that its end is published once."""
    return handles(runtime).setdefault(handle.id, handle)
