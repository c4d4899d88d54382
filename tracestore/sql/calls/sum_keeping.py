"""New calls are taken into the sums when there are enough, outside of the transactions that store events."""

from __future__ import annotations

from callboard.bus.errors import StoreError
from callboard.bus.log import Log

from ..connection import Database
from .sums import SUM_UP_AFTER, not_summed_up, sum_up

_log = Log("tracestore.sums")


class SumKeeper:
    """Sums up what one writer has stored. Other writers of the trace do the same.

    Args:
        database: The database that the writer writes to.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._new = SUM_UP_AFTER  # calls at most that are in no sum; the first look finds out

    async def stored(self, events: int) -> None:
        """Say that so many events were stored, and sum up if it is time. An error is logged, and nothing more."""
        self._new += events
        if self._new < SUM_UP_AFTER:
            return
        try:
            self._new = await self._database.look(not_summed_up)
            if self._new >= SUM_UP_AFTER:
                await self._database.write(sum_up)
                self._new = 0
        except StoreError as error:
            self._new = 0
            _log.warning("not_summed_up", store=self._database.name, error=str(error))
