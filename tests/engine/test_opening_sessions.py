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
from callboard.adapters.requests.history_target import WireCall
from callboard.bus import (
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

# Sessions that are opened by their ids: continued or created, and never with missing messages.


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


async def test_open_session_creates_a_session_and_continues_it(path: Path) -> None:
    """The second engine has the history, the settings of the first engine, and the code of the tools."""

    async def turn(engine: Engine, text: str) -> Session:
        session = await engine.open_session(
            "tenant-1/chat-1", model="s:m", system_prompt="Be kind.", tools=[weather], tags={"tenant": "1"}
        )
        await session.send(text)
        return session

    async with keeping(path, Say("One.")) as engine:
        assert (await turn(engine, "First")).id == "tenant-1/chat-1"
    async with keeping(path, Say("Let me see.", calls=[("weather", {"city": "Bonn"})]), Say("Two.")) as engine:
        session = await turn(engine, "Second")
        assert texts(session)[:3] == ["First", "One.", "Second"]
        assert texts(session)[-1] == "Two."
        assert session.tags == {"tenant": "1"}
        request = requests_of(engine)[-1]
        assert request.system_prompt == "Be kind."
        assert "rain in Bonn" in str(request.messages)
        events = [each.data for each in await present(engine.store).events(topic="session.*")]
        assert sum(isinstance(event, SessionCreated) for event in events) == 1


async def test_an_open_session_is_returned_again(path: Path) -> None:
    async with keeping(path, Say("One."), Say("Two.")) as engine:

        async def ask(text: str) -> Session:
            session = await engine.open_session("x", model="s:m")
            await session.send(text)
            return session

        one, two = await asyncio.gather(ask("a"), ask("b"))
        assert texts(one) == texts(two)
        assert len(one.messages) == 4


async def test_arguments_override_the_stored_settings_and_the_rest_stays(path: Path) -> None:
    """The session may be open or stored. The arguments apply from the next turn on."""
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


async def test_a_session_killed_in_its_first_turn_is_opened_without_that_turn(path: Path) -> None:
    killed = ended(KILLED_IN_ITS_FIRST_TURN, path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with keeping(path, Say("Two.")) as engine:
        session = await engine.open_session("x", model="s:m")
        assert (session.messages, session.system_prompt) == ((), "Be kind.")
        assert (await session.send("Again")).text == "Two."


async def test_an_engine_without_capture_opens_no_session(path: Path) -> None:
    """The error is immediate."""
    async with Engine(models=registry(Say("One.")), store=path) as engine:
        with pytest.raises(ConfigurationError, match=r"Engine\(capture_content=True\)"):
            await engine.open_session("x", model="s:m")
        await engine.session("s:m", session_id="x").send("First")
    async with keeping(path) as engine:
        with pytest.raises(CallboardError, match=r"delete_session\('x'\)"):
            await engine.open_session("x", model="s:m")


async def test_a_new_session_needs_a_known_model(path: Path) -> None:
    """A failed attempt stores nothing."""
    async with keeping(path) as engine:
        with pytest.raises(ConfigurationError, match="pass model="):
            await engine.open_session("x")
        with pytest.raises(ConfigurationError):
            await engine.open_session("x", model="nobody:m")
        assert await engine.sessions() == []


@pytest.mark.parametrize(
    "lost", ["content", "session_messages WHERE position = 0", "session_messages; DELETE FROM session_setups"]
)
async def test_a_session_that_has_lost_content_is_not_created_again(path: Path, lost: str) -> None:
    """Any part may be missing. Every attempt is refused until the session is deleted."""
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


async def test_the_engine_that_opens_a_session_owns_it(path: Path) -> None:
    async with keeping(path, Say("One."), Say("Three.")) as one, keeping(path, Say("Two.")) as two:
        first = await one.open_session("x", model="s:m")
        await first.send("First")
        await (await two.open_session("x", model="s:m")).send("Second")
        back = await one.open_session("x", model="s:m")
        await back.send("Third")
        assert texts(back) == ["First", "One.", "Second", "Two.", "Third", "Three."]
        assert texts(first) == ["First", "One."]


async def test_of_two_engines_that_open_one_id_concurrently_one_creates_it(path: Path) -> None:
    """No message is overwritten."""
    async with keeping(path, Say("a")) as one, keeping(path, Say("b")) as two:
        answers = []
        for session in await asyncio.gather(*(each.open_session("x", model="s:m") for each in (one, two))):
            with contextlib.suppress(SessionTakenOver):
                answers.append((await session.send("Hi")).text)
    async with keeping(path) as engine:
        session = await engine.open_session("x")
        assert [message.text for message in session.messages if message.role == "assistant"] == answers
        assert answers


async def test_an_engine_that_read_before_the_other_created_the_session_continues_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_a_returned_reply_survives_kill_9(path: Path) -> None:
    """No flush is needed, because the reply is durable when the caller gets it."""
    killed = ended(KILLED, path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    async with keeping(path, Say("Two.")) as engine:
        session = await engine.open_session("x", model="s:m")
        assert texts(session) == ["First", "One."]
        assert (await session.send("Second")).text == "Two."


# Properties of sessions, errors and registries.

READ = Tool(ToolDefinition("read"), lambda arguments: "text")


@pytest.mark.parametrize("model", ["s:m", ("s:m", "other:m"), ModelChoice(prefer="cheapest")])
async def test_a_sessions_model_can_be_assigned_to_itself(model: Model) -> None:
    """The property returns the value that was set."""
    async with running(Say("yes"), other=[]) as (engine, _):
        session = engine.session(model)
        session.model = session.model
        assert session.model == model
        assert (await session.send("Still there?")).text == "yes"


async def test_a_name_resolves_to_the_adapter_that_was_added_last() -> None:
    """The previous registry still resolves the name as a model of the default provider."""
    before = ModelRegistry({"s": entry("s", "scripted")}, {}, default_provider="s")
    assert before.resolve("mine:m").model.adapter == "s"
    mine = scripted.ScriptedAdapter(AdapterConfig(), name="mine", replies=(scripted.ScriptedReply(text="x"),))
    assert before.with_adapter(entry_of("mine", mine)).resolve("mine:m").model.adapter == "mine"
    assert before.resolve("mine:m").model.adapter == "s"


async def test_a_failed_deletion_keeps_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open session stays too. The session can be deleted later."""
    async with keeping(tmp_path / "trace.db", Say("one"), Say("two")) as engine:
        session = engine.session("s:m")
        await session.send("a")

        async def fails(session_id: str) -> bool:
            raise StoreError("trace.db: database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(engine.store, "delete_session", fails)
            with pytest.raises(StoreError):
                await engine.delete_session(session.id)
        assert [message.text for message in session.messages] == ["a", "one"]
        await session.send("b")
        assert await engine.delete_session(session.id)
        assert session.messages == ()


async def test_a_turn_in_a_deletion_restarts_the_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.db"
    async with keeping(path, Say("one"), Say("two")) as engine:
        session = engine.session("s:m", session_id="ses_x")
        await session.send("a")
        delete, turns = engine.store.delete_session, []

        async def slowly(session_id: str) -> bool:
            turns.append(asyncio.ensure_future(session.send("b")))
            await anyio.sleep(0.05)
            return await delete(session_id)

        monkeypatch.setattr(engine.store, "delete_session", slowly)
        assert await engine.delete_session("ses_x")
        await asyncio.gather(*turns)
        assert [message.text for message in session.messages] == ["b", "two"]
    async with keeping(path) as engine:
        assert [message.text for message in (await engine.resume("ses_x")).messages] == ["b", "two"]


def test_each_status_of_a_turn_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sessions.md").read_text(encoding="utf-8")
    assert [status for status in get_args(TurnStatus) if f"`{status}`" not in page] == []


async def test_a_turn_that_ran_out_of_tool_rounds_has_a_warning() -> None:
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
    """An adapter that drops a part of the history."""

    wire_type = _ForgetfulWire


def forgetful(reply: FakeReply) -> Engine:
    transport = FakeTransport(reply)

    def make(config: AdapterConfig, **_: object) -> Forgetful:
        return Forgetful(config, name="toy", transport=transport)

    models = serving(toy=entry("toy", adapter_type(make), AdapterConfig(max_retries=0)))
    return Engine(models=models, trace=False)


async def test_losses_of_the_history_are_in_the_reply_and_at_the_start_of_the_stream() -> None:
    """The metadata of the message has each loss, in the history too."""
    async with forgetful(whole(*HELLO)) as engine:
        session = engine.session("toy:m")
        reply = await session.send("a")
        assert [warning.code for warning in present(reply.metadata).warnings] == ["image_left_out"]
        assert session.messages[-1] == reply
    async with forgetful(FakeReply(sse(*HELLO))) as engine, engine.session("toy:m").stream("a") as turn:
        starts = [event async for event in turn if isinstance(event, MessageStart)]
    assert [warning.code for start in starts for warning in start.warnings] == ["image_left_out"]


# Cancellation from any place: the signal and its controller.


def test_the_first_reason_stays() -> None:
    """A second abort changes nothing, and a signal is never reset."""
    controller = AbortController()
    controller.signal.raise_if_aborted()
    assert (controller.signal.aborted, controller.signal.reason) == (False, "")
    controller.abort("the user left")
    controller.abort("something else")
    assert (controller.signal.aborted, controller.signal.reason) == (True, "the user left")
    with pytest.raises(CancelledError, match="the user left"):
        controller.signal.raise_if_aborted()


def test_every_watcher_is_called_once_even_if_one_fails() -> None:
    """An exception of one watcher does not stop the others."""
    controller, called = AbortController(), list[int]()
    controller.signal.watch(lambda: called.append(1))
    controller.signal.watch(lambda: 1 / 0)
    forget = controller.signal.watch(lambda: called.append(2))
    controller.signal.watch(lambda: called.append(3))
    forget()
    forget()
    controller.abort()
    controller.abort()
    controller.signal.watch(lambda: called.append(4))
    assert called == [1, 3, 4]


async def test_a_task_awaits_the_abort_of_another_thread() -> None:
    controller = AbortController()
    waiting = asyncio.create_task(controller.signal.wait())
    await asyncio.sleep(0)
    thread = threading.Thread(target=controller.abort, args=("elsewhere",))
    thread.start()
    assert await waiting == "elsewhere"
    assert await controller.signal == "elsewhere"
    thread.join()


def test_an_abort_ignores_watchers_of_a_closed_loop() -> None:
    """The watchers are not called, and nothing is raised."""
    controller, called = AbortController(), list[int]()

    async def watch() -> None:
        controller.signal.watch_from_loop(lambda: called.append(1))

    asyncio.run(watch())
    controller.abort()
    assert called == []


def test_a_thread_waits_for_the_abort() -> None:
    controller = AbortController()
    assert controller.signal.wait_in_thread(0) is False
    controller.abort()
    assert controller.signal.wait_in_thread() is True
