"""The interface `Store`: written rows can be read, have descriptions, and have one writer at a time."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sqlite3
from collections import Counter
from contextlib import closing

import anyio
import anyio.lowlevel
import msgspec
import pytest

from callboard.bus.events import Event, UnknownEvent
from callboard.bus.events.calls import LlmCallCompleted, LlmCallFailed
from callboard.bus.events.codec import topic_of
from callboard.bus.events.operation import StoreStateChanged
from callboard.bus.events.sessions import SessionCreated, SessionMessageAppended, SessionModelChanged
from callboard.bus.values.messages import Message, RoutingDecision
from callboard.bus.values.usage import Cost, CostSource, TokenUsage, UsageSource
from callboard.tracestore import CallFilter, CallRow, PriceRow, PriceTable, Store
from callboard.tracestore.codec import decode_line, encode_line
from callboard.tracestore.descriptions import BOOKKEEPING, TABLES
from callboard.tracestore.export import export_calls
from callboard.tracestore.sql import batches

from ...support.programs import started
from ..content_making import configured
from ..trace_making import DAY_US, T0, Maker, fill
from .conftest import Place

# Stored events are read back unchanged, and calls have the values of their events.


class HostEvent(Event, frozen=True, kw_only=True, tag="host.weird"):
    """An event of a host, whose field can have a value that can't be encoded."""

    value: object = None


async def test_a_completed_call_is_one_row(store: Store, make: Maker) -> None:
    usage = TokenUsage(70, 30, 20, 10, 4, 12, UsageSource.REPORTED, raw=msgspec.Raw(b'{"prompt_tokens":100}'))
    cost = Cost(5_000, CostSource.COMPUTED, "abcdefabcdef")
    ids = {"session_id": "ses_1", "turn_id": "trn_1", "message_id": "msg_1", "caused_by": "req_0"}
    end = {"usage": usage, "cost": cost, "served_model": "gpt-5-2025-08-07"}
    tags = {"team": "blue"}
    await store.write([make.started(**ids, tags=tags), make.completed(**end, **ids, tags=tags)])
    (row,) = await store.calls()
    assert (row.request_id, row.attempt, row.status) == ("req_1", 1, "completed")
    assert (row.provider, row.model, row.requested_model) == ("openai", "openai:gpt-5", "alias")
    assert row.served_model == "gpt-5-2025-08-07"
    assert (row.session_id, row.turn_id, row.message_id, row.caused_by) == ("ses_1", "trn_1", "msg_1", "req_0")
    assert row.tags == {"team": "blue"}
    assert (row.first_token_ms, row.latency_ms, row.streamed) == (200, 900, True)
    assert msgspec.structs.asdict(row.usage) | {"raw": None} == msgspec.structs.asdict(usage) | {"raw": None}
    assert row.usage.raw is not None
    assert bytes(row.usage.raw) == b'{"prompt_tokens":100}'
    assert row.at_call_time == cost
    assert row.cost == cost
    assert (row.stop_reason, row.raw_stop_reason) == ("end_turn", "stop")
    assert row.started_us is not None
    assert row.finished_us == row.started_us + 1_000_000


async def test_every_attempt_is_a_row(store: Store, make: Maker) -> None:
    first_attempt = [make.started(), make.failed(will_retry=True)]
    await store.write([*first_attempt, make.started(attempt=2), make.completed(attempt=2)])
    second, first = await store.calls(CallFilter(request_id="req_1"))
    assert (first.status, first.will_retry, first.delay_seconds) == ("failed", True, 1.5)
    assert (first.error_class, first.error_type, first.provider_status) == ("server_error", "ServerError", 503)
    assert first.error_message == "the provider failed"
    assert first.cost is None
    assert (second.status, second.attempt, second.retry_count) == ("completed", 2, 1)


