"""Batches of envelopes for a store. Each batch is built in parts, so that other tasks can run in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Self

import anyio.lowlevel
from msgspec.structs import astuple

from callboard.bus.events import Envelope
from callboard.bus.events.calls import LlmCallFailed
from callboard.bus.events.codec import topic_of
from callboard.bus.values.usage import Cost, CostSource, TokenUsage, UsageSource

from ..codec import encode_events
from ..prices.table import PriceTable
from ..reports import Delivered
from ..writing.content import CapturedMessage, CapturedSetup
from .call_rows import IDENTITY, RUN, Values, json_text, tags_of
from .connection import Database, Insert, Row, Statements
from .content import store_content
from .events import RunSpan, ranges
from .projection import PROJECTED, UPSERT_SESSION, Projection, flat, make_storable

# The columns of a row are an envelope's fields, and the topic.
STORED_COLUMNS = (*("run" if name == "run_id" else name for name in Envelope.__struct_fields__), "topic")
"""The columns of an event's row in a batch."""

_RUN, _DATA, _TAGS = map(STORED_COLUMNS.index, ("run", "data", "tags"))
_identity = itemgetter(*map(STORED_COLUMNS.index, IDENTITY))
INSERT_EVENT = Insert("events", STORED_COLUMNS, "ON CONFLICT DO NOTHING")
_CAPTURED = (CapturedMessage, CapturedSetup)

_MADE_AT_ONCE = 32
"""The number of events that are converted to rows before other tasks run: about 0.2 ms of CPU."""

_MOST_MADE_AT_ONCE = 256
_MADE_PER_SECOND = 40_000
"""The number of additional events to process for each second that other tasks ran. They take about a quarter of
that time.
"""


class Batch:
    """Envelopes, encoded and sorted by the statement that stores them.

    A batch is built outside of the transaction: call `add` for some events at a time, and then `complete`.
    """

    def __init__(self) -> None:
        self.events: Values = []
        """The values of `STORED_COLUMNS`, row after row. Until `write`, a run is stored by its name."""
        self.projection = Projection()
        """The rows of other tables that are derived from the events."""
        self.runs: list[RunSpan] = []
        """The parts of runs in the batch, set by `complete`."""
        self._captured: list[Envelope] = []
        self._sessions: Values = []

    @classmethod
    def of(cls, envelopes: Sequence[Envelope]) -> Self:
        """Build a complete batch of envelopes, for code outside the event loop."""
        batch = cls()
        batch.add(envelopes)
        batch.complete()
        return batch

    def add(self, envelopes: Sequence[Envelope]) -> None:
        """Add envelopes, at about 5 microseconds of CPU each."""
        for envelope, text in zip(envelopes, encode_events(envelopes), strict=True):
            data, tags = envelope.data, envelope.tags
            kind = type(data)
            row: Values = [*astuple(envelope), topic_of(data)]
            row[_DATA] = text
            if tags is not None:
                row[_TAGS] = json_text(tags) if tags else None
            self.events += row
            if kind in PROJECTED:
                self.projection.add(data, envelope.run_id, envelope.ts_us, list(_identity(row)), tags)
            elif kind in _CAPTURED and envelope.session_id is not None:
                self._captured.append(envelope)

    def complete(self, clean: Callable[[str], str] | None = None) -> None:
        """Join the rows that belong together. Call this once, after the last `add` and before `write`."""
        self.projection.complete()
        moments = self._column("ts_us")
        sessions: dict[str, tuple[int, int]] = ranges(self._column("session_id"), moments)
        self._sessions = self.projection.sessions(sessions)
        names = self._column("run")
        seqs: dict[str, tuple[int, int]] = ranges(names, self._column("seq"))
        times: dict[str, tuple[int, int]] = ranges(names, moments)
        self.runs = [RunSpan(name, *between, seqs[name][1]) for name, between in times.items()]
        if clean is not None:
            self.projection.make_storable(clean)
            for run in self.runs:
                run.run_id = clean(run.run_id)
            for values in (self.events, self._sessions):
                make_storable(values, clean)

    def write(self, statements: Statements, number_of: Callable[[RunSpan], int]) -> dict[str, int]:
        """Execute the statements that store the batch, once.

        After that, the batch's rows have the numbers of their runs. Return these numbers by run.
        """
        numbers = {run.run_id: number_of(run) for run in self.runs}
        if self._captured:
            store_content(statements, self._captured, numbers)
        column = slice(_RUN, None, len(STORED_COLUMNS))
        self.events[column] = [numbers[str(run)] for run in self.events[column]]
        statements.insert(INSERT_EVENT, self.events)
        self.projection.write_before_calls(statements)
        for insert, rows, _ in self.projection.calls:
            if rows:
                for row in rows:
                    row[RUN] = numbers[str(row[RUN])]
                statements.insert(insert, flat(rows))
        statements.insert(UPSERT_SESSION, self._sessions)
        self.projection.write_behind_calls(statements)
        return numbers

    def _column(self, name: str) -> list[Any]:
        return self.events[STORED_COLUMNS.index(name) :: len(STORED_COLUMNS)]


