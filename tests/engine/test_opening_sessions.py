"""Opening a session again, its guarantees, and ending its turns."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import threading
from pathlib import Path
from typing import get_args

import anyio
import msgspec
import pytest

from callboard import AbortController, CancelledError
from callboard.adapters import AdapterConfig, CallWarning, CanonicalRequest, MessageStart, ToolDefinition
from callboard.adapters.providers import scripted
from callboard.adapters.requests.fitted_history import WireCall
from callboard.bus import (
    AuthError,
    CallboardError,
    ConfigurationError,
    SessionCreated,
    SessionTakenOver,
    StoreError,
    TurnStatus,
)
from callboard.engine import Engine, ModelChoice, ModelRegistry, Session, Tool
from callboard.engine.models.configured import entry_of
from callboard.engine.routing.model_choice import Model
from callboard.tracestore import SavedSession

from ..support.engines import entry, keeping, registry, requests_of, running, serving
from ..support.fake_http import HELLO, FakeReply, FakeTransport, ToyAdapter, ToyWire, sse, whole
from ..support.present import present
from ..support.programs import ended
from ..support.scripted import Say, adapter_type
from ..support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")

# Sessions by their ids: gone on with, or begun, and never without what was said in them.


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
    """It is said at once; what was said to an engine without capture is not begun anew, and what to do is said."""
    async with Engine(models=registry(Say("One.")), store=path) as engine:
        with pytest.raises(ConfigurationError, match=r"Engine\(capture_content=True\)"):
            await engine.open_session("x", model="s:m")
        await engine.session("s:m", session_id="x").send("First")
    async with keeping(path) as engine:
        with pytest.raises(CallboardError, match=r"delete_session\('x'\)"):
            await engine.open_session("x", model="s:m")


async def test_a_new_session_needs_a_model_that_there_is(path: Path) -> None:
    """And a failed attempt leaves nothing."""
    async with keeping(path) as engine:
        with pytest.raises(ConfigurationError, match="pass model="):
            await engine.open_session("x")
        with pytest.raises(ConfigurationError):
            await engine.open_session("x", model="nobody:m")
        assert await engine.sessions() == []


@pytest.mark.parametrize(
    "lost", ["content", "session_messages WHERE position = 0", "session_messages; DELETE FROM session_setups"]
)
async def test_a_session_that_has_lost_content_is_not_begun_anew(path: Path, lost: str) -> None:
    """Whichever part is gone: it is refused, again and again, until somebody deletes it."""
    async with keeping(path, Say("One.")) as engine:
        await (await engine.open_session("x", model="s:m")).send("First")
    with contextlib.closing(sqlite3.connect(path)) as file:
        file.executescript(f"DELETE FROM {lost}")
    async with keeping(path) as engine:
        for _ in range(2):
            with pytest.raises(CallboardError, match="'x'"):
                await engine.open_session("x", model="s:m")
        await engine.delete_session("x")
        assert (await engine.open_session("x", model="s:m")).messages == ()


@pytest.mark.parametrize("tried", [True, False])
async def test_who_opens_a_session_owns_it(path: Path, tried: bool) -> None:
    """The other engine learns of it by its next turn; with or without one, opening gives no stale handle."""
    async with keeping(path, Say("One."), Say("Three.")) as one, keeping(path, Say("Two.")) as two:
        first = await one.open_session("x", model="s:m")
        await first.send("First")
        await (await two.open_session("x", model="s:m")).send("Second")
        if tried:
            with pytest.raises(SessionTakenOver):
                await first.send("Mine?")
        back = await one.open_session("x", model="s:m")
        await back.send("Third")
        assert texts(back) == ["First", "One.", "Second", "Two.", "Third", "Three."]
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


# What a host holds of sessions, errors and registries means what it says.

READ = Tool(ToolDefinition("read"), lambda arguments: "text")


@pytest.mark.parametrize("model", ["s:m", ("s:m", "other:m"), ModelChoice(prefer="cheapest")])
async def test_a_session_s_model_may_be_assigned_to_itself(model: Model) -> None:
    """It is given back as it was given, and not in words."""
    async with running(Say("yes"), other=[]) as (engine, _):
        session = engine.session(model)
        session.model = session.model
        assert session.model == model
        assert (await session.send("Still there?")).text == "yes"


async def test_a_name_goes_to_the_provider_that_was_registered_last() -> None:
    """Though it was resolved before, as a model of the default provider, by the registry that was there then."""
    before = ModelRegistry({"s": entry("s", "scripted")}, {}, default_provider="s")
    assert before.resolve("mine:m").model.adapter == "s"
    mine = scripted.ScriptedAdapter(AdapterConfig(), name="mine", replies=(scripted.ScriptedReply(text="x"),))
    after = before.with_adapter(entry_of("mine", mine))
    assert after.resolve("mine:m").model.adapter == "mine"
    assert before.resolve("mine:m").model.adapter == "s"


async def test_a_session_that_cannot_be_deleted_from_the_store_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error leaves it as it was, in memory too; later it can be deleted."""
    async with keeping(tmp_path / "trace.db", Say("one"), Say("two")) as engine:
        session = engine.session("s:m")
        await session.send("a")

        async def fails(session_id: str) -> bool:
            raise StoreError("trace.db: database or disk is full")

        assert engine.store is not None
        with monkeypatch.context() as patch:
            patch.setattr(engine.store, "delete_session", fails)
            with pytest.raises(StoreError):
                await engine.delete_session(session.id)
        assert [message.text for message in session.messages] == ["a", "one"]
        await session.send("b")
        assert await engine.delete_session(session.id)
        assert session.messages == ()


