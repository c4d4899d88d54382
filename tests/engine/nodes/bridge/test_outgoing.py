"""Outgoing events: all events are sent in order despite faults of the broker and the trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import (
    Envelope,
    Message,
    SessionConfigured,
    SessionMessageAppended,
    SessionSetup,
    encode_envelope,
)
from callboard.engine.nodes import bridge as module
from callboard.engine.nodes.bridge import (
    MOST_WAITING,
    PAGE_EVENTS,
    BridgeQueue,
    Page,
    Pause,
    Read,
    Send,
    decode_page,
    encode_page,
    pages_of,
)
from callboard.tracestore import Capture

from .event_making import event, events


def page(after: int, last: int, size: int = 10) -> Page:
    return Page("run_a", after, last, b"x" * size)


def test_the_wait_grows_with_each_failure() -> None:
    machine = BridgeQueue()
    machine.add([page(0, 1)])
    waits = []
    for _ in range(9):
        machine.failed(10.0)
        rest = machine.next(10.0, connected=True)
        assert isinstance(rest, Pause)
        waits.append(round(rest.seconds or 0.0, 3))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert machine.next(10.0, connected=False) == Pause(None)
    machine.connected()
    assert machine.next(10.0, connected=True) == Send(page(0, 1))


def test_pages_that_do_not_fit_into_memory_are_read_from_the_trace() -> None:
    machine = BridgeQueue()
    machine.add([page(n, n + 1, MOST_WAITING // 4) for n in range(6)])
    assert machine.is_behind
    assert machine.waiting_bytes <= MOST_WAITING // 4
    assert machine.next(0.0, connected=True) == Send(page(0, 1, MOST_WAITING // 4))
    machine.acknowledged(page(0, 1, MOST_WAITING // 4))
    assert machine.next(0.0, connected=True) == Read(1)
    machine.read([page(1, 6)])
    assert not machine.is_behind


def test_pruned_events_do_not_block_the_queue() -> None:
    """If the trace has no events after the cursor, they were pruned."""
    machine = BridgeQueue(behind=True)
    machine.note(7)
    assert machine.next(0.0, connected=True) == Read(0)
    machine.note(8)
    machine.read([])
    assert machine.is_behind  # An event was committed while the trace was read.
    assert machine.next(0.0, connected=True) == Read(0)
    machine.read([])
    assert not machine.is_behind


class Day:
    """A run with its trace, and a broker that keeps each page once."""

    def __init__(self) -> None:
        self.machine = BridgeQueue(behind=True)
        self.trace: list[int] = []
        self.kept: dict[str, Page] = {}
        self.connected = True
        self.now = 0.0

    def pages(self, seqs: list[int]) -> list[Page]:
        pages, after = [], self.machine.last
        for seq in seqs:
            pages.append(page(after, seq))
            after = seq
        return pages

    def commit(self, number: int) -> None:
        first = (self.trace[-1] if self.trace else 0) + 2  # Some numbers are missing.
        new = list(range(first, first + number))
        self.trace += new
        if self.machine.is_behind:
            self.machine.note(new[-1])
        else:
            self.machine.add(self.pages(new))

    def step(self, fate: str) -> None:
        step = self.machine.next(self.now, connected=self.connected)
        match step:
            case Send(page=sent):
                if fate != "lost":
                    self.kept.setdefault(sent.message_id, sent)
                if fate == "arrives":
                    self.machine.acknowledged(sent)
                else:
                    self.machine.failed(self.now)
            case Read(after=after):
                if fate == "arrives":
                    self.machine.read(self.pages([seq for seq in self.trace if seq > after][:3]))
                else:
                    self.machine.failed(self.now)
            case Pause(seconds=seconds):
                self.now += seconds or 0.0

    def reader(self) -> list[int]:
        """The events of a reader that gets the pages in the broker's order."""
        known, given = 0, []
        for each in self.kept.values():
            assert each.after <= known, "a page is missing"
            if each.last > known:
                given.append(each.last)
                known = each.last
        return given


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("commit"), st.integers(1, 5)),
            st.tuples(st.just("step"), st.sampled_from(["arrives", "lost", "not acknowledged"])),
            st.tuples(st.just("connected"), st.booleans()),
        ),
        max_size=60,
    ),
    st.sampled_from([25, MOST_WAITING]),
)
def test_every_event_is_sent_despite_all_faults(acts: list[tuple[str, object]], room: int) -> None:
    """The faults are lost pages, lost acknowledgements, disconnections, and too many events for the memory."""
    day = Day()
    module.MOST_WAITING, before = room, module.MOST_WAITING
    try:
        for act, what in acts:
            match act, what:
                case "commit", int(number):
                    day.commit(number)
                case "step", str(fate):
                    day.step(fate)
                case _:
                    day.connected = bool(what)
        day.connected = True
        for _ in range(1000):
            day.step("arrives")
    finally:
        module.MOST_WAITING = before
    assert day.reader() == day.trace
    assert day.machine.cursor == (day.trace[-1] if day.trace else 0)


