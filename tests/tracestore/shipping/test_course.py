"""The decisions of a shipper, and shippers of one file against a target that fails as it likes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callboard.tracestore.shipping.course import Ask, Course, Rest, Send, ShippingOptions
from callboard.tracestore.shipping.shipment import START, Position

OPTIONS = ShippingOptions(batch_events=4, look_seconds=1.0, ask_seconds=60.0, first_retry=0.5, longest_retry=4.0)


def test_the_target_is_asked_first() -> None:
    course = Course(OPTIONS)
    assert course.next(0.0) == Ask()
    course.asked(Position(7, "r", 7))
    assert course.next(0.0) == Send(Position(7, "r", 7), 4)


def test_waits_double_and_the_target_is_asked_after_each() -> None:
    course = Course(OPTIONS)
    now, waits = 0.0, []
    for _ in range(6):
        assert course.next(now) == Ask()
        waits.append(course.failed(now))
        assert course.next(now) == Rest(waits[-1])
        now += waits[-1]
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    course.asked(START)
    course.sent(Position(1, "r", 1))
    assert course.failed(now) == 0.5


def test_a_failing_target_is_not_hurried() -> None:
    course = Course(OPTIONS)
    course.failed(0.0)
    course.hurry()
    assert course.next(0.1) == Rest(0.4)
    assert course.next(0.5) == Ask()
    course.asked(START)
    course.nothing_left(1.0)
    assert course.next(1.5) == Rest(0.5)
    course.hurry()
    assert course.next(1.5) == Send(START, 4)


def test_a_target_that_nothing_is_sent_to_is_asked_now_and_then() -> None:
    course = Course(OPTIONS)
    asked = []
    for now in range(200):
        match course.next(float(now)):
            case Ask():
                asked.append(now)
                course.asked(START)
            case Send():
                course.nothing_left(float(now))
            case _:
                pass
    assert asked == [0, 60, 120, 180]


@given(st.integers(1, 30), st.integers(1, 9))
def test_smaller_batches_single_out_what_cannot_be_stored(events: int, bad: int) -> None:
    course = Course(OPTIONS)
    course.asked(START)
    stored: list[int] = []
    for _ in range(300):
        step = course.next(0.0)
        assert isinstance(step, Send)
        batch = list(range(step.after.event + 1, events + 1))[: step.limit]
        if not batch:
            break
        last = Position(batch[-1], "r", batch[-1])
        if bad in batch:
            assert course.unstorable(len(batch), last) == (len(batch) == 1)
        else:
            stored += batch
            course.sent(last)
    assert stored == [number for number in range(1, events + 1) if number != bad]


class _Target:
    """A target that keeps events by name, and notes how far it is. A transaction is one method."""

    def __init__(self) -> None:
        self.events: list[int] = []
        self.mark = START

    def take(self, after: Position, batch: list[int]) -> Position:
        self.events += [event for event in batch if event not in self.events]
        last = Position(batch[-1], "r", batch[-1])
        if self.mark.event <= last.event or after == START:
            self.mark = last
        return self.mark


FATES = st.sampled_from(["ok", "ok", "ok", "before", "after", "killed", "grows"])


@given(st.lists(st.tuples(st.integers(0, 1), FATES), max_size=60), st.integers(0, 20))
def test_nothing_is_missing_or_doubled_whatever_fails(turns: list[tuple[int, str]], events: int) -> None:
    """Two shippers take turns; a batch fails before the commit or after it, or a shipper dies on the way."""
    target, now = _Target(), 0.0
    courses = [Course(OPTIONS), Course(OPTIONS)]
    turns = [*turns, *[(0, "ok")] * (events + 40), *[(1, "ok")] * (events + 40)]
    for who, fate in turns:
        now += 10.0
        course = courses[who]
        events += fate == "grows"
        step = course.next(now)
        assert not isinstance(step, Rest)  # nothing waits longer than that
        if fate == "killed":
            courses[who] = Course(OPTIONS)
        elif fate == "before":
            course.failed(now)
        elif isinstance(step, Ask):
            course.asked(target.mark)
        else:
            batch = list(range(step.after.event + 1, events + 1))[: step.limit]
            if not batch:
                course.nothing_left(now)
                continue
            mark = target.take(step.after, batch)
            if fate == "after":
                course.failed(now)
            else:
                course.sent(mark)
        assert sorted(target.events) == list(range(1, len(target.events) + 1))  # never a gap behind a mark
        assert course.position.event <= len(target.events)
    assert sorted(target.events) == list(range(1, events + 1))
