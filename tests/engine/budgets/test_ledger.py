"""The ledger of budgets, compared with a model that sums all calls each time."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from callboard.adapters.requests.estimate import upper_end
from callboard.bus import Bus, Cost, CostSource, LlmCallFailed, TokenUsage
from callboard.engine import BudgetExceededError
from callboard.engine.budgets.budget import Budget, Payer, Window
from callboard.engine.budgets.budgets import Budgets, Counted
from callboard.engine.budgets.ledger import Account, Amount, Ledger
from callboard.engine.budgets.worst_case import (
    UNLIMITED,
    Priced,
    most_of_images,
    most_output,
    tiers_of,
    tool_fees,
    worst_case,
    worst_case_of_reply,
)
from callboard.tracestore import PriceRow, PriceTable

from ...support.virtual_time import FakeClock, run_virtual
from ...tracestore.trace_making import Maker

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
    """A call in the model."""

    payer: Payer
    start_us: int
    counts: Amount
    state: str


def counts_at(window: Window, start_us: int, now_us: int) -> bool:
    """Whether a call counts, computed from the definition of the window and not from the ledger's slots."""
    if window.rolling is not None:
        return window.slot(start_us).end_us + window.rolling_us > now_us
    return window.slot(start_us) == window.slot(now_us)


class LedgerMachine(RuleBasedStateMachine):
    """Random reservations, ends and losses of calls, and hours that pass."""

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
        """Build the ledger from the rows, as a restart does. Calls in progress become unknown."""
        self.ledger = Ledger(self.limits)
        for row in self.rows.values():
            if row.state in ("held", "unknown"):
                row.state = "booked"  # The row is unknown, and the ledger no longer has its name.
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


def test_a_budget_of_one_tenant_leaves_the_others_alone() -> None:
    ledger = Ledger([Budget(max_tokens=0, per="tag:tenant", of="zoo")])
    assert ledger.reserve("a", PAYER, Amount(0, 6), 0) == []
    assert ledger.reserve("b", msgspec.structs.replace(PAYER, tags={"tenant": "zoo"}), Amount(0, 6), 0)