# Pages: which parts of events they contain.

PLENTY = 1 << 20


def said(seq: int, *, captured: bool) -> list[Envelope]:
    """A message and a setup in the form in which the writer commits them."""
    message = SessionMessageAppended(position=0, message=Message.user("secret"))
    setup = SessionConfigured(history=0, setup=SessionSetup(model="s:m", system_prompt="secret"))
    spoken = [Envelope(seq + n, "run_a", 1, 1, data) for n, data in enumerate((message, setup))]
    return [Capture().apply(envelope) for envelope in spoken] if captured else spoken


def test_a_decoded_page_equals_the_encoded_one() -> None:
    (page,) = pages_of("run_a", 3, events([5, 6, 9]), content=False, most_bytes=PLENTY)
    read = decode_page(encode_page(page))
    assert read == page
    assert (read.after, read.last, read.message_id) == (3, 9, "run_a:3-9")
    assert read.envelopes() == events([5, 6, 9])


@pytest.mark.parametrize("captured", [False, True])
def test_content_is_not_sent_unless_the_host_allows_it(captured: bool) -> None:
    (page,) = pages_of("run_a", 0, said(1, captured=captured), content=False, most_bytes=PLENTY)
    assert b"secret" not in encode_page(page)
    assert [envelope.topic for envelope in page.envelopes() or ()] == [
        "session.message_appended",
        "session.configured",
    ]
    (page,) = pages_of("run_a", 0, said(1, captured=captured), content=True, most_bytes=PLENTY)
    message, setup = (envelope.data for envelope in page.envelopes() or ())
    assert isinstance(message, SessionMessageAppended)
    assert message.message.text == "secret"
    assert isinstance(setup, SessionConfigured)
    assert setup.setup.system_prompt == "secret"


def test_pages_have_no_gap() -> None:
    many = events(range(1, 3 * PAGE_EVENTS))
    assert [page.last for page in pages_of("run_a", 0, many, content=False, most_bytes=PLENTY)] == [
        PAGE_EVENTS,
        2 * PAGE_EVENTS,
        3 * PAGE_EVENTS - 1,
    ]
    small = len(encode_envelope(event(1))) * 3
    pages = pages_of("run_a", 0, events(range(1, 20)), content=False, most_bytes=small)
    assert all(len(page.lines or b"") <= small for page in pages)
    assert [page.after for page in pages] == [0, *(page.last for page in pages[:-1])]
    assert [each for page in pages for each in page.envelopes() or ()] == events(range(1, 20))


def test_an_event_too_large_for_the_broker_is_a_page_without_content() -> None:
    """The page marks the event's place. Events before and after it are sent."""
    batch = [event(1), event(2, name="x" * 1000), event(3)]
    pages = pages_of("run_a", 0, batch, content=False, most_bytes=500)
    read = [decode_page(encode_page(page)) for page in pages]
    assert [(page.after, page.last, page.envelopes()) for page in read] == [
        (0, 1, [event(1)]),
        (1, 2, None),
        (2, 3, [event(3)]),
    ]


@pytest.mark.parametrize("message", [b"", b"{}", b"\xff\n", b'{"run":1,"after":0,"last":1}\n'])
def test_a_message_that_is_no_page_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):
        decode_page(message)
