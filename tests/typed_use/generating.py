"""Typical user code, never run: mypy strict and pyright must infer exactly these types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from callboard import (
    AbortController,
    AbortSignal,
    CanonicalRequest,
    CanonicalResponse,
    Cost,
    Engine,
    Finish,
    GenerateResult,
    Message,
    MessageMetadata,
    MessageStart,
    ModelChoice,
    Reply,
    StepResult,
    StreamAccumulator,
    StreamFailed,
    StreamResult,
    SyncStreamResult,
    TextBlock,
    TextDelta,
    TextEnd,
    TimeoutConfig,
    TokenUsage,
    ToolResultBlock,
    ToolUseBlock,
    TreePiece,
    UsageSoFar,
    ViewEvent,
    default_engine,
    generate,
    generate_sync,
    run_sync,
    set_default_engine,
    stream,
    stream_sync,
)


async def asking(engine: Engine) -> None:
    result = await generate("sonnet", "Hi", system_prompt="Be brief.", max_output_tokens=100, temperature=0.5)
    assert_type(result, GenerateResult)
    assert_type(result.text, str)
    assert_type(result.thinking, str)
    assert_type(result.total_usage, TokenUsage)
    assert_type(result.total_cost, Cost)
    assert_type(result.steps, tuple[StepResult, ...])
    assert_type(result.tool_uses, tuple[ToolUseBlock, ...])
    assert_type(result.tool_results, tuple[ToolResultBlock, ...])
    assert_type(result.response, CanonicalResponse)
    assert_type(result.message, Reply)
    assert_type(result.message.metadata, MessageMetadata)
    await generate(messages=[*result.messages, Message.user("And?")], engine=engine)
    await generate(
        ["sonnet", "gpt"], [TextBlock("Hi")], provider="mine", timeout=TimeoutConfig(total=60, per_step=20)
    )
    await engine.generate(ModelChoice(prefer="cheapest"), "Hi", tags={"team": "red"}, timeout=30)


async def giving_up() -> None:
    controller = AbortController()
    assert_type(controller.signal, AbortSignal)
    assert_type(await controller.signal, str)
    await generate("sonnet", "Hi", signal=controller.signal)


async def reading(engine: Engine, request: CanonicalRequest) -> None:
    result = stream("sonnet", "Hi", on_usage=told)
    assert_type(result, StreamResult)
    async for event in result:
        assert_type(event, ViewEvent)
        match event:
            case TextDelta(text=text):
                assert_type(text, str)
            case TextEnd():
                assert_type(event.segment_id, str)
            case Finish():
                assert_type(event.response, CanonicalResponse)
            case StreamFailed():
                assert_type(event.error, Exception)
            case MessageStart():
                assert_type(event.warnings[0].code, str)
            case _:
                assert_type(event.type, str)
    async with engine.stream("sonnet", "Hi") as entered:
        assert_type(entered, StreamResult)
        async for piece in entered.text_stream:
            assert_type(piece, str)
        async for event in entered.reader(coalesce=True):
            assert_type(event, ViewEvent)
    assert_type(await result.response(), CanonicalResponse)
    assert_type(await result.result(), GenerateResult)
    assert_type(result.partial_response, CanonicalResponse | None)
    assert_type(result.usage_so_far, UsageSoFar)
    low = engine.stream(request, tags={"team": "red"})
    assert_type(low, StreamResult)
    accumulator = StreamAccumulator()
    async for event in low:
        accumulator.process(event)
    assert_type(accumulator.response(), CanonicalResponse)
    assert_type(await engine.complete(request), CanonicalResponse)


def told(usage: UsageSoFar) -> None:
    assert_type(usage.usage, TokenUsage)
    assert_type(usage.estimated, bool)


def plainly() -> None:
    assert_type(generate_sync("sonnet", "Hi").text, str)
    with stream_sync("sonnet", "Hi") as result:
        assert_type(result, SyncStreamResult)
        pieces: Iterator[str] = result.text_stream
        assert_type(next(pieces), str)
        assert_type(result.text_stream(tree=True), Iterator[TreePiece])
        for event in result:
            assert_type(event, ViewEvent)
    assert_type(result.response(), CanonicalResponse)
    assert_type(run_sync(generate("sonnet", "Hi")), GenerateResult)
    set_default_engine(None)
    assert_type(default_engine(), Engine)