async def test_a_turn_that_is_asked_for_during_a_deletion_begins_the_session_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits, and its messages are the first ones, stored with a set-up of their own."""
    path = tmp_path / "trace.db"
    async with keeping(path, Say("one"), Say("two")) as engine:
        session = engine.session("s:m", session_id="ses_x")
        await session.send("a")
        delete, group = engine.store.delete_session, anyio.create_task_group()

        async def slowly(session_id: str) -> bool:
            group.start_soon(session.send, "b")
            await anyio.sleep(0.05)
            return await delete(session_id)

        monkeypatch.setattr(engine.store, "delete_session", slowly)
        async with group:
            assert await engine.delete_session("ses_x")
        assert [message.text for message in session.messages] == ["b", "two"]
    async with keeping(path) as engine:
        assert [message.text for message in (await engine.resume("ses_x")).messages] == ["b", "two"]


async def test_an_error_has_the_turn_that_it_ended() -> None:
    """Its steps, messages and cost so far, which type checkers know; an error outside of a turn has none."""
    async with running(Say("Reading.", calls=[("read", {})]), Say(fails=AuthError("no"))) as (engine, _):
        with pytest.raises(AuthError) as caught:
            await engine.session("s:m", tools=[READ]).send("a")
    turn = caught.value.turn
    assert turn.status == "failed"
    assert [step.message.text for step in turn.steps] == ["Reading."]
    assert [result.content for result in turn.steps[0].tool_results] == ["text"]
    assert len(turn.messages) == 3
    assert CallboardError("elsewhere").turn is None


def test_each_status_of_a_turn_is_told_in_the_documentation() -> None:
    """One list, in `TurnStatus`, and the page about sessions has them all."""
    page = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text(encoding="utf-8")
    assert [status for status in get_args(TurnStatus) if f"`{status}`" not in page] == []


async def test_a_turn_that_ran_out_of_tool_rounds_says_so_in_its_reply() -> None:
    """The last reply, in the history as well, has a warning; who allows no rounds wants none."""
    calls = [("read", {})]
    async with running(Say(calls=calls), Say(calls=calls), Say(calls=calls)) as (engine, _):
        session = engine.session("s:m", tools=[READ])
        reply = await session.send("a", max_tool_rounds=1)
        assert [warning.code for warning in present(reply.metadata).warnings] == ["max_tool_rounds"]
        assert session.messages[-1] == reply
        result = await engine.generate("s:m", "a", tools=[READ], max_tool_rounds=0)
        assert (result.status, result.warnings) == ("max_tool_rounds", ())


class _ForgetfulWire(ToyWire):
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        call = super().write_request(request, stream=stream)
        return msgspec.structs.replace(call, warnings=(CallWarning("image_left_out", "a picture"),))


class Forgetful(ToyAdapter):
    """It can't be told all of a history."""

    wire_type = _ForgetfulWire


