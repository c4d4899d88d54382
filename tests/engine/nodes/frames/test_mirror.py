"""A mirror always has the first events of the log, despite all faults of the broker, and ends once."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
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
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    TurnComplete,
    TurnEvent,
    UserMessage,
)
from callboard.bus.events import UnknownEvent
from callboard.bus.values.content import ThinkingBlock, ToolUseBlock
from callboard.engine.nodes.frame_sender import Framer
from callboard.engine.nodes.frames import (
    Assembly,
    Ending,
    Frame,
    Packed,
    Texts,
    UnreadableFrame,
    Whole,
    chunks,
    count_of,
    packets,
    read_packet,
    unpacked,
)
from callboard.engine.nodes.mirror import MOST_HELD, Mirror
from callboard.engine.nodes.retained_turns import in_its_first_turn, retained_turns
from callboard.tracestore import SavedSession
from callboard.tracestore.rows import NOTHING_SAID

from ....support.present import present
from .events import LOGS, raws, without_raws

END = TurnComplete("completed")


def left_of(*events: TurnEvent, **about: Any) -> tuple[Message, ...]:
    """The messages that remain of an unfinished turn with these frames."""
    return present(retained_turns(frames(*events, **about)).unfinished).unanswered


def new_mirror() -> Mirror:
    return Mirror(StreamLog("s"))


def mirror_of(events: list[TurnEvent]) -> Mirror:
    """A mirror that has received the frames of these events."""
    mirror = new_mirror()
    for frame in framed(events):
        mirror.receive(frame)
    return mirror


def framed(events: list[TurnEvent], *, each: int = 3, most_bytes: int = 200, epoch: int = 0) -> list[Frame]:
    """The frames of a log, with up to `each` events in a frame."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    framer = Framer(log, "", "n", most_bytes)
    framer.epoch = epoch
    frames: list[Frame] = []
    for start in range(0, len(events), each):
        log.extend(events[start : start + each])
        frames += framer.frames()
    return frames


def ends(mirror: Mirror) -> int:
    return sum(isinstance(event, TurnComplete) for event in mirror.log.since(0))


@given(
    events=LOGS.map(lambda log: [event for event in log if not isinstance(event, TurnComplete)]),
    each=st.integers(1, 7),
    seed=st.integers(0, 2**32),
    lost=st.floats(0, 0.6),
)
@settings(max_examples=300, deadline=None)
def test_a_mirror_is_a_prefix_of_its_log_first(events: list[TurnEvent], each: int, seed: int, lost: float) -> None:
    events = [*events, END]
    random = Random(seed)
    frames = [frame for frame in framed(events, each=each) if random.random() >= lost]
    frames += [frame for frame in frames if random.random() < 0.3]
    random.shuffle(frames)
    mirror = new_mirror()
    for frame in frames:
        mirror.receive(frame)
        assert without_raws(mirror.log.since(0)) == without_raws(events[: mirror.next_seq])
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend(events)
    answers = list(Framer(log, "", "n", 64).since(mirror.next_seq))  # These frames have other boundaries.
    random.shuffle(answers)
    assert mirror.over == (mirror.next_seq == len(events))
    for frame in answers:
        mirror.receive(frame)
    assert without_raws(mirror.log.since(0)) == without_raws(events)
    assert (mirror.over, mirror.behind, ends(mirror)) == (True, False, 1)


def test_frames_in_order_are_not_held() -> None:
    """A repeated frame has no effect and does not show that the owner is alive."""
    mirror = new_mirror()
    for frame in framed([MessageStart("m"), *(TextDelta(str(n), 0, "m") for n in range(50))]):
        assert mirror.receive(frame)
        assert not mirror.behind
        assert not mirror.receive(frame)
    assert mirror._early_frames == {}


def test_the_number_of_held_frames_is_limited() -> None:
    mirror = new_mirror()
    frames = framed([TextDelta(str(n)) for n in range(2 * MOST_HELD)], each=1)
    for frame in reversed(frames[1:]):
        mirror.receive(frame)
    assert len(mirror._early_frames) == MOST_HELD
    mirror.receive(frames[0])
    assert mirror.next_seq == MOST_HELD
    assert mirror.behind


