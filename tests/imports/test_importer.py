"""How an import changes a trace, on a file and on a server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import anyio
import pytest

from callboard import Budget
from callboard.bus import ConfigurationError, StoreError, TokenUsage
from callboard.engine.budgets.budgets import query_of
from callboard.engine.imports.importer import Importer, import_calls, request_id
from callboard.engine.imports.source import (
    START,
    ImportedCall,
    Item,
    Mark,
    SourceFile,
    UnreadablePart,
    source_named,
)
from callboard.tracestore import CallFilter, PriceRow, PriceTable, Store, TraceStore
from callboard.tracestore.call_columns import IMPORTED, OWN, trees
from tests.support.session_files import Claude, Codex, counts, usage, write
from tests.tracestore.contract.conftest import Place
from tests.tracestore.trace_making import Maker

pytestmark = pytest.mark.anyio
PRICES = PriceTable(
    [
        PriceRow(model="anthropic:*", input=3_000_000, output=15_000_000, valid_to=1_772_400_000_000_000),
        PriceRow(model="anthropic:*", input=6_000_000, output=30_000_000, valid_from=1_772_400_000_000_000),
    ],
    "dated",
)


@pytest.fixture
def session() -> Claude:
    return Claude()


async def run(store: Store | None, folder: Path, **how: object) -> tuple[int, int, int, int]:
    """Import a folder. Returns the numbers of new, known, corrected and unread parts."""
    report = await import_calls(store, "claude-code", folder, prices=PRICES, **how)  # type: ignore[arg-type]
    return report.new, report.known, report.corrected, report.unread


async def test_importing_again_reads_only_what_is_new(store: Store, tmp_path: Path, session: Claude) -> None:
    path = write(session.file(tmp_path), [session.prompt(), session.reply(1), session.reply(2)])
    assert await run(store, tmp_path) == (2, 0, 0, 0)
    before, size = await store.last_event_id(), path.stat().st_size
    report = await import_calls(store, "claude-code", tmp_path, prices=PRICES)
    assert (report.unchanged, report.bytes_read, report.changed) == (1, 0, False)
    assert await store.last_event_id() == before
    write(path, [session.reply(3)], append=True)
    report = await import_calls(store, "claude-code", tmp_path, prices=PRICES)
    assert (report.new, report.known, report.bytes_read) == (1, 0, path.stat().st_size - size)
    path.with_name("copy.jsonl").write_bytes(path.read_bytes())
    assert await run(store, tmp_path) == (0, 3, 0, 0)


async def test_a_correction_is_an_event_and_the_first_one_stays(
    store: Store, tmp_path: Path, session: Claude
) -> None:
    path = write(session.file(tmp_path), [session.reply(1, usage(3, 10), stop=None)])
    await run(store, tmp_path)
    write(path, [session.reply(1, usage(3, 200))], append=True)
    assert await run(store, tmp_path) == (0, 0, 1, 0)
    (row,) = await store.calls()
    assert row.usage == TokenUsage(3, 200)
    assert (row.cost and row.cost.nano_usd, row.origin_line) == (3 * 3000 + 200 * 15_000, 2)
    events = await store.events(topic="llm.call_imported")
    assert [event.data.usage.output_tokens for event in events] == [10, 200]  # type: ignore[attr-defined]


async def test_a_row_has_its_source_and_reports_tell_it_from_own_calls(
    store: Store, tmp_path: Path, session: Claude
) -> None:
    """Imported calls count in budgets only if asked."""
    path = write(session.file(tmp_path), [session.prompt(), session.reply(1)])
    await run(store, tmp_path)
    (row,) = await store.calls()
    assert (row.origin, row.origin_file, row.origin_line) == ("claude-code", str(path), 2)
    assert (row.request_id, row.session_id) == (request_id("claude-code", "msg_1:req_1"), session.session)
    assert (row.status, row.stop_reason, row.latency_ms) == ("completed", "end_turn", None)
    assert row.tags == {"project": "/src/shop", "branch": "main"}
    (of,) = await store.sessions()
    assert of.tags == {"origin": "claude-code", "project": "/src/shop", "branch": "main"}
    asked = [query_of(Budget(max_cost_usd=1, counts_imported=counts), 0) for counts in (False, True)]
    spending = await store.spending(asked, "run_none")
    assert [sum(row.calls for row in rows) for rows in spending.rows] == [0, 1]
    make = Maker()
    await store.write([make.started(), make.completed()])
    sums = {row["origin"]: row.calls for row in await store.costs(by=("origin",))}
    assert sums == {"claude-code": 1, "callboard": 1}
    for origin, calls in ((OWN, 1), (IMPORTED, 1), ("claude-code", 1), ("codex", 0), (None, 2)):
        assert len(await store.calls(CallFilter(origin=origin))) == calls


async def test_a_call_has_the_price_of_its_own_time(store: Store, tmp_path: Path, session: Claude) -> None:
    early = session.reply(1, usage(0, 1))
    session.now += 90_000
    write(session.file(tmp_path), [early, session.reply(2, usage(0, 1))])
    await run(store, tmp_path)
    assert sorted(row.cost.nano_usd or 0 for row in await store.calls() if row.cost) == [15_000, 30_000]


async def test_a_stated_cost_counts_only_where_the_price_is_unknown(
    store: Store, tmp_path: Path, session: Claude
) -> None:
    write(session.file(tmp_path), [session.reply(1, costUSD=0.5), session.reply(2, costUSD=0.25, model="glm-4.6")])
    table = PriceTable([PriceRow(model="anthropic:claude-*", input=1, output=1)], "one")
    await import_calls(store, "claude-code", tmp_path, prices=table)
    found = {row.model: row for row in await store.calls()}
    known, unknown = found["anthropic:claude-sonnet-4-5-20250929"], found["anthropic:glm-4.6"]
    assert (known.stated_nano_usd, known.cost and known.cost.source) == (500_000_000, "computed")
    assert (unknown.cost and unknown.cost.nano_usd, unknown.cost and unknown.cost.source) == (
        250_000_000,
        "provider",
    )


async def test_sub_agents_are_children_of_their_turn(store: Store, tmp_path: Path, session: Claude) -> None:
    top = session.file(tmp_path)
    main = [
        session.prompt(),
        session.task(1, "toolu_1"),
        session.result("toolu_1", toolUseResult={"agentId": "a1"}),
    ]
    side = [session.reply(2, isSidechain=True, agentId="a1")]
    write(top, [*main, session.reply(3)])
    write(top.with_suffix("") / "subagents" / "agent-a1.jsonl", side)
    await run(store, tmp_path)
    (tree,) = trees(await store.calls())
    assert ([row.response_id for row in tree.calls], len(tree.children)) == (["msg_1", "msg_3"], 1)
    (child,) = tree.children[0].calls
    assert (child.parent_call_id, child.parent_tool_use_id, child.depth) == (
        request_id("claude-code", "msg_1:req_1"),
        "toolu_1",
        1,
    )


async def agent_of(store: Store) -> tuple[str | None, str | None, int | None]:
    """The place of a sub-agent's call in the tree. The call is reply 2."""
    (row,) = [row for row in await store.calls() if row.response_id == "msg_2"]
    return row.parent_call_id, row.parent_tool_use_id, row.depth