def forgetful(reply: FakeReply) -> Engine:
    transport = FakeTransport(reply)

    def make(config: AdapterConfig, **_: object) -> Forgetful:
        return Forgetful(config, name="toy", transport=transport)

    models = serving(toy=entry("toy", adapter_type(make), AdapterConfig(max_retries=0)))
    return Engine(models=models, trace=False)


async def test_what_a_history_loses_is_told_by_a_session_s_reply_and_where_its_stream_begins() -> None:
    """Metadata has each loss, in the history as well; a stream's first event has it before there is any text."""
    async with forgetful(whole(*HELLO)) as engine:
        session = engine.session("toy:m")
        reply = await session.send("a")
        assert [warning.code for warning in present(reply.metadata).warnings] == ["image_left_out"]
        assert session.messages[-1] == reply
    async with forgetful(FakeReply(sse(*HELLO))) as engine, engine.session("toy:m").stream("a") as turn:
        starts = [event async for event in turn if isinstance(event, MessageStart)]
    assert [warning.code for start in starts for warning in start.warnings] == ["image_left_out"]


# Giving up from anywhere: the signal and its controller.


def test_the_first_reason_stays() -> None:
    """A second abort changes nothing, and the signal never goes back."""
    controller = AbortController()
    controller.signal.raise_if_aborted()
    assert (controller.signal.aborted, controller.signal.reason) == (False, "")
    controller.abort("the user left")
    controller.abort("something else")
    assert (controller.signal.aborted, controller.signal.reason) == (True, "the user left")
    with pytest.raises(CancelledError, match="the user left"):
        controller.signal.raise_if_aborted()


def test_every_watcher_is_called_once_even_if_one_fails() -> None:
    """A watcher that raises keeps none of the others from hearing of it."""
    controller, heard = AbortController(), list[int]()
    controller.signal.watch(lambda: heard.append(1))
    controller.signal.watch(lambda: 1 / 0)
    forget = controller.signal.watch(lambda: heard.append(2))
    controller.signal.watch(lambda: heard.append(3))
    forget()
    forget()
    controller.abort()
    controller.abort()
    controller.signal.watch(lambda: heard.append(4))
    assert heard == [1, 3, 4]


async def test_a_task_awaits_what_another_thread_gives_up() -> None:
    """`await signal` gives the reason, before and after."""
    controller = AbortController()
    waiting = asyncio.create_task(controller.signal.wait())
    await asyncio.sleep(0)
    thread = threading.Thread(target=controller.abort, args=("elsewhere",))
    thread.start()
    assert await waiting == "elsewhere"
    assert await controller.signal == "elsewhere"
    thread.join()


def test_a_loop_that_is_gone_holds_nobody_up() -> None:
    """What watched from a loop that has ended is not called, and nothing is raised."""
    controller, heard = AbortController(), list[int]()

    async def watch() -> None:
        controller.signal.watch_from_loop(lambda: heard.append(1))

    asyncio.run(watch())
    controller.abort()
    assert heard == []


def test_a_thread_sleeps_until_it_is_given_up() -> None:
    """`wait_in_thread` says whether it was, and doesn't wait if it already was."""
    controller = AbortController()
    assert controller.signal.wait_in_thread(0) is False
    controller.abort()
    assert controller.signal.wait_in_thread() is True