def test_frames_of_an_older_epoch_are_ignored() -> None:
    """A suspended host can continue to send after it wakes up."""
    mirror = new_mirror()
    old, new = framed([TextDelta("old")], epoch=1), framed([TextDelta("new")], epoch=2)
    mirror.receive(new[0])
    later = msgspec.structs.replace(old[0], first_seq=1, next_seq=2)
    assert not mirror.receive(later)
    assert mirror.log.since(0) == [TextDelta("new")]


def test_held_frames_of_an_older_epoch_are_dropped() -> None:
    mirror = new_mirror()
    old = framed([TextDelta("1"), TextDelta("2"), TextDelta("3")], each=1, epoch=1)
    mirror.receive(old[2])
    for frame in framed([TextDelta("a"), TextDelta("b")], each=1, epoch=2):
        mirror.receive(frame)
    assert mirror.log.since(0) == [TextDelta("a"), TextDelta("b")]


def test_an_ending_completes_the_message_with_the_text_so_far() -> None:
    mirror = mirror_of([MessageStart("m", "model", "p"), TextDelta("Hel", 0, "m"), TextDelta("lo", 0, "m")])
    mirror.receive(Frame("s", "", "taker", 2, 0, 0, ending=Ending("outcome_unknown", "gone", 2)))
    *_, complete, end = mirror.log.since(0)
    assert isinstance(complete, MessageComplete)
    assert complete.final_content == (TextBlock("Hello"),)
    assert complete.stop_reason is StopReason.ERROR
    assert end == TurnComplete("outcome_unknown", "gone")
    assert mirror.over


def test_an_ending_within_arguments_marks_the_call_as_incomplete() -> None:
    """An incomplete call must never run."""
    mirror = new_mirror()
    start: list[TurnEvent] = [MessageStart("m"), ToolUseStart("tu", "sum", 0, "m")]
    for frame in framed([*start, ToolUseInputDelta("tu", '{"a"', 0, "m")]):
        mirror.receive(frame)
    mirror.end(Ending("outcome_unknown"))
    assert ToolUseEnd("tu", {}, True, 0, "m") in mirror.log.since(0)
    assert ends(mirror) == 1


def test_an_ending_between_messages_adds_no_message() -> None:
    mirror = new_mirror()
    complete = MessageComplete((), StopReason.END_TURN, None, TokenUsage(), "m")
    for frame in framed([MessageStart("m"), complete]):
        mirror.receive(frame)
    mirror.end(Ending("outcome_unknown"))
    assert [event.type for event in mirror.log.since(0)] == ["message.start", "message.complete", "turn.complete"]


def test_after_its_end_a_mirror_ignores_everything() -> None:
    """Frames of the old owner, a second ending and the store are ignored."""
    mirror = new_mirror()
    frames = framed([TextDelta("a"), END])
    mirror.end(Ending("outcome_unknown"))
    for frame in frames:
        assert not mirror.receive(frame)
    mirror.end(Ending("failed"))
    mirror.complete([TextDelta("b"), END])
    assert mirror.log.since(0) == [TurnComplete("outcome_unknown")]


def test_a_snapshot_closes_a_gap_of_folded_events() -> None:
    """The owner has folded the events. Its later events follow the snapshot."""
    mirror = new_mirror()
    events: list[TurnEvent] = [MessageStart("m"), *(TextDelta(str(n), 0, "m") for n in range(9))]
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend(events)
    framer = Framer(log, "", "n", 4096)
    for frame in framed(events[:4]):
        mirror.receive(frame)
    log.fold()
    log.extend([TextDelta("!", 0, "m"), END])
    for frame in framer.since(mirror.next_seq):
        mirror.receive(frame)
    assert mirror.log.snapshot == (MessageStart("m"), TextDelta("012345678", 0, "m"))
    assert mirror.log.since(0) == [TextDelta("!", 0, "m"), END]
    assert mirror.over


def test_the_mirror_of_a_completely_folded_log_has_its_end() -> None:
    mirror = new_mirror()
    log: StreamLog[TurnEvent] = StreamLog("s")
    log.extend([TextDelta("a"), END])
    log.close()
    log.fold()
    for frame in Framer(log, "", "n", 4096).since(0):
        mirror.receive(frame)
    assert (mirror.over, mirror.log.snapshot[-1]) == (True, END)


def test_a_frame_with_wrong_counts_is_a_gap() -> None:
    mirror = new_mirror()
    assert not mirror.receive(Frame("s", "", "n", 0, 0, 2, (Texts(b"abc", [1, 1], 0, "m"),)))
    assert (mirror.next_seq, mirror.behind) == (0, True)


