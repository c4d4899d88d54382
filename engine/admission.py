"""Whether a new turn may begin: not while the trace writer is far behind."""

from __future__ import annotations

import math

import anyio

from bus import AdmissionError
from tracestore import WriterCore

from .limits import Limits

_LOOK_EVERY_SECONDS = 0.01


async def admit(writer: WriterCore, limits: Limits) -> None:
    """Return once the trace writer is not too far behind. Raises AdmissionError.

    A writer whose store fails holds nobody up: it keeps what it can, and says what it lost.
    """
    give_up = math.inf
    while writer.state == "ok":
        behind = writer.statistics()
        if behind.waiting <= limits.admit_events and behind.waiting_bytes <= limits.admit_bytes:
            return
        now = anyio.current_time()
        give_up = min(give_up, now + limits.admit_seconds)
        if now >= give_up:
            raise AdmissionError(
                f"the trace writer is {behind.waiting} events of about {behind.waiting_bytes} bytes behind, "
                f"for limits of {limits.admit_events} and {limits.admit_bytes}; no new turn within "
                f"{limits.admit_seconds:g} s. Calls under way are not affected."
            )
        await anyio.sleep(_LOOK_EVERY_SECONDS)
