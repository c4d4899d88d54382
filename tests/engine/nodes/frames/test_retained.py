"""What kept frames tell the node that takes a session over."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import (
    Message,
    MessageComplete,
    MessageStart,
    Role,
    StopReason,
    StreamLog,
    TextBlock,
    TextDelta,
    ThinkingDelta,
    TokenUsage,
    ToolUseInputDelta,
    ToolUseStart,
    TurnComplete,
    TurnEvent,
    UserMessage,
)
from callboard.bus.values.content import ThinkingBlock, ToolUseBlock
from callboard.engine.nodes.frames.retained import retained
from callboard.engine.nodes.frames.sender import Framer
from callboard.engine.nodes.frames.wire import Ending, Frame
from callboard.engine.sessions.handover import in_its_first_turn
from callboard.tracestore import SavedSession
from callboard.tracestore.rows import NOTHING_SAID

HI = Message(Role.USER, "Hi", id="msg_hi")
END = TurnComplete("completed")


def complete(text: str) -> MessageComplete:
    return MessageComplete((TextBlock(text),), StopReason.END_TURN, "stop", TokenUsage(3, 2), "msg_re")


def frames(
    *events: TurnEvent,
    stream_id: str = "trn_1",
    epoch: int = 1,
    history: int = 0,
    said: tuple[Message, ...] = (HI,),
    appended: tuple[Message, ...] = (),
) -> list[Frame]:
    """The frames of a turn, one for each event."""
    log: StreamLog[TurnEvent] = StreamLog(stream_id)
    framer = Framer(log, "ses", "owner", 4096)
    framer.epoch = epoch
    framer.begin(history, said)
    made = list(framer.frames())
    for event in events:
        log.append(event)
        made += framer.frames()
    for place, message in enumerate(appended):
        framer.append(history + place, message)
    return [*made, *framer.frames()]


def test_a_turn_that_was_over_tells_its_messages() -> None:
    """Those that no store has are taken over; nothing is left to end."""
    reply = Message(Role.ASSISTANT, "Hello", id="msg_re")
    kept = retained(frames(MessageStart("msg_re"), complete("Hello"), END, history=4, appended=(HI, reply)))
    assert kept.beyond(4) == (HI, reply)
    assert kept.beyond(5) == (reply,)
    assert kept.beyond(6) == kept.beyond(3) == ()
    assert kept.unfinished is None


def test_of_a_turn_under_way_the_delivered_text_is_left() -> None:
    """With what was asked; its usage is partial, and its cost unknown."""
    kept = retained(
        frames(MessageStart("msg_re", "m", "p"), TextDelta("Hel", 0, "msg_re"), TextDelta("lo", 0, "msg_re"))
    )
    turn = kept.unfinished
    assert turn is not None
    assert (turn.node, turn.epoch, turn.history) == ("owner", 1, 0)
    said, reply = turn.left
    assert said == HI
    assert (reply.id, reply.content) == ("msg_re", (TextBlock("Hello"),))
    assert reply.metadata is not None
    assert (reply.metadata.model, reply.metadata.stop_reason) == ("p:m", StopReason.ERROR)
    assert reply.metadata.usage.source == "partial"
    assert reply.metadata.usage.output_tokens > 0
    assert reply.metadata.cost.nano_usd is None


def test_of_thinking_and_arguments_what_had_come_is_left() -> None:
    """A call that was cut off must not be run."""
    kept = retained(
        frames(
            MessageStart("msg_re"),
            ThinkingDelta("hm", None, 0, "msg_re"),
            ToolUseStart("tu", "sum", 1, "msg_re"),
            ToolUseInputDelta("tu", '{"a"', 1, "msg_re"),
        )
    )
    assert kept.unfinished is not None
    _, reply = kept.unfinished.left
    assert reply.content == (ThinkingBlock("hm"), ToolUseBlock("tu", "sum", {}, incomplete=True))


@pytest.mark.parametrize("events", [(), (MessageStart("msg_re"),)])
def test_a_turn_that_had_said_nothing_leaves_nothing(events: tuple[TurnEvent, ...]) -> None:
    """As with any turn that fails before the first content."""
    kept = retained(frames(*events))
    assert kept.unfinished is not None
    assert kept.unfinished.left == ()


def test_a_reply_that_was_whole_and_not_in_the_history_is_whole() -> None:
    """Its node died between the two."""
    kept = retained(frames(MessageStart("msg_re", "m", "p"), TextDelta("Hello", 0, "msg_re"), complete("Hello")))
    assert kept.unfinished is not None
    _, reply = kept.unfinished.left
    assert reply.metadata is not None
    assert (reply.metadata.stop_reason, reply.metadata.usage) == (StopReason.END_TURN, TokenUsage(3, 2))


def test_what_is_in_the_history_is_not_left_once_more() -> None:
    """Its node died between the reply and the end of the turn."""
    reply = Message(Role.ASSISTANT, "Hello", id="msg_re")
    kept = retained(frames(MessageStart("msg_re"), complete("Hello"), appended=(HI, reply)))
    assert kept.unfinished is not None
    assert kept.unfinished.left == ()
    assert kept.beyond(0) == (HI, reply)


def test_what_steered_the_turn_is_left_with_the_reply_that_knew_it() -> None:
    """In the order in which it was said."""
    first = Message(Role.ASSISTANT, "Well", id="msg_1")
    events = [
        MessageStart("msg_1"),
        MessageComplete((TextBlock("Well"),), StopReason.END_TURN, None, TokenUsage(), "msg_1"),
        UserMessage((TextBlock("shorter"),), "msg_steer"),
        MessageStart("msg_2"),
        TextDelta("Ok", 0, "msg_2"),
    ]
    kept = retained(frames(*events, appended=(HI, first)))
    assert kept.unfinished is not None
    assert [one.id for one in kept.unfinished.left] == ["msg_steer", "msg_2"]
    assert kept.unfinished.left[0].steers


def test_an_ending_that_a_reader_s_node_has_said_leaves_what_was_delivered() -> None:
    """Whoever takes the session over has still to keep it; what the old node says after it is not heard."""
    gone = Frame("trn_1", "ses", "reader", 1, 0, 0, ending=Ending("outcome_unknown", None, 1))
    *before, after = frames(MessageStart("msg_re"), TextDelta("a", 0, "msg_re"), TextDelta("zombie", 0, "msg_re"))
    turn = retained([*before, gone, after]).unfinished
    assert turn is not None
    assert (turn.status, turn.finished, turn.node) == ("outcome_unknown", False, "owner")
    assert [one.content for one in turn.left] == [HI.content, (TextBlock("a"),)]


def test_what_a_woken_host_adds_is_no_part_of_the_history() -> None:
    """The next epoch has gone on from before it."""
    zombie = Message(Role.ASSISTANT, "zombie", id="msg_z")
    ours = Message(Role.ASSISTANT, "ours", id="msg_o")
    late = frames(END, stream_id="trn_1", epoch=1, history=2, appended=(HI, zombie, zombie, zombie))
    new = frames(END, stream_id="trn_2", epoch=2, history=3, appended=(ours,))
    assert retained([*new, *late]).messages == {2: HI, 3: ours}


def test_without_its_beginning_a_turn_tells_what_is_there() -> None:
    """The broker keeps frames for a while only."""
    kept = retained(frames(MessageStart("msg_re"), TextDelta("a", 0, "msg_re"))[1:])
    assert kept.unfinished is not None
    assert kept.unfinished.history is None
    assert [one.id for one in kept.unfinished.left] == ["msg_re"]


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_order_of_frames_does_not_matter(seed: int) -> None:
    """Nor does a frame that comes twice."""
    texts: list[TurnEvent] = [TextDelta(str(number), 0, "msg_re") for number in range(9)]
    first = frames(END, stream_id="trn_0", history=0, appended=(HI, HI))
    second = frames(MessageStart("msg_re"), *texts, history=2)
    shuffled = [*first, *second, *second]
    Random(seed).shuffle(shuffled)
    assert retained(shuffled) == retained([*first, *second])


def test_what_a_first_turn_said_is_not_missing_when_frames_have_it() -> None:
    """The store knows of the call, and of nothing that was said; anything else that is missing stays so."""
    begun = retained(frames(MessageStart("msg_re"), TextDelta("a", 0, "msg_re")))
    saved = SavedSession(
        session_id="ses", setup=None, withheld=None, tags={}, name=None, messages=(), missing=(NOTHING_SAID,)
    )
    assert in_its_first_turn(saved, begun).missing == ()
    assert in_its_first_turn(saved, retained([])).missing == (NOTHING_SAID,)
    later = retained(frames(TextDelta("a", 0, "msg_re"), history=2))
    assert in_its_first_turn(saved, later).missing == (NOTHING_SAID,)


@pytest.mark.parametrize("first_frames_first", [True, False])
def test_turns_of_one_millisecond_are_in_the_order_of_their_histories(first_frames_first: bool) -> None:
    """The random part of a stream's id says nothing of the order."""
    begun = "trn_01HZZZZZZZ"
    reply = Message(Role.ASSISTANT, "Hello", id="msg_re")
    one = frames(END, stream_id=begun + "Z" * 16, history=0, appended=(HI, reply))
    two = frames(MessageStart("msg_2"), stream_id=begun + "0" * 16, history=2)
    kept = retained([*one, *two] if first_frames_first else [*two, *one])
    assert [turn.history for turn in kept.turns] == [0, 2]
    assert kept.unfinished is kept.turns[1]