def test_stored_events_replace_a_partial_mirror() -> None:
    mirror = mirror_of([MessageStart("m"), TextDelta("He", 0, "m")])
    complete = MessageComplete((TextBlock("Hello"),), StopReason.END_TURN, None, TokenUsage(), "m")
    mirror.complete([MessageStart("m"), TextDelta("Hello", 0, "m"), complete, END])
    assert mirror.log.first_seq == 3
    assert mirror.log.snapshot == (MessageStart("m"), complete)
    assert (mirror.log.since(0), mirror.over) == ([END], True)


def test_the_beginning_and_the_messages_are_sent_once() -> None:
    """The beginning is sent even without events. `again` sends everything a second time."""
    log: StreamLog[TurnEvent] = StreamLog("s")
    framer = Framer(log, "ses", "n", 4096)
    framer.begin(2, [Message.user("Hi")])
    (first,) = framer.frames()
    assert (first.beginning.history, first.first_seq, first.next_seq) == (2, 0, 0)
    log.append(TextDelta("a"))
    framer.append(2, Message.user("Hi"))
    (second,) = framer.frames()
    assert (second.beginning, len(second.appended), second.next_seq) == (None, 1, 1)
    assert list(framer.frames()) == []
    framer.again()
    (all_of_it,) = framer.frames()
    assert (all_of_it.beginning, all_of_it.appended) == (first.beginning, second.appended)
    assert (all_of_it.first_seq, all_of_it.next_seq) == (0, 1)


# Events keep their value and their number in frames.


def carried(events: list[TurnEvent], most_bytes: int = 4096, packet: int = 1 << 20) -> list[object]:
    """The events of a log's frames after they are sent and received."""
    came: list[object] = []
    seq = 0
    for entries, count in chunks(events, most_bytes):
        frame = Frame("s", "", "n", 0, seq, seq + count, entries)
        assembly = Assembly()
        *parts, last = [assembly.frame(payload) for payload in packets(frame, packet)]
        assert parts == [None] * len(parts)
        assert count_of(last.entries) == count == last.next_seq - last.first_seq
        came += unpacked(last.entries)
        seq += count
    return came


@given(events=LOGS, most_bytes=st.sampled_from([1, 64, 100, 4096]), packet=st.sampled_from([300, 1 << 20]))
@settings(max_examples=300, deadline=None)
def test_every_event_is_unchanged_by_frames(events: list[TurnEvent], most_bytes: int, packet: int) -> None:
    """The test draws any text, any limit of a frame, and any limit of a message."""
    came = carried(events, most_bytes, packet)
    assert without_raws(came) == without_raws(events)
    assert raws(came) == raws(events)


def test_deltas_of_a_block_are_one_entry() -> None:
    ((entries, count),) = chunks([TextDelta(f"{number} ", 0, "m") for number in range(100)], 4096)
    assert count == 100
    (entry,) = entries
    assert isinstance(entry, Texts)
    assert len(next(packets(Frame("s", "", "n", 0, 0, 100, entries), 1 << 20))) < len(entry.text) + 150


def test_a_chunk_is_limited_unless_one_event_is_larger() -> None:
    """A burst becomes several frames. A larger event has a frame of its own."""
    sizes = [
        [len(entry.text) for entry in entries if isinstance(entry, Texts)]
        for entries, _ in chunks([*(TextDelta("x" * 100) for _ in range(100)), TextDelta("y" * 9000)], 4096)
    ]
    assert all(sum(size) <= 4096 for size in sizes[:-1])
    assert sizes[-1] == [9000]


def test_an_unknown_event_keeps_its_place() -> None:
    (event,) = unpacked([Whole(Packed(b'{"type": "of.tomorrow", "x": 1}'))])
    assert isinstance(event, UnknownEvent)
    assert event.topic == "of.tomorrow"


def test_an_event_that_json_cannot_encode_keeps_its_place() -> None:
    (event,) = carried([ToolUseEnd("tu_1", {"a": object()})])  # type: ignore[dict-item]
    assert isinstance(event, UnknownEvent)
    assert event.topic == "tool.use_end"