async def test_a_cancelled_call_keeps_its_partial_usage(store: Store, make: Maker) -> None:
    """A cancelled call has its own status, and its partial usage is priced. A running call has no cost."""
    usage = TokenUsage(input_tokens=10, output_tokens=3, source=UsageSource.PARTIAL)
    cost = Cost(77, CostSource.COMPUTED, "v")
    await store.write([make.started()])
    (row,) = await store.calls()
    assert (row.status, row.usage, row.cost, row.at_call_time) == ("started", None, None, None)
    await store.write([make.failed(error_class="cancelled", usage=usage, cost=cost)])
    (row,) = await store.calls(CallFilter(status="cancelled"))
    assert (row.usage, row.cost) == (usage, cost)


async def test_writing_twice_changes_nothing(store: Store, make: Maker) -> None:
    """Writing the same batch again, as after an interrupted commit, does not change events, calls, tags or
    sums.
    """
    ids = {"session_id": "ses_1", "tags": {"team": "a"}}
    batch = [make.started(**ids), make.failed(will_retry=True), make.started(attempt=2), make.completed(attempt=2)]

    async def state() -> tuple[object, ...]:
        about = await store.events(), await store.calls(), await store.sessions(), await store.costs()
        return (*about, await store.committed_seq(make.run_id))

    store.hold_run(make.run_id)
    await store.write(batch)
    before = await state()
    await store.write(batch)
    await store.write(list(reversed(batch)))
    assert await state() == before
    assert before[0] == batch
    assert [(call.run_id, call.tags, call.attempt) for call in before[1]][1] == (make.run_id, {"team": "a"}, 1)
    (cost,) = before[3]
    assert (cost.key, cost.calls, cost.cost_nano_usd, before[4]) == (("openai:gpt-5",), 2, 1234, 4)


