"""A deleted session and a pruned call do not come back, even if an import writes them at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.engine.imports.importer import Importer, import_calls
from callboard.tracestore import PriceTable, Store
from tests.support.session_files import Claude, usage, write
from tests.tracestore.contract.conftest import Place

pytestmark = pytest.mark.anyio
PRICES = PriceTable.default()
WORDS = ("Hidden", "/src/shop", "main'")
TABLES = ("events", "calls", "call_tags", "sessions", "session_messages", "content")


@pytest.fixture
def session() -> Claude:
    return Claude()


class Meanwhile:
    """A store that runs an action between an importer's read and its write."""

    def __init__(self, store: Store, act: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._act: Callable[[], Awaitable[object]] | None = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write_import(self, *arguments: Any) -> bool:
        if self._act is not None:
            act, self._act = self._act, None
            await act()
        return await self._store.write_import(*arguments)


async def words_in(store: Store, *more: str) -> list[str]:
    """Return the words of the session that any table has."""
    told = "".join([repr((await store.sql(f"SELECT * FROM {table}")).rows) for table in TABLES])
    return [word for word in (*WORDS, *more) if word in told]


async def test_a_deleted_session_does_not_come_back(place: Place, tmp_path: Path, session: Claude) -> None:
    """The session's name, file, tags and messages stay deleted. The token counts of new calls are stored."""
    top = write(session.file(tmp_path), [session.prompt("Hidden"), session.reply(1, usage(3, 5), stop=None)])
    side = [session.reply(2, isSidechain=True, agentId="a1")]
    write(top.with_suffix("") / "subagents" / "agent-a1.jsonl", side)
    async with place.store() as store:
        await import_calls(store, "claude-code", tmp_path, prices=PRICES, content=True)
        await store.delete_session(session.session)
        more = [session.reply(1, usage(3, 9)), session.prompt("Hidden"), session.task(3, "toolu_1")]
        write(top, [*more, session.result("toolu_1", toolUseResult={"agentId": "a1"})], append=True)
        report = await import_calls(store, "claude-code", tmp_path, prices=PRICES, content=True)
        assert (report.new, report.corrected) == (1, 2)
        rows = await store.calls()
        assert [row.origin for row in rows] == ["claude-code"] * 3
        assert {row.response_id: row.usage and row.usage.output_tokens for row in rows}["msg_1"] == 9
        assert not [row for row in rows if row.origin_file or row.tags]
        assert await store.sessions() == []
        assert not await store.messages(session.session)
        assert not await words_in(store, tmp_path.name)


async def test_the_place_of_a_deleted_sessions_file_is_forgotten(
    store: Store, tmp_path: Path, session: Claude
) -> None:
    path = write(session.file(tmp_path), [session.reply(1)])
    await import_calls(store, "claude-code", tmp_path, prices=PRICES)
    await store.delete_session(session.session)
    assert await store.imported_files("claude-code") == {}
    path.unlink()
    await import_calls(store, "claude-code", tmp_path, prices=PRICES)
    assert await store.imported_files("claude-code") == {}


async def test_a_session_that_is_deleted_before_a_write_is_not_in_it(
    place: Place, tmp_path: Path, session: Claude
) -> None:
    """The write corrects a stored call and adds another call, a link and messages. Only the token counts are
    stored.
    """
    path = write(session.file(tmp_path), [session.prompt("Hidden"), session.reply(1, usage(3, 5), stop=None)])
    side = write(session.file(tmp_path, "agent-a1"), [session.reply(2, isSidechain=True, agentId="a1")])
    async with place.store() as store, place.store() as other:
        await import_calls(store, "claude-code", tmp_path, prices=PRICES, content=True)
        more = [session.reply(1, usage(3, 9)), session.prompt("Hidden"), session.task(3, "toolu_1")]
        write(path, [*more, session.result("toolu_1", toolUseResult={"agentId": "a1"})], append=True)
        write(side, [session.reply(4, isSidechain=True, agentId="a1")], append=True)
        racing: Any = Meanwhile(store, lambda: other.delete_session(session.session))
        await import_calls(racing, "claude-code", tmp_path, prices=PRICES, content=True)
        rows = await store.calls()
        assert sorted(row.usage.output_tokens for row in rows if row.usage) == [9, 100, 100, 100]
        assert {row.session_id for row in rows if row.response_id in ("msg_3", "msg_4")} == {None}
        assert await store.sessions() == []
        assert not await words_in(store, tmp_path.name)


async def test_a_session_that_is_deleted_while_two_importers_write_it_stays_away(
    place: Place, tmp_path: Path, session: Claude
) -> None:
    """Both importers have read the trace before the deletion. Each call is stored once."""
    path = write(session.file(tmp_path), [session.prompt("Hidden"), session.reply(1)])
    async with place.store() as store, place.store() as other:
        await import_calls(store, "claude-code", tmp_path, prices=PRICES, content=True)
        write(path, [session.prompt("Hidden"), session.reply(2), session.reply(3)], append=True)
        ready, deleted = [anyio.Event(), anyio.Event()], anyio.Event()

        async def run(number: int) -> None:
            async def wait() -> None:
                ready[number].set()
                await deleted.wait()

            racing: Any = Meanwhile((store, other)[number], wait)
            await Importer(racing, "claude-code", tmp_path, prices=PRICES, content=True).run()

        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(run, number)
            for each in ready:
                await each.wait()
            await store.delete_session(session.session)
            deleted.set()
        assert sorted(str(row.response_id) for row in await store.calls()) == ["msg_1", "msg_2", "msg_3"]
        assert await store.sessions() == []
        assert not await words_in(store, tmp_path.name)


async def test_a_call_that_is_pruned_before_its_correction_does_not_come_back(
    place: Place, tmp_path: Path, session: Claude
) -> None:
    path = write(session.file(tmp_path), [session.reply(1, usage(3, 5), stop=None), session.reply(2)])
    session.now += 10_000
    write(path, [session.reply(3), session.reply(4)], append=True)
    async with place.store() as store, place.store() as other:
        await import_calls(store, "claude-code", tmp_path, prices=PRICES)
        write(path, [session.reply(1, usage(3, 9))], append=True)
        racing: Any = Meanwhile(store, lambda: other.prune(before=1_772_360_000_000_000))
        report = await import_calls(racing, "claude-code", tmp_path, prices=PRICES)
        assert (report.new, report.known, report.corrected) == (0, 1, 0)
        assert "msg_1" not in {row.response_id for row in await store.calls()}
