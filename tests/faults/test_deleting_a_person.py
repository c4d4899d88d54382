"""Nothing that a person said, or that says who they are, is in any file once their session is deleted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio import to_thread

from callboard.adapters import InvalidRequestError, ToolDefinition
from callboard.bus import Event, UnknownStream
from callboard.engine import Engine, Tool, ToolContext
from callboard.engine.cli.command_line import main
from tests.support.engines import registry
from tests.support.postgres_server import why_not
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on
from callboard.tracestore import CallFilter, PostgresStore, Store, TraceStore
from callboard.tracestore.codec import encode_lines

pytestmark = pytest.mark.anyio

anyio_backend = runs_on("asyncio")
"""Threads of a database's driver can't be waited for on virtual time."""

MARK = "Zanzibar"
"""A word that is in everything that is to go, each time with the place where it stood."""

PLACES = (
    *(
        "name",
        "title",
        "tag",
        "tagname",
        "system",
        "prompt",
        "reply",
        "argument",
        "toolname",
        "progress",
        "result",
    ),
    *("toolerror", "error", "plainerror", "host"),
)


def mark(place: str) -> str:
    assert place in PLACES
    return f"{MARK}_{place}_"


class HostNote(Event, frozen=True, kw_only=True, tag="host.note"):
    """An event of the host's own."""

    text: str


async def look_up(arguments: dict[str, str], context: ToolContext) -> str:
    context.progress(mark("progress"))
    if arguments.get("fails"):
        raise ValueError(mark("toolerror"))
    return mark("result")


TOOL = Tool(ToolDefinition(mark("toolname"), "Looks something up."), look_up)  # type: ignore[arg-type]


def replies() -> list[Say]:
    """A reply with tools, and one that fails; the reply to another person, and a plain call that fails."""
    calls = [(mark("toolname"), {"who": mark("argument")}), (mark("toolname"), {"fails": "yes"})]
    refused = [InvalidRequestError(f"this prompt is refused: {mark(place)}") for place in ("error", "plainerror")]
    return [
        Say("Let me see.", calls=calls),
        Say(mark("reply")),
        Say(fails=refused[0]),
        Say("Hello, another."),
        Say(fails=refused[1]),
    ]


async def a_person_s_session(engine: Engine) -> str:
    """A session that has the mark in every place. Returns its id."""
    session = engine.session(
        "s:m",
        name=mark("name"),
        tags={"person": mark("tag"), mark("tagname"): "yes"},
        system_prompt=mark("system"),
        tools=[TOOL],
    )
    await session.send(mark("prompt"))
    session.rename(mark("title"))
    with pytest.raises(InvalidRequestError):
        await session.send(mark("prompt"))
    engine.bus.publish(HostNote(text=mark("host")), session_id=session.id)
    return session.id


async def everything(store: Store) -> str:
    """All rows of all tables of a trace in PostgreSQL, as text."""
    found = await store.sql(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        " AND table_type = 'BASE TABLE'"
    )
    texts = []
    for (table,) in found.rows:
        rows = await store.sql(f'SELECT CAST(t AS text) FROM "{table}" AS t', limit=100_000)
        texts += [str(row) for row in rows.rows]
    bodies = await store.sql("SELECT convert_from(body, 'UTF8') FROM content", limit=100_000)
    return "\n".join([*texts, *(str(row) for row in bodies.rows)])


def in_files(folder: Path) -> set[str]:
    """The places whose mark is in any file below a folder, in its name too."""
    found = set()
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        found |= places_in(str(path.relative_to(folder)) + data.decode("latin-1"))
    return found


def places_in(text: str) -> set[str]:
    return set(re.findall(f"{MARK}_([a-z]+)_", text))


