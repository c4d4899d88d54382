"""What others with the same key have learned: their refusals pause here, and the later reading counts."""

from __future__ import annotations

import pytest

from callboard.engine.rate_limits.account import Reading, Ticket
from callboard.engine.rate_limits.gate import Gate, Headers, Lesson, aged

SECOND = 1_000_000


class Caller:
    """Requests of one token to one model, at a gate that knows no limit."""

    def __init__(self) -> None:
        self.gate = Gate()

    def asks(self, now_us: int) -> Ticket:
        ticket = Ticket("m", 0, 1, 0)
        self.gate.ask(ticket, now_us)
        return ticket

    def sends(self, now_us: int) -> Ticket:
        ticket = self.asks(now_us)
        assert ticket.state == "held"
        assert self.gate.send(ticket, now_us)
        return ticket

    def told(self, left: float, observed_us: int, now_us: int, *, opens: bool = True) -> None:
        headers = Headers(Reading(10.0, left, 60 * SECOND))
        self.gate.answered_elsewhere("m", headers, observed_us, now_us, opens=opens)


def test_a_refusal_elsewhere_pauses_here() -> None:
    """For as long as it was said there; then one request probes, and its success opens the gate."""
    caller = Caller()
    caller.gate.refused_elsewhere("m", 5 * SECOND, 0)
    first, second = caller.asks(1), caller.asks(1)
    assert caller.gate.reason(first, 1) == "pause"
    assert caller.gate.opens_in(first, 1) == 5 * SECOND - 1
    assert caller.gate.admit(5 * SECOND) == [first]
    assert caller.gate.send(first, 5 * SECOND)
    assert caller.gate.reason(second, 5 * SECOND) == "probe"
    caller.gate.models["m"].succeeded(first)
    assert caller.gate.admit(5 * SECOND) == [second]


def test_a_request_that_was_let_in_before_it_waits_again() -> None:
    """As with a refusal of one's own; and the latest of several refusals counts."""
    caller = Caller()
    held = caller.asks(0)
    assert held.state == "held"
    caller.gate.refused_elsewhere("m", 5 * SECOND, 1)
    assert not caller.gate.send(held, 2)
    caller.gate.refused_elsewhere("m", 8 * SECOND, 2)
    caller.gate.refused_elsewhere("m", 1 * SECOND, 3)
    assert caller.gate.opens_in(held, 3) == 8 * SECOND - 1


def test_what_is_left_elsewhere_is_left_here() -> None:
    """Less what is under way here, which nobody there can have seen."""
    caller = Caller()
    caller.sends(0)
    caller.told(left=3.0, observed_us=1, now_us=2)
    assert [caller.asks(2).state for _ in range(3)] == ["held", "held", "waiting"]


@pytest.mark.parametrize(("observed_us", "left"), [(99, 1.0), (101, 3.0)])
def test_of_two_readings_the_later_one_counts(observed_us: int, left: float) -> None:
    """Whoever made it."""
    caller = Caller()
    caller.told(left=1.0, observed_us=100, now_us=100)
    caller.told(left=3.0, observed_us=observed_us, now_us=110)
    (room,) = caller.gate.rooms(110)
    assert room.left == pytest.approx(left, abs=0.01)


def test_an_answer_behind_the_pause_opens_here_too() -> None:
    """If it was to a request behind the refusal. Within the pause nothing goes, whoever says what."""
    caller = Caller()
    caller.gate.refused_elsewhere("m", 5 * SECOND, 0)
    caller.told(left=9.0, observed_us=SECOND, now_us=SECOND)
    assert caller.asks(2 * SECOND).state == "waiting"
    caller.told(left=9.0, observed_us=6 * SECOND, now_us=6 * SECOND, opens=False)
    assert len(caller.gate.admit(6 * SECOND)) == 1
    caller.told(left=9.0, observed_us=7 * SECOND, now_us=7 * SECOND)
    assert [caller.asks(7 * SECOND).state for _ in range(3)] == ["held"] * 3


def test_a_lesson_is_worth_less_as_time_goes_by() -> None:
    """Its pause ends, its window is whole again, and after a minute it says nothing."""
    lesson = Lesson("m", Headers(Reading(10.0, 3.0, 20 * SECOND)), 5 * SECOND)
    later = aged(lesson, 4 * SECOND)
    assert later is not None
    assert later.headers.requests is not None
    assert (later.pause_us, later.headers.requests.reset_us) == (SECOND, 16 * SECOND)
    late = aged(lesson, 59 * SECOND)
    assert late is not None
    assert late.headers.requests is not None
    assert (late.pause_us, late.headers.requests.reset_us) == (0, 1)
    assert aged(lesson, 60 * SECOND) is None
