"""The view of a stream, made from a turn's events only, and the default engine of the functions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import (
    CallboardError,
    ConfigurationError,
    Cost,
    CostSource,
    StreamReset,
    ToolFinished,
    ToolStarted,
    WrongLoop,
)
from callboard.bus.errors import CancelledError
from callboard.bus.streams.events import (
    CallWarning,
    MessageComplete,
    MessageStart,
    ProviderBlock,
    ProviderEvent,
    StepFinish,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    TurnComplete,
    TurnEvent,
    fold,
)
from callboard.bus.values.content import (
    ContentBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.usage import StopReason, TokenUsage
from callboard.engine import (
    Engine,
    StreamFailed,
    TextEnd,
    TextStart,
    ThinkingEnd,
    ThinkingStart,
    ViewEvent,
    default_engine,
    generate,
    set_default_engine,
    stream,
)
from callboard.engine.generation.view import TurnView
from callboard.tracestore import TraceStore
from tests.support.engines import registry
from tests.support.scripted import Say

from ...definition_of_done.rows import row

USAGE = TokenUsage(10, 5)
COST = Cost(7, CostSource.COMPUTED)


def message(message_id: str, *blocks: ContentBlock, cut: int = 2) -> list[TurnEvent]:
    """A complete message. Its text and arguments come in pieces of `cut` characters."""
    events: list[TurnEvent] = [MessageStart(message_id, "m", "s", (CallWarning("odd", "It is odd."),))]
    for index, block in enumerate(blocks):
        match block:
            case TextBlock():
                events += [TextDelta(piece, index, message_id) for piece in pieces(block.text, cut)]
            case ThinkingBlock():
                events += [ThinkingDelta(piece, None, index, message_id) for piece in pieces(block.text, cut)]
                events.append(ThinkingDelta("", block.signature, index, message_id))
            case ToolUseBlock():
                events.append(ToolUseStart(block.id, block.name, index, message_id))
                events += [
                    ToolUseInputDelta(block.id, piece, index, message_id)
                    for piece in pieces(block.raw_arguments or "", cut)
                ]
                events.append(ToolUseEnd(block.id, block.input, False, index, message_id))
            case OpaqueBlock():
                events.append(ProviderBlock(block.kind, block.provider_raw.data, index, message_id))
            case _:
                raise AssertionError(block)
    events.append(MessageComplete(tuple(blocks), StopReason.END_TURN, "stop", USAGE, message_id))
    return events


def pieces(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def viewed(events: Sequence[TurnEvent | StreamReset[TurnEvent]]) -> list[ViewEvent]:
    view = TurnView()
    return [shown for event in events for shown in view.process(event)]


THINKING = ThinkingBlock("Hmm, let me see.", "sig")
TEXT = TextBlock("Let me add.")
CALL = ToolUseBlock("tu_1", "add", {"a": 1}, raw_arguments='{"a" : 1}')
ODD = OpaqueBlock("web_search", ProviderRaw("s", {"q": "x"}))


def test_every_segment_has_a_start_and_an_end_with_its_complete_value() -> None:
    """The segments are thinking, text, a tool call and an unknown block, in order."""
    shown = viewed(message("msg_1", THINKING, TEXT, TextBlock("More."), CALL, ODD, cut=100))
    assert shown == [
        MessageStart("msg_1", "m", "s", (CallWarning("odd", "It is odd."),)),
        ThinkingStart("msg_1:0", "msg_1", 0),
        ThinkingDelta("Hmm, let me see.", None, 0, "msg_1"),
        ThinkingDelta("", "sig", 0, "msg_1"),
        ThinkingEnd("msg_1:0", "Hmm, let me see.", "sig", "msg_1", 0),
        TextStart("msg_1:1", "msg_1", 1),
        TextDelta("Let me add.", 1, "msg_1"),
        TextEnd("msg_1:1", "Let me add.", "msg_1", 1),
        TextStart("msg_1:2", "msg_1", 2),
        TextDelta("More.", 2, "msg_1"),
        TextEnd("msg_1:2", "More.", "msg_1", 2),
        ToolUseStart("tu_1", "add", 3, "msg_1"),
        ToolUseInputDelta("tu_1", '{"a" : 1}', 3, "msg_1"),
        ToolUseEnd("tu_1", {"a": 1}, False, 3, "msg_1"),
        ProviderEvent("web_search", {"q": "x"}, "msg_1", 4),
        shown[-1],
    ]
    assert isinstance(shown[-1], MessageComplete)
    deltas = [event.segment_id for event in shown if isinstance(event, TextDelta | ThinkingDelta)]
    assert deltas == ["msg_1:0", "msg_1:0", "msg_1:1", "msg_1:2"]


def two_steps() -> list[TurnEvent]:
    return [
        *message("msg_1", TEXT, CALL),
        StepFinish(0, StopReason.TOOL_USE, USAGE, COST, "msg_1"),
        ToolStarted(tool_use_id="tu_1", tool_name="add"),
        ToolFinished(tool_use_id="tu_1", tool_name="add", is_error=False, latency_ms=1),
        *message("msg_2", TextBlock("It is 1.")),
        StepFinish(1, StopReason.END_TURN, USAGE, COST, "msg_2"),
        TurnComplete("completed"),
    ]


def test_the_last_event_has_the_sums_and_the_last_response() -> None:
    """The usage and the cost are of all steps. The stop reason and the response are of the last message."""
    last = viewed(two_steps())[-1]
    assert (last.stop_reason, last.status) == (StopReason.END_TURN, "completed")
    assert (last.usage, last.cost) == (TokenUsage(20, 10), Cost(14, CostSource.COMPUTED))
    assert (last.response.text, last.response.model, last.response.raw_stop_reason) == ("It is 1.", "s:m", "stop")


@pytest.mark.parametrize(("status", "error"), [("failed", CallboardError), ("cancelled", CancelledError)])
def test_a_turn_that_did_not_complete_ends_in_an_error(status: str, error: type[Exception]) -> None:
    """The open segment ends first. The error has the text of the turn's last event."""
    partial = MessageComplete((TextBlock("Le"),), StopReason.ERROR, None, USAGE, "msg_1")
    shown = viewed([*message("msg_1", TEXT)[:2], partial, TurnComplete(status, "ServerError: no")])
    assert [event.type for event in shown[2:]] == ["text.delta", "text.end", "message.complete", "error"]
    last = shown[-1]
    assert isinstance(last, StreamFailed)
    assert type(last.error) is error
    assert "ServerError: no" in str(last.error)