@pytest.mark.parametrize(("first", "restarted"), [("call", True), ("link", False)])
async def test_a_sub_agent_has_its_place_once_it_is_known(
    first: str, restarted: bool, store: Store, tmp_path: Path, session: Claude
) -> None:
    """The tool's result names the sub-agent. The sub-agent's calls may be written before or after the result."""
    top = session.file(tmp_path)
    side = top.with_suffix("") / "subagents" / "agent-a1.jsonl"
    call = [session.reply(2, isSidechain=True, agentId="a1")]
    write(top, [session.prompt(), session.task(1, "toolu_1"), session.prompt("x" * 5000, isMeta=True)])
    link = [session.result("toolu_1", toolUseResult={"agentId": "a1"})]
    importer = Importer(store, "claude-code", tmp_path, prices=PRICES)
    for path, records in ((side, call), (top, link)) if first == "call" else ((top, link), (side, call)):
        await importer.run()
        if restarted:
            importer = Importer(store, "claude-code", tmp_path, prices=PRICES)
        write(path, records, append=True)
    report = await importer.run()
    assert (report.new, report.corrected) == ((0, 1) if first == "call" else (1, 0))
    assert await agent_of(store) == (request_id("claude-code", "msg_1:req_1"), "toolu_1", 1)
    assert not (await Importer(store, "claude-code", tmp_path, prices=PRICES).run()).changed


