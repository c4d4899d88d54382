"""The limiter of a provider's rate limits, compared with a plain model that sums everything each time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.engine.routing.learned_limits import NO_HEADERS, Headers, Reading, Ticket
from callboard.engine.routing.rate_slots import LimitObservation, RateLimiter, aged

MINUTE = 60_000_000
SECOND = 1_000_000
REQUESTS, TOKENS = 5, 100
MODELS = ("a", "b")


class World:
    """A limiter with its callers. The plain model keeps lists, and computes every answer from them."""

    def __init__(self, requests: float | None = REQUESTS, tokens: float | None = TOKENS) -> None:
        self.limiter = RateLimiter(requests, tokens)
        self.now = 0
        self.tickets: list[Ticket] = []
        self.sent: list[Ticket] = []
        self.since_refusal: dict[str, list[Ticket] | None] = dict.fromkeys(MODELS)
        self.paused: dict[str, int] = {}
        self.asked_at: dict[Ticket, tuple[int, int]] = {}

    def of(self, state: str) -> list[Ticket]:
        return [ticket for ticket in self.tickets if ticket.state == state]

    def ask(self, order: int, model: str, input_tokens: int, output_tokens: int) -> Ticket:
        ticket = Ticket(model, order, input_tokens, output_tokens)
        self.tickets.append(ticket)
        self.asked_at[ticket] = (order, len(self.tickets))
        if self.limiter.ask(ticket, self.now):
            self.note([ticket])
        self.settle_down()
        return ticket

    def note(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            after = self.since_refusal[ticket.model]
            if after is not None:
                assert self.now >= self.paused[ticket.model], "no request is sent during the pause"
                assert not [one for one in after if one.state in ("held", "sent") and one.counted], (
                    "one request probes at a time"
                )
                after.append(ticket)

    def settle_down(self) -> None:
        self.note(self.limiter.admit(self.now))
        self.check()

    def send(self, ticket: Ticket) -> None:
        if self.limiter.send(ticket, self.now):
            self.sent.append(ticket)
        self.settle_down()

    def answer(self, ticket: Ticket) -> None:
        after = self.since_refusal[ticket.model]
        if after is not None and ticket in after:
            self.since_refusal[ticket.model] = None
        self.limiter.answered(ticket, NO_HEADERS, self.now)
        self.settle_down()

    def refuse(self, ticket: Ticket, hint: int) -> None:
        after = self.since_refusal[ticket.model]
        pauses = self.limiter.models[ticket.model].generation
        self.limiter.refused(ticket, hint, self.now)
        if self.limiter.models[ticket.model].generation > pauses:
            self.since_refusal[ticket.model] = []
            self.paused[ticket.model] = self.now + hint
        elif after is not None:
            self.paused[ticket.model] = max(self.paused[ticket.model], self.now + hint)
        self.end(ticket, None)

    def end(self, ticket: Ticket, used: tuple[int, int] | None) -> None:
        self.limiter.over(ticket, used, self.now)
        self.settle_down()

    def advance(self, microseconds: int) -> None:
        self.now += microseconds
        self.settle_down()

    # -- The plain model.

    def counted(self, amount: Callable[[Ticket], float]) -> float:
        """The amount in use: all reservations, and everything that was sent in the last minute."""
        sent = [one for one in self.sent if one.sent_us + MINUTE > self.now]
        return sum(map(amount, [*self.of("held"), *sent]))

    def fits(self, ticket: Ticket) -> bool:
        return (
            self.counted(lambda _: 1) + 1 <= REQUESTS
            and self.counted(size) + size(ticket) <= TOKENS
            and self.limiter.models[ticket.model].cap is None  # After a refusal the limit opens step by step.
        )

    def check(self) -> None:
        """Check the invariants of the limiter."""
        assert self.counted(lambda _: 1) <= REQUESTS, "never more requests in a minute than the limit"
        assert self.counted(size) <= TOKENS, "never more tokens in a minute than the limit"
        waiting = sorted(self.of("waiting"), key=self.asked_at.__getitem__)
        assert self.limiter.waiting == len(waiting)
        assert not (waiting and self.fits(waiting[0])), "the first waiting request is sent if it fits"


def size(ticket: Ticket) -> float:
    return min(ticket.input_tokens + ticket.output_tokens, TOKENS)


STEPS = st.one_of(
    st.tuples(st.just("ask"), st.integers(0, 3), st.sampled_from(MODELS), st.integers(0, 60), st.integers(0, 70)),
    st.tuples(st.sampled_from(["send", "answer", "lose"]), st.integers(0, 9)),
    st.tuples(st.just("refuse"), st.integers(0, 9), st.integers(0, 30 * SECOND)),
    st.tuples(st.just("end"), st.integers(0, 9), st.integers(0, 100)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.just("time"), st.integers(0, MINUTE)),
)


def pick(tickets: list[Ticket], place: int) -> Ticket | None:
    return tickets[place % len(tickets)] if tickets else None


def take(world: World, step: tuple[object, ...]) -> None:
    match step:
        case ("ask", int(order), str(model), int(said), int(reply)):
            world.ask(order, model, said, reply)
        case ("time", int(microseconds)):
            world.advance(microseconds)
        case ("send", int(place)) if (ticket := pick(world.of("held"), place)) is not None:
            world.send(ticket)
        case ("cancel", int(place)):
            ticket = pick([*world.of("waiting"), *world.of("held")], place)
            if ticket is not None:
                world.end(ticket, None)
        case ("answer", int(place)) if (ticket := pick(world.of("sent"), place)) is not None:
            world.answer(ticket)
        case ("lose", int(place)) if (ticket := pick(world.of("sent"), place)) is not None:
            world.end(ticket, None)
        case ("refuse", int(place), int(hint)) if (ticket := pick(world.of("sent"), place)) is not None:
            world.refuse(ticket, hint)
        case ("end", int(place), int(share)) if (ticket := pick(world.of("sent"), place)) is not None:
            world.answer(ticket)
            world.end(ticket, (ticket.input_tokens * share // 100, ticket.output_tokens * share // 100))
        case _:
            pass


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_no_window_exceeds_the_limit_and_no_request_waits_without_a_reason(
    steps: list[tuple[object, ...]],
) -> None:
    """The test draws any order of callers, refusals, cancellations and time. In the end every request is sent."""
    world = World()
    for step in steps:
        take(world, step)
    for _ in range(400):
        for ticket in world.of("held"):
            world.send(ticket)
        for ticket in world.of("sent"):
            world.answer(ticket)
            world.end(ticket, (ticket.input_tokens, ticket.output_tokens))
        if not world.of("waiting") and not world.of("held"):
            return
        world.advance(world.limiter.wakes_in(world.now) or 0)
    pytest.fail("a request waits forever")


def test_earlier_turns_go_first() -> None:
    world = World(requests=5, tokens=None)
    for ticket in [world.ask(1, "a", 1, 1) for _ in range(5)]:
        world.send(ticket)
    late, early = world.ask(3, "a", 1, 1), world.ask(2, "a", 1, 1)
    assert (late.state, early.state) == ("waiting", "waiting")
    limiter = world.limiter
    assert limiter.opens_in(late, 0) == limiter.opens_in(early, 0) == MINUTE
    assert limiter.admit(MINUTE)[0] is early


def test_a_model_with_a_used_limit_delays_no_other() -> None:
    limiter = RateLimiter()
    first = Ticket("a", 0, 1, 1)
    limiter.force(first, 0)
    limiter.answered(first, Headers(Reading(10, 0, 30 * SECOND, fixed=True)), 0)
    waits, goes = Ticket("a", 1, 1, 1), Ticket("b", 2, 1, 1)
    assert not limiter.ask(waits, 0)
    limiter.ask(goes, 0)
    limiter.admit(0)
    assert (waits.state, goes.state) == ("waiting", "held")
    assert limiter.wakes_in(0) == 30 * SECOND


class Learned:
    """A limiter that has learned a limit from one reply."""

    def __init__(self, reading: Reading) -> None:
        self.limiter = RateLimiter()
        self.first = Ticket("a", 0, 10, 10)
        self.limiter.force(self.first, 0)
        self.limiter.answered(self.first, Headers(reading), 0)
        self.limiter.over(self.first, (10, 10), 0)

    def goes(self, count: int, now: int) -> int:
        tickets = [Ticket("a", 1, 1, 1) for _ in range(count)]
        went = 0
        for ticket in tickets:
            if self.limiter.ask(ticket, now) or ticket in self.limiter.admit(now):
                self.limiter.send(ticket, now)
                went += 1
        for ticket in tickets:
            self.limiter.over(ticket, None, now)
        return went


def test_a_limit_refills_evenly_until_the_time_of_the_provider() -> None:
    """Of 10 requests 4 are left, and the limit is full again in 60 s. So one request becomes free every 10 s."""
    learned = Learned(Reading(10, 4, MINUTE))
    assert learned.goes(9, 0) == 4
    assert learned.goes(9, 10 * SECOND) == 1
    assert learned.goes(9, 40 * SECOND) == 3


def test_a_fixed_window_refills_at_its_end() -> None:
    learned = Learned(Reading(10, 4, MINUTE, fixed=True))
    assert learned.goes(9, 0) == 4
    assert learned.goes(9, MINUTE - 1) == 0
    assert learned.goes(20, MINUTE) == 10


def test_requests_that_were_sent_later_are_subtracted_from_the_headers() -> None:
    limiter = RateLimiter()
    tickets = [Ticket("a", 0, 1, 1) for _ in range(5)]
    for ticket in tickets:
        limiter.force(ticket, 0)
    limiter.answered(tickets[1], Headers(Reading(10, 8, MINUTE)), 0)
    assert [room.left for room in limiter.rooms(0)] == [5]
    limiter.answered(tickets[4], Headers(Reading(10, 5, MINUTE)), 0)
    assert [room.left for room in limiter.rooms(0)] == [5]
    limiter.answered(tickets[2], Headers(Reading(10, 7, MINUTE)), 0)
    assert [room.left for room in limiter.rooms(0)] == [5], "an older reply changes nothing"


def test_a_request_larger_than_the_limit_is_sent_when_nothing_else_counts() -> None:
    """The request is not refused for its size, because its actual usage can be much smaller."""
    limiter = RateLimiter(tokens=100)
    small, large = Ticket("a", 0, 1, 1), Ticket("a", 1, 1, 4096)
    limiter.force(small, 0)
    assert not limiter.ask(large, 0)
    assert limiter.wakes_in(0) == MINUTE
    assert limiter.admit(MINUTE) == [large]


def test_after_a_refusal_one_request_probes_and_its_success_admits_two() -> None:
    """Retry-After applies to all requests. The success of the probe opens the limiter step by step."""
    limiter = RateLimiter()
    burst = [Ticket("a", 0, 1, 1) for _ in range(8)]
    for ticket in burst:
        limiter.force(ticket, 0)
    for ticket in burst:
        limiter.refused(ticket, 5 * SECOND, 0)
        limiter.over(ticket, None, 0)
    again = [Ticket("a", place, 1, 1) for place in range(8)]
    assert not any(limiter.ask(ticket, 0) for ticket in again)
    assert limiter.wakes_in(0) == 5 * SECOND
    assert limiter.admit(5 * SECOND - 1) == []
    rounds = []
    while any(ticket.state == "waiting" for ticket in again):
        admitted = limiter.admit(5 * SECOND)
        assert limiter.admit(5 * SECOND) == []
        rounds.append(len(admitted))
        for ticket in admitted:
            limiter.send(ticket, 5 * SECOND)
        for ticket in admitted:
            limiter.answered(ticket, NO_HEADERS, 5 * SECOND)
    assert rounds[:3] == [1, 2, 4]


def test_a_probe_that_is_lost_is_followed_by_another() -> None:
    """The next request probes if a probe is cancelled or fails for another reason."""
    limiter = RateLimiter()
    first = Ticket("a", 0, 1, 1)
    limiter.force(first, 0)
    limiter.refused(first, SECOND, 0)
    limiter.over(first, None, 0)
    one, two, three = (Ticket("a", place, 1, 1) for place in range(3))
    for ticket in (one, two, three):
        limiter.ask(ticket, 0)
    assert limiter.admit(SECOND) == [one]
    limiter.withdraw(one)
    assert limiter.admit(SECOND) == [two]
    limiter.send(two, SECOND)
    limiter.over(two, None, SECOND)
    assert limiter.admit(SECOND) == [three]


def test_refusals_without_a_hint_pause_longer_each_time() -> None:
    """The pauses are 1, 2 and 4 seconds, and so on up to a minute."""
    limiter, now, pauses = RateLimiter(), 0, []
    for _ in range(9):
        ticket = Ticket("a", 0, 1, 1)
        assert limiter.ask(ticket, now)
        limiter.send(ticket, now)
        limiter.refused(ticket, None, now)
        limiter.over(ticket, None, now)
        pauses.append((limiter.models["a"].paused_until_us - now) // SECOND)
        now = limiter.models["a"].paused_until_us
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_request_that_was_admitted_before_a_refusal_waits_again() -> None:
    """The request has not been sent yet."""
    limiter = RateLimiter(requests=10)
    sent, held = Ticket("a", 0, 1, 1), Ticket("a", 1, 1, 1)
    limiter.force(sent, 0)
    assert limiter.ask(held, 0)
    limiter.refused(sent, SECOND, 0)
    assert not limiter.send(held, 0)
    assert held.state == "waiting"
    assert limiter.admit(SECOND) == [held]
    assert limiter.send(held, SECOND)


# Observations of other nodes with the same key: their refusals pause requests here, and the later reading counts.


class Caller:
    """Requests of one token to one model, at a limiter without a known limit."""

    def __init__(self) -> None:
        self.limiter = RateLimiter()

    def asks(self, now_us: int) -> Ticket:
        ticket = Ticket("m", 0, 1, 0)
        self.limiter.ask(ticket, now_us)
        return ticket

    def sends(self, now_us: int) -> Ticket:
        ticket = self.asks(now_us)
        assert ticket.state == "held"
        assert self.limiter.send(ticket, now_us)
        return ticket

    def observed(self, left: float, observed_us: int, now_us: int, *, opens: bool = True) -> None:
        headers = Headers(Reading(10.0, left, 60 * SECOND))
        self.limiter.answered_elsewhere("m", headers, observed_us, now_us, opens=opens)


def test_a_refusal_of_another_node_pauses_requests() -> None:
    """The pause has the length in the refusal. Then one request probes, and its success opens the limiter."""
    caller = Caller()
    caller.limiter.refused_elsewhere("m", 5 * SECOND, 0)
    first, second = caller.asks(1), caller.asks(1)
    assert caller.limiter.reason(first, 1) == "pause"
    assert caller.limiter.opens_in(first, 1) == 5 * SECOND - 1
    assert caller.limiter.admit(5 * SECOND) == [first]
    assert caller.limiter.send(first, 5 * SECOND)
    assert caller.limiter.reason(second, 5 * SECOND) == "probe"
    caller.limiter.models["m"].succeeded(first)
    assert caller.limiter.admit(5 * SECOND) == [second]


def test_a_request_that_was_admitted_before_a_foreign_refusal_waits_again() -> None:
    """A refusal of this node has the same effect. The latest end of several refusals counts."""
    caller = Caller()
    held = caller.asks(0)
    assert held.state == "held"
    caller.limiter.refused_elsewhere("m", 5 * SECOND, 1)
    assert not caller.limiter.send(held, 2)
    caller.limiter.refused_elsewhere("m", 8 * SECOND, 2)
    caller.limiter.refused_elsewhere("m", 1 * SECOND, 3)
    assert caller.limiter.opens_in(held, 3) == 8 * SECOND - 1


def test_the_remaining_requests_of_another_node_apply_here() -> None:
    """Requests in progress here are subtracted, because the other node's reply can't include them."""
    caller = Caller()
    caller.sends(0)
    caller.observed(left=3.0, observed_us=1, now_us=2)
    assert [caller.asks(2).state for _ in range(3)] == ["held", "held", "waiting"]


@pytest.mark.parametrize(("observed_us", "left"), [(99, 1.0), (101, 3.0)])
def test_of_two_readings_the_later_one_counts(observed_us: int, left: float) -> None:
    caller = Caller()
    caller.observed(left=1.0, observed_us=100, now_us=100)
    caller.observed(left=3.0, observed_us=observed_us, now_us=110)
    (room,) = caller.limiter.rooms(110)
    assert room.left == pytest.approx(left, abs=0.01)


def test_a_reply_after_the_pause_opens_the_limiter_here() -> None:
    caller = Caller()
    caller.limiter.refused_elsewhere("m", 5 * SECOND, 0)
    caller.observed(left=9.0, observed_us=SECOND, now_us=SECOND)
    assert caller.asks(2 * SECOND).state == "waiting"
    caller.observed(left=9.0, observed_us=6 * SECOND, now_us=6 * SECOND, opens=False)
    assert len(caller.limiter.admit(6 * SECOND)) == 1
    caller.observed(left=9.0, observed_us=7 * SECOND, now_us=7 * SECOND)
    assert [caller.asks(7 * SECOND).state for _ in range(3)] == ["held"] * 3


def test_an_observation_ages() -> None:
    """The pause of the observation ends, and its window refills. After a minute the observation has no effect."""
    observation = LimitObservation("m", Headers(Reading(10.0, 3.0, 20 * SECOND)), 5 * SECOND)
    later = aged(observation, 4 * SECOND)
    assert (later.pause_us, later.headers.requests.reset_us) == (SECOND, 16 * SECOND)
    late = aged(observation, 59 * SECOND)
    assert (late.pause_us, late.headers.requests.reset_us) == (0, 1)
    assert aged(observation, 60 * SECOND) is None
