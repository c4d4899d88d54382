"""`Engine.complete`: one request, one reply, no session and no tools run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from callboard.adapters import CanonicalRequest, Message, StopReason, ToolDefinition
from callboard.bus import LlmCallCompleted, LlmCallStarted, NotFoundError
from tests.support.engines import running, topics
from tests.support.scripted import Say

pytestmark = pytest.mark.anyio


def asked(**more: object) -> CanonicalRequest:
    fields = {"request_id": "req_mine", "messages": (Message.user("Hi"),), "model": "s:m", "max_output_tokens": 99}
    return CanonicalRequest(**{**fields, **more})  # type: ignore[arg-type]


async def test_a_request_is_answered_under_its_own_ids() -> None:
    """The response, its event and the message on the stream carry the ids that the caller gave."""
    async with running(Say("Hello")) as (engine, events):
        response = await engine.complete(asked(message_id="msg_mine"))
        published = events.take()
    assert (response.text, response.request_id) == ("Hello", "req_mine")
    ends = [envelope for envelope in published if isinstance(envelope.data, LlmCallCompleted)]
    assert [(end.request_id, end.message_id, end.session_id) for end in ends] == [("req_mine", "msg_mine", None)]


async def test_a_request_belongs_to_no_session() -> None:
    """Nothing of `session.*` is published but the turn, which has no session; the engine holds none."""
    async with running(Say("Hello")) as (engine, events):
        await engine.complete(asked())
        published = events.take()
        assert not engine._runtime.sessions.states
    assert topics(published, "session.") == ["session.turn_started", "session.turn_completed"]


async def test_a_call_without_a_session_stands_in_the_trace(tmp_path: Path) -> None:
    """The store has the call, its tags and no session."""
    async with running(Say("Hello"), store=tmp_path / "t.db") as (engine, _):
        await engine.complete(asked(), tags={"team": "red"})
        await engine.flush()
        assert engine.store is not None
        (row,) = await engine.store.calls()
        assert (row.request_id, row.session_id, row.status) == ("req_mine", None, "completed")
        assert await engine.store.sessions() == []


async def test_the_model_s_calls_are_returned_and_not_run() -> None:
    """A request has definitions only, so a reply that calls a tool is the answer."""
    async with running(Say(calls=[("add", {"a": 1})])) as (engine, _):
        response = await engine.complete(asked(tools=(ToolDefinition("add"),)))
    assert [use.name for use in response.tool_uses] == ["add"]


async def test_a_request_fails_as_its_call_did() -> None:
    """What the provider answered is raised."""
    async with running(Say(fails=NotFoundError("no such model"))) as (engine, _):
        with pytest.raises(NotFoundError):
            await engine.complete(asked())


async def test_a_reply_that_paused_is_returned_as_it_is() -> None:
    """Low level: to continue after `pause_turn` is the caller's affair."""
    pausing = Say("Wait")
    pausing.reply = msgspec.structs.replace(pausing.reply, stop=StopReason.PAUSE_TURN)
    async with running(pausing, Say("Done")) as (engine, events):
        response = await engine.complete(asked(request_id=""))
        starts = [envelope for envelope in events.take() if isinstance(envelope.data, LlmCallStarted)]
    assert response.stop_reason is StopReason.PAUSE_TURN
    assert len(starts) == 1
    assert response.request_id.startswith("req_")
