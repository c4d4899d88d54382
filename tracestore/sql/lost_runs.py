"""The end of a run whose process died: each of its calls that died with it gets an end, and the run is marked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from callboard.bus.events.calls import LlmCallFailed
from callboard.bus.events.envelope import Envelope
from callboard.bus.values.usage import Cost, CostSource, TokenUsage, UsageSource

from ..prices.table import PriceTable
from .batches import Batch
from .calls.columns import tags_of
from .connection import Database, Row, Statements
from .run_numbers import RunSpan

PROCESS_LOST = "process_lost"
"""The error class of a call whose process died. No adapter raises it, so it is not a value of `ErrorClass`."""

_MESSAGE = "the process died before this call ended; what it used and cost is at best an estimate"


Delivered = Callable[[str, str], Awaitable[int]]
"""Returns the output tokens of a message that readers in other processes have, by the ids of its turn and of the
message; 0 if there are none."""


def _goes_on(call: str) -> str:
    """The condition that a call's reply is made in the background, so that it doesn't end with its process."""
    return (
        f"EXISTS (SELECT 1 FROM events AS e WHERE e.request_id = {call}.request_id"
        f" AND e.attempt = {call}.attempt AND e.topic = 'llm.call_accepted')"
    )


END_IN_ORDER = f"""
    UPDATE runs
       SET ended_us = ?, ending = 'closed'
     WHERE run_id = ? AND ended_us IS NULL
       AND NOT EXISTS (SELECT 1 FROM calls AS c
                        WHERE c.run = runs.id AND c.status = 'started' AND NOT {_goes_on("c")})
"""
"""Marks a run as ended, unless one of its calls has no end, and doesn't go on without it."""

_CALLS_WITHOUT_END = f"""
    SELECT session_id, turn_id, request_id, attempt, message_id, caused_by, tags, ts_us, provider, model,
           estimated_input_tokens, priced_as
      FROM calls
     WHERE run = ? AND status = 'started'
       AND NOT {_goes_on("calls")}
     ORDER BY id
"""
"""The calls that end with their process."""

_STREAMS_WITHOUT_END = f"""
    SELECT request_id, attempt, turn_id, message_id
      FROM calls
     WHERE run = (SELECT id FROM runs WHERE run_id = ? AND ended_us IS NULL)
       AND status = 'started' AND turn_id IS NOT NULL AND message_id IS NOT NULL AND NOT {_goes_on("calls")}
     ORDER BY id
"""


async def delivered_of(database: Database, run_id: str, delivered: Delivered | None) -> dict[tuple[str, int], int]:
    """The output tokens that readers have of a lost run's calls, by request and attempt. Raises StoreError."""
    if delivered is None:
        return {}
    found: dict[tuple[str, int], int] = {}
    for request_id, attempt, turn_id, message_id in await database.read(_STREAMS_WITHOUT_END, (run_id,)):
        if tokens := await delivered(turn_id, message_id):
            found[request_id, attempt] = tokens
    return found


def close_run(
    statements: Statements,
    run_id: str,
    now_us: int,
    prices: PriceTable | None,
    delivered: Mapping[tuple[str, int], int] | None = None,
) -> int:
    """End one lost run, unless another process has done it meanwhile.

    Args:
        statements: The transaction.
        run_id: The run.
        now_us: The time, in microseconds since the Unix epoch.
        prices: The prices of what the calls used; None leaves the costs unknown.
        delivered: The output tokens that readers have, by request and attempt.

    Returns:
        The number of calls that got an end.
    """
    found = statements.run(
        """
        SELECT r.id, r.last_us, r.committed_seq,
               (SELECT e.mono_ns FROM events AS e WHERE e.run = r.id ORDER BY e.seq DESC LIMIT 1)
          FROM runs AS r
         WHERE r.run_id = ? AND r.ended_us IS NULL
        """,
        (run_id,),
    )
    if not found:
        return 0
    ((number, last_us, seq, mono_ns),) = found
    ends = [
        _end_of(row, run_id, seq + place, last_us, mono_ns or 0, prices, delivered or {})
        for place, row in enumerate(statements.run(_CALLS_WITHOUT_END, (number,)), 1)
    ]

    def note(span: RunSpan) -> int:
        statements.run("UPDATE runs SET committed_seq = ? WHERE id = ?", (span.seq, number))
        return int(number)

    if ends:
        Batch.of(ends).write(statements, note)
    statements.run("UPDATE runs SET ended_us = ?, ending = ? WHERE id = ?", (now_us, PROCESS_LOST, number))
    return len(ends)


def _end_of(
    row: Row,
    run_id: str,
    seq: int,
    last_us: int,
    mono_ns: int,
    prices: PriceTable | None,
    delivered: Mapping[tuple[str, int], int],
) -> Envelope:
    session_id, turn_id, request_id, attempt, message_id, caused_by, tags, *about = row
    began_us, provider, model, sent, priced_as = about
    said = delivered.get((request_id, attempt), 0)
    usage = None if sent is None and not said else TokenUsage(sent or 0, said, source=UsageSource.ESTIMATED)
    cost = Cost(None, CostSource.UNPRICED, None, PROCESS_LOST)
    if usage is not None and prices is not None:
        cost = prices.price(model, usage, began_us, priced_as=priced_as)
    event = LlmCallFailed(
        provider=provider,
        model=model,
        error_class=PROCESS_LOST,
        error_type="ProcessLost",
        message=_MESSAGE,
        will_retry=False,
        retry_count=attempt - 1,
        usage=usage,
        cost=cost,
        latency_ms=max(0, last_us - began_us) // 1000,  # as long as it was seen alive
    )
    return Envelope(
        seq=seq,
        run_id=run_id,
        ts_us=last_us,
        mono_ns=mono_ns,
        data=event,
        session_id=session_id,
        turn_id=turn_id,
        request_id=request_id,
        attempt=attempt,
        message_id=message_id,
        caused_by=caused_by,
        tags=tags_of(tags) or None,
    )
