"""The stores of the import's tests: a trace file, and a trace in PostgreSQL."""

from __future__ import annotations

from tests.support.virtual_time import runs_on
from tests.tracestore.contract.conftest import Place, place, store

__all__ = ["Place", "place", "store"]

anyio_backend = runs_on("asyncio")
