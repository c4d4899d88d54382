"""Sessions by their ids: gone on with, or begun, and never without what was said in them."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.bus import CallboardError, ConfigurationError, SessionCreated, SessionTakenOver
from callboard.engine import Engine, Session
from tests.support.engines import keeping, registry, requests_of
from tests.support.present import present
from tests.support.programs import ended
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on
from callboard.tracestore import SavedSession

pytestmark = pytest.mark.anyio

anyio_backend = runs_on("asyncio")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.db"


def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: The city.
    """
    return f"rain in {city}"


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages]


async def test_the_same_line_begins_a_session_and_goes_on_with_it(path: Path) -> None:
    """The second engine has the history, the first one's settings, and the code of the tools."""

    async def turn(engine: Engine, text: str) -> Session:
        session = await engine.open_session(
            "tenant-1/chat-1", model="s:m", system_prompt="Be kind.", tools=[weather], tags={"tenant": "1"}
        )
        await session.send(text)
        return session

    async with keeping(path, Say("One.")) as engine:
        assert (await turn(engine, "First")).id == "tenant-1/chat-1"
    asks = Say("Let me see.", calls=[("weather", {"city": "Bonn"})])
    async with keeping(path, asks, Say("Two.")) as engine:
        session = await turn(engine, "Second")
        assert texts(session)[:3] == ["First", "One.", "Second"]
        assert texts(session)[-1] == "Two."
        assert session.tags == {"tenant": "1"}
        request = requests_of(engine)[-1]
        assert request.system_prompt == "Be kind."
        assert "rain in Bonn" in str(request.messages)
        events = [each.data for each in await present(engine.store).events(topic="session.*")]
        assert sum(isinstance(event, SessionCreated) for event in events) == 1


async def test_a_session_that_is_open_is_given_again(path: Path) -> None:
    """A host may open it for each request; two at once get the same one, and their turns wait for each other."""
    async with keeping(path, Say("One."), Say("Two.")) as engine:
        found: list[Session] = []

        async def ask(text: str) -> None:
            found.append(await engine.open_session("x", model="s:m"))
            await found[-1].send(text)

        async with anyio.create_task_group() as group:
            group.start_soon(ask, "a")
            group.start_soon(ask, "b")
        assert texts(found[0]) == texts(found[1])
        assert len(found[0].messages) == 4


async def test_what_is_said_stands_over_what_is_stored_and_the_rest_stays(path: Path) -> None:
    """Of an open session as of a stored one, from the next turn on."""
    async with keeping(path, Say("One."), Say("Two.")) as engine:
        session = await engine.open_session("x", model="s:m", system_prompt="Be kind.", tools=[weather])
        await session.send("First")
        again = await engine.open_session("x", system_prompt="Be brief.")
        assert (again.model, session.system_prompt, [tool.definition.name for tool in session.tools]) == (
            "s:m",
            "Be brief.",
            ["weather"],
        )
    async with keeping(path, models=registry(t=[Say("Three.")])) as engine:
        session = await engine.open_session("x", model="t:m", tools=[])
        assert (session.model, session.system_prompt, session.tools) == ("t:m", "Be brief.", ())
        await session.send("Third")
    async with keeping(path, models=registry(t=[])) as engine:
        assert (await engine.open_session("x")).model == "t:m"


async def test_a_new_session_is_there_before_anything_is_said(path: Path) -> None:
    """A process that ends at once leaves a session that another goes on with."""
    async with keeping(path) as engine:
        await engine.open_session("x", model="s:m", system_prompt="Be kind.")
    async with keeping(path) as engine:
        session = await engine.resume("x")
        assert (session.messages, session.system_prompt) == ((), "Be kind.")


KILLED_IN_ITS_FIRST_TURN = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.support.engines import keeping
from tests.support.scripted import Say

async def die():
    await engine.flush()
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    global engine
    async with keeping(Path(sys.argv[1]), Say("One word", " after another.", pause=die)) as engine:
        session = await engine.open_session("x", model="s:m", system_prompt="Be kind.")
        await session.send("First")