async def test_a_trace_file_has_nothing_of_a_deleted_session(tmp_path: Path) -> None:
    """While the engine runs, in its log and its journals; and in the closed file. The figures stay."""
    path = tmp_path / "trace.db"
    async with Engine(models=registry(*replies()), store=path, capture_content=True) as engine:
        session_id = await a_person_s_session(engine)
        other = engine.session("s:m", name="Another", tags={"person": "another"})
        await other.send("Hi")
        streams = [each.stream_id for each in engine.streams.streams()]
        await engine.flush()
        assert in_files(tmp_path) >= {"name", "tag", "tagname", "system", "prompt", "error", "argument", "host"}
        assert await engine.delete_session(session_id)
        assert in_files(tmp_path) == set()
        kept = [stream_id for stream_id in streams if stream_id in engine.streams]
        assert len(kept) == 1
        with pytest.raises(UnknownStream):
            engine.attach(streams[0])
    assert in_files(tmp_path) == set()
    async with TraceStore(path) as store:
        rows = (await store.calls(CallFilter(session_id=session_id)))[::-1]
        assert [row.status for row in rows] == ["completed", "completed", "failed"]
        assert [row.error_class for row in rows] == [None, None, "invalid_request"]
        assert [row.usage is not None and row.usage.output_tokens for row in rows[:2]] == [5, 5]
        (session,) = await store.sessions(None)
        assert (session.session_id, session.name, session.tags) == (other.id, "Another", {"person": "another"})
        events = await store.events(session_id=session_id, limit=None)
        assert {"session.created", "llm.call_failed", "tool.finished", "host.note"} <= {e.topic for e in events}
        assert all(e.tags is None for e in events)
        assert await store.check() == []


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
async def test_a_trace_in_postgresql_has_nothing_of_a_deleted_session(postgres_dsn: str, tmp_path: Path) -> None:
    """Neither has the folder beside it. Only rows that are there count: the server clears away the others."""
    place = PostgresStore(postgres_dsn, path=tmp_path / "trace")
    async with Engine(models=registry(*replies()), store=place, capture_content=True) as engine:
        session_id = await a_person_s_session(engine)
        await engine.session("s:m", name="Another").send("Hi")
        await engine.flush()
        assert engine.store is not None
        assert places_in(await everything(engine.store)) >= {"name", "tag", "prompt", "error", "argument", "host"}
        assert await engine.delete_session(session_id)
        left = await everything(engine.store)
        assert places_in(left) == set()
        assert "Another" in left
        assert len(await engine.store.calls(CallFilter(session_id=session_id))) == 3
    assert in_files(tmp_path) == set()


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("is_shipped_before", [True, False])
async def test_a_shipped_copy_has_nothing_of_a_deleted_session(
    is_shipped_before: bool, postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the session was shipped before its deletion or not."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))
    options: dict[str, Any] = {"ship": "before_reply"} if is_shipped_before else {}
    models = registry(*replies())
    async with Engine(
        models=models, store=tmp_path / "trace.db", ship_to=postgres_dsn, capture_content=True, **options
    ) as engine:
        session_id = await a_person_s_session(engine)
        await engine.session("s:m", name="Another").send("Hi")
        assert await engine.delete_session(session_id)
    async with PostgresStore(postgres_dsn, path=tmp_path / "shared") as store:
        left = await everything(store)
        assert places_in(left) == set()
        assert "Another" in left
        assert len(await store.calls(CallFilter(session_id=session_id))) == 3
    assert in_files(tmp_path) == set()


@pytest.mark.parametrize("kind", ["file", "server"])
async def test_forgetting_by_age_reaches_names_and_errors(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Of plain calls, too. Tags and the host's own events stay: budgets and reports go by them."""
    store: Store | Path = tmp_path / "trace.db"
    if kind == "server":
        if (reason := why_not()) is not None:
            pytest.skip(reason)
        store = PostgresStore(request.getfixturevalue("postgres_dsn"), path=tmp_path / "trace")
    async with Engine(models=registry(*replies()), store=store, capture_content=True) as engine:
        await a_person_s_session(engine)
        await engine.generate("s:m", "Hi", tags={"person": mark("tag")})
        with pytest.raises(InvalidRequestError):
            await engine.generate("s:m", mark("prompt"))
        await engine.flush()
        assert engine.store is not None
        await engine.store.forget_content(2**62)
        if kind == "server":
            assert places_in(await everything(engine.store)) == {"tag", "tagname", "host"}
    if kind == "file":
        assert in_files(tmp_path) == {"tag", "tagname", "host"}


async def test_many_sessions_leave_nothing_between_the_rows_of_others(tmp_path: Path) -> None:
    """A file moves its rows about while it grows; what they left at their old places goes, too."""
    script = [Say(mark("reply")) if number % 2 else Say("Another.") for number in range(300)]
    async with Engine(models=registry(*script), store=tmp_path / "trace.db", capture_content=True) as engine:
        sessions = [engine.session("s:m", name="Another") for _ in range(4)]
        persons = [engine.session("s:m", name=mark("name"), tags={"a": mark("tag")}) for _ in range(4)]
        for number in range(100):
            await sessions[number % 4].send("Another " * 30)
            await persons[number % 4].send(mark("prompt") * 30)
        await engine.flush()
        for session in persons:
            assert await engine.delete_session(session.id)
        assert in_files(tmp_path) == set()


async def test_what_a_dead_process_left_does_not_come_back(tmp_path: Path) -> None:
    """Its journal is written before the deletion, so that no later start brings the session back."""
    path = tmp_path / "trace.db"
    async with Engine(models=registry(*replies()), store=path, capture_content=True) as engine:
        session_id = await a_person_s_session(engine)
        await engine.flush()
        events = await engine.store.events(session_id=session_id, limit=None)  # type: ignore[union-attr]
    left = path.with_name("trace.db.spill-run_lost.jsonl")
    left.write_bytes(encode_lines([msgspec.structs.replace(each, run_id="run_lost") for each in events]))
    async with TraceStore(path) as store:
        assert await store.delete_session(session_id)
    assert in_files(tmp_path) == set()
    async with Engine(models=registry(), store=path, capture_content=True):
        pass
    assert in_files(tmp_path) == set()


async def test_the_command_deletes_the_lines_of_the_chat_s_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of other sessions stay."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    path = tmp_path / "trace.db"
    async with Engine(models=registry(*replies()), store=path, capture_content=True) as engine:
        session_id = await a_person_s_session(engine)
    (tmp_path / "chat-history").write_text(f"\n# 2026-01-01\n+Hello\n+there\n\n# 2026-01-02\n+{mark('prompt')}\n")
    assert await to_thread.run_sync(main, ["sessions", session_id, "--delete"]) == 0
    assert capsys.readouterr().out.startswith(f"Deleted {session_id}")
    assert in_files(tmp_path) == set()
    assert "+Hello\n+there\n" in (tmp_path / "chat-history").read_text()
