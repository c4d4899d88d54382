"""What a host holds of sessions, errors and registries means what it says."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import anyio
import msgspec
import pytest

from callboard.adapters import AdapterConfig, CallWarning, CanonicalRequest, MessageStart, ToolDefinition
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.providers import scripted
from callboard.bus import AuthError, CallboardError, StoreError, TurnStatus
from callboard.engine import Engine, ModelChoice, ModelRegistry, Tool
from callboard.engine.models.configured import entry_of
from callboard.engine.routing.model_choice import Model
from tests.support.engines import entry, keeping, running, serving
from tests.support.fake_http import HELLO, FakeReply, FakeTransport, ToyAdapter, ToyWire, sse, whole
from tests.support.present import present
from tests.support.scripted import Say, adapter_type
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")

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
        assert engine.store is not None
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
    assert turn is not None
    assert turn.status == "failed"
    assert [step.message.text for step in turn.steps] == ["Reading."]
    assert [result.content for result in turn.steps[0].tool_results] == ["text"]
    assert len(turn.messages) == 3
    assert CallboardError("elsewhere").turn is None


@pytest.mark.parametrize("status", get_args(TurnStatus))
def test_each_status_of_a_turn_is_told_in_the_documentation(status: str) -> None:
    """One list, in `TurnStatus`, and the page about sessions has them all."""
    page = Path(__file__).parents[2] / "docs" / "sessions.md"
    assert f"`{status}`" in page.read_text(encoding="utf-8")


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


async def test_what_a_history_loses_is_told_by_a_session_s_reply() -> None:
    """Its metadata has each loss, in the history as well."""
    async with forgetful(whole(*HELLO)) as engine:
        session = engine.session("toy:m")
        reply = await session.send("a")
        assert [warning.code for warning in present(reply.metadata).warnings] == ["image_left_out"]
        assert session.messages[-1] == reply


async def test_what_a_history_loses_is_told_where_a_session_s_stream_begins() -> None:
    """Its first event has each loss, before there is any text."""
    async with forgetful(FakeReply(sse(*HELLO))) as engine:
        async with engine.session("toy:m").stream("a") as turn:
            starts = [event async for event in turn if isinstance(event, MessageStart)]
    assert [warning.code for start in starts for warning in start.warnings] == ["image_left_out"]
