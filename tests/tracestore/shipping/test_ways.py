"""The two ways of a shipment into a shared store. With each, the store has every event once, with its derived
rows.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope
from callboard.bus.events.sessions import SessionCreated
from callboard.bus.values.usage import TokenUsage
from callboard.tracestore import CallFilter, PostgresStore, ShippingOptions, TraceShipper, TraceStore
from callboard.tracestore.postgres import receiver as receiving
from callboard.tracestore.shipping import shipment as text
from callboard.tracestore.shipping import source
from callboard.tracestore.shipping.shipment import lines_of
from tests.support.postgres_server import PostgresServer
from tests.tracestore.trace_making import Maker

from .conftest import _migrate, lose_marks, ship
from .test_shipping import assert_arrives, everything, of_run, shipped


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide the text of a shipment into small parts."""
    monkeypatch.setattr(text, "_ROWS_AT_ONCE", 3)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways of the shipments, in order."""
    tried: list[str] = []
    direct, stage = receiving.store_new, receiving.stage

    def noted_direct(*arguments: object) -> object:
        tried.append("direct")
        return direct(*arguments)  # type: ignore[arg-type]

    def noted_stage(*arguments: object) -> None:
        tried.append("staged")
        stage(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(receiving, "store_new", noted_direct)
    monkeypatch.setattr(receiving, "stage", noted_stage)
    return tried


async def test_new_events_go_directly(local: TraceStore, shared: str, ways: list[str]) -> None:
    events = of_run("one", 40)
    for begin in range(0, len(events), 30):
        await local.write(events[begin : begin + 30])
        await ship(local.path, shared, batch=7)
    assert set(ways) == {"direct"}
    await assert_arrives(local, shared)


async def test_a_file_under_a_new_name_is_staged_at_first(local: TraceStore, shared: str, ways: list[str]) -> None:
    await local.write(of_run("one", 40))
    await ship(local.path, shared)
    lose_marks(local.path)
    ways.clear()
    shipper = TraceShipper(local.path, shared, options=ShippingOptions(batch_events=20))
    await shipper.ship()
    assert ways[:4] == ["direct", "staged", "staged", "staged"]
    ways.clear()
    for run in ("two", "three"):
        await local.write(of_run(run, 3))
        await shipper.ship()
    await shipper.close()
    assert ways == ["staged", "direct"]
    await assert_arrives(local, shared)


async def test_a_copy_of_a_file_is_shipped_independently(local: TraceStore, shared: str, tmp_path: Path) -> None:
    """The copy also has the mark, so both files have one name in the shared store."""
    first, second = of_run("one", 10), of_run("two", 10)
    await local.write(first)
    await ship(local.path, shared)
    other = tmp_path / "copied" / "trace.db"
    other.parent.mkdir(mode=0o700)
    await local.backup(other)
    for mark in local.path.parent.glob("trace.db.shipped-*"):
        other.with_name(mark.name).write_bytes(mark.read_bytes())
    async with TraceStore(other) as copy:
        await copy.write(second)
        await ship(other, shared, batch=7)
        third = of_run("three", 10)
        await local.write(third)
        await ship(local.path, shared, batch=7)
        async with shipped(other, shared) as store:
            kept = {(each.run_id, each.seq) for each in await store.events(limit=None)}
            assert kept == {(each.run_id, each.seq) for each in (*first, *second, *third)}
            assert len(await store.events(limit=None)) == len(kept)


async def test_a_call_in_several_shipments_is_one_call(local: TraceStore, shared: str, ways: list[str]) -> None:
    make = Maker("run_a")
    tags = {"team": "a"}
    told = [make.started("req_1", tags=tags), make.completed("req_1", tags=tags), make.completed("req_2")]
    told += [make.failed("req_3"), make.started("req_2"), make.started("req_3"), make.started("req_3")]
    for event in told:
        await local.write([event])
        await ship(local.path, shared)
    await assert_arrives(local, shared)


async def test_the_providers_usage_object_arrives_unchanged(local: TraceStore, shared: str) -> None:
    make = Maker("run_a")
    for number, raw in enumerate((None, b'{"n":1}', b'{\n  "n": [1]\n}', b'"text"')):
        usage = TokenUsage(7, 1, raw=None if raw is None else msgspec.Raw(raw))
        await local.write([make.completed(f"req_{number}", usage=usage)])
    await assert_arrives(local, shared)


async def test_characters_that_no_text_has_are_replaced(local: TraceStore, shared: str, ways: list[str]) -> None:
    make = Maker("run_a")
    ids = {"session_id": "a\0b", "tags": {"k\0": "v"}}
    await local.write([make.started("req\0", **ids), make.completed("req\0", **ids), make.started("req_2")])
    await ship(local.path, shared)
    assert ways == ["direct", "staged", "staged"]
    async with shipped(local.path, shared) as store:
        calls = {row.request_id: row for row in await store.calls(limit=None)}
        assert set(calls) == {"req\ufffd", "req_2"}
        assert (calls["req\ufffd"].session_id, calls["req\ufffd"].status) == ("a\ufffdb", "completed")
        assert await store.calls(CallFilter(tags={"k\ufffd": "v"})) == [calls["req\ufffd"]]
        assert len(await store.events(limit=None)) == 3


async def test_a_shipment_is_bounded_by_its_size_too(
    local: TraceStore, shared: str, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_MOST_BYTES", 1)
    monkeypatch.setattr(source, "_AT_ONCE_EVENTS", 10)
    await local.write(of_run("one", 20))
    await ship(local.path, shared)
    assert len(ways) == -(-len(of_run("one", 20)) // 10)
    await assert_arrives(local, shared)


async def test_a_failed_read_is_repeated(local: TraceStore, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second shipment is read while the first one is stored, and this read fails."""
    reads = 0
    read = source.Source.read

    async def fails_once(self: source.Source, *arguments: object) -> object:
        nonlocal reads
        reads += 1
        if reads == 2:
            raise StoreError("not now")
        return await read(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(source.Source, "read", fails_once)
    await local.write(of_run("one", 20))
    shipper = TraceShipper(local.path, shared, options=ShippingOptions(batch_events=10))
    assert await shipper.ship() == len(of_run("one", 20))
    assert shipper.statistics().failures == 0
    await shipper.close()
    await assert_arrives(local, shared)


ODD = st.text(st.sampled_from('a"\\,\t\n\r\x01\x02\x1e\x1f\x7f\u2028é😀 '), max_size=5) | st.sampled_from(
    ("None", "", "\\N", "\\.", "NULL", "\x02None\x02", "'\x1e'")
)


@given(st.lists(st.tuples(ODD | st.none(), ODD | st.none(), st.integers(-9, 9) | st.none()), min_size=1))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_value_arrives_unchanged(shared: str, rows: list[tuple[str | None, str | None, int | None]]) -> None:
    import psycopg

    lines = lines_of(("one", "two", "three"), [7] * len(rows), list(zip(*rows, strict=True)))
    with psycopg.connect(shared) as connection:
        connection.execute("CREATE TEMP TABLE received (run bigint, one text, two text, three bigint)")
        columns = ", ".join(("run", *lines.columns))
        with connection.cursor().copy(
            f"COPY received ({columns}) FROM STDIN WITH ({lines.options})".encode()
        ) as copy:
            copy.write(b"".join(lines.parts({7: 8})))
        found = connection.execute("SELECT * FROM received ORDER BY ctid").fetchall()
        connection.rollback()
    assert found == [(8, *row) for row in rows]


def story(run: str) -> list[Envelope]:
    make = Maker(run)
    session = {"session_id": f"ses_{run}"}
    return [make(SessionCreated(model="openai:gpt-5"), **session), *of_run(run, 9)[1:]]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(("ships", "ships", "writes", "loses its mark", "somebody else writes")),
        st.integers(1, 40),
        st.integers(1, 12),
    ),
    max_size=12,
)


@given(steps=STEPS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_event_is_missing_or_doubled_in_a_used_store(
    request: pytest.FixtureRequest, shared: str, steps: list[tuple[str, int, int]]
) -> None:
    """Another writer may have written any event before, and the file's mark may be lost at any time."""
    server: PostgresServer = request.getfixturevalue("postgres_server")
    with server.clean_database(server.template("shared", _migrate)) as dsn, TemporaryDirectory() as folder:
        anyio.run(_play, Path(folder), dsn, steps)


async def _play(folder: Path, dsn: str, steps: list[tuple[str, int, int]]) -> None:
    events = [event for pair in zip(story("one"), story("two"), strict=True) for event in pair]
    written = 0
    trace = folder / "trace.db"
    async with TraceStore(trace) as local, PostgresStore(dsn, path=folder / "other") as store:
        for what, number, size in steps:
            if what == "ships":
                await ship(trace, dsn, size)
            elif what == "writes":
                await local.write(events[written : written + number])
                written += number
            elif what == "loses its mark":
                lose_marks(trace)
            else:
                await store.write(events[number : number + size])
        await local.write(events)
        await ship(trace, dsn, 5)
        assert await everything(store) == await everything(local)