async def test_a_session_of_codex_has_its_place_also_in_another_process(store: Store, tmp_path: Path) -> None:
    parent, child = Codex(), Codex("01990000-0000-7000-8000-000000000002")
    write(parent.file(tmp_path), [parent.meta(), parent.context(), parent.tokens(counts(1, 2, 3))])
    await import_calls(store, "codex", tmp_path, prices=PRICES)
    child.now = parent.now + 10
    origin = {"subagent": {"thread_spawn": {"parent_thread_id": parent.session, "depth": 1}}}
    write(child.file(tmp_path), [child.meta(source=origin), child.context(), child.tokens(counts(4, 5, 6))])
    await import_calls(store, "codex", tmp_path, prices=PRICES)
    (tree,) = trees(await store.calls())
    assert [row.session_id for row in tree.children[0].calls] == [child.session]


async def test_replies_whose_lines_alternate_are_calls_that_began_with_their_first_lines(
    store: Store, tmp_path: Path, session: Claude
) -> None:
    """The lines of two sub-agents alternate in one file. A later import of the last line only corrects the
    figures.
    """
    lines = [session.reply(number, usage(3, out)) for out in (5, 9, 20) for number in (1, 2)]
    path = write(session.file(tmp_path), lines[:4])
    assert await run(store, tmp_path) == (2, 2, 0, 0)
    write(path, lines[4:], append=True)
    assert await run(store, tmp_path) == (0, 0, 2, 0)
    rows = {row.response_id: row for row in await store.calls()}
    assert [rows[f"msg_{number}"].usage for number in (1, 2)] == [TokenUsage(3, 20)] * 2
    assert [rows[f"msg_{number}"].started_us for number in (1, 2)] == [
        1_772_355_601_000_000,
        1_772_355_602_000_000,
    ]


async def test_old_calls_are_left_out_and_come_with_a_later_import(
    store: Store, tmp_path: Path, session: Claude
) -> None:
    early = session.reply(1)
    session.now += 1000
    write(session.file(tmp_path), [early, session.reply(2)])
    assert await run(store, tmp_path, since=1_772_356_000_000_000) == (1, 0, 0, 0)
    assert await run(store, tmp_path) == (1, 1, 0, 0)


async def test_a_dry_run_reports_the_same_and_writes_nothing(
    store: Store, tmp_path: Path, session: Claude
) -> None:
    write(session.file(tmp_path), [session.reply(1), session.reply(2), session.reply(1)])
    dry = await import_calls(store, "claude-code", tmp_path, prices=PRICES, dry_run=True)
    assert await store.last_event_id() == 0
    alone = await import_calls(None, "claude-code", tmp_path, prices=PRICES, dry_run=True)
    real = await import_calls(store, "claude-code", tmp_path, prices=PRICES)
    assert (dry.new, dry.known, dry.models) == (real.new, real.known, real.models) == (2, 1, alone.models)


async def test_nothing_of_the_content_is_stored(place: Place, tmp_path: Path, session: Claude) -> None:
    path = write(session.file(tmp_path), [session.prompt("Hidden words"), session.reply(1)])
    write(
        path,
        ['{"usage":"Hidden words"\n', '{"usage":{},"type":"assistant","message":"Hidden words"}\n'],
        append=True,
    )
    async with place.store() as store:
        report = await import_calls(store, "claude-code", tmp_path, prices=PRICES)
        assert report.unread == 2
        assert "Hidden" not in repr(report.faults)
        for table in ("events", "calls", "imported_calls", "imported_files", "sessions"):
            rows = (await store.sql(f"SELECT * FROM {table}")).rows
            assert "Hidden" not in repr(rows)
            assert "Secret" not in repr(rows)