asyncio.run(main())
"""


async def test_a_session_killed_in_its_first_turn_is_opened_as_it_was_before(path: Path) -> None:
    """That turn has left nothing, as any later one would; the session isn't lost for it."""
    killed = ended(KILLED_IN_ITS_FIRST_TURN, path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with keeping(path, Say("Two.")) as engine:
        session = await engine.open_session("x", model="s:m")
        assert (session.messages, session.system_prompt) == ((), "Be kind.")
        assert (await session.send("Again")).text == "Two."


async def test_an_engine_that_keeps_nothing_opens_nothing(path: Path) -> None:
    """The default keeps no content; it is said at once, and not after the restart that would need it."""
    async with Engine(models=registry(), store=path) as engine:
        with pytest.raises(ConfigurationError, match=r"Engine\(capture_content=True\)"):
            await engine.open_session("x", model="s:m")


async def test_a_new_session_needs_a_model_that_there_is(path: Path) -> None:
    """And a failed attempt leaves nothing."""
    async with keeping(path) as engine:
        with pytest.raises(ConfigurationError, match="say its model="):
            await engine.open_session("x")
        with pytest.raises(ConfigurationError):
            await engine.open_session("x", model="nobody:m")
        assert await engine.sessions() == []


def _expire(file: sqlite3.Connection) -> None:
    file.execute("DELETE FROM content")


def _lose_messages(file: sqlite3.Connection) -> None:
    file.execute("DELETE FROM session_messages WHERE position = 0")


def _lose_everything(file: sqlite3.Connection) -> None:
    file.execute("DELETE FROM session_messages")
    file.execute("DELETE FROM session_setups")


@pytest.mark.parametrize("lose", [_expire, _lose_messages, _lose_everything])
async def test_a_session_that_has_lost_content_is_not_begun_anew(path: Path, lose: Any) -> None:
    """Whichever part is gone: it is refused, again and again, until somebody deletes it."""
    async with keeping(path, Say("One.")) as engine:
        await (await engine.open_session("x", model="s:m")).send("First")
    with contextlib.closing(sqlite3.connect(path)) as file:
        lose(file)
        file.commit()
    async with keeping(path) as engine:
        for _ in range(2):
            with pytest.raises(CallboardError, match="'x'"):
                await engine.open_session("x", model="s:m")
        await engine.delete_session("x")
        assert (await engine.open_session("x", model="s:m")).messages == ()


async def test_a_session_that_was_never_kept_is_not_begun_anew(path: Path) -> None:
    """Its content was said to an engine without capture; the error says what to do."""
    async with Engine(models=registry(Say("One.")), store=path) as engine:
        await engine.session("s:m", session_id="x").send("First")
    async with keeping(path) as engine:
        with pytest.raises(CallboardError, match=r"delete_session\('x'\)"):
            await engine.open_session("x", model="s:m")


async def test_who_opens_a_session_owns_it(path: Path) -> None:
    """The other engine is told with its next turn, and may open it again with the whole history."""
    async with keeping(path, Say("One."), Say("Three.")) as one, keeping(path, Say("Two.")) as two:
        first = await one.open_session("x", model="s:m")
        await first.send("First")
        await (await two.open_session("x", model="s:m")).send("Second")
        with pytest.raises(SessionTakenOver):
            await first.send("Mine?")
        back = await one.open_session("x", model="s:m")
        await back.send("Third")
        assert texts(back) == ["First", "One.", "Second", "Two.", "Third", "Three."]


async def test_opening_takes_a_session_back_without_a_turn_that_fails(path: Path) -> None:
    """The handle that another engine made stale isn't given again."""
    async with keeping(path, Say("One."), Say("Three.")) as one, keeping(path, Say("Two.")) as two:
        first = await one.open_session("x", model="s:m")
        await first.send("First")
        await (await two.open_session("x", model="s:m")).send("Second")
        back = await one.open_session("x", model="s:m")
        assert texts(back) == ["First", "One.", "Second", "Two."]
        assert texts(first) == ["First", "One."]


async def test_of_two_engines_that_begin_one_id_at_once_one_begins_it(path: Path) -> None:
    """Neither wipes what was said to the other."""
    async with keeping(path, Say("a")) as one, keeping(path, Say("b")) as two:
        found: dict[str, Session] = {}

        async def begin(name: str, engine: Engine) -> None:
            found[name] = await engine.open_session("x", model="s:m")

        async with anyio.create_task_group() as group:
            group.start_soon(begin, "one", one)
            group.start_soon(begin, "two", two)
        said = []
        for name in ("one", "two"):
            with contextlib.suppress(SessionTakenOver):
                said.append((await found[name].send(name)).text)
    async with keeping(path) as engine:
        session = await engine.open_session("x")
        assert [message.text for message in session.messages if message.role == "assistant"] == said
        assert said


async def test_who_looked_before_the_other_began_goes_on_after_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found nothing, and by the time at which it begins the session there is one with a history."""
    async with keeping(path, Say("One.")) as one, keeping(path, Say("Two.")) as two:
        store = present(two.store)
        look = store.saved_session

        async def look_and_wait(session_id: str) -> SavedSession | None:
            found = await look(session_id)
            if found is None:
                await (await one.open_session("x", model="s:m")).send("First")
            return found

        monkeypatch.setattr(store, "saved_session", look_and_wait)
        session = await two.open_session("x", model="s:m")
        assert texts(session) == ["First", "One."]
        assert (await session.send("Second")).text == "Two."
    async with keeping(path) as engine:
        assert texts(await engine.open_session("x")) == ["First", "One.", "Second", "Two."]


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from callboard import Engine
from tests.support.engines import registry
from tests.support.scripted import Say

async def main():
    engine = Engine(models=registry(Say("One.")), store=Path(sys.argv[1]), capture_content=True)
    session = await engine.open_session("x", model="s:m")
    await session.send("First")
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_an_answer_that_was_handed_over_survives_kill_9(path: Path) -> None:
    """Without a flush, as the answer is durable when the caller has it."""
    killed = ended(KILLED, path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with keeping(path, Say("Two.")) as engine:
        session = await engine.open_session("x", model="s:m")
        assert texts(session) == ["First", "One."]
        assert (await session.send("Second")).text == "Two."
