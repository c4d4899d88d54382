"""Whether a new turn may begin: not while the trace writer is far behind."""

from __future__ import annotations

from typing import Protocol

import anyio

from callboard.bus import AdmissionError
from callboard.tracestore import WriterStatistics

from .limits import Limits

_LOOK_EVERY_SECONDS = 0.01


class Writer(Protocol):
    """The trace writer as admission sees it: a `WriterCore`."""

    def statistics(self) -> WriterStatistics: ...


class Admission:
    """The door for new turns. Turns pass in their order; only the first one looks how far the writer is.

    A writer that is far behind holds turns up as long as it commits anything. A writer that has committed nothing
    for `Limits.admit_seconds` has turns refused. A writer whose store fails holds nobody up: it keeps the events
    that it can, and reports the lost ones.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._queue = anyio.Lock(fast_acquire=True)
        self._committed = -1
        self._progress_at = 0.0

    async def admit(self, writer: Writer) -> None:
        """Return once the writer is not too far behind.

        Raises:
            AdmissionError: The writer has committed nothing for too long.
        """
        if not self._queue.locked() and self._open(writer.statistics()):
            return
        began = anyio.current_time()
        async with self._queue:
            while not self._open(behind := writer.statistics()):
                self._refuse_without_progress(behind, began)
                await anyio.sleep(_LOOK_EVERY_SECONDS)

    def _open(self, behind: WriterStatistics) -> bool:
        limits = self._limits
        near = behind.waiting <= limits.admit_events and behind.waiting_bytes <= limits.admit_bytes
        return near or behind.state != "ok"

    def _refuse_without_progress(self, behind: WriterStatistics, began: float) -> None:
        limits, now = self._limits, anyio.current_time()
        if behind.committed != self._committed:
            self._committed, self._progress_at = behind.committed, now
        if now - max(began, self._progress_at) < limits.admit_seconds:
            return
        raise AdmissionError(
            f"the trace writer is {behind.waiting} events of about {behind.waiting_bytes} bytes behind, for "
            f"limits of {limits.admit_events} and {limits.admit_bytes}, and has committed none for "
            f"{limits.admit_seconds:g} s. Calls under way are not affected."
        )
