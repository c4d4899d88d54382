"""The lease and the sessions that a node has, by its own state, in the pure class and in random histories."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.engine.nodes.ownership import Holding, Renewal
from callboard.tracestore.nodes import Claimed, NodeInfo, Renewed
from callboard.tracestore.sql.events import belongs
from tests.support.shared_tables import OwnershipModel

SECOND = 1_000_000_000
UNBROKEN = Renewed(lease=1)


def held(**sessions: int) -> Holding:
    holding = Holding(9.0)
    holding.renewed(holding.asks(0), Renewed(lease=1, owned={}))
    for session_id, epoch in sessions.items():
        holding.claimed(session_id, epoch)
    return holding


def test_a_node_without_a_lease_cannot_act() -> None:
    holding = Holding(9.0)
    assert not holding.lives(0)
    assert holding.pause(0) == 0.0


def test_a_lease_counts_from_before_its_request() -> None:
    holding = Holding(9.0)
    asked = holding.asks(2 * SECOND)
    holding.renewed(asked, Renewed(lease=1, owned={}))
    assert holding.lives(11 * SECOND - 1)
    assert not holding.lives(11 * SECOND)
    assert holding.seconds_left(5 * SECOND) == 6.0


def test_a_lease_is_renewed_after_a_third_and_soon_after_a_failure() -> None:
    holding = held()
    assert holding.pause(0) == 3.0
    holding.not_renewed(3 * SECOND)
    assert 0 < holding.pause(3 * SECOND) < 1
    holding.not_renewed(int(8.9 * SECOND))
    assert abs(holding.pause(int(8.9 * SECOND)) - 0.1) < 1e-9


def test_a_node_acts_for_a_session_only_in_its_epoch() -> None:
    holding = held(s=3)
    assert holding.may_act("s", 3, SECOND)
    assert not holding.may_act("s", 2, SECOND)
    assert not holding.may_act("other", 1, SECOND)
    assert not holding.may_act("s", 3, 9 * SECOND)
    assert holding.let_go("s") == 3
    assert not holding.may_act("s", 3, SECOND)


def test_only_a_broken_lease_loses_sessions_of_other_nodes() -> None:
    """The answer to a renewal does not apply to sessions that were claimed after its request."""
    holding = held(kept=1, taken=1, again=2)
    assert holding.renewed(holding.asks(SECOND), UNBROKEN) == {}
    breaks = holding.breaks
    asked = holding.asks(20 * SECOND)
    holding.claimed("new", 1)
    lost = holding.renewed(asked, Renewed(lease=2, owned={"kept": 1, "again": 1}))
    assert lost == {"taken": 1, "again": 2}
    assert dict(holding.sessions) == {"kept": 1, "new": 1}
    assert holding.breaks == breaks + 1
    assert holding.lives(28 * SECOND)


def test_a_late_answer_does_not_shorten_the_lease() -> None:
    holding = held()
    early, late = holding.asks(SECOND), holding.asks(3 * SECOND)
    holding.renewed(late, UNBROKEN)
    holding.renewed(early, UNBROKEN)
    assert holding.lives(12 * SECOND - 1)


# -- Several nodes and one table, in any order.


class Host:
    """A node with a clock of its own. Its requests can be late or lost."""

    def __init__(self, number: int, model: OwnershipModel, lease: float) -> None:
        self.info = NodeInfo(node=f"run_{number}", lease_seconds=lease)
        self.holding = Holding(lease)
        self.model = model
        self.offset_ns = number * 3_600_000 * SECOND
        self.answers: list[Callable[[], None]] = []

    def now(self) -> int:
        return self.offset_ns + round(self.model.now * 1e9)

    def ask(self, *, lost: bool) -> None:
        asked = self.holding.asks(self.now())
        answer = run(self.model.renew(self.info, asked.lease))
        if not lost:
            self.answers.append(lambda: self._renewed(asked, answer))

    def _renewed(self, asked: Renewal, answer: Renewed) -> None:
        self.holding.renewed(asked, answer)

    def claim(self, session_id: str) -> None:
        if self.holding.lives(self.now()):
            found = run(self.model.claim(session_id, self.info.node))
            if isinstance(found, Claimed):
                self.holding.claimed(session_id, found.epoch)

    def release(self, session_id: str) -> None:
        epoch = self.holding.let_go(session_id)
        run(self.model.release(self.info.node, {session_id: epoch}))

    def acts_for(self, session_id: str) -> int:
        epoch = self.holding.epoch_of(session_id)
        return epoch if self.holding.may_act(session_id, epoch, self.now()) and epoch else 0


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the coroutine waits")


class Store:
    """The history of one session, as the projection keeps it."""

    def __init__(self, model: OwnershipModel) -> None:
        self.model = model
        self.owner: tuple[int, int] | None = None
        self.written: list[tuple[int, int]] = []

    def append(self, number: int, epoch: int, session_id: str) -> None:
        owner = run(self.model.owner(session_id))
        claimed = 0 if owner is None else owner.epoch
        if belongs(number, epoch, begins=False, owner=self.owner, claimed=claimed):
            self.owner = (number, epoch)
            self.written.append((epoch, number))


STEP_NAMES = [
    *("renew", "renew", "ask", "lost", "answer", "claim", "claim", "claim", "release"),
    *("write", "late", "pass", "pass", "long", "restart"),
]
STEPS = st.lists(
    st.tuples(st.sampled_from(STEP_NAMES), st.integers(0, 2), st.sampled_from(["s", "t"])),
    min_size=60,
    max_size=80,
)


class Story:
    """Three nodes, two sessions, and one table."""

    def __init__(self) -> None:
        self.model = OwnershipModel()
        self.hosts = [Host(number, self.model, lease) for number, lease in enumerate((3.0, 5.0, 8.0))]
        self.stores = {session_id: Store(self.model) for session_id in ("s", "t")}
        self.unsent: list[tuple[int, int, str]] = []

    def do(self, what: str, number: int, session_id: str) -> None:
        host = self.hosts[number]
        match what:
            case "renew":
                host.ask(lost=False)
                host.answers.pop()()
            case "ask" | "lost":
                host.ask(lost=what == "lost")
            case "answer" if host.answers:
                host.answers.pop(0)()
            case "claim":
                host.claim(session_id)
            case "release":
                host.release(session_id)
            case "write" if epoch := host.acts_for(session_id):
                self.unsent.append((number, epoch, session_id))
            case "late" if self.unsent:
                number, epoch, name = self.unsent.pop(number % len(self.unsent))
                self.stores[name].append(number, epoch, name)
            case "pass" | "long":
                self.model.now += 1.0 if what == "pass" else 4.0
            case "restart":
                self.model.started = self.model.now
            case _:
                pass

    def check(self) -> None:
        for session_id, store in self.stores.items():
            acting = [host.info.node for host in self.hosts if host.acts_for(session_id)]
            assert len(acting) <= 1, f"{acting} act for {session_id} at the same time"
            assert [epoch for epoch, _ in store.written] == sorted(epoch for epoch, _ in store.written)
            assert len(dict.fromkeys(store.written)) == len({epoch for epoch, _ in store.written})


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_one_node_acts_for_a_session_and_writes_in_its_own_epoch(steps: list[Any]) -> None:
    """The test draws lost and late messages, restarts, and any difference between clocks."""
    story = Story()
    for step in steps:
        story.do(*step)
        story.check()


@settings(max_examples=60, deadline=None)
@given(STEPS, st.lists(st.integers(-3600, 3600), min_size=80, max_size=80))
def test_if_the_databases_clock_jumps_one_node_writes_in_each_epoch(steps: list[Any], jumps: list[int]) -> None:
    """Two nodes may both act as the owner. The store accepts the later claim."""
    story = Story()
    for step, jump in zip(steps, jumps, strict=False):
        story.do(*step)
        if step[0] == "long":
            story.model.now += jump
            for host in story.hosts:  # The clocks of the nodes do not jump.
                host.offset_ns -= jump * SECOND
        for store in story.stores.values():
            epochs = [epoch for epoch, _ in store.written]
            assert epochs == sorted(epochs)
            assert len(dict.fromkeys(store.written)) == len(set(epochs))


def test_which_events_belong_to_a_session() -> None:
    """In a cluster the epoch of the claim decides. Elsewhere the run decides."""

    def says(run: int, epoch: int, owner: tuple[int, int] | None, claimed: int = 0, begins: bool = False) -> bool:
        return belongs(run, epoch, begins=begins, owner=owner, claimed=claimed)

    # Outside of a cluster.
    assert says(1, 0, None)
    assert says(1, 0, (1, 0))
    assert not says(2, 0, (1, 0))
    assert says(2, 0, (1, 0), begins=True)
    # In a cluster.
    assert says(2, 1, None, 1)
    assert says(2, 2, (1, 1), 2)
    assert not says(1, 1, (1, 1), 2)
    assert not says(1, 1, (2, 2))
    assert not says(1, 2, (2, 2), 2)
    assert says(1, 3, (2, 2), 3)
    assert not says(1, 1, (1, 3), 3)
    # The claims are unknown here, as in a trace file.
    assert says(1, 2, (1, 2))
    assert says(2, 3, (1, 2))
    # An engine outside of the cluster writes in a session of the cluster.
    assert not says(3, 0, (1, 2), 2, begins=True)
    assert says(3, 0, (3, 0), 4)
