"""Empty replies: a reply that ended well without a text and without a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callboard.adapters import CanonicalResponse
from callboard.bus import WarningCode
from callboard.bus.values.content import TextBlock, ThinkingBlock
from callboard.bus.values.messages import is_empty
from callboard.bus.values.usage import StopReason
from callboard.engine import Engine, ModelRegistry
from callboard.engine.middleware.ready_made import Cache
from tests.support.engines import keeping, model, registry, requests_of, serving
from tests.support.scripted import Say, scripted_type
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

anyio_backend = runs_on("asyncio")

WAYS = ["session streamed", "generate", "generate streamed"]


async def ask(engine: Engine, way: str, **options: Any) -> CanonicalResponse:
    """The last reply, had in one of three ways."""
    match way:
        case "session streamed":
            async with engine.session("s:m").stream("Hi", **options) as streamed:
                return await streamed.response()
        case "generate":
            return (await engine.generate("s:m", "Hi", **options)).steps[-1].response
        case _:
            async with engine.stream("s:m", "Hi", **options) as generated:
                return (await generated.result()).steps[-1].response


def codes(response: CanonicalResponse) -> list[str]:
    return [str(warning.code) for warning in response.warnings]


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_reply_has_a_warning(way: str, tmp_path: Path) -> None:
    """It is told from a reply that says something, streamed and whole, and in the trace."""
    async with keeping(tmp_path / "t.db", Say(), Say("Yes.")) as engine:
        assert codes(await ask(engine, way)) == [WarningCode.EMPTY_REPLY]
        assert codes(await ask(engine, way)) == []


async def test_an_empty_reply_of_a_session_has_a_warning(tmp_path: Path) -> None:
    """The reply of a plain `send` has the warning, too."""
    async with keeping(tmp_path / "t.db", Say()) as engine:
        reply = await engine.session("s:m").send("Hi")
        assert reply.metadata is not None
        assert [str(each.code) for each in reply.metadata.warnings] == ["empty_reply"]


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_reply_is_asked_for_again_as_often_as_is_wanted(way: str, tmp_path: Path) -> None:
    """Each time is a call of its own in the trace, with its own usage."""
    async with keeping(tmp_path / "t.db", Say(), Say(), Say("Yes.")) as engine:
        assert (await ask(engine, way, retry_empty=2)).text == "Yes."
        assert len({request.request_id for request in requests_of(engine)}) == 3
        await engine.flush()
        assert engine._runtime.store is not None
        calls = await engine._runtime.store.calls()
        assert [call.usage.input_tokens for call in calls if call.usage is not None] == [10, 10, 10]
        assert len({call.request_id for call in calls}) == 3


@pytest.mark.parametrize("way", WAYS)
async def test_the_last_empty_reply_is_given(way: str, tmp_path: Path) -> None:
    """After the last time the empty reply comes with its warning."""
    async with keeping(tmp_path / "t.db", Say(), Say(), Say("Yes.")) as engine:
        response = await ask(engine, way, retry_empty=1)
        assert (response.text, codes(response)) == ("", ["empty_reply"])


async def test_the_cost_of_empty_replies_is_the_turns(tmp_path: Path) -> None:
    """The spending of the turn counts each call."""
    async with keeping(tmp_path / "t.db", Say(), Say("Yes.")) as engine:
        result = await engine.generate("s:m", "Hi", retry_empty=1)
        assert result.cost_sum.calls == 2
        assert result.text == "Yes."


async def test_a_session_keeps_only_the_reply_that_says_something(tmp_path: Path) -> None:
    """The empty replies before it are not in the history."""
    async with keeping(tmp_path / "t.db", Say(), Say("Yes.")) as engine:
        session = engine.session("s:m")
        await session.send("Hi", retry_empty=3)
        assert [message.text for message in session.messages] == ["Hi", "Yes."]


def asking_again() -> ModelRegistry:
    """A model that asks for empty replies again."""
    return serving(model("s:m", retry_empty=1), s=scripted_type(Say(), Say("Yes.")))


@pytest.mark.parametrize("way", WAYS)
async def test_a_model_may_ask_again_by_itself(way: str, tmp_path: Path) -> None:
    """`retry_empty` of models.yaml holds where the caller says nothing."""
    async with keeping(tmp_path / "t.db", models=asking_again()) as engine:
        assert (await ask(engine, way)).text == "Yes."
    async with keeping(tmp_path / "u.db", models=asking_again()) as engine:
        assert (await ask(engine, way, retry_empty=0)).text == ""


async def test_a_cache_keeps_no_empty_reply() -> None:
    """The next request with the same words is a call."""
    async with Engine(models=registry(Say(), Say("Yes.")), trace=False, middleware=[Cache()]) as engine:
        assert (await engine.generate("s:m", "Hi")).text == ""
        assert (await engine.generate("s:m", "Hi")).text == "Yes."


@pytest.mark.parametrize(
    ("content", "reason", "empty"),
    [
        ((), StopReason.END_TURN, True),
        ((), StopReason.TOOL_USE, True),
        ((TextBlock(" \n"),), StopReason.END_TURN, True),
        ((ThinkingBlock("Hm."),), StopReason.END_TURN, True),
        ((TextBlock("x"),), StopReason.END_TURN, False),
        ((), StopReason.STOP_SEQUENCE, False),
        ((), StopReason.MAX_TOKENS, False),
        ((), StopReason.REFUSAL, False),
        ((), StopReason.PAUSE_TURN, False),
    ],
)
def test_what_is_empty(content: Any, reason: StopReason, empty: bool) -> None:
    """Reasoning and white space say nothing; a reply that ended otherwise is not an empty one."""
    assert is_empty(content, reason) is empty
