"""`StreamAccumulator`: from any stream's events to a response. Seed 2, section 4.4; over recorded replies."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from callboard.adapters import CanonicalResponse, Message, Role, StopReason, StreamEvent, TextBlock
from callboard.adapters.replies.whole import whole_events
from callboard.bus import CallboardError, StreamReset
from callboard.bus.streams.events import MessageComplete, MessageStart, ProviderBlock, TextDelta, ThinkingDelta, ToolUseStart
from callboard.bus.streams.fold import fold
from callboard.bus.values.content import OpaqueBlock, ProviderRaw, RedactedThinkingBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.usage import TokenUsage
from cassettes.record import CONVERSATIONS, FOLDER, replaying_adapter
from callboard.engine import StreamAccumulator

from ...support.virtual_time import runs_on

anyio_backend = runs_on("virtual-asyncio")


def accumulated(events: Sequence[StreamEvent]) -> StreamAccumulator:
    accumulator = StreamAccumulator()
    for event in events:
        accumulator.process(event)
    return accumulator


@pytest.mark.anyio
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_recorded_streams_add_up_to_their_responses(name: str) -> None:
    """With every event, and from the deltas alone; before the end, to what had come."""
    _, options, talk = CONVERSATIONS[name]
    adapter, _ = replaying_adapter(FOLDER / f"{name}.json", options)
    replies = await talk(adapter)
    await adapter.close()
    assert replies.events
    for step, events in replies.events.items():
        whole = replies[step]
        assert isinstance(whole, CanonicalResponse)
        mine = accumulated(events).response()
        for field in ("provider", "content", "stop_reason", "raw_stop_reason", "usage"):
            assert getattr(mine, field) == getattr(whole, field), (step, field)
        for end in range(1, len(events)):
            part = accumulated(events[:end]).response()
            assert part.stop_reason is StopReason.CANCELLED
            assert whole.text.startswith(part.text)
        assert part.text == whole.text
        assert [call.input for call in part.tool_uses] == [call.input for call in whole.tool_uses]


CONTENT = (
    ThinkingBlock("Hmm.", "sig"),
    TextBlock("One"),
    TextBlock("Two"),
    ToolUseBlock("tu_1", "add", {"a": 1}, raw_arguments='{"a": 1}'),
    OpaqueBlock("web_search", ProviderRaw("", {"q": "x"})),
)


def reply() -> list[StreamEvent]:
    response = CanonicalResponse(
        request_id="req_1",
        model="s:m",
        provider="s",
        content=CONTENT,
        stop_reason=StopReason.END_TURN,
        usage=TokenUsage(10, 5),
    )
    return whole_events(response, "msg_1")


def test_blocks_of_one_kind_stay_apart() -> None:
    """Two texts in a row are two blocks; a signature, a call and an unknown block are kept."""
    content = accumulated(reply()[:-1]).content
    assert Message(Role.ASSISTANT, content).text == "OneTwo"
    assert [type(block) for block in content] == [type(block) for block in CONTENT]
    assert content[0] == CONTENT[0]
    assert content[4] == CONTENT[4]


def test_what_is_cut_off_says_how_to_end_it() -> None:
    """An open call is marked and never complete; a message that has not begun, or has ended, needs nothing."""
    events = reply()
    place = next(place for place, event in enumerate(events) if isinstance(event, ToolUseStart))
    cut = accumulated(events[: place + 2])
    ends = cut.closing_events(StopReason.CANCELLED, TokenUsage())
    assert [event.type for event in ends] == ["tool.use_end", "message.complete"]
    assert isinstance(last := ends[-1], MessageComplete)
    assert [block.incomplete for block in last.final_content if isinstance(block, ToolUseBlock)] == [True]
    assert accumulated(events).closing_events(StopReason.CANCELLED, TokenUsage()) == []
    assert StreamAccumulator().closing_events(StopReason.CANCELLED, TokenUsage()) == []


def test_the_last_of_several_messages_counts() -> None:
    """And a reset begins with what it says."""
    second = [
        MessageStart("msg_2", "m", "s"),
        ThinkingDelta("Hm", None, 0, "msg_2"),
        TextDelta("More", 1, "msg_2"),
    ]
    both: list[StreamEvent] = [*reply(), *second]
    assert accumulated(both).response().text == "More"
    late = StreamAccumulator()
    late.process(MessageStart("msg_0"))
    late.process(StreamReset(fold(both), len(both)))  # type: ignore[arg-type]
    assert late.response() == accumulated(both).response()


def test_before_the_first_event_there_is_no_response() -> None:
    """The error says so."""
    with pytest.raises(CallboardError, match="no message has begun"):
        StreamAccumulator().response()


def test_redacted_thinking_of_a_whole_reply_reaches_readers_as_it_came() -> None:
    """A reply that was not streamed shows its readers the same block as a streamed one."""
    response = CanonicalResponse(
        request_id="r",
        model="a:m",
        provider="a",
        content=(RedactedThinkingBlock("c2VjcmV0"),),
        stop_reason=StopReason.END_TURN,
        usage=TokenUsage(),
    )
    assert whole_events(response, "msg")[1] == ProviderBlock("redacted_thinking", "c2VjcmV0", 0, "msg")