def joined(events: Sequence[ViewEvent]) -> list[object]:
    """The events, with the deltas of each segment joined, and without pieces of arguments, which a fold can
    remove.
    """
    found: list[object] = []
    for event in events:
        before = found[-1] if found else None
        if isinstance(event, TextDelta) and isinstance(before, TextDelta):
            found[-1] = TextDelta(before.text + event.text, event.content_block_index, event.message_id)
        elif isinstance(event, ThinkingDelta) and isinstance(before, ThinkingDelta):
            found[-1] = ThinkingDelta(
                before.text + event.text, event.signature, event.content_block_index, event.message_id
            )
        elif not isinstance(event, ToolUseInputDelta):
            found.append(event)
    return found


@settings(max_examples=150)
@given(st.data())
def test_a_slow_reader_sees_every_event_once(data: st.DataObject) -> None:
    events = two_steps()
    first = data.draw(st.integers(0, len(events)), "read")
    folded = data.draw(st.integers(first, len(events)), "folded")
    reset = StreamReset(fold(events[:folded]), folded)
    shown = viewed([*events[:first], reset, *events[folded:]])  # type: ignore[list-item]
    assert joined(shown) == joined(viewed(events))


@settings(max_examples=100)
@given(st.data())
def test_pieces_of_arguments_are_never_repeated_or_wrong(data: st.DataObject) -> None:
    """The pieces are a prefix of the provider's text. Without a loss they are the complete text."""
    events = message("msg_1", CALL, cut=1)
    first = data.draw(st.integers(0, len(events)), "read")
    folded = data.draw(st.integers(first, len(events)), "folded")
    reset = StreamReset(fold(events[:folded]), folded)
    shown = viewed([*events[:first], reset, *events[folded:]])  # type: ignore[list-item]
    given_text = "".join(event.partial_json for event in shown if isinstance(event, ToolUseInputDelta))
    assert CALL.raw_arguments.startswith(given_text)
    if folded < len(events) or first == 0:
        assert given_text == CALL.raw_arguments


