"""When a budget begins anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.engine.budgets.budget import FOREVER, Budget, Window

moments = st.integers(0, 4_000_000_000).map(lambda seconds: seconds * 1_000_000)
zones = st.sampled_from(["UTC", "Europe/Zurich", "America/New_York", "Asia/Kolkata", "Africa/Cairo"])


def us(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000


@given(
    moment=moments,
    window=st.builds(Window, calendar=st.sampled_from(["hour", "day", "month"]), zone=zones)
    | st.builds(Window, rolling=st.timedeltas(timedelta(seconds=1), timedelta(days=90))),
)
def test_slots_lie_side_by_side(moment: int, window: Window) -> None:
    """Each moment is in exactly one slot, and the next slot begins where one ends."""
    slot = window.slot(moment)
    assert slot.start_us <= moment < slot.end_us
    assert window.slot(slot.start_us) == window.slot(slot.end_us - 1) == slot
    assert window.slot(slot.end_us).start_us == slot.end_us


@given(moment=moments, zone=zones, unit=st.sampled_from(["day", "month"]))
def test_a_slot_of_the_calendar_is_one_date_of_its_zone(moment: int, zone: str, unit: str) -> None:
    """All its moments have the date, or the month, that a clock on the wall shows."""
    slot = Window(calendar=unit, zone=zone).slot(moment)  # type: ignore[arg-type]
    pattern = "%Y-%m-%d" if unit == "day" else "%Y-%m"
    shown = {
        datetime.fromtimestamp(at // 1_000_000, ZoneInfo(zone)).strftime(pattern)
        for at in (slot.start_us, moment, slot.end_us - 1_000_000)
    }
    assert len(shown) == 1


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)])
def test_a_day_on_which_the_clock_is_set_has_23_or_25_hours(day: str, hours: int) -> None:
    """A budget for a day in Zurich begins anew at midnight in Zurich."""
    slot = Window(calendar="day", zone="Europe/Zurich").slot(us(f"{day}T12:00", "Europe/Zurich"))
    assert slot.start_us == us(f"{day}T00:00", "Europe/Zurich")
    assert slot.end_us - slot.start_us == hours * 3_600_000_000


def test_an_hour_that_comes_twice_is_two_windows() -> None:
    """When the clock is set back, two o'clock comes twice, and each has its budget."""
    window = Window(calendar="hour", zone="Europe/Zurich")
    first = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * 1_000_000
    assert window.slot(first).end_us == window.slot(first + 3_600_000_000).start_us


def test_a_rolling_window_forgets_nothing_before_its_time() -> None:
    """What was spent leaves at most a sixtieth of the window late, and never early."""
    window = Window(rolling=timedelta(hours=1))
    spent_at = us("2026-06-01T12:34:56")
    forgotten = window.forgets_us(window.slot(spent_at))
    assert 3_600_000_000 <= forgotten - spent_at <= 3_660_000_000


def test_without_a_window_everything_counts_for_ever() -> None:
    """A budget for good."""
    assert Window().slot(0) == Window().slot(us("2262-01-01T00:00")) == FOREVER


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "needs max_cost_usd=, max_tokens=, or both"),
        ({"max_tokens": -1}, "max_tokens=-1: must not be negative"),
        ({"max_cost_usd": "-1"}, "max_cost_usd=-1: must not be negative"),
        ({"max_cost_usd": "much"}, "'much' is no amount of US dollars"),
        ({"max_cost_usd": float("nan")}, "no amount of US dollars"),
        (
            {"max_tokens": 1, "per": "planet"},
            "per='planet': must be one of engine, session, provider, model, or tag:NAME",
        ),
        ({"max_tokens": 1, "per": "tag:"}, "must be one of"),
        ({"max_tokens": 1, "of": "acme"}, "say which with per="),
        ({"max_tokens": 1, "window": "week"}, "'week' is no window"),
        ({"max_tokens": 1, "window": timedelta(0)}, "too short"),
        ({"max_tokens": 1, "window": "day", "zone": "Mars/Olympus"}, "'Mars/Olympus' is no time zone"),
        ({"max_tokens": 1, "when_full": "beg"}, "must be 'refuse', 'wait' or 'cheaper'"),
        ({"max_tokens": 1, "unpriced": "hide"}, "must be 'refuse' or 'allow'"),
        ({"max_tokens": 1, "shorten_to": 0}, "must be at least 1"),
        ({"max_tokens": 1, "low_at": 0}, "must be above 0 and at most 1"),
    ],
)
def test_a_budget_that_makes_no_sense_is_told_at_once(wrong: dict[str, object], told: str) -> None:
    """A typing error in a limit must not become a limit."""
    with pytest.raises(ValueError, match=told):
        Budget(**wrong)  # type: ignore[arg-type]