async def test_a_batch_is_prepared_in_parts(store: Store, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks on the loop wait for a few events of a large batch, never for all of them."""
    turn = 0
    made: Counter[int] = Counter()

    def counted(event: Event) -> str:
        made[turn] += 1
        return topic_of(event)

    async def others() -> None:
        nonlocal turn
        while True:
            await anyio.lowlevel.checkpoint()
            turn += 1

    monkeypatch.setattr(batches, "topic_of", counted)
    monkeypatch.setattr(batches, "_MADE_PER_SECOND", 0)  # regardless of the speed of other tasks
    async with anyio.create_task_group() as group:
        group.start_soon(others)
        await store.write([make.started(f"req_{number}") for number in range(250)])
        group.cancel_scope.cancel()
    assert made.total() == len(await store.calls()) == 250
    assert max(made.values()) <= 32


async def test_a_cancelled_write_is_committed(store: Store, make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that is cancelled between two parts of its batch continues to the commit, and only then raises."""
    made = 0

    def cancelling(event: Event) -> str:
        nonlocal made
        made += 1
        if made == 40:
            write.cancel()
        return topic_of(event)

    monkeypatch.setattr(batches, "topic_of", cancelling)
    batch = [make.started(f"req_{number}") for number in range(250)]
    write = asyncio.ensure_future(store.write(batch))
    await asyncio.wait([write])
    assert write.cancelled()
    assert len(await store.calls()) == 250


async def test_events_are_read_back_unchanged(store: Store, make: Maker) -> None:
    state = StoreStateChanged(previous="ok", current="retrying", reason="disk full", lost=3)
    sent = [make.started(session_id="s", tags={"k": "v"}), make(state), make.completed(session_id="s")]
    await store.write(sent)
    assert await store.events() == sent
    assert await store.events(topic="llm.*") == [sent[0], sent[2]]
    assert await store.events(session_id="s", since=sent[2].ts_us) == [sent[2]]
    numbered = await store.numbered_events(limit=2)
    assert await store.numbered_events(after_id=numbered[-1][0]) == [(numbered[-1][0] + 1, sent[2])]


async def test_content_is_never_stored(store: Store, make: Maker) -> None:
    """For an appended message, the trace only has position, role and id. The session can't be resumed."""
    message = Message.user("a very secret sentence")
    message = msgspec.structs.replace(message, id="msg_9", name="secret name")
    await store.write(
        [configured(make), make(SessionMessageAppended(position=4, message=message), session_id="s")]
    )
    _, envelope = await store.events()
    assert isinstance(envelope.data, SessionMessageAppended)
    assert envelope.data.position == 4
    assert (envelope.data.message.id, envelope.data.message.role) == ("msg_9", "user")
    assert envelope.data.message.content == ()
    assert (await store.saved_session("s"), await store.messages("s")) == (None, [])
    (row,) = await store.sessions()
    assert (row.messages, row.resumable) == (0, False)
    await store.close()
    everything = b"".join(path.read_bytes() for path in store.path.parent.iterdir())
    assert b"secret" not in everything
    assert b"You are brief" not in everything


async def test_an_event_of_an_unknown_topic_is_read_back_unchanged(store: Store, make: Maker) -> None:
    """An event of a host or of a later version is stored unchanged, also a second time."""
    await store.write([make(HostEvent(value={"a": [1, 2]}))])
    (envelope,) = await store.events()
    assert isinstance(envelope.data, UnknownEvent)
    assert envelope.data.topic == "host.weird"
    assert msgspec.json.decode(envelope.data.raw) == {"type": "host.weird", "value": {"a": [1, 2]}}
    await store.write([make(envelope.data)])
    again = (await store.events())[1].data
    assert isinstance(again, UnknownEvent)
    assert (again.topic, bytes(again.raw)) == ("host.weird", bytes(envelope.data.raw))


async def test_an_event_that_cannot_be_encoded_stops_no_batch(store: Store, make: Maker) -> None:
    """A host's event that can't be encoded is stored as far as possible. Its batch is committed."""
    for number, value in enumerate((object(), "half a pair \ud83d", 2**80, {1: {2: object()}}), 1):
        request = f"req_{number}"
        await store.write([make.started(request), make(HostEvent(value=value)), make.completed(request)])
        assert len(await store.events()) == 3 * number
        assert len(await store.calls(CallFilter(status="completed"))) == number


async def test_every_condition_of_a_filter_applies(store: Store, make: Maker) -> None:
    batch = []
    for number, (model, session, team) in enumerate(
        [("openai:gpt-5", "s1", "red"), ("openai:gpt-5-mini", "s1", "blue"), ("local-chat:smol", "s2", "red")]
    ):
        ids = {"session_id": session, "tags": {"team": team}, "ts_us": T0 + number * DAY_US}
        batch += [make.started(f"req_{number}", model, **ids), make.completed(f"req_{number}", model, **ids)]
    await store.write(batch)

    async def chosen(**conditions: object) -> list[str]:
        rows = await store.calls(CallFilter(**conditions))  # type: ignore[arg-type]
        return sorted(row.request_id[-1] for row in rows)

    assert await chosen() == ["0", "1", "2"]
    assert await chosen(provider="openai") == ["0", "1"]
    assert await chosen(model="openai:gpt-5") == ["0"]
    assert await chosen(model="openai:gpt-5*") == ["0", "1"]
    assert await chosen(model="smol") == ["2"]
    assert await chosen(session_id="s1", tags={"team": "red"}) == ["0"]
    assert await chosen(since=T0 + DAY_US) == ["1", "2"]
    assert await chosen(until=T0 + DAY_US) == ["0"]
    assert await chosen(status="failed") == []
    assert [row.request_id for row in await store.calls(limit=1)] == ["req_2"]


async def test_sessions_sum_up_their_calls(store: Store, make: Maker) -> None:
    """A session has its current model, its tags, and the usage of all its attempts."""
    ids = {"session_id": "s1", "turn_id": "t1"}
    await store.write(
        [
            make(SessionCreated(model="openai:gpt-5", tags={"team": "red"}), session_id="s1"),
            make.started(**ids),
            make.completed(**ids, cost=Cost(None, CostSource.UNPRICED, "v", "no price")),
            make.started("req_2", **ids),
            make.completed("req_2", **ids),
            make(SessionModelChanged(previous="openai:gpt-5", current="local-chat:smol"), session_id="s1"),
            make(SessionCreated(model="m:n"), session_id="s2"),
        ]
    )
    newest, row = await store.sessions()
    assert (newest.session_id, newest.calls) == ("s2", 0)
    assert [each.session_id for each in await store.sessions(1, tags={"team": "red"})] == ["s1"]
    assert await store.sessions(tags={"team": "red", "other": "x"}) == []
    assert (row.model, row.tags, row.turns, row.calls) == ("local-chat:smol", {"team": "red"}, 1, 2)
    assert (row.total_input_tokens, row.output_tokens) == (200, 20)
    assert (row.cost_nano_usd, row.unpriced) == (1234, 1)


async def test_the_events_of_a_run_are_read_by_their_numbers(store: Store) -> None:
    """The events after a number are read in pages. Each run has its own numbers."""
    first, second = Maker("run_a"), Maker("run_b")
    written = [first.started(), first.completed(), first.started("req_3")]
    await store.write([written[0], second.started("req_2"), *written[1:]])
    assert [await store.committed_seq(run) for run in ("run_a", "run_b", "run_c")] == [3, 1, 0]
    assert (len(await store.events()), len(await store.events(run_id="run_b"))) == (4, 1)
    assert [envelope.seq for envelope in await store.run_events("run_a")] == [1, 2, 3]
    assert await store.run_events("run_a", 1) == (await store.events(run_id="run_a"))[1:]
    assert [envelope.seq for envelope in await store.run_events("run_a", 1, limit=1)] == [2]
    assert await store.run_events("run_a", 3) == await store.run_events("run_c") == []


async def test_the_positions_of_all_runs_are_one_query(place: Place) -> None:
    """The result has runs that continue, and runs that ended recently."""
    first, second = Maker("run_a"), Maker("run_b")
    async with place.store() as store:
        store.hold_run("run_a")
        await store.write([first.started(), first.completed(), second.started("req_2")])
    async with place.store() as store:
        assert await store.run_positions(0) == {"run_a": 2, "run_b": 1}
        assert "run_a" not in await store.run_positions(T0 + DAY_US)


async def test_usage_with_the_providers_own_figures_is_read_back(store: Store, make: Maker) -> None:
    """An event whose usage has a raw part is not an unknown event. Every byte of the raw part is read back."""
    raw = msgspec.Raw(b'{"prompt_tokens": 7, "new": [1.50]}')
    envelopes = [
        make.completed(usage=TokenUsage(7, 1, raw=raw)),
        make.failed("req_2", usage=TokenUsage(7, raw=raw)),
    ]
    await store.write(envelopes)
    for envelope in [*await store.events(), *(decode_line(encode_line(envelope)) for envelope in envelopes)]:
        assert isinstance(envelope.data, LlmCallCompleted | LlmCallFailed)
        assert envelope.data.usage.raw is not None
        assert bytes(envelope.data.usage.raw) == bytes(raw)


async def test_a_call_that_went_through_the_spill_file_has_its_end(store: Store, make: Maker) -> None:
    # stored unchanged, even if it is no valid text
    usage = TokenUsage(7, 1, raw=msgspec.Raw(b'{"prompt_tok\xffens": 7}'))
    spilled = [encode_line(envelope) for envelope in (make.started(), make.completed(usage=usage))]
    await store.write([decode_line(line) for line in spilled])
    (row,) = await store.calls()
    assert (row.status, row.usage and row.usage.input_tokens) == ("completed", 7)


# The rows of a call do not depend on the order or the number of its events.


async def test_events_of_a_call_in_any_order_or_number_give_one_row(store: Store, make: Maker) -> None:
    await store.write([make.started(), make.started(), make.failed(), make.failed()])
    (call,) = await store.calls()
    assert (call.status, call.error_class) == ("failed", "server_error")
    start, end = make.started("req_2"), make.completed("req_2")
    await store.write([end])
    await store.write([start])
    (row,) = await store.calls(CallFilter(request_id="req_2"))
    assert (row.status, row.started_us, row.requested_model) == ("completed", start.ts_us, "alias")


async def test_text_and_numbers_that_a_database_cannot_store_stop_no_batch(store: Store, make: Maker) -> None:
    """A text is found even if the database can only store it in another form."""
    ids = {"session_id": "ses_\0"}
    awkward = make.started("req_\ud800", tags={"a\0": "b\ud800\0"}, **ids), make.completed("req_\ud800", **ids)
    await store.write([*awkward, make.started("req_2")])
    assert [call.status for call in await store.calls()] == ["started", "completed"]
    assert sum(row.calls for row in await store.costs(by=("tag:a",))) == 2
    await store.write([make.started("req_\0", tags={"a\0": "b\0"}, **ids)])
    found = [{"session_id": "ses_\0"}, {"request_id": "req_\0"}, {"tags": {"a\0": "b\0"}}]
    assert [len(await store.calls(CallFilter(**each))) for each in found] == [2, 1, 1]  # type: ignore[arg-type]
    assert len(await store.events(session_id="ses_\0")) == 3
    start = make.started("req_3", session_id="s\udfff")
    routed = msgspec.structs.replace(start.data, routing=RoutingDecision("x\ud800", "openai:gpt-5", "openai", "a"))
    usage = TokenUsage(input_tokens=2**70, output_tokens=5)
    await store.write([msgspec.structs.replace(start, data=routed), make.completed("req_3", usage=usage)])
    (row,) = await store.calls(CallFilter(request_id="req_3"))
    assert (row.session_id, row.usage.input_tokens, row.usage.output_tokens) == ("s?", 0, 5)


async def test_groups_of_the_same_cost_are_sorted_by_name(store: Store, make: Maker) -> None:
    """Groups are in the order of their names' bytes. The group without a name is the first."""
    names = ["b", "a", "B", "é", "Z", "a b", "_", ""]
    await store.write([make.started(f"r{name}", tags={"team": name}) for name in names])
    await store.write([make.started("none")])
    rows = await store.costs(by=("tag:team", "model"))
    assert [row.key[0] for row in rows] == ["", *sorted(names)]


# The output of `callboard sql --schema`, compared with the tables of both stores and with the rows in Python.

COLUMNS = {
    "sqlite": """
        SELECT t.name, c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c
         WHERE t.type IN ('table', 'view') ORDER BY t.name, c.cid
    """,
    "postgres": """
        SELECT table_name, column_name FROM information_schema.columns
         WHERE table_schema = 'callboard' ORDER BY table_name, ordinal_position
    """,
}
MORE_ON_A_SERVER = {("runs", "shipped_from")}


async def test_every_table_and_every_column_has_a_description(place: Place, store: Store) -> None:
    if place.kind == "sqlite":  # statements of users cannot read its own tables
        with closing(sqlite3.connect(place.folder / "trace.db")) as connection:
            rows = connection.execute(COLUMNS["sqlite"]).fetchall()
    else:
        rows = (await store.sql(COLUMNS["postgres"], limit=10_000)).rows
    columns = {(str(table), str(column)) for table, column in rows if table not in BOOKKEEPING}
    described = {(name, column) for name, table in TABLES.items() for column in table.columns}
    assert described - columns == (MORE_ON_A_SERVER if place.kind == "sqlite" else set())
    assert columns - described == set()


async def test_call_rows_have_the_names_and_values_of_an_export(store: Store, make: Maker) -> None:
    """The rows equal an export as JSON lines, without its formatted texts."""
    await fill(store, make, 7)
    await store.reprice(PriceTable.from_rows([PriceRow(model="openai:*", output=7)], "second"))
    file = io.BytesIO()
    await export_calls(store, file, "jsonl")
    found = await store.sql("SELECT * FROM call_rows ORDER BY call_id", limit=100)
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    for exported, row in zip(map(json.loads, file.getvalue().splitlines()), rows, strict=True):
        for text in ("started", "finished", "cost_usd", "at_call_time_usd"):
            del exported[text]
        exported["tags"], row["tags"] = json.loads(exported["tags"]), json.loads(str(row["tags"]))
        assert {name: row[name] for name in exported} == exported
    assert {row["cost_pricing_version"] for row in rows} != {row["at_call_time_pricing_version"] for row in rows}


def test_columns_of_call_rows_are_named_as_in_python() -> None:
    """A nested name has an underscore in place of its point. Token counts and the tier have no prefix."""
    for name, column in TABLES["call_rows"].columns.items():
        path = column.in_python or name
        assert name in (path.replace(".", "_"), path.removeprefix("usage."))
        assert path.partition(".")[0] in CallRow.__struct_fields__


def test_each_description_is_a_sentence() -> None:
    meanings = [table.meaning for table in TABLES.values()] + list(BOOKKEEPING.values())
    meanings += [column.meaning for table in TABLES.values() for column in table.columns.values()]
    assert [each for each in meanings if not re.fullmatch(r"[A-Z][^|]*\.", each)] == []


def test_a_column_of_calls_has_or_names_its_name_in_python() -> None:
    """A column has the name in Python, or a description with that name. So SQL has everything of a `CallRow`."""
    names = {column.in_python or name for name, column in TABLES["calls"].columns.items()}
    fields = {name for name in CallRow.__struct_fields__ if name not in ("usage", "cost", "at_call_time")}
    fields |= {f"usage.{name}" for name in TokenUsage.__struct_fields__}
    fields |= {f"at_call_time.{name}" for name in Cost.__struct_fields__}
    assert fields - names == {"usage.reported_cost_nano_usd", "usage.upstream_cost_nano_usd"}
    assert names - fields == {"the dimension day", "reserved_nano", "reserved_tokens"}
    of_costs = {column.in_python for column in TABLES["call_cost"].columns.values()}
    assert of_costs - {None} == {"cost.nano_usd", "cost.reason"}


# A block that only one task can enter at a time, among all stores on a trace.

HOLDS_UNTIL_KILLED = """
    import sys
    import anyio
    from pathlib import Path
    from callboard.tracestore import PostgresStore, TraceStore

    folder, dsn = sys.argv[1:]

    async def hold():
        place = Path(folder)
        store = PostgresStore(dsn, path=place / "trace") if dsn else TraceStore(place / "trace.db")
        async with store, store.exclusive("night"):
            print("inside", flush=True)
            await anyio.sleep_forever()

    anyio.run(hold)
"""


async def test_the_block_is_entered_by_one_at_a_time(place: Place) -> None:
    inside = most = turns = 0

    async def enter(store: Store) -> None:
        nonlocal inside, most, turns
        async with store.exclusive("night"):
            inside += 1
            most = max(most, inside)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            inside -= 1
            turns += 1

    async with place.store() as one, place.store() as other, anyio.create_task_group() as group:
        for store in (one, other, one, other):
            group.start_soon(enter, store)
    assert (most, turns) == (1, 4)


async def test_a_failed_or_cancelled_task_leaves_the_block(place: Place) -> None:
    """After an exception in the block, or a cancelled wait, other tasks can enter."""
    async with place.store() as one, place.store() as other:
        with pytest.raises(ZeroDivisionError):
            async with one.exclusive("night"):
                async with anyio.create_task_group() as group:
                    group.start_soon(other.exclusive("night").__aenter__)
                    await anyio.lowlevel.checkpoint()
                    group.cancel_scope.cancel()
                raise ZeroDivisionError
        with anyio.fail_after(30):
            async with other.exclusive("night"), other.exclusive("day"), one.exclusive("evening"):
                pass
    assert not list(place.folder.glob("*.lock-*"))


async def test_a_killed_process_leaves_the_block(place: Place) -> None:
    """A process that is killed inside does not block others. The next writer removes its lock file."""
    program = started(HOLDS_UNTIL_KILLED, place.folder, place.dsn or "")
    assert program.stdout.readline() == "inside\n"
    async with place.store() as store:
        held = list(place.folder.glob("*.lock-*"))
        await store.close_lost_runs()
        assert list(place.folder.glob("*.lock-*")) == held
        entered = anyio.Event()

        async def enter() -> None:
            async with store.exclusive("night"):
                entered.set()

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(enter)
                await anyio.wait_all_tasks_blocked()
                assert not entered.is_set()
                program.send_signal(signal.SIGKILL)
                await entered.wait()
        program.communicate()
        await store.close_lost_runs()
    assert not list(place.folder.glob("*.lock-*"))
