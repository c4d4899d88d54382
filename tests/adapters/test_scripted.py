"""The scripted adapter: replies as values, as data and from a function, delivered as by a real adapter."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.adapters import (
    AdapterCapabilities,
    AdapterConfig,
    CanonicalRequest,
    CapabilityError,
    InvalidRequestError,
    Message,
    RateLimitError,
    RetryPolicy,
    ScriptedAdapter,
    StopReason,
    StreamEvent,
    TokenUsage,
    UsageSource,
    create_adapter,
)
from callboard.adapters.conformance import check_stream
from callboard.adapters.providers.scripted import ScriptedCall, ScriptedFailure, ScriptedReply
from callboard.bus.errors import ConfigurationError
from callboard.bus.streams.events import TextDelta, ToolUseInputDelta
from callboard.bus.values.base import Json
from callboard.bus.values.content import ImageBlock, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import ToolDefinition
from callboard.engine.models.configured import read_models_yaml

from ..support.fake_http import request
from ..support.virtual_time import FakeClock

pytestmark = pytest.mark.anyio


def scripted(*replies: str | ScriptedReply, **config: object) -> ScriptedAdapter:
    settings = AdapterConfig(**{"retry": RetryPolicy(jitter=False), **config})  # type: ignore[arg-type]
    return ScriptedAdapter(settings, clock=FakeClock(), replies=replies)


def from_options(**options: Json) -> ScriptedAdapter:
    adapter = create_adapter("scripted", AdapterConfig(options=options), name="s", clock=FakeClock())
    assert isinstance(adapter, ScriptedAdapter)
    return adapter


async def test_a_reply_can_have_every_kind_of_content() -> None:
    """The reply has thinking with its signature, text in pieces, and calls with their fragments, in that order."""
    reply = ScriptedReply(
        text=("Let me ", "look."),
        thinking=("Hm", "m."),
        signature="c2ln",
        calls=(ScriptedCall("read", {"path": "a"}), ScriptedCall("list", fragments=('{"deep"', ": true}"))),
        usage=TokenUsage(12, 7),
    )
    adapter = scripted(reply, reply)
    events: list[StreamEvent] = [event async for event in adapter.stream(request())]
    last = check_stream(events)
    thinking, text, first, second = last.final_content
    assert isinstance(thinking, ThinkingBlock)
    assert (thinking.text, thinking.signature) == ("Hmm.", "c2ln")
    assert text == TextBlock("Let me look.")
    assert isinstance(first, ToolUseBlock)
    assert isinstance(second, ToolUseBlock)
    assert (first.input, second.input) == ({"path": "a"}, {"deep": True})
    fragments = [event.partial_json for event in events if isinstance(event, ToolUseInputDelta)]
    assert fragments == ['{"path":"a"}', '{"deep"', ": true}"]
    assert (last.stop_reason, last.usage) == (StopReason.TOOL_USE, TokenUsage(12, 7))
    whole = await adapter.complete(request())
    assert whole.text == "Let me look."
    assert [call.name for call in whole.tool_uses] == ["read", "list"]


async def test_missing_usage_is_estimated() -> None:
    response = await scripted("Four words are enough.").complete(request())
    assert response.usage.source is UsageSource.ESTIMATED
    assert response.usage.output_tokens > 0
    assert response.warnings[0].code == "usage_estimated"


async def test_a_retry_uses_the_next_reply() -> None:
    """A failure is retried like that of any provider, including its hint."""
    adapter = scripted(ScriptedReply(fails=ScriptedFailure("rate_limit", retry_after=7)), "There.")
    before = anyio.current_time()
    assert (await adapter.complete(request())).text == "There."
    assert anyio.current_time() - before == pytest.approx(7.0)
    assert len(adapter.requests) == 2


async def test_a_failure_after_text_keeps_the_text() -> None:
    """The message ends with the error and its text. The next reply is used for the next call."""
    adapter = scripted(ScriptedReply("Half", fails=ScriptedFailure("rate_limit", "slow down")), "Whole.")
    events: list[StreamEvent] = []
    with pytest.raises(RateLimitError, match="slow down") as raised:
        async for event in adapter.stream(request()):
            events.append(event)  # noqa: PERF401  (what came before the error counts)
    assert check_stream(events).stop_reason is StopReason.ERROR
    assert raised.value.content == (TextBlock("Half"),)
    assert (await adapter.complete(request())).text == "Whole."


async def test_any_exception_can_be_raised() -> None:
    """A test can then check how a host handles a bug of an adapter."""
    for reply in (
        ScriptedReply(raises=ZeroDivisionError("bug")),
        ScriptedReply("Half", raises=ZeroDivisionError("bug")),
    ):
        with pytest.raises(ZeroDivisionError):
            await scripted(reply).complete(request())


async def test_delay_and_pace_are_applied() -> None:
    """The delay comes before everything. The pace applies before each piece and before the end."""
    adapter = scripted(ScriptedReply(("a", "b"), delay=5, pace=2))
    stream = adapter.stream(request())
    times = [anyio.current_time() async for event in stream if isinstance(event, TextDelta)]
    assert times == [7.0, 9.0]
    assert anyio.current_time() == 11.0


async def test_a_pause_delays_a_reply_until_the_test_continues() -> None:
    go = anyio.Event()
    adapter = scripted(ScriptedReply("a", pause=go.wait))
    async with anyio.create_task_group() as tasks:

        async def release() -> None:
            await anyio.sleep(3)
            go.set()

        tasks.start_soon(release)
        assert (await adapter.complete(request())).text == "a"
    assert anyio.current_time() == 3


async def test_a_function_may_make_the_reply() -> None:
    """The function gets the request."""

    def answer(asked: CanonicalRequest) -> str | ScriptedReply:
        return f"You said {asked.messages[-1].text!r}."

    adapter = ScriptedAdapter(replies=answer)
    assert (await adapter.complete(request())).text == "You said 'Hello'."
    assert adapter.requests[-1].messages == (Message.user("Hello"),)


async def test_a_script_ends_or_is_repeated() -> None:
    """A call after the last reply is an error with that reason, unless the script is repeated."""
    adapter = scripted("one")
    await adapter.complete(request())
    with pytest.raises(InvalidRequestError, match="all of its 1 replies"):
        await adapter.complete(request())
    adapter = from_options(replies=["one", "two"], repeat=True)
    assert [(await adapter.complete(request())).text for _ in range(3)] == ["one", "two", "one"]


async def test_unsupported_capabilities_are_refused() -> None:
    """Tools, schemas and content of the newest message are refused, and no reply is used."""
    adapter = ScriptedAdapter(replies=["never"], capabilities=AdapterCapabilities())
    tool = ToolDefinition("t", "A tool", {"type": "object", "properties": {}})
    picture = Message.user([ImageBlock(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")])
    for asked, lack in (
        (request(tools=(tool,)), "can't call tools"),
        (request(output_schema={"type": "object"}), "does not support output schemas"),
        (request(messages=(picture,)), "does not accept images"),
    ):
        with pytest.raises(CapabilityError, match=lack):
            await adapter.complete(asked)
    assert not adapter.requests


async def test_models_yaml_can_have_a_script(tmp_path: Path) -> None:
    """The script has replies as text and as objects, with failures, calls and stop reasons."""
    file = tmp_path / "models.yaml"
    file.write_text("""
