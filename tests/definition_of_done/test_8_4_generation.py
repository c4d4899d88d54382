"""Section 8.4, generation: over each provider's wire. The functions have their own tests elsewhere."""

from __future__ import annotations

import anyio
import pytest

from callboard import (
    AbortController,
    CancelledError,
    Finish,
    JsonObject,
    MessageStart,
    RequestTimeoutError,
    TextBlock,
    TextDelta,
    TextEnd,
    TimeoutConfig,
    Tool,
    ToolDefinition,
    generate,
    stream,
)
from callboard.adapters.conformance.http_kit import HANG

from ..support.fake_http import FakeReply
from ..support.wires.wire import Wire
from .providers import answering, asking, each_provider
from .recorded import Exchange
from .rows import row

pytestmark = pytest.mark.anyio

PERSON: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


def only_text(exchange: Exchange) -> bool:
    """Whether the reply is only text and ends normally."""
    return (
        exchange.ok
        and exchange.oracle["contract"]["stop_reason"] == "end_turn"
        and not exchange.oracle["tool_calls"]
        and exchange.oracle["final_text"] != ""
    )


def name_of(wire: Wire, exchange: Exchange) -> str:
    return f"{wire.name}:{exchange.asked.get('model', 'gemini-2.5-flash')}"


@each_provider
@row("8.4.4")
@row("8.4.5")
@row("8.4.6")
@row("8.9.2")
async def test_a_stream_has_a_start_deltas_and_an_end(wire: Wire) -> None:
    """message.start comes first and finish last. The text deltas add up to the text in its end event."""
    async with asking(wire, wire.streamed("Hello, ☃!")) as at:
        result = stream(at.model, "Hi", engine=at.engine)
        events = [event async for event in result]
        response = await result.response()
    types = [event.type for event in events]
    assert types == [
        *("message.start", "text.start", "text.delta", "text.delta", "text.end"),
        *("message.complete", "step.finish", "finish"),
    ]
    start, finish = events[0], events[-1]
    assert isinstance(start, MessageStart)
    assert isinstance(finish, Finish)
    assert (start.provider, "served" in start.model) == (wire.name, True)
    assert (finish.stop_reason, finish.status, finish.response) == ("end_turn", "completed", response)
    assert (finish.usage.total_input_tokens, finish.usage.output_tokens) == (12, 7)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    (end,) = [event for event in events if isinstance(event, TextEnd)]
    assert "".join(delta.text for delta in deltas) == end.text == response.text == "Hello, ☃!"
    assert {delta.segment_id for delta in deltas} == {end.segment_id}


def schema_of(asked: JsonObject) -> JsonObject | None:
    """Return the reply's schema from the place where each provider expects it."""
    match asked:
        case {"text": {"format": {"type": "json_schema", "schema": schema}}}:
            return schema
        case {"output_config": {"format": {"schema": schema}}}:
            return schema
        case {"generationConfig": {"responseJsonSchema": schema}}:
            return schema
        case _:
            return None


@each_provider
@pytest.mark.parametrize("streamed", [False, True])
@row("8.4.9")
async def test_a_signal_ends_a_running_call(wire: Wire, streamed: bool) -> None:
    """CancelledError has the reason and the streamed text so far. The connection is closed."""
    controller = AbortController()
    hanging = wire.stream_of(*wire.chunks("Hello")[:-1], HANG) if streamed else FakeReply(wait=HANG)
    async with asking(wire, hanging) as at:

        async def give_up() -> None:
            await anyio.sleep(1)
            controller.abort("the user left")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            with pytest.raises(CancelledError, match="the user left") as raised:
                if streamed:
                    async for _ in stream(at.model, "Hi", engine=at.engine, signal=controller.signal):
                        pass
                else:
                    await generate(at.model, "Hi", engine=at.engine, signal=controller.signal)
        assert at.transport.all_closed
        assert anyio.current_time() < 5
    if streamed:
        assert "".join(block.text for block in raised.value.content if isinstance(block, TextBlock)).startswith(
            "Hel"
        )


@each_provider
@pytest.mark.parametrize("streamed", [False, True])
@row("8.4.10")
async def test_a_call_that_takes_too_long_raises_a_timeout(wire: Wire, streamed: bool) -> None:
    """A limit can be set for the whole operation and for each step."""
    for timeout in (TimeoutConfig(total=5.0), TimeoutConfig(total=60.0, per_step=5.0)):
        async with asking(wire, FakeReply(wait=HANG)) as at:
            begun = anyio.current_time()
            with pytest.raises(RequestTimeoutError):
                if streamed:
                    await stream(at.model, "Hi", engine=at.engine, timeout=timeout).result()
                else:
                    await generate(at.model, "Hi", engine=at.engine, timeout=timeout)
            assert anyio.current_time() - begun == pytest.approx(5.0, abs=0.1)


@each_provider
@row("8.4.10")
async def test_the_time_of_a_step_is_not_that_of_all(wire: Wire) -> None:
    """Two steps of 4 seconds fit a limit of 5 for each step, but not a limit of 6 in total."""

    def slow() -> list[FakeReply]:
        replies = [wire.whole("", 1, "tools"), wire.whole("Done.")]
        for reply in replies:
            reply.wait = 4.0
        return replies

    tools = [Tool(ToolDefinition("read_file"), answering)]
    async with asking(wire, *slow()) as at:
        timeout = TimeoutConfig(per_step=5.0)
        assert (await generate(at.model, "Go", tools=tools, engine=at.engine, timeout=timeout)).text == "Done."
    async with asking(wire, *slow()) as at:
        with pytest.raises(RequestTimeoutError) as raised:
            await generate(at.model, "Go", tools=tools, engine=at.engine, timeout=6.0)
        assert len(raised.value.turn.steps) == 1  # type: ignore[attr-defined]