async def batch_of(envelopes: Sequence[Envelope], clean: Callable[[str], str] | None = None) -> Batch:
    """Build a batch in parts, so that other tasks of the loop run between the parts. `clean` is as in `Batch`."""
    batch = Batch()
    begin, count = 0, _MADE_AT_ONCE
    while begin < len(envelopes):
        batch.add(envelopes[begin : begin + count])
        begin += count
        paused = time.perf_counter()
        await anyio.lowlevel.checkpoint()
        count = made_at_once(time.perf_counter() - paused)
    batch.complete(clean)
    return batch


def made_at_once(others_seconds: float) -> int:
    """The number of events to process next. The number grows with the time that other tasks took.

    With thousands of other tasks, a fixed small number would let the writer fall behind.
    """
    return max(_MADE_AT_ONCE, min(_MOST_MADE_AT_ONCE, int(others_seconds * _MADE_PER_SECOND)))


# --- Ending the runs of dead processes ---


PROCESS_LOST = "process_lost"
"""The error class of a call of a dead process. No adapter raises it, so it is not a value of `ErrorClass`."""

_MESSAGE = "the process died before this call ended. Its usage and cost are at best an estimate"


def _goes_on(call: str) -> str:
    """The SQL condition that a call's reply is made in the background, so it continues after its process."""
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
"""The statement that marks a run as ended, unless the run has an open call that doesn't continue in the
background.
"""

_CALLS_WITHOUT_END = f"""
    SELECT session_id, turn_id, request_id, attempt, message_id, caused_by, tags, ts_us, provider, model,
           estimated_input_tokens, priced_as
      FROM calls
     WHERE run = ? AND status = 'started'
       AND NOT {_goes_on("calls")}
     ORDER BY id
"""
"""The calls that end when their process ends."""

_STREAMS_WITHOUT_END = f"""
    SELECT request_id, attempt, turn_id, message_id
      FROM calls
     WHERE run = (SELECT id FROM runs WHERE run_id = ? AND ended_us IS NULL)
       AND status = 'started' AND turn_id IS NOT NULL AND message_id IS NOT NULL AND NOT {_goes_on("calls")}
     ORDER BY id
"""


async def delivered_of(database: Database, run_id: str, delivered: Delivered | None) -> dict[tuple[str, int], int]:
    """The output tokens of a lost run's calls that readers have, by request and attempt. Raises StoreError."""
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
    """End one lost run, unless another process has ended it. Return the number of calls that were ended."""
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
    output_tokens = delivered.get((request_id, attempt), 0)
    usage = (
        None
        if sent is None and not output_tokens
        else TokenUsage(sent or 0, output_tokens, source=UsageSource.ESTIMATED)
    )
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
        latency_ms=max(0, last_us - began_us) // 1000,  # up to the run's last sign of life
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