def test_a_late_reader_of_a_folded_log_gets_every_block() -> None:
    """Each block has one delta between its start and its end."""
    shown = viewed([StreamReset(fold(two_steps()), len(two_steps()))])  # type: ignore[list-item]
    assert [event.type for event in shown] == [
        *("message.start", "text.start", "text.delta", "text.end"),
        *("tool.use_start", "tool.use_input_delta", "tool.use_end", "message.complete"),
        *("step.finish", "tool.started", "tool.finished"),
        *("message.start", "text.start", "text.delta", "text.end", "message.complete", "step.finish", "finish"),
    ]


TOLD = ProviderEvent("searching", {"n": 1}, "msg_1")


def test_a_provider_event_does_not_end_a_segment() -> None:
    """The event keeps its place, and a folded log does not repeat it."""
    start, first, second, *rest = message("msg_1", TEXT)
    shown = viewed([start, first, TOLD, second, StreamReset((start, first, TOLD, second), 4), *rest])
    assert [event for event in shown if event is not TOLD] == viewed(message("msg_1", TEXT))
    assert shown.index(TOLD) == 3
    assert shown.count(TOLD) == 1


# The default engine of the functions. Seed 2, section 2.5 and row 8.1.


MODELS = """
adapters:
  s: {type: scripted, options: {replies: ["Hello"], repeat: true}}
models:
  s:m: {adapter: s, wire_name: m}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    (tmp_path / "models.yaml").write_text(MODELS)
    yield tmp_path
    set_default_engine(None)


@row("8.1.7")
def test_each_loop_has_its_own_engine_that_ends_with_it(home: Path) -> None:
    """Two runs use two engines. The engines close by themselves, and the trace has every call."""
    seen: list[Engine] = []

    async def ask() -> None:
        assert (await generate("s:m", "Hi")).text == "Hello"
        assert [piece async for piece in stream("s:m", "Hi").text_stream] == ["Hello"]
        assert default_engine() is default_engine()
        seen.append(default_engine())

    asyncio.run(ask())
    asyncio.run(ask())
    assert seen[0] is not seen[1]
    assert [engine.closed for engine in seen] == [True, True]

    async def rows() -> list[str]:
        async with TraceStore.open_readonly(home / "trace.db") as store:
            return [row.status for row in await store.calls()]

    assert asyncio.run(rows()) == ["completed"] * 4


def test_a_closed_default_engine_is_replaced() -> None:
    async def ask() -> None:
        await generate("s:m", "Hi")
        await default_engine().aclose()
        assert (await generate("s:m", "Hi")).text == "Hello"

    asyncio.run(ask())


@row("8.1.7")
def test_a_host_sets_the_engine() -> None:
    """8.1: All functions use that engine until it is unset. In another loop the engine is refused."""
    set_default_engine(Engine(models=registry(Say("mine")), trace=False))

    async def ask() -> str:
        return (await generate("s:m", "Hi")).text

    assert asyncio.run(ask()) == "mine"
    with pytest.raises(WrongLoop, match="Create one engine for each"):
        asyncio.run(ask())
    set_default_engine(None)
    assert asyncio.run(ask()) == "Hello"


def test_stream_without_a_loop_is_refused_with_the_sync_function() -> None:
    with pytest.raises(CallboardError, match=r"stream_sync\(\)"):
        stream("s:m", "Hi")


@row("8.1.5")
def test_a_key_that_is_missing_is_named(home: Path) -> None:
    """8.1: ConfigurationError names the variable to set."""
    (home / "models.yaml").unlink()

    async def ask() -> None:
        await generate("anthropic:claude-haiku-4-5", "Hi")

    with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY, which is not set"):
        asyncio.run(ask())
