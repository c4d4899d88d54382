"""The ledger of budgets, against a model that is a list of calls and adds them up each time."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from callboard.engine.budgets.budget import Budget, Payer, Window
from callboard.engine.budgets.ledger import Account, Amount, Ledger

HOUR_US = 3_600_000_000
SESSIONS = ("", "s1", "s2")
TENANTS = ("", "acme", "zoo")
MODELS = ("openai:gpt-5", "openai:gpt-5-mini", "anthropic:claude-opus-4-6")

budgets = st.builds(
    Budget,
    max_cost_usd=st.none() | st.integers(0, 30).map(lambda nano: Decimal(nano).scaleb(-9)),
    max_tokens=st.integers(0, 30),
    per=st.sampled_from(["engine", "session", "provider", "model", "tag:tenant"]),
    window=st.sampled_from([None, "hour", "day", "month", timedelta(hours=1), timedelta(days=2)]),
    zone=st.sampled_from(["UTC", "Europe/Zurich", "America/St_Johns"]),
    unpriced=st.sampled_from(["refuse", "allow"]),
)
payers = st.builds(
    Payer,
    model=st.sampled_from(MODELS),
    session_id=st.sampled_from(SESSIONS),
    tags=st.sampled_from(TENANTS).map(lambda tenant: {"tenant": tenant} if tenant else {}),
)
amounts = st.builds(Amount, nano_usd=st.none() | st.integers(0, 12), tokens=st.integers(0, 12))


class Row(msgspec.Struct):
    """A call of the model."""

    payer: Payer
    start_us: int
    counts: Amount
    state: str


def counts_at(window: Window, start_us: int, now_us: int) -> bool:
    """Whether a call counts, by the definition of the window, and not by the ledger's slots."""
    if window.rolling is not None:
        return window.slot(start_us).end_us + window.rolling_us > now_us
    return window.slot(start_us) == window.slot(now_us)


class LedgerMachine(RuleBasedStateMachine):
    """Random reservations, ends, losses and hours that pass."""

    @initialize(limits=st.lists(budgets, min_size=1, max_size=4), start=st.integers(0, 40_000))
    def begin(self, limits: list[Budget], start: int) -> None:
        self.limits = limits
        self.ledger = Ledger(limits)
        self.now_us = start * HOUR_US
        self.rows: dict[str, Row] = {}

    def counted(self, budget: Budget, value: str) -> list[Row]:
        window = budget.counted_over
        return [
            row
            for row in self.rows.values()
            if budget.value_for(row.payer) == value and counts_at(window, row.start_us, self.now_us)
        ]

    def fits(self, budget: Budget, payer: Payer, asked: Amount) -> bool:
        value = budget.value_for(payer)
        if value is None:
            return True
        rows = self.counted(budget, value)
        if budget.max_nano_usd is not None:
            if asked.nano_usd is None and budget.unpriced == "refuse":
                return False
            if sum(row.counts.money for row in rows) + asked.money > budget.max_nano_usd:
                return False
        return (
            budget.max_tokens is None or sum(row.counts.tokens for row in rows) + asked.tokens <= budget.max_tokens
        )

    @rule(payer=payers, asked=amounts)
    def reserve(self, payer: Payer, asked: Amount) -> None:
        name = f"h{len(self.rows)}"
        refusals = self.ledger.reserve(name, payer, asked, self.now_us)
        assert (not refusals) == all(self.fits(budget, payer, asked) for budget in self.limits)
        refused = [refusal.budget for refusal in refusals]
        assert all(not self.fits(budget, payer, asked) for budget in refused)
        if not refusals:
            self.rows[name] = Row(payer, self.now_us, asked, "held")

    def some(self, data: st.DataObject, *states: str) -> str | None:
        names = [name for name, row in self.rows.items() if row.state in states]
        return data.draw(st.sampled_from(names)) if names else None

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        name = self.some(data, "held", "unknown")
        if name is not None:
            asked = self.rows[name].counts
            spent = Amount(data.draw(st.integers(0, asked.money)), data.draw(st.integers(0, asked.tokens)))
            self.ledger.settle(name, spent)
            self.rows[name].counts, self.rows[name].state = spent, "spent"

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        name = self.some(data, "held")
        if name is not None:
            self.ledger.lose(name)
            self.rows[name].state = "unknown"

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name = self.some(data, "held")
        if name is not None:
            self.ledger.release(name)
            self.rows[name].counts, self.rows[name].state = Amount(0, 0), "released"

    @rule(hours=st.sampled_from([1, 5, 24, 40, 800]))
    def wait(self, hours: int) -> None:
        self.now_us += hours * HOUR_US

    @rule()
    def restart(self) -> None:
        """After a restart the ledger is made from the rows; what was under way is unknown."""
        self.ledger = Ledger(self.limits)
        for row in self.rows.values():
            if row.state in ("held", "unknown"):
                row.state = "booked"  # unknown, and nobody knows its name any more
            if row.state != "released":
                for account in self.ledger.accounts(row.payer):
                    account.book(row.counts, row.start_us, unknown=row.state == "booked")

    @invariant()
    def sums_are_those_of_the_rows(self) -> None:
        for state in self.ledger.states(self.now_us):
            rows = self.counted(state.budget, state.scope)
            for part, names in (("held", ["held"]), ("spent", ["spent"]), ("unknown", ["unknown", "booked"])):
                of_part = [row.counts for row in rows if row.state in names]
                expected = Amount(sum(a.money for a in of_part), sum(a.tokens for a in of_part))
                assert getattr(state, part) == expected, part
            assert state.calls == sum(row.state != "released" for row in rows)
            assert state.unknown_calls == sum(row.state in ("unknown", "booked") for row in rows)

    @invariant()
    def nothing_is_ever_overspent(self) -> None:
        for state in self.ledger.states(self.now_us):
            assert state.left_nano_usd is None or state.left_nano_usd >= 0
            assert state.left_tokens is None or state.left_tokens >= 0


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

