"""Helpers that create envelopes as the bus does."""

from __future__ import annotations

import contextlib
import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from callboard.bus.events import Envelope, Event
from callboard.bus.events.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage, UsageSource
from callboard.tracestore import Store, TraceStore
from callboard.tracestore.sqlite import schema as migrations

DAY_US = 86_400_000_000
T0 = 1_790_000_000_000_000
MODEL = "openai:gpt-5"


class Maker:
    """Makes numbered envelopes of one run, one second apart. Keywords are fields of a call's event, or ids."""

    def __init__(self, run_id: str = "run_test") -> None:
        self.run_id = run_id
        self._numbers = count(1)

    def __call__(self, event: Event, *, ts_us: int | None = None, **ids: object) -> Envelope:
        seq = next(self._numbers)
        when = T0 + seq * 1_000_000 if ts_us is None else ts_us
        return Envelope(seq, self.run_id, when, seq * 1000, event, **ids)  # type: ignore[arg-type]

    def started(self, request: str = "req_1", model: str = MODEL, attempt: int = 1, **more: object) -> Envelope:
        fields: dict[str, object] = {"requested_model": "alias", "streamed": True}
        return self._of_call(LlmCallStarted, request, model, attempt, fields, more)

    def completed(self, request: str = "req_1", model: str = MODEL, attempt: int = 1, **more: object) -> Envelope:
        usage, cost = (
            TokenUsage(input_tokens=100, output_tokens=10),
            Cost(1234, CostSource.COMPUTED, "000000000000"),
        )
        fields = {"served_model": model.partition(":")[2], "usage": usage, "cost": cost}
        fields |= {"stop_reason": StopReason.END_TURN, "raw_stop_reason": "stop"}
        fields |= {"latency_ms": 900, "first_token_ms": 200}
        given = {name: value for name, value in more.items() if value is not None}
        return self._of_call(LlmCallCompleted, request, model, attempt, fields, given)

    def failed(self, request: str = "req_1", model: str = MODEL, attempt: int = 1, **more: object) -> Envelope:
        fields = {"error_class": "server_error", "error_type": "ServerError", "message": "the provider failed"}
        fields |= {"provider_status": 503, "latency_ms": 300, "retry_count": attempt - 1, "will_retry": False}
        fields["delay_seconds"] = 1.5 if more.get("will_retry") else 0.0
        return self._of_call(LlmCallFailed, request, model, attempt, fields, more)

    def _of_call(
        self, kind: Any, request: str, model: str, attempt: int, fields: dict[str, Any], more: dict[str, Any]
    ) -> Envelope:
        given = {name: more.pop(name) for name in tuple(more) if name in kind.__struct_fields__}
        event = kind(**{"provider": model.partition(":")[0], "model": model, **fields, **given})
        return self(event, request_id=request, attempt=attempt, **more)


def call(make: Maker, number: int, at: int, seconds: int = 1, session: str = "s") -> list[Envelope]:
    """A call that began `at` seconds after T0, with a tag and a cost that depend on its number."""
    ids = {"session_id": session, "tags": {"n": str(number)}}
    began = T0 + at * 1_000_000
    start = make.started(f"req_{number}", ts_us=began, **ids)
    cost = Cost(number, CostSource.COMPUTED, "000000000000")
    end = make.completed(f"req_{number}", cost=cost, **ids)
    return [start, Envelope(end.seq, end.run_id, began + seconds * 1_000_000, 0, end.data, **_ids(end))]


def _ids(envelope: Envelope) -> dict[str, object]:
    return {name: getattr(envelope, name) for name in ("session_id", "request_id", "attempt", "tags")}


def sql(path: Path, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements in one transaction, as another program would. Returns the rows of the last statement."""
    found: list[tuple[Any, ...]] = []
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        for statement in statements:
            found = file.execute(statement).fetchall()
    return found


def copy_by_version(file: sqlite3.Connection) -> None:
    """Copy the attached trace file ``new`` into an old one whose costs belong to versions. Only the latest run is
    copied.
    """
    for table in ("runs", "events", "calls", "sessions", "price_version", "reprice_run"):
        has = {name for _, name, *_ in file.execute(f"PRAGMA new.table_info({table})")}
        wanted = [name for _, name, *_ in file.execute(f"PRAGMA main.table_info({table})")]
        columns = ", ".join(name for name in wanted if name in has and name != "base")
        file.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM new.{table}")
    of_run = "new.reprice_run AS r ON r.id = k.run"
    file.execute(
        "INSERT INTO call_cost (price_version, call_id, cost_nano, reason)"
        f" SELECT r.version, k.call_id, k.cost_nano, k.reason FROM new.call_cost AS k JOIN {of_run}"
    )
    file.execute(
        "INSERT INTO current_version (position, version)"
        f" SELECT k.position, r.version FROM new.current_run AS k JOIN {of_run}"
    )


async def make_file_before(migration: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create an empty trace file of the last version without that migration."""
    version = [name for name, _ in migrations.MIGRATIONS].index(migration)
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:version])
        patch.setattr(migrations, "SCHEMA_VERSION", version)
        steps = [statement for _, statements in migrations.MIGRATIONS for statement in statements]
        patch.setattr(migrations, "_new_file", lambda: steps)
        async with TraceStore(path):
            pass


UNPRICED = Cost(None, CostSource.UNPRICED, "000000000000", "no price")


async def three_calls(store: Store, make: Maker) -> None:
    """Write three calls on three days: one priced, one unpriced, and one that failed twice."""
    cached = TokenUsage(input_tokens=25, cached_input_tokens=75, output_tokens=10)
    one = {"session_id": "s1", "turn_id": "t1", "tags": {"team": "search", 'a"b$.c': "odd"}, "ts_us": T0}
    two = {"session_id": "s1", "turn_id": "t2", "tags": {"team": "ads"}, "ts_us": T0 + DAY_US}
    three = {"session_id": "s2", "turn_id": "t3", "ts_us": T0 + 2 * DAY_US}
    await store.write(
        [
            make.started("r1", **one),
            make.completed("r1", cost=Cost(5_000, CostSource.COMPUTED, "000000000000"), usage=cached, **one),
            make.started("r2", "other:thing", **two),
            make.completed("r2", "other:thing", cost=UNPRICED, **two),
            make.started("r3", **three),
            make.failed("r3", will_retry=True, **three),
            make.started("r3", attempt=2, **three),
            make.failed("r3", attempt=2, error_class="rate_limit", **three),
        ]
    )


async def fill(store: Store, make: Maker, calls: int = 3) -> None:
    """Write calls that complete, fail without usage, or are unpriced, in turn."""
    for number in range(calls):
        batch = []
        ids = {"session_id": f"s{number % 2}", "tags": {"team": "a", "n": str(number)}}
        request = f"r{number}"
        batch.append(make.started(request, **ids))
        match number % 3:
            case 0:
                usage = TokenUsage(input_tokens=3, cached_input_tokens=4, output_tokens=5, reasoning_tokens=1)
                cost = Cost(123_456_789_012_345_678, CostSource.COMPUTED, "0123456789ab")
                batch.append(make.completed(request, usage=usage, cost=cost, **ids))
            case 1:
                batch.append(make.failed(request, will_retry=True, **ids))
            case _:
                usage = TokenUsage(output_tokens=2, source=UsageSource.ESTIMATED)
                cost = Cost(None, CostSource.UNPRICED, reason="no price")
                batch.append(make.completed(request, usage=usage, cost=cost, **ids))
        await store.write(batch)