def test_a_frame_of_a_later_version_is_unreadable() -> None:
    """The stream gets no error, and its reader asks the owner or the store."""
    with pytest.raises(UnreadableFrame):
        read_packet(msgspec.msgpack.encode([99, "s"]))
    with pytest.raises(UnreadableFrame):
        read_packet(b"\xc1")


def test_a_frame_with_fields_of_a_later_version_is_read() -> None:
    (packet,) = packets(Frame("s", "", "n", 0, 0, 0), 1 << 20)
    later = msgspec.msgpack.encode([*msgspec.msgpack.decode(packet), "new"])
    assert read_packet(later) == Frame("s", "", "n", 0, 0, 0)


@given(order=st.permutations(range(6)))
@settings(max_examples=50, deadline=None)
def test_parts_are_joined_in_any_order(order: list[int]) -> None:
    frame = Frame("s", "", "n", 0, 0, 1, (Texts(b"x" * 1000, [1000], 0, "m"),))
    parts = list(packets(frame, 256 + 180))
    assert len(parts) == 6
    assembly = Assembly()
    came = [assembly.frame(parts[index]) for index in [order[0], *order]]
    assert came[-1] == frame
    assert came[:-1] == [None] * 6


def test_frames_with_lost_parts_are_dropped() -> None:
    assembly = Assembly()
    for number in range(100):
        first, *_ = packets(Frame("s", "", "n", 0, number, number + 1, (Texts(b"x" * 999, [999], 0, "m"),)), 500)
        assert assembly.frame(first) is None
    assert len(assembly._parts) <= Assembly.MOST


# Retained frames, and the turns that a new owner of the session reads from them.

HI = Message(Role.USER, "Hi", id="msg_hi")


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


def test_a_completed_turn_has_its_messages() -> None:
    """The new owner takes over the messages that no store has. No turn is unfinished."""
    reply = Message(Role.ASSISTANT, "Hello", id="msg_re")
    kept = retained_turns(frames(MessageStart("msg_re"), complete("Hello"), END, history=4, appended=(HI, reply)))
    assert kept.beyond(4) == (HI, reply)
    assert kept.beyond(5) == (reply,)
    assert kept.beyond(6) == kept.beyond(3) == ()
    assert kept.unfinished is None


def test_an_unfinished_turn_leaves_its_delivered_text() -> None:
    """The prompt stays too. The usage is partial, and the cost is unknown."""
    told = MessageStart("msg_re", "m", "p"), TextDelta("Hel", 0, "msg_re"), TextDelta("lo", 0, "msg_re")
    turn = present(retained_turns(frames(*told)).unfinished)
    assert (turn.node, turn.epoch, turn.history) == ("owner", 1, 0)
    partial, reply = turn.unanswered
    assert partial == HI
    assert (reply.id, reply.content) == ("msg_re", (TextBlock("Hello"),))
    metadata = present(reply.metadata)
    assert (metadata.model, metadata.stop_reason) == ("p:m", StopReason.ERROR)
    assert (metadata.usage.source, metadata.cost.nano_usd) == ("partial", None)
    assert metadata.usage.output_tokens > 0


def test_an_unfinished_turn_leaves_its_thinking_and_arguments() -> None:
    """An incomplete call must not run. A turn without output leaves no message."""
    start, arguments = ToolUseStart("tu", "sum", 1, "msg_re"), ToolUseInputDelta("tu", '{"a"', 1, "msg_re")
    _, reply = left_of(MessageStart("msg_re"), ThinkingDelta("hm", None, 0, "msg_re"), start, arguments)
    assert reply.content == (ThinkingBlock("hm"), ToolUseBlock("tu", "sum", {}, incomplete=True))
    assert left_of() == left_of(MessageStart("msg_re")) == ()


def test_a_complete_reply_that_is_not_in_the_history_is_kept() -> None:
    """The node died before it added the reply to the history. A reply in the history is not repeated."""
    _, reply = left_of(MessageStart("msg_re", "m", "p"), TextDelta("Hello", 0, "msg_re"), complete("Hello"))
    metadata = present(reply.metadata)
    assert (metadata.stop_reason, metadata.usage) == (StopReason.END_TURN, TokenUsage(3, 2))
    stored = Message(Role.ASSISTANT, "Hello", id="msg_re")
    sent = frames(MessageStart("msg_re"), complete("Hello"), appended=(HI, stored))
    assert present(retained_turns(sent).unfinished).unanswered == ()
    assert retained_turns(sent).beyond(0) == (HI, stored)