def test_a_refusal_has_the_time_at_which_the_call_fits() -> None:
    ledger, _ = account_of(Budget(max_tokens=10, window="hour"))
    ledger.reserve("a", PAYER, Amount(0, 8), HOUR_US // 2)
    (refusal,) = ledger.reserve("b", PAYER, Amount(0, 8), HOUR_US // 2)
    assert (refusal.fits_at_us, refusal.left.tokens, refusal.may_fit) == (HOUR_US, 2, True)
    (refusal,) = ledger.reserve("c", PAYER, Amount(0, 11), HOUR_US // 2)
    assert (refusal.fits_at_us, refusal.may_fit) == (None, False)


def test_a_call_can_wait_for_the_end_of_another_without_a_window() -> None:
    """A reservation is released when its call costs less. Spent tokens are not released."""
    ledger, _ = account_of(Budget(max_tokens=10))
    ledger.reserve("a", PAYER, Amount(0, 8), 0)
    (refusal,) = ledger.reserve("b", PAYER, Amount(0, 8), 0)
    assert (refusal.fits_at_us, refusal.may_fit) == (None, True)
    ledger.settle("a", Amount(0, 8))
    (refusal,) = ledger.reserve("b", PAYER, Amount(0, 8), 0)
    assert not refusal.may_fit


def test_a_budget_is_low_once_in_a_window() -> None:
    ledger, account = account_of(Budget(max_tokens=10, window="hour"))
    reported = []
    for number, now_us in enumerate((0, 1, 2, HOUR_US, HOUR_US + 1)):
        ledger.reserve(str(number), PAYER, Amount(0, 4), now_us)
        ledger.settle(str(number), Amount(0, 4))
        reported.append(account.is_newly_low(now_us))
    assert reported == [False, True, False, False, True]


def test_a_lost_call_counts_with_its_highest_cost_until_its_cost_is_known() -> None:
    ledger, account = account_of(Budget(max_cost_usd="0.00000001"))
    ledger.reserve("a", PAYER, Amount(8, 100), 0)
    ledger.lose("a")
    assert ledger.lost == ("a",)
    assert (account.state(0).unknown, account.state(0).unknown_calls) == (Amount(8, 100), 1)
    ledger.settle("a", Amount(3, 50))
    assert (account.state(0).spent, account.state(0).unknown) == (Amount(3, 50), Amount(0, 0))


@pytest.mark.parametrize("again", ["settle", "lose", "release"])
def test_a_second_end_of_a_call_changes_nothing(again: str) -> None:
    ledger, account = account_of(Budget(max_tokens=10))
    ledger.reserve("a", PAYER, Amount(0, 8), 0)
    ledger.settle("a", Amount(0, 2))
    before = account.state(0)
    getattr(ledger, again)("a", *([Amount(0, 9)] if again == "settle" else []))
    assert account.state(0) == before


def test_a_name_is_reserved_once() -> None:
    """Two calls of one name would have the same end."""
    ledger, _ = account_of(Budget(max_tokens=10))
    ledger.reserve("a", PAYER, Amount(0, 1), 0)
    with pytest.raises(ValueError, match="'a' already"):
        ledger.reserve("a", PAYER, Amount(0, 1), 0)


# The start of a budget's next window.

moments = st.integers(0, 4_000_000_000).map(lambda seconds: seconds * 1_000_000)
zones = st.sampled_from(["UTC", "Europe/Zurich", "America/New_York", "Asia/Kolkata", "Africa/Cairo"])


def us(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000


@given(
    moment=moments,
    window=st.builds(Window, calendar=st.sampled_from(["hour", "day", "month"]), zone=zones)
    | st.builds(Window, rolling=st.timedeltas(timedelta(seconds=1), timedelta(days=90))),
)
def test_slots_do_not_overlap_and_have_no_gaps(moment: int, window: Window) -> None:
    slot = window.slot(moment)
    assert slot.start_us <= moment < slot.end_us
    assert window.slot(slot.start_us) == window.slot(slot.end_us - 1) == slot
    assert window.slot(slot.end_us).start_us == slot.end_us


@given(moment=moments, zone=zones, unit=st.sampled_from(["day", "month"]))
def test_a_slot_of_the_calendar_is_one_date_of_its_zone(moment: int, zone: str, unit: str) -> None:
    """Every moment of the slot has the same local date, or the same month."""
    slot = Window(calendar=unit, zone=zone).slot(moment)  # type: ignore[arg-type]
    pattern = "%Y-%m-%d" if unit == "day" else "%Y-%m"
    shown = {
        datetime.fromtimestamp(at // 1_000_000, ZoneInfo(zone)).strftime(pattern)
        for at in (slot.start_us, moment, slot.end_us - 1_000_000)
    }
    assert len(shown) == 1


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)])
def test_a_day_on_which_the_clock_is_set_has_23_or_25_hours(day: str, hours: int) -> None:
    """A day's window starts at local midnight."""
    slot = Window(calendar="day", zone="Europe/Zurich").slot(us(f"{day}T12:00", "Europe/Zurich"))
    assert slot.start_us == us(f"{day}T00:00", "Europe/Zurich")
    assert slot.end_us - slot.start_us == hours * 3_600_000_000


def test_an_hour_that_comes_twice_is_two_windows() -> None:
    window = Window(calendar="hour", zone="Europe/Zurich")
    first = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * 1_000_000
    assert window.slot(first).end_us == window.slot(first + 3_600_000_000).start_us


def test_a_rolling_window_forgets_nothing_before_its_time() -> None:
    """An amount counts up to a sixtieth of the window too long, and never leaves early."""
    window = Window(rolling=timedelta(hours=1))
    spent_at = us("2026-06-01T12:34:56")
    assert 3_600_000_000 <= window.forgets_us(window.slot(spent_at)) - spent_at <= 3_660_000_000


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "needs max_cost_usd=, max_tokens=, or both"),
        ({"max_tokens": -1}, "max_tokens=-1: must not be negative"),
        ({"max_cost_usd": "-1"}, "max_cost_usd=-1: must not be negative"),
        ({"max_cost_usd": "much"}, "'much' is not an amount of US dollars"),
        ({"max_cost_usd": float("nan")}, "not an amount of US dollars"),
        (
            {"max_tokens": 1, "per": "planet"},
            "per='planet': must be one of engine, session, provider, model, turn, root, or tag:NAME",
        ),
        ({"max_tokens": 1, "per": "tag:"}, "must be one of"),
        ({"max_tokens": 1, "of": "acme"}, "needs per="),
        ({"max_tokens": 1, "window": "week"}, "'week' is not a window"),
        ({"max_tokens": 1, "window": timedelta(0)}, "too short"),
        ({"max_tokens": 1, "window": "day", "zone": "Mars/Olympus"}, "'Mars/Olympus' is not a time zone"),
        ({"max_tokens": 1, "when_full": "beg"}, "must be 'refuse', 'wait' or 'cheaper'"),
        ({"max_tokens": 1, "unpriced": "hide"}, "must be 'refuse' or 'allow'"),
        ({"max_tokens": 1, "shorten_to": 0}, "must be at least 1"),
        ({"max_tokens": 1, "low_at": 0}, "must be above 0 and at most 1"),
    ],
)
def test_a_wrong_budget_is_refused_when_it_is_made(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Budget(**wrong)  # type: ignore[arg-type]


# The most that a call can cost, compared with the cost of calls within its bounds.

rates = st.integers(0, 10_000)
perhaps = st.none() | rates
rows = st.builds(
    PriceRow,
    model=st.just("s:m"),
    input=rates,
    output=rates,
    reasoning=perhaps,
    cache_read=perhaps,
    cache_write_5m=perhaps,
    cache_write_1h=perhaps,
    per_request=rates,
)


@st.composite
def tables(draw: st.DrawFn) -> PriceTable:
    """Tables with tiers, which are cheaper or more expensive than the base rates."""
    cliffs = draw(st.sets(st.integers(1, 200), max_size=2))
    return PriceTable([draw(rows), *(_above(draw(rows), cliff) for cliff in cliffs)], "random")


def _above(row: PriceRow, tokens: int) -> PriceRow:
    return msgspec.structs.replace(row, above=tokens)


@given(
    table=tables(),
    estimate=st.integers(0, 150),
    most_output=st.integers(0, 300),
    shares=st.lists(st.floats(0, 1), min_size=6, max_size=6),
)
def test_no_call_within_its_bounds_costs_more_than_its_worst_case(
    table: PriceTable, estimate: int, most_output: int, shares: list[float]
) -> None:
    """The input can be any mix of plain, read and written tokens, and the output any mix of text and reasoning."""
    priced = Priced(table, "s:m", 0)
    most = worst_case_of_reply(priced, estimate, most_output, {})
    sent = int((upper_end(estimate) if estimate else 0) * shares[0])
    cached = int(sent * shares[1])
    written = int((sent - cached) * shares[2])
    output = int(most_output * shares[3])
    usage = TokenUsage(
        sent - cached - written,
        output,
        cached_input_tokens=cached,
        cache_creation_input_tokens=written,
        cache_creation_1h_input_tokens=int(written * shares[4]),
        reasoning_tokens=int(output * shares[5]),
    )
    cost = priced.nano_usd(usage)
    assert usage.total_tokens <= most.tokens
    assert cost is None or cost <= most.nano_usd


@pytest.mark.parametrize(
    ("estimate", "output", "fees"),
    [(None, 100, {}), (10, None, {}), (10, 100, None)],
    ids=["no estimate", "no limit on the output", "tools without a limit"],
)
def test_a_call_without_bounds_has_no_worst_case(
    estimate: int | None, output: int | None, fees: dict[str, int] | None
) -> None:
    """The cost of the call is unknown, so `unpriced` of the budget decides."""
    table = PriceTable([PriceRow(model="s:m", input=1, output=1)], "t")
    assert worst_case_of_reply(Priced(table, "s:m", 0), estimate, output, fees).nano_usd is None


@pytest.mark.parametrize(
    ("options", "fees"),
    [
        ({}, {}),
        ({"openai": {"tools": [{"type": "function", "name": "f"}]}}, {}),
        ({"anthropic": {"tools": [{"type": "web_search_20250305", "max_uses": 3}]}}, {"web_search": 3}),
        ({"anthropic": {"tools": [{"type": "web_search_20250305"}]}}, None),
        ({"gemini": {"tools": [{"google_search": {}}]}}, None),
    ],
)
def test_tools_of_the_provider_count_at_their_limit_of_uses(
    options: dict[str, object], fees: dict[str, int] | None
) -> None:
    assert tool_fees(options) == fees  # type: ignore[arg-type]


@pytest.mark.parametrize(("adapter", "adapter_type", "counts"), [
    ("openai", "openai", True), ("mine", "openai", True), ("mine", "anthropic", False),
    ("openai", "anthropic", True), ("mine", "some.module:Adapter", True),
])  # fmt: skip
def test_tools_of_another_protocol_are_not_counted(adapter: str, adapter_type: str, counts: bool) -> None:
    options: dict[str, Any] = {"openai": {"tools": [{"type": "web_search"}]}}
    assert (tool_fees(options, adapter=adapter, adapter_type=adapter_type) is None) is counts


@pytest.mark.parametrize(("options", "most"), [
    ({}, 50), ({"temperature": 3}, 50), ({"n": 3}, 150), ({"max_completion_tokens": 80, "max_tokens": 20}, 80),
    ({"generationConfig": {"candidateCount": 2, "maxOutputTokens": 60}}, 120), ({"n": None, "max_tokens": 0}, 50),
    ({"options": {"num_predict": 80}}, 80), ({"parameters": {"max_new_tokens": 80}}, 80), ({"n_predict": 80}, 80),
    ({"max_tokens": 8e1, "n": "2"}, 160), ({"max_tokens": "many"}, 50), ({"max_tokens": -1}, UNLIMITED),
])  # fmt: skip
def test_options_of_the_provider_can_raise_the_output(options: dict[str, Any], most: int) -> None:
    """The provider bills each choice up to the highest limit in the request."""
    assert most_output(50, {"mine": options}, adapter="mine", adapter_type="gemini") == most
    assert most_output(50, {"anthropic": options}, adapter="mine", adapter_type="gemini") == 50


@pytest.mark.parametrize(("options", "cost"), [
    ({}, 20), ({"service_tier": "auto"}, 20), ({"service_tier": "flex"}, 20), ({"speed": "fast"}, None),
    ({"inference_geo": "global"}, 20), ({"inference_geo": "us"}, 22), ({"inference_geo": "mars"}, None),
    ({"service_tier": "Priority"}, 40), ({"serviceTier": "priority"}, 40),
])  # fmt: skip
def test_the_worst_case_has_the_most_expensive_requested_tier(options: dict[str, Any], cost: int | None) -> None:
    """The provider can also use its default tier. A tier without a price has no worst case."""
    tiers = {"": 10, "priority": 20, "flex": 5, "geo-us": 11}
    rows = [PriceRow(model="s:m", input=0, output=rate, service_tier=tier) for tier, rate in tiers.items()]
    asked = tiers_of({"mine": options, "anthropic": {"speed": "fast"}}, adapter="mine", adapter_type="openai")
    priced = Priced(PriceTable(rows, "t"), "s:m", 0, tiers=asked)
    assert worst_case_of_reply(priced, 1, 2000, {}).nano_usd == cost


def test_a_batch_has_its_own_tier_in_the_geography_that_a_request_names() -> None:
    options: dict[str, Any] = {"anthropic": {"service_tier": "auto", "inference_geo": "us"}}
    assert tiers_of(options, only="batch") == ("batch", "batch+geo-us")
    assert tiers_of({}, only="batch") == ("batch",)


def test_fees_of_tools_are_in_the_worst_case() -> None:
    """The call can search three times, at ten dollars for a thousand searches."""
    row = PriceRow(model="s:m", input=0, output=0, extra={"web_search": 10_000_000_000})
    most = worst_case_of_reply(Priced(PriceTable([row], "t"), "s:m", 0), 1, 1, {"web_search": 3})
    assert most.nano_usd == 30_000_000


def test_images_are_priced_by_number_or_by_tokens() -> None:
    """The price row decides which of the two counts."""
    by_piece = PriceRow(model="s:m", extra={"image": 40_000_000_000})
    assert worst_case(Priced(PriceTable([by_piece], "t"), "s:m", 0), most_of_images(0, 2)).nano_usd == 80_000_000
    by_token = PriceRow(model="s:m", input=0, output=1_000)
    most = worst_case(Priced(PriceTable([by_token], "t"), "s:m", 0), most_of_images(0, 2))
    assert most == Amount(2 * 8192, 2 * 8192 + upper_end(0))


# Many concurrent callers in random orders: no overspend, no wrong refusal, and no waiting call that fits.

LIMIT = 20


class Caller(msgspec.Struct):
    """A call: its start, its request, its duration, and its end."""

    session: str
    asks: int
    comes: int
    takes: int
    ends: str
    uses: int


callers = st.builds(
    Caller,
    session=st.sampled_from(["a", "b"]),
    asks=st.integers(0, LIMIT + 3),
    comes=st.integers(0, 20),
    takes=st.integers(0, 15),
    ends=st.sampled_from(["settled", "unknown", "cancelled"]),
    uses=st.integers(0, LIMIT),
)
limits = st.lists(
    st.builds(
        Budget,
        max_tokens=st.just(LIMIT),
        per=st.sampled_from(["engine", "session"]),
        window=st.sampled_from([None, timedelta(seconds=60), "hour"]),
        when_full=st.sampled_from(["refuse", "wait"]),
    ),
    min_size=1,
    max_size=3,
)


def ended(caller: Caller) -> LlmCallFailed:
    """The event at the end of the caller's attempt."""
    usage, cost = TokenUsage(min(caller.uses, caller.asks)), Cost(0, CostSource.COMPUTED)
    known = {} if caller.ends == "unknown" else {"usage": usage, "cost": cost}
    return Maker().failed(error_class="network", provider_status=None, **known).data


class World:
    """The budgets, and checks of them."""

    def __init__(self, budgets: list[Budget]) -> None:
        self.clock = FakeClock()
        self.budgets = Budgets(budgets, Bus(clock=self.clock), self.clock, self.load)
        self.counts: dict[str, int] = {}

    async def load(self, budgets: object, now_us: int) -> Counted:
        await anyio.sleep(1)
        return Counted([])

    def check(self) -> None:
        for state in self.budgets.states():
            assert state.left_tokens >= 0, "the budget is overspent"

    async def call(self, number: int, caller: Caller) -> str:
        await anyio.sleep(caller.comes)
        name, payer = f"{number}/1", Payer("s:m", caller.session)
        asked = Amount(0, caller.asks)
        try:
            await self.budgets.reserve(name, payer, asked)
        except BudgetExceededError:
            refusals = self.budgets.ledger.would_refuse(payer, asked, self.clock.now_us())
            assert refusals, "the refused call would have fitted"
            return "refused"
        self.check()
        self.counts[name] = caller.asks
        with contextlib.suppress(asyncio.CancelledError):
            await anyio.sleep(caller.takes)
        self.budgets.settle(name, payer, ended(caller), number)
        if caller.ends != "unknown":
            self.counts[name] = min(caller.uses, caller.asks)
        self.check()
        return "made"


@settings(max_examples=150, deadline=None)
@given(budgets=limits, crowd=st.lists(callers, max_size=14))
def test_in_any_order_nothing_is_overspent_and_no_call_that_fits_waits(
    budgets: list[Budget], crowd: list[Caller]
) -> None:
    """Callers start, wait, are cancelled, and end with a known or unknown cost. New windows start."""

    async def run() -> None:
        world = World(budgets)
        tasks = [asyncio.ensure_future(world.call(number, caller)) for number, caller in enumerate(crowd)]

        async def give_up(task: asyncio.Task[str], caller: Caller) -> None:
            await anyio.sleep(caller.comes + caller.takes / 2)
            if caller.ends == "cancelled":
                task.cancel()

        impatient = [
            asyncio.ensure_future(give_up(task, caller)) for task, caller in zip(tasks, crowd, strict=True)
        ]
        await anyio.sleep(0.5)  # The checks run between the moments of the events.
        for _ in range(80):
            await anyio.sleep(1)
            world.check()
            waiting = world.budgets._waiters
            if waiting:
                first = waiting[0]
                refusals = world.budgets.ledger.would_refuse(first.payer, first.amount, world.clock.now_us())
                assert refusals, "the first waiting call has room"
        for task in (*tasks, *impatient):
            task.cancel()
        ends = await asyncio.gather(*tasks, *impatient, return_exceptions=True)
        assert not [end for end in ends if isinstance(end, AssertionError)]
        assert (world.budgets.waiting, world.budgets.ledger.held) == (0, ())
        for state in world.budgets.states():
            if state.budget.window is None:
                mine = [
                    world.counts[f"{number}/1"]
                    for number, caller in enumerate(crowd)
                    if f"{number}/1" in world.counts and state.scope in ("", caller.session)
                ]
                assert state.spent.tokens + state.unknown.tokens == sum(mine)

    run_virtual(run)
