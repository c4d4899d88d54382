"""Sessions that go from one node to another: let go of, asked for, refused while a turn runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from bus import CallboardError, SessionBusy, SessionTakenOver
from tests.support.cluster_engines import node_engine
from tests.support.postgres_server import why_not
from tests.support.scripted import Say
from tracestore import PostgresStore

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path / "home"))


def texts(session: Any) -> list[str]:
    return [message.text for message in session.messages]


async def test_a_session_is_resumed_on_another_node_when_the_first_one_has_closed(
    postgres_dsn: str, tmp_path: Path
) -> None:
    """With its whole history, at once, and under a higher epoch."""
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        session = a.session("s:m", system_prompt="Be brief.")
        await session.send("Hi")
    async with node_engine("b", postgres_dsn, tmp_path, Say("Two.")) as b:
        with anyio.fail_after(3):
            resumed = await b.resume(session.id)
        assert resumed.system_prompt == "Be brief."
        assert texts(resumed) == ["Hi", "One."]
        await resumed.send("And then?")
        assert b._runtime.node is not None
        assert b._runtime.node.epoch_of(session.id) == 2
    async with node_engine("c", postgres_dsn, tmp_path, Say("Three.")) as c:
        again = await c.resume(session.id)
        assert texts(again) == ["Hi", "One.", "And then?", "Two."]
    async with PostgresStore(postgres_dsn, path=tmp_path / "p") as store:
        assert [row.session_id for row in await store.sessions()] == [session.id]


async def test_a_session_that_nobody_uses_is_handed_over(postgres_dsn: str, tmp_path: Path) -> None:
    """While its owner lives; and the one that held it learns so with its next turn."""
    async with (
        node_engine("a", postgres_dsn, tmp_path, Say("One."), Say("Four.")) as a,
        node_engine("b", postgres_dsn, tmp_path, Say("Two.")) as b,
    ):
        session = a.session("s:m")
        await session.send("Hi")
        with anyio.fail_after(5):
            there = await b.resume(session.id)
        await there.send("And then?")
        with pytest.raises(SessionTakenOver, match="another node"):
            await session.send("Still mine?")
        with anyio.fail_after(5):
            back = await a.resume(session.id)
        assert texts(back) == ["Hi", "One.", "And then?", "Two."]
        await back.send("And now?")
        with pytest.raises(SessionTakenOver):
            await there.send("Mine?")
    async with PostgresStore(postgres_dsn, path=tmp_path / "p") as store:
        saved = await store.saved_session(session.id)
        assert saved is not None
        assert [message.text for message in saved.messages][-1] == "Four."
        assert saved.missing == ()
        assert [row.session_id for row in await store.sessions()] == [session.id]


async def test_a_session_whose_turn_runs_is_not_to_be_had(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for it is told who has it."""
    from engine.nodes.ownership import ownership

    monkeypatch.setattr(ownership, "HANDOVER_SECONDS", 0.3)
    gate, steps = anyio.Event(), iter(range(99))

    async def pause() -> None:
        if next(steps):
            await gate.wait()

    async with (
        node_engine("a", postgres_dsn, tmp_path, Say("One."), Say("Two", "three", pause=pause)) as a,
        node_engine("b", postgres_dsn, tmp_path, Say("Two.")) as b,
    ):
        session = a.session("s:m")
        await session.send("Hi")
        async with session.stream("Go on") as turn:
            await anext(aiter(turn))
            with pytest.raises(SessionBusy, match="node a"):
                await b.resume(session.id)
            gate.set()
            assert (await turn.result()).text == "Twothree"


async def test_a_session_of_nobody_s_handle_is_let_go_of(postgres_dsn: str, tmp_path: Path) -> None:
    """Its owner ships it and releases it, so that nobody has to ask."""
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        session = a.session("s:m")
        await session.send("Hi")
        name = session.id
        del session
        node = a._runtime.node
        assert node is not None
        with anyio.fail_after(10):
            while node.epoch_of(name):  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert node.ownership is not None
        owner = await node.ownership.tables.owner(name)
        assert owner is not None
        assert owner.released


async def test_a_session_that_is_open_here_is_not_resumed_twice(postgres_dsn: str, tmp_path: Path) -> None:
    """And one that was never stored is not claimed."""
    async with node_engine("a", postgres_dsn, tmp_path, Say("One.")) as a:
        session = a.session("s:m")
        await session.send("Hi")
        with pytest.raises(CallboardError, match="already open"):
            await a.resume(session.id)
        with pytest.raises(CallboardError, match="nothing is stored"):
            await a.resume("ses_unknown")
        node = a._runtime.node
        assert node is not None
        assert node.ownership is not None
        assert await node.ownership.tables.owner("ses_unknown") is None
        assert node.epoch_of(session.id) == 1
