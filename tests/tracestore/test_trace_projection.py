"""Events become the same rows however they are spread over batches, and few statements bring them there."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard import CallFilter, Envelope, SessionCreated, SessionTurnStarted, TokenUsage, TraceStore
from callboard.tracestore.sql.batches import Batch
from callboard.tracestore.sql.connection import Insert, SqlValue
from callboard.tracestore.sql.runs import RunSpan
from callboard.tracestore.sqlite.database import Row
from callboard.tracestore.sqlite.statements import statements_for

from .trace_making import Maker

pytestmark = pytest.mark.anyio


def story() -> list[Envelope]:
    """Two runs with calls that end well, fail, are cancelled, retried, or are still under way."""
    first, second = Maker("run_a"), Maker("run_b")
    ids = {"session_id": "s1", "turn_id": "t1", "message_id": "m1", "caused_by": "req_0", "tags": {"team": "red"}}
    other = {"session_id": "s2", "tags": {"team": "blue", "env": "test"}}
    usage = TokenUsage(7, 1, raw=msgspec.Raw(b'{"prompt_tokens":7}'))
    return [
        first(SessionCreated(model="openai:gpt-5", tags={"team": "red"}), session_id="s1"),
        first(SessionTurnStarted(model="openai:gpt-5"), session_id="s1", turn_id="t1"),
        first.started("req_1", **ids),
        first.failed("req_1", will_retry=True, **ids),
        first.started("req_1", attempt=2, **ids),
        first.completed("req_1", attempt=2, usage=usage, **ids),
        second(SessionCreated(model="local-chat:smol"), session_id="s2"),
        second.started("req_2", "local-chat:smol", **other),
        second.failed("req_2", "local-chat:smol", error_class="cancelled", usage=usage, **other),
        first.started("req_3"),
        first.completed("req_3"),
        second.started("req_5", operation="embeddings"),
        second.completed("req_5"),
        second.started("req_4", **other),
        second(SessionTurnStarted(model="local-chat:smol"), session_id="s2"),
    ]


QUERIES = {
    "events": "SELECT r.run_id, e.* FROM events AS e JOIN runs AS r ON r.id = e.run ORDER BY r.run_id, e.seq",
    "calls": "SELECT r.run_id, c.* FROM calls AS c JOIN runs AS r ON r.id = c.run ORDER BY request_id, attempt",
    "tags": """
        SELECT t.key, t.value, c.request_id, c.attempt FROM call_tags AS t JOIN calls AS c ON c.id = t.call_id
         ORDER BY 1, 2, 3, 4
    """,
    "sessions": "SELECT * FROM sessions ORDER BY session_id",
    "runs": "SELECT * FROM runs ORDER BY run_id",
}


def tables(path: Path) -> dict[str, list[dict[str, object]]]:
    """All rows of the tables that events go into, without the numbers that only say which row came first."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.row_factory = sqlite3.Row
        return {
            table: [
                {name: row[name] for name in row.keys() if name not in ("id", "run")}  # noqa: SIM118
                for row in file.execute(sql)
            ]
            for table, sql in QUERIES.items()
        }


async def written(path: Path, batches: Sequence[Sequence[Envelope]]) -> dict[str, list[dict[str, object]]]:
    async with TraceStore(path) as store:
        for batch in batches:
            await store.write(batch)
    return tables(path)


@st.composite
def tellings(draw: st.DrawFn) -> list[list[Envelope]]:
    """The story in any order, some of it told twice, in batches cut anywhere."""
    events = story()
    again = draw(st.lists(st.sampled_from(events), max_size=6))
    order = draw(st.permutations([*events, *again]))
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1), max_size=6)))
    return [order[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(order)], strict=True)]


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, object]]]:
    """The rows of the story, each event a batch of its own, in order."""
    path = tmp_path_factory.mktemp("story") / "trace.db"
    return anyio.run(written, path, [[envelope] for envelope in story()])


@given(telling=tellings())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_and_any_split_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory,
    one_by_one: dict[str, list[dict[str, object]]],
    telling: list[list[Envelope]],
) -> None:
    """Shuffled, repeated and cut into batches anywhere, events leave the rows of events written one by one."""
    assert anyio.run(written, tmp_path_factory.mktemp("telling") / "trace.db", telling) == one_by_one


class Written:
    """Stands for `Statements`: keeps what is inserted, by table."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def insert(self, insert: Insert, values: list[SqlValue]) -> None:
        for sql, parameters in statements_for(insert, values):
            table = sql.split()[2]
            self.rows[table] = self.rows.get(table, 0) + len(parameters) // len(insert.columns)

    def run(self, sql: str, parameters: list[SqlValue]) -> list[Row]:
        """There is no repricing to be found."""
        return []


async def test_a_call_that_starts_and_ends_in_one_batch_is_one_row_written_once(make: Maker) -> None:
    """Eight quick calls are eight rows, not eight that are inserted and then looked up and changed."""

    def number_of(run: RunSpan) -> int:
        return 1

    batch = [end for n in range(8) for end in (make.started(f"req_{n}"), make.completed(f"req_{n}"))]
    statements = Written()
    Batch.of(batch).write(statements, number_of)  # type: ignore[arg-type]
    assert statements.rows == {"events": 16, "calls": 8}


@given(rows=st.integers(0, 400), width=st.integers(1, 13))
def test_an_insert_brings_every_row_with_few_statements(rows: int, width: int) -> None:
    """In order, with nothing but the last row repeated; a quarter more at the most."""
    insert = Insert("t", tuple(f"c{n}" for n in range(width)), "ON CONFLICT DO NOTHING")
    values: list[SqlValue] = list(range(rows * width))
    brought: list[SqlValue] = []
    statements = 0
    for sql, parameters in statements_for(insert, values):
        assert sql.count("?") == len(parameters)
        brought += parameters
        statements += 1
    assert brought[: len(values)] == values
    assert brought[len(values) :] == values[-width:] * ((len(brought) - len(values)) // width)
    assert len(brought) <= len(values) * 4 / 3
    assert statements <= rows // 64 + 4


async def test_a_value_of_the_wrong_kind_is_the_events_fault(store: TraceStore, make: Maker) -> None:
    """What the tables don't take is no failure of the file: nothing of its batch is written."""
    event = msgspec.structs.replace(make.completed("bad").data, latency_ms=7, provider=None)
    for bad in (make(event, request_id="bad"), make(event, request_id=object())):
        with pytest.raises(Exception, match=r"NOT NULL|bind") as caught:
            await store.write([make.started("good"), bad])
        assert isinstance(caught.value, ValueError)
    assert await store.events() == []
    await store.write([make.started("good")])
    assert [row.request_id for row in await store.calls(CallFilter(status="started"))] == ["good"]


async def test_what_kind_of_call_it_was_can_be_asked_and_grouped_by(store: TraceStore, make: Maker) -> None:
    """A call without a start is taken for a conversation's, as those of earlier versions are."""
    await store.write([make.completed("b"), make.started("a", operation="embeddings"), make.completed("a")])
    await store.write([make.started("c"), make.completed("c")])
    assert {row.request_id: row.operation for row in await store.calls()} == {
        "a": "embeddings",
        "b": "chat",
        "c": "chat",
    }
    assert [row.request_id for row in await store.calls(CallFilter(operation="embeddings"))] == ["a"]
    assert {row.request_id for row in await store.calls(CallFilter(operation="chat"))} == {"b", "c"}
    costs = await store.costs(by=("operation",))
    assert sorted((row.key, row.calls) for row in costs) == [(("chat",), 2), (("embeddings",), 1)]
