"""Who attaches late gets what was said as events, also when the stream's log was folded meanwhile."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import ToolDefinition
from callboard.adapters.replies.whole import spelled_out
from callboard.bus import (
    MessageComplete,
    MessageStart,
    StopReason,
    StreamLog,
    StreamReset,
    TextBlock,
    TextDelta,
    TokenUsage,
    TurnComplete,
    TurnEvent,
)
from callboard.engine import Engine, Limits, Session, Tool
from tests.support.engines import registry
from tests.support.scripted import Say
from tests.support.virtual_time import run_virtual, runs_on

pytestmark = pytest.mark.anyio

FOLDED_AT_ONCE = Limits(retain_streams_seconds=0)
A_TEXT = ["message.start", "text.delta", "message.complete", "step.finish"]
A_CALL = [
    "message.start",
    "text.delta",
    "tool.use_start",
    "tool.use_input_delta",
    "tool.use_end",
    "message.complete",
]

anyio_backend = runs_on("asyncio")


def folding(*replies: Say) -> Engine:
    """An engine that folds each stream as soon as it is over."""
    return Engine(models=registry(*replies), trace=False, limits=FOLDED_AT_ONCE)


async def over(session: Session) -> str:
    """The id of a stream whose turn is over, and whose log is folded."""
    async with session.stream("Hi") as turn:
        await turn.message()
        turn.detach()
    return turn.stream_id


async def test_a_folded_turn_is_read_as_events() -> None:
    """The text in one piece, and the end."""
    async with folding(Say("Hel", "lo")) as engine:
        late = [event async for event in engine.attach(await over(engine.session("s:m")))]
    assert [event.type for event in late] == [*A_TEXT, "turn.complete"]
    assert [event.text for event in late if isinstance(event, TextDelta)] == ["Hello"]


async def test_a_folded_turn_with_tools_is_read_in_its_order() -> None:
    """Message, tool call, what the tool did, and the next message."""
    tool = Tool(ToolDefinition("sum"), lambda arguments: "3")
    async with folding(Say("I add.", calls=[("sum", {"a": 1})]), Say("Th", "ree")) as engine:
        late = [event async for event in engine.attach(await over(engine.session("s:m", tools=[tool])))]
    types = [event.type for event in late if not event.type.startswith("tool.execution")]
    of_tools = types.index("step.finish")
    assert types[: len(A_CALL)] == A_CALL
    assert types[of_tools + 1 :] == [*A_TEXT, "turn.complete"]
    assert [event.text for event in late if isinstance(event, TextDelta)] == ["I add.", "Three"]


async def test_attaching_late_and_a_late_reader_of_a_reply_give_the_same_text() -> None:
    """A stream without a session has both."""
    async with folding(Say("Hel", "lo")) as engine:
        async with engine.stream("s:m", "Hi") as reply:
            await reply.response()
            viewed = [event.text async for event in reply.reader() if isinstance(event, TextDelta)]
            attached = [e.text async for e in engine.attach(reply.stream_id) if isinstance(e, TextDelta)]
    assert (viewed, attached) == (["Hello"], ["Hello"])


async def test_who_first_reads_a_turn_when_it_is_folded_gets_its_events() -> None:
    """The turn's own iterator is as good as one that attaches."""
    async with folding(Say("Hel", "lo")) as engine, engine.session("s:m").stream("Hi") as turn:
        await turn.message()
        await anyio.wait_all_tasks_blocked()
        assert [event.type async for event in turn] == [*A_TEXT, "turn.complete"]


async def test_who_goes_on_in_a_folded_part_is_told_to_begin_anew() -> None:
    """What was read can't be told apart from what is missing; the reset has all of it."""
    async with folding(Say("Hel", "lo")) as engine:
        stream_id = await over(engine.session("s:m"))
        whole = engine.attach(stream_id)
        seqs = [whole.seq async for _ in whole]
        for seq in seqs[:-1]:
            (reset,) = [event async for event in engine.attach(stream_id, from_seq=seq + 1)]
            assert isinstance(reset, StreamReset)
        assert [event async for event in engine.attach(stream_id, from_seq=seqs[-1] + 1)] == []


@given(
    texts=st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=8),
    cut=st.integers(0, 12),
    whole=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_a_reader_from_the_start_gets_every_text_once(texts: list[str], cut: int, whole: bool) -> None:
    """Wherever the fold ends, and whether or not the stream went on after it."""
    complete = MessageComplete((TextBlock("".join(texts)),), StopReason.END_TURN, "end", TokenUsage(), "m")
    deltas = [TextDelta(text, 0, "m") for text in texts]
    events = [MessageStart("m", "model", "p"), *deltas, complete, TurnComplete("completed")]
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend(events[:cut])
    log.fold()
    log.extend(events[cut:])
    log.close()
    if whole:
        log.fold()

    async def read() -> list[tuple[int, TurnEvent | StreamReset[TurnEvent]]]:
        reader = log.reader(unfold=spelled_out)
        return [(reader.seq, event) async for event in reader]

    found = run_virtual(read)
    seqs = [seq for seq, _ in found]
    assert "".join(event.text for _, event in found if isinstance(event, TextDelta)) == "".join(texts)
    assert [event for _, event in found if not isinstance(event, TextDelta)] == [events[0], *events[-2:]]
    assert (seqs, seqs[-1]) == (sorted(seqs), len(events) - 1)
