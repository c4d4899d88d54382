"""Random histories of files that are written, extended, rewritten, forked and moved, compared with a plain dict.

The dict has no positions, chunks or ledgers. An import takes the largest revision of each call that is in any
file, each message, and each tool call that started a sub-agent. After each step, the trace must have the same
calls with the same costs, the same messages, and nothing of a deleted session.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bus import TokenUsage
from callboard.engine.imports import reading
from callboard.engine.imports.importer import Importer, request_id
from callboard.tracestore import CallFilter, PriceRow, PriceTable, Store, TraceStore
from callboard.tracestore.postgres.store import PostgresStore
from tests.support.postgres_server import PostgresServer
from tests.support.session_files import Claude, Record, stamp, usage, write
from tests.tracestore.test_trace_reprice_model import Opener, Ticking

MODELS = ("claude-sonnet-4-5-20250929", "claude-haiku-4-5-20251001")
PRICES = PriceTable([PriceRow(model="anthropic:*", input=3_000_000, output=15_000_000)], "at call time")
TABLES = (
    PriceTable([PriceRow(model="*:*", input=1_000_000, output=2_000_000)], "all"),
    PriceTable([PriceRow(model=f"anthropic:{MODELS[0]}", input=7_000_000, output=9_000_000)], "of one model"),
)
WHERE = (CallFilter(), CallFilter(model=f"anthropic:{MODELS[1]}"))
T0_US = 1_772_355_600_000_000
HOUR_US = 3_600_000_000


class Call(msgspec.Struct):
    """A call in the trace."""

    model: str
    began_us: int
    out: int
    session: str
    agent: str | None = None

    def price(self, table: PriceTable) -> int | None:
        return table.price(f"anthropic:{self.model}", TokenUsage(3, self.out), self.began_us).nano_usd


class Act(msgspec.Struct):
    """A repricing."""

    table: PriceTable
    where: CallFilter
    lies_on: list[Act]
    gave: set[str]
    stands: bool = True

    def covers(self, call: Call) -> bool:
        return self.where.model is None or self.where.model == f"anthropic:{call.model}"


class Dying:
    """A store whose importer is killed at one of its writes: before or after the commit."""

    def __init__(self, store: Store, at: int) -> None:
        self._store = store
        self._left = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write_import(self, *arguments: Any) -> bool:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        done = await self._store.write_import(*arguments)
        if self._left == 1:
            self._left = 0
            raise KeyboardInterrupt
        return done


class Story:
    """The files, the dict, and the trace that must equal the dict."""

    def __init__(self, folder: Path, opener: Opener, clock: Ticking) -> None:
        self.folder = folder
        self.clock = clock
        self.stores = (opener(clock), opener(clock))
        self.open_importers()
        self.sessions = [Claude(f"{number}1111111-0000-4000-8000-000000000001") for number in range(3)]
        self.paths = [session.file(folder / "projects") for session in self.sessions]
        self.texts: list[list[str]] = [[], [], []]
        self.halves: dict[int, str] = {}
        self.last: dict[int, tuple[int, int, int]] = {}  # by file: number, output and model of its last call
        self.count = 0
        self.moves = 0
        self.forks: list[Path] = []
        self.calls: dict[str, Call] = {}
        self.pruned: set[str] = set()
        self.acts: list[Act] = []
        self.current: list[Act] = []
        self.waiting: dict[int, list[Record]] = defaultdict(list)  # results of tasks that are not written yet
        self.parents: dict[tuple[str, str], str] = {}  # by sub-agent: the call whose tool started it
        self.known: dict[str, set[str]] = defaultdict(set)  # messages that were imported, by session
        self.gone: dict[str, set[str]] = defaultdict(set)  # messages that were pruned
        self.deleted: set[str] = set()

    def importer(self, store: Any, *, content: bool = False) -> Importer:
        folder = self.folder / "projects"
        return Importer(store, "claude-code", folder, prices=PRICES, content=content, clock=self.clock)

    def open_importers(self) -> None:
        self.importers = [self.importer(store) for store in self.stores]
        self.reader = self.importer(self.stores[0], content=True)

    # --- Files ---

    def line(self, file: int, number: int, out: int, model: int) -> str:
        session = self.sessions[file]
        reply = session.reply(number, usage(3, out), model=MODELS[model], timestamp=stamp(number * 600))
        return json.dumps(reply) + "\n"

    def append(self, file: int, text: str) -> None:
        path = self.paths[file]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as stream:
            stream.write(self.halves.pop(file, "") + text)
        self._touch(path)

    def _touch(self, path: Path) -> None:
        """Give each change a different time, because the clock of the file system can be coarse."""
        self.moves += 1
        os.utime(path, ns=(self.moves * 10**9, self.moves * 10**9))

    def new(self, file: int, out: int, model: int) -> None:
        self.count += 1
        self.last[file] = (self.count, out, model)
        self.append(file, self.line(file, self.count, out, model))

    def grow(self, file: int, more: int) -> None:
        if file in self.last:
            number, out, model = self.last[file]
            self.last[file] = (number, out + more, model)
            self.append(file, self.line(file, number, out + more, model))

    def task(self, file: int, out: int) -> None:
        """Append a reply that starts a sub-agent. The sub-agent's file exists before the session's file names
        it.
        """
        self.count += 2
        session, task, tool = self.sessions[file], self.count - 1, f"toolu_{self.count}"
        started = session.task(task, tool, usage(3, out), timestamp=stamp(task * 600))
        self.append(file, json.dumps(started) + "\n")
        agent = {"isSidechain": True, "agentId": f"a{self.count}", "timestamp": stamp(self.count * 600)}
        path = session.file(self.folder / "projects", f"{session.session}/subagents/agent-a{self.count}")
        self._touch(write(path, [session.reply(self.count, usage(3, out), model=MODELS[1], **agent)]))
        self.waiting[file].append(session.result(tool, toolUseResult={"agentId": f"a{self.count}"}))
        self.last.pop(file, None)

    def result(self, file: int) -> None:
        """Append the line that names the sub-agent of a tool call."""
        if self.waiting[file]:
            self.append(file, json.dumps(self.waiting[file].pop(0)) + "\n")

    def half(self, file: int, out: int) -> None:
        """Append the first part of a line."""
        self.count += 1
        text = self.line(file, self.count, out, 0)
        self.append(file, text[:40])
        self.halves[file] = text[40:]

    def junk(self, file: int) -> None:
        self.append(file, '{"usage":\n')

    def rewrite(self, file: int, lost: int) -> None:
        path = self.paths[file]
        if path.exists():
            kept = path.read_text().splitlines(keepends=True)[lost:]
            path.write_text("".join(kept))
            self._touch(path)

    def edit(self, file: int, more: int) -> None:
        """Change one line in the middle. The length, the start and the end of the file do not change."""
        path = self.paths[file]
        if not path.exists() or file in self.halves:
            return
        lines = path.read_text().splitlines(keepends=True)
        place = len(lines) // 2
        with suppress(ValueError, KeyError, IndexError):
            record = json.loads(lines[place])
            counts = record["message"]["usage"]
            counts["output_tokens"] = min(99, counts["output_tokens"] + more)
            text = json.dumps(record) + "\n"
            if len(text) == len(lines[place]):
                lines[place] = text
                path.write_text("".join(lines))
                self._touch(path)

    def fork(self, file: int, to: int) -> None:
        """Write a new session with the past of another one."""
        if self.paths[file].exists():
            self.moves += 1
            path = self.paths[file].with_name(f"fork-{self.moves}.jsonl")
            path.write_text(self.paths[file].read_text().replace(self.sessions[file].session, f"fork{to}"))
            self._touch(path)
            self.forks.append(path)

    def move(self, file: int) -> None:
        if self.paths[file].exists():
            self.moves += 1
            self.paths[file] = self.paths[file].rename(self.paths[file].with_name(f"moved-{self.moves}.jsonl"))

    def records(self) -> list[list[Record]]:
        """The records of each file."""
        found: list[list[Record]] = []
        for path in (self.folder / "projects").rglob("*.jsonl"):
            found.append([])
            for line in path.read_text().splitlines():
                with suppress(ValueError):
                    found[-1].append(json.loads(line))
        return found

    def in_files(self) -> dict[str, Call]:
        found: dict[str, Call] = {}
        for record in (record for file in self.records() for record in file if record["type"] == "assistant"):
            message = record["message"]
            name, number = name_of(record), int(message["id"].removeprefix("msg_"))
            out = message["usage"]["output_tokens"]
            if name not in found or found[name].out < out:
                began = T0_US + number * 600_000_000
                found[name] = Call(message["model"], began, out, record["sessionId"], record.get("agentId"))
        return found

    def took_links(self) -> None:
        for file in self.records():
            tasks = {record["message"]["content"][0].get("id"): name_of(record) for record in file}
            for record in file:
                agent = record.get("toolUseResult", {}).get("agentId")
                task = tasks.get(record["message"]["content"][0].get("tool_use_id"))
                if agent and task and record["sessionId"] not in self.deleted:
                    self.parents.setdefault((record["sessionId"], agent), task)

    def took_messages(self) -> None:
        for record in (record for file in self.records() for record in file if not record["isSidechain"]):
            if record["sessionId"] not in self.deleted:
                self.known[record["sessionId"]].add(record["uuid"])

    # --- The trace ---

    async def imported(self, who: int) -> None:
        await self.importers[who].run()
        self.took_all()

    async def both(self) -> None:
        async with anyio.create_task_group() as tasks:
            for importer in self.importers:
                tasks.start_soon(importer.run)
        self.took_all()

    async def killed(self, at: int, content: bool = False) -> None:
        """Kill an importer during a write, and continue with another importer."""
        with suppress(KeyboardInterrupt):
            await self.importer(Dying(self.stores[0], at), content=content).run()
        self.open_importers()
        await (self.read() if content else self.imported(1))

    async def read(self) -> None:
        """Import with content."""
        await self.reader.run()
        self.took_messages()
        self.took_all()

    async def delete(self, session: str) -> None:
        if await self.stores[0].delete_session(session):
            self.deleted.add(session)
            self.known[session].clear()

    async def delete_one(self, file: int) -> None:
        await self.delete(self.sessions[file].session)

    async def delete_fork(self, file: int) -> None:
        await self.delete(f"fork{file}")

    def took_all(self) -> None:
        self.took_links()
        for name, call in self.in_files().items():
            before = self.calls.get(name)
            if name in self.pruned or (before is not None and before.out >= call.out):
                continue
            self.calls[name] = call
            for act in self.acts:
                if before is None and act.stands and act.covers(call):
                    act.gave.add(name)

    async def reprice(self, table: int, where: int) -> None:
        self.clock.advance()
        await self.stores[0].reprice(TABLES[table], where=WHERE[where])
        act = Act(TABLES[table], WHERE[where], list(self.current), set())
        act.gave = {name for name, call in self.calls.items() if act.covers(call)}
        self.acts.append(act)
        self.current = [act, *(self.current if where else [])]

    async def undo(self) -> None:
        self.clock.advance()
        if self.current:
            await self.stores[0].undo_reprice()
            act = next(act for act in reversed(self.acts) if act.stands)
            act.stands = False
            self.current = act.lies_on

    async def prune(self, hours: int) -> None:
        before = T0_US + hours * HOUR_US
        await self.stores[0].prune(before=before)
        left = {row.request_id for row in await self.stores[0].calls(limit=None)}
        gone = {name for name in self.calls if name not in left}
        old = {name for name, call in self.calls.items() if call.began_us < before}
        assert gone <= old  # The last call and the last event stay.
        assert len(old - gone) <= 2
        self.pruned |= gone
        for name in gone:
            del self.calls[name]
        for session, known in self.known.items():
            self.gone[session] |= known - await self.messages(session)

    async def messages(self, session: str) -> set[str]:
        """The ids of a session's messages in the trace."""
        stored = [str(message.id) for message in await self.stores[1].messages(session)]
        assert len(stored) == len({*stored})
        return {*stored}

    def cost(self, name: str) -> int | None:
        call = self.calls[name]
        for act in self.current:
            if name in act.gave:
                return call.price(act.table)
        return call.price(PRICES)

    async def check(self) -> None:
        store = self.stores[1]
        rows = await store.calls(limit=None)
        assert len(rows) == len(self.calls)
        assert {
            row.request_id: (
                row.usage and row.usage.output_tokens,
                row.cost and row.cost.nano_usd,
                row.at_call_time and row.at_call_time.nano_usd,
            )
            for row in rows
        } == {name: (call.out, self.cost(name), call.price(PRICES)) for name, call in self.calls.items()}
        for row in rows:
            call, session = self.calls[row.request_id], str(row.session_id)
            if row.session_id in self.deleted:
                assert not row.tags
                assert not row.origin_file
            elif call.agent is not None and row.session_id is not None:
                assert row.parent_call_id == self.parents.get((session, call.agent))
        assert not self.deleted & {row.session_id for row in await store.sessions(limit=None)}
        for session in {*self.known, *self.deleted}:
            assert await self.messages(session) == self.known[session] - self.gone[session]
        sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for name, call in self.calls.items():
            for place, more in enumerate((1, call.out, self.cost(name) or 0)):
                sums[f"anthropic:{call.model}"][place] += more
        assert {
            row["model"]: [row.calls, row.output_tokens, row.cost_nano_usd] for row in await store.costs()
        } == sums
        told: dict[str, list[int]] = defaultdict(list)
        for event in await store.events(topic="llm.call_imported", limit=None):
            told[str(event.request_id)].append(event.data.revision)  # type: ignore[attr-defined]
        assert all(len({*revisions}) == len(revisions) for revisions in told.values())