@pytest.mark.parametrize("broken", [
    lambda path: path.symlink_to(path.parent / "nowhere"),
    lambda path: os.mkfifo(path),
    lambda path: path.mkdir(),
], ids=["dangling", "pipe", "folder"])  # fmt: skip
async def test_a_foreign_file_does_not_end_the_import(broken: object, tmp_path: Path, session: Claude) -> None:
    path = write(session.file(tmp_path), [session.reply(1)])
    broken(path.with_name("broken.jsonl"))  # type: ignore[operator]
    new, *_, unread = await run(None, tmp_path, dry_run=True)
    assert new == 1
    assert bool(unread) == (not path.with_name("broken.jsonl").is_dir())


async def test_an_impossible_time_or_number_costs_one_line(tmp_path: Path, session: Claude) -> None:
    lines = [
        session.reply(1, timestamp="1999-01-01T00:00:00Z"),
        session.reply(2, usage(3, 2**50)),
        session.reply(3),
    ]
    write(session.file(tmp_path), lines)
    report = await import_calls(None, "claude-code", tmp_path, prices=PRICES, dry_run=True)
    assert [(fault.line, fault.why) for fault in report.faults] == [
        (1, "the time is missing or impossible"),
        (2, "the number of tokens is impossible"),
    ]
    assert report.new == 1


class Failing:
    """A plugin's source that raises an error."""

    name = "failing"

    def places(self) -> Sequence[Path]:
        return []

    def files(self, place: Path) -> Iterator[SourceFile]:
        yield SourceFile(path=place)

    def read(
        self, file: SourceFile, stream: BinaryIO, start: Mark = START, *, content: bool = False
    ) -> Iterator[Item]:
        yield ImportedCall(
            identity="1", line=1, provider="x", model="y", started_at=1_772_356_000_000_000, usage=None
        )
        raise ZeroDivisionError("Hidden words")


async def test_a_source_that_fails_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("x")
    report = await import_calls(None, Failing(), tmp_path / "one", dry_run=True)
    assert (report.new, [fault.why for fault in report.faults]) == (
        1,
        ["the source failed with ZeroDivisionError"],
    )


async def test_an_unknown_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no source 'nothing'\. Use claude-code"):
        source_named("nothing")


async def test_an_importer_that_never_gets_its_turn_gives_up(tmp_path: Path, session: Claude) -> None:
    write(session.file(tmp_path), [session.reply(1)])

    class Contended(TraceStore):
        async def write_import(self, *arguments: object) -> bool:
            return False

    async with Contended(tmp_path / "trace.db") as store:
        with pytest.raises(StoreError, match="conflicts"):
            await run(store, tmp_path)


async def test_watching_brings_what_is_new(tmp_path: Path, session: Claude) -> None:
    path = write(session.file(tmp_path), [session.reply(1)])
    seen: list[int] = []
    async with TraceStore(tmp_path / "trace.db") as store:
        importer = Importer(store, "claude-code", tmp_path, prices=PRICES)
        with anyio.move_on_after(60) as scope:

            def changed(report: object) -> None:
                seen.append(report.new)  # type: ignore[attr-defined]
                if len(seen) == 3:
                    scope.cancel()
                write(path, [session.reply(10 + len(seen))], append=True)

            await importer.watch(0.01, changed)
    assert seen == [1, 1, 1]


async def test_calls_that_come_from_no_file_are_imported_once_too(store: Store) -> None:
    call = ImportedCall(
        identity="trace/span", line=0, provider="anthropic", model="claude-opus-4-6",
        started_at=1_772_356_000_000_000, usage=TokenUsage(1, 1),
    )  # fmt: skip
    importer = Importer(store, "otlp", prices=PRICES)
    for new in (1, 0):
        report = await importer.take([call, UnreadablePart(line=0, why="not valid JSON")], "POST /v1/traces")
        assert (report.new, report.known, report.unread) == (new, 1 - new, 1)
    (row,) = await store.calls()
    assert (row.origin, row.origin_file) == ("otlp", "POST /v1/traces")