def test_a_steering_message_is_kept_with_its_reply() -> None:
    first = Message(Role.ASSISTANT, "Well", id="msg_1")
    events = [
        MessageStart("msg_1"),
        MessageComplete((TextBlock("Well"),), StopReason.END_TURN, None, TokenUsage(), "msg_1"),
        UserMessage((TextBlock("shorter"),), "msg_steer"),
        MessageStart("msg_2"),
        TextDelta("Ok", 0, "msg_2"),
    ]
    kept = retained_turns(frames(*events, appended=(HI, first)))
    assert [one.id for one in kept.unfinished.unanswered] == ["msg_steer", "msg_2"]
    assert kept.unfinished.unanswered[0].steers


def test_an_ending_by_another_node_leaves_the_delivered_text() -> None:
    """The new owner must still store the messages. Later frames of the old owner are ignored."""
    gone = Frame("trn_1", "ses", "reader", 1, 0, 0, ending=Ending("outcome_unknown", None, 1))
    *before, after = frames(MessageStart("msg_re"), TextDelta("a", 0, "msg_re"), TextDelta("zombie", 0, "msg_re"))
    turn = retained_turns([*before, gone, after]).unfinished
    assert (turn.status, turn.finished, turn.node) == ("outcome_unknown", False, "owner")
    assert [one.content for one in turn.unanswered] == [HI.content, (TextBlock("a"),)]


def test_late_messages_of_an_older_epoch_are_not_in_the_history() -> None:
    """The next epoch started before those messages."""
    zombie = Message(Role.ASSISTANT, "zombie", id="msg_z")
    ours = Message(Role.ASSISTANT, "ours", id="msg_o")
    late = frames(END, stream_id="trn_1", epoch=1, history=2, appended=(HI, zombie, zombie, zombie))
    new = frames(END, stream_id="trn_2", epoch=2, history=3, appended=(ours,))
    assert retained_turns([*new, *late]).messages == {2: HI, 3: ours}


def test_a_turn_without_its_beginning_has_its_remaining_messages() -> None:
    kept = retained_turns(frames(MessageStart("msg_re"), TextDelta("a", 0, "msg_re"))[1:])
    assert kept.unfinished.history is None
    assert [one.id for one in kept.unfinished.unanswered] == ["msg_re"]


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_the_order_of_frames_does_not_matter(seed: int) -> None:
    texts: list[TurnEvent] = [TextDelta(str(number), 0, "msg_re") for number in range(9)]
    first = frames(END, stream_id="trn_0", history=0, appended=(HI, HI))
    second = frames(MessageStart("msg_re"), *texts, history=2)
    shuffled = [*first, *second, *second]
    Random(seed).shuffle(shuffled)
    assert retained_turns(shuffled) == retained_turns([*first, *second])


def test_messages_of_a_first_turn_in_frames_are_not_missing() -> None:
    """The store has the call but no message. Other missing parts stay missing."""
    first = retained_turns(frames(MessageStart("msg_re"), TextDelta("a", 0, "msg_re")))
    saved = SavedSession(
        session_id="ses", setup=None, withheld=None, tags={}, name=None, messages=(), missing=(NOTHING_SAID,)
    )
    assert in_its_first_turn(saved, first).missing == ()
    assert in_its_first_turn(saved, retained_turns([])).missing == (NOTHING_SAID,)
    later = retained_turns(frames(TextDelta("a", 0, "msg_re"), history=2))
    assert in_its_first_turn(saved, later).missing == (NOTHING_SAID,)


@pytest.mark.parametrize("first_frames_first", [True, False])
def test_turns_of_one_millisecond_are_in_the_order_of_their_histories(first_frames_first: bool) -> None:
    """The random part of a stream's id has no order."""
    prefix = "trn_01HZZZZZZZ"
    reply = Message(Role.ASSISTANT, "Hello", id="msg_re")
    one = frames(END, stream_id=prefix + "Z" * 16, history=0, appended=(HI, reply))
    two = frames(MessageStart("msg_2"), stream_id=prefix + "0" * 16, history=2)
    kept = retained_turns([*one, *two] if first_frames_first else [*two, *one])
    assert [turn.history for turn in kept.turns] == [0, 2]
    assert kept.unfinished is kept.turns[1]