def name_of(record: Record) -> str:
    """The identity of a reply's call in the trace."""
    number = str(record["message"].get("id", "")).removeprefix("msg_")
    return request_id("claude-code", f"msg_{number}:req_{number}")


async def played(opener: Opener, folder: Path, story: list[tuple[Any, ...]]) -> None:
    clock = Ticking()
    played = Story(folder, opener, clock)
    async with played.stores[0], played.stores[1]:
        for name, *arguments in story:
            result = getattr(played, name)(*arguments)
            if result is not None:
                await result
                await played.check()
        await played.imported(0)
        await played.check()


FILES = st.integers(0, 2)
OUT = st.integers(1, 60)
ACTS = st.one_of(
    st.tuples(st.just("new"), FILES, OUT, st.integers(0, 1)),
    st.tuples(st.just("new"), FILES, OUT, st.integers(0, 1)),
    st.tuples(st.just("grow"), FILES, OUT),
    st.tuples(st.just("half"), FILES, OUT),
    st.tuples(st.just("junk"), FILES),
    st.tuples(st.just("rewrite"), FILES, st.integers(0, 2)),
    st.tuples(st.just("edit"), FILES, OUT),
    st.tuples(st.just("fork"), FILES, FILES),
    st.tuples(st.just("move"), FILES),
    st.tuples(st.just("imported"), st.integers(0, 1)),
    st.tuples(st.just("both")),
    st.tuples(st.just("killed"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("task"), FILES, OUT),
    st.tuples(st.just("result"), FILES),
    st.tuples(st.just("read")),
    st.tuples(st.just("delete_one"), FILES),
    st.tuples(st.just("delete_fork"), FILES),
    st.tuples(st.just("reprice"), st.integers(0, 1), st.integers(0, 1)),
    st.tuples(st.just("undo")),
    st.tuples(st.just("prune"), st.integers(0, 3)),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CALLS_AT_ONCE", 2)
    monkeypatch.setattr(reading, "MESSAGES_AT_ONCE", 2)
    monkeypatch.setattr("callboard.engine.imports.sources.claude_code._CALLS_BETWEEN_MARKS", 3)


@given(story=st.lists(ACTS, min_size=4, max_size=24))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_trace_has_what_is_in_the_files_after_every_act(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[Any, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("model")
    anyio.run(played, lambda clock: TraceStore(folder / "trace.db", clock=clock), folder, story)


@pytest.fixture
def template(postgres_server: PostgresServer) -> str:
    """A database with an empty trace."""
    return postgres_server.template("imports", _migrate)


def _migrate(dsn: str) -> None:
    async def opened() -> None:
        async with PostgresStore(dsn):
            pass

    anyio.run(opened)


@pytest.mark.deep("the same stories as on a file")
@given(story=st.lists(ACTS, min_size=4, max_size=16))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_trace_on_a_server_has_it_too(
    tmp_path_factory: pytest.TempPathFactory,
    postgres_server: PostgresServer,
    template: str,
    story: list[tuple[Any, ...]],
) -> None:
    folder = tmp_path_factory.mktemp("model")
    with postgres_server.clean_database(template) as dsn:
        anyio.run(played, lambda clock: PostgresStore(dsn, path=folder / "trace", clock=clock), folder, story)


STORIES = [
    [("new", 0, 5, 0), ("task", 0, 5), ("imported", 0), ("result", 0), ("rewrite", 0, 1), ("killed", 1, False)],
    [("task", 0, 5), ("imported", 0), ("result", 0), ("read",), ("delete_one", 0), ("new", 0, 5, 0), ("read",)],
    [("new", 0, 5, 0), ("imported", 0), ("reprice", 0, 0), ("grow", 0, 7), ("imported", 0), ("undo",)],
    [*(("new", n, 5, 0) for n in range(3)), ("new", 2, 5, 0), ("imported", 0), ("prune", 3), ("fork", 0, 1),
        ("grow", 0, 7)],
    [("new", 0, 5, 0), ("new", 0, 5, 0), ("imported", 0), ("rewrite", 0, 1), ("new", 0, 6, 0), ("new", 0, 7, 0)],
    [("new", n % 3, 5 + n, n % 2) for n in range(9)] + [("killed", 3), ("both",), ("move", 1), ("both",)],
    [*(("new", 0, 15, 0) for _ in range(20)), ("imported", 0), ("edit", 0, 9), ("imported", 0), ("edit", 0, 5),
        ("new", 0, 15, 1), ("both",)],
    [("new", 0, 5, 0), ("reprice", 0, 0), ("reprice", 1, 1), ("imported", 0), ("undo",), ("grow", 0, 2),
        ("both",)],
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_stories_with_one_feature(tmp_path: Path, story: list[tuple[Any, ...]]) -> None:
    """The stories have a correction after a repricing, a pruned call in a fork, rewritten files, a kill and a late
    import.
    """
    anyio.run(played, lambda clock: TraceStore(tmp_path / "trace.db", clock=clock), tmp_path, story)


@pytest.mark.parametrize("story", STORIES)
def test_they_go_the_same_way_on_a_server(
    tmp_path: Path, postgres_server: PostgresServer, template: str, story: list[tuple[Any, ...]]
) -> None:
    with postgres_server.clean_database(template) as dsn:
        anyio.run(played, lambda clock: PostgresStore(dsn, path=tmp_path / "trace", clock=clock), tmp_path, story)