PAYER = Payer("openai:gpt-5", "s1", {"tenant": "acme"})


def account_of(budget: Budget) -> tuple[Ledger, Account]:
    ledger = Ledger([budget])
    return ledger, ledger.accounts(PAYER)[0]


def test_a_refused_call_takes_no_room_in_the_accounts_that_had_it() -> None:
    """All accounts admit, or none is touched."""
    wide, narrow = Budget(max_tokens=100), Budget(max_tokens=5, per="session")
    ledger = Ledger([wide, narrow])
    (refusal,) = ledger.reserve("a", PAYER, Amount(0, 6), 0)
    assert (refusal.budget, refusal.value, refusal.why) == (narrow, "s1", "tokens")
    assert [state.held.tokens for state in ledger.states(0)] == [0, 0]


def test_a_budget_of_one_tenant_leaves_the_others_alone() -> None:
    """`of=` names whom a budget looks at."""
    ledger = Ledger([Budget(max_tokens=0, per="tag:tenant", of="zoo")])
    assert ledger.reserve("a", PAYER, Amount(0, 6), 0) == []
    assert ledger.reserve("b", msgspec.structs.replace(PAYER, tags={"tenant": "zoo"}), Amount(0, 6), 0)


def test_a_refusal_says_when_the_window_makes_room() -> None:
    """Who waits knows until when; who asks for more than the limit waits for ever."""
    ledger, _ = account_of(Budget(max_tokens=10, window="hour"))
    ledger.reserve("a", PAYER, Amount(0, 8), HOUR_US // 2)
    (refusal,) = ledger.reserve("b", PAYER, Amount(0, 8), HOUR_US // 2)
    assert (refusal.fits_at_us, refusal.left.tokens, refusal.may_fit) == (HOUR_US, 2, True)
    (refusal,) = ledger.reserve("c", PAYER, Amount(0, 11), HOUR_US // 2)
    assert (refusal.fits_at_us, refusal.may_fit) == (None, False)


def test_a_call_that_fits_after_the_end_of_another_may_wait_without_a_window() -> None:
    """What is held comes back when its call turns out to cost less; what is spent does not."""
    ledger, _ = account_of(Budget(max_tokens=10))
    ledger.reserve("a", PAYER, Amount(0, 8), 0)
    (refusal,) = ledger.reserve("b", PAYER, Amount(0, 8), 0)
    assert (refusal.fits_at_us, refusal.may_fit) == (None, True)
    ledger.settle("a", Amount(0, 8))
    (refusal,) = ledger.reserve("b", PAYER, Amount(0, 8), 0)
    assert not refusal.may_fit


def test_a_budget_is_low_once_in_a_window() -> None:
    """Whoever is told at 80 per cent is told again when the window begins anew."""
    ledger, account = account_of(Budget(max_tokens=10, window="hour"))
    told = []
    for number, now_us in enumerate((0, 1, 2, HOUR_US, HOUR_US + 1)):
        ledger.reserve(str(number), PAYER, Amount(0, 4), now_us)
        ledger.settle(str(number), Amount(0, 4))
        told.append(account.is_newly_low(now_us))
    assert told == [False, True, False, False, True]


def test_a_call_that_crosses_midnight_counts_on_the_day_of_its_start() -> None:
    """So the day's account and the day's rows agree."""
    ledger, _ = account_of(Budget(max_tokens=10, window="day"))
    ledger.reserve("a", PAYER, Amount(0, 9), 23 * HOUR_US)
    assert ledger.reserve("b", PAYER, Amount(0, 9), 25 * HOUR_US) == []
    ledger.settle("a", Amount(0, 5))
    (state,) = ledger.states(25 * HOUR_US)
    assert (state.held.tokens, state.spent.tokens) == (9, 0)


def test_a_lost_call_counts_at_its_worst_until_something_better_is_known() -> None:
    """Spent, unknown; then what the provider's bill says."""
    ledger, account = account_of(Budget(max_cost_usd="0.00000001"))
    ledger.reserve("a", PAYER, Amount(8, 100), 0)
    ledger.lose("a")
    assert ledger.lost == ("a",)
    assert (account.state(0).unknown, account.state(0).unknown_calls) == (Amount(8, 100), 1)
    ledger.settle("a", Amount(3, 50))
    assert (account.state(0).spent, account.state(0).unknown) == (Amount(3, 50), Amount(0, 0))


@pytest.mark.parametrize("again", ["settle", "lose", "release"])
def test_an_end_of_a_call_that_ended_changes_nothing(again: str) -> None:
    """An end may be heard of twice."""
    ledger, account = account_of(Budget(max_tokens=10))
    ledger.reserve("a", PAYER, Amount(0, 8), 0)
    ledger.settle("a", Amount(0, 2))
    before = account.state(0)
    getattr(ledger, again)("a", *([Amount(0, 9)] if again == "settle" else []))
    assert account.state(0) == before


def test_a_name_is_held_once() -> None:
    """Two calls of one name could not be told apart when they end."""
    ledger, _ = account_of(Budget(max_tokens=10))
    ledger.reserve("a", PAYER, Amount(0, 1), 0)
    with pytest.raises(ValueError, match="'a' already"):
        ledger.reserve("a", PAYER, Amount(0, 1), 0)