adapters:
  demo:
    type: scripted
    options:
      repeat: true
      replies:
        - Hello!
        - {text: [Let me, " look."], calls: [{name: read_file, input: {path: a.txt}}]}
        - {thinking: Hm., text: Well, stop: max_tokens, usage: {input_tokens: 3, output_tokens: 2}}
        - {fails: {kind: context_overflow}}
models:
  demo:one: {adapter: demo, wire_name: one}
""")
    entry = read_models_yaml(file, {}).adapters["demo"]
    adapter = create_adapter(entry.type, entry.config, name="demo", clock=FakeClock())
    first, second, third = [await adapter.complete(request()) for _ in range(3)]
    assert first.text == "Hello!"
    assert (second.text, second.stop_reason) == ("Let me look.", StopReason.TOOL_USE)
    assert (third.thinking, third.stop_reason, third.usage) == ("Hm.", StopReason.MAX_TOKENS, TokenUsage(3, 2))


@pytest.mark.parametrize(("options", "said"), [
    ({}, "replies: expected at least one"),
    ({"replies": [{"texts": "x"}]}, "unknown field `texts`"),
    ({"replies": [{"fails": {"kind": "tired"}}]}, "Invalid enum value 'tired'"),
    ({"reply": "x"}, "unknown field `reply`"),
])  # fmt: skip
async def test_a_wrong_script_is_a_configuration_error(options: dict[str, Json], said: str) -> None:
    with pytest.raises(ConfigurationError, match=r"options of type scripted|adapters\.s\.options") as raised:
        from_options(**options)
    assert said in str(raised.value)
