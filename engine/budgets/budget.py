"""The spending limits of a host: an amount, a scope, and a window of time. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from callboard.bus.values.usage import usd_of
from callboard.tracestore.rows import SpendingQuery

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo


# --- Budget windows ---

Calendar: TypeAlias = Literal["hour", "day", "month"]

SLOTS = 60
"""The number of slots of a rolling window. Spending expires slot by slot, so in steps of a sixtieth of the
window.
"""

ENDLESS_US = 1 << 62
"""A time later than all others, in microseconds."""


class Slot(msgspec.Struct, frozen=True, order=True, gc=False):
    """A stretch of time, in microseconds since the Unix epoch."""

    start_us: int
    """The first moment of the slot."""
    end_us: int
    """The first moment after the slot."""


FOREVER = Slot(-ENDLESS_US, ENDLESS_US)


class Window(msgspec.Struct, frozen=True):
    """The period over which a budget counts calls.

    Raises:
        ValueError: A rolling window is shorter than a second, or the time zone is unknown.
    """

    calendar: Calendar | None = None
    """The calendar unit; None for a rolling window, or if there is no window."""
    zone: str = "UTC"
    """The time zone of the calendar, by its IANA name."""
    rolling: timedelta | None = None
    """The length of a rolling window."""

    def __post_init__(self) -> None:
        if self.calendar is not None and self.rolling is not None:
            raise ValueError("a window is a calendar window or a rolling one, not both")
        if self.calendar not in (None, "hour", "day", "month"):
            raise ValueError(f"{self.calendar!r} is not a window: expected 'hour', 'day', 'month', or a timedelta")
        if self.rolling is not None and self.rolling < timedelta(seconds=1):
            raise ValueError(f"a window of {self.rolling} is too short: expected at least one second")
        try:
            _zone(self.zone)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(
                f"{self.zone!r} is not a time zone: expected a name such as 'Europe/Zurich'"
            ) from error

    @property
    def rolling_us(self) -> int:
        return 0 if self.rolling is None else self.rolling // timedelta(microseconds=1)

    def slot(self, now_us: int) -> Slot:
        """The slot that a moment belongs to."""
        if self.rolling is not None:
            length = max(self.rolling_us // SLOTS, 1)
            start = now_us // length * length
            return Slot(start, start + length)
        if self.calendar is None:
            return FOREVER
        return _calendar_slot(self.calendar, _zone(self.zone), now_us)

    def forgets_us(self, slot: Slot) -> int:
        """The time when a slot stops counting."""
        return slot.end_us + self.rolling_us if self.rolling is not None else slot.end_us


def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo  # lazy: it takes 2 ms, and only programs with budgets need it

    return ZoneInfo(name)


def _calendar_slot(unit: Calendar, zone: ZoneInfo, now_us: int) -> Slot:
    now = datetime.fromtimestamp(now_us // 1_000_000, zone)
    if unit == "hour":
        # When clocks are set back, an hour occurs twice. It is two slots, which `fold` distinguishes.
        start = now.replace(minute=0, second=0)
        return _between(start, (start.astimezone(UTC) + timedelta(hours=1)).astimezone(zone))
    start = now.replace(hour=0, minute=0, second=0, fold=0)
    if unit == "month":
        start = start.replace(day=1)
        return _between(start, (start + timedelta(days=32)).replace(day=1))
    return _between(start, start + timedelta(days=1))


def _between(start: datetime, end: datetime) -> Slot:
    return Slot(_us(start), _us(end))


def _us(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000


WhenFull: TypeAlias = Literal["refuse", "wait", "cheaper"]
"""What happens to a call that does not fit into a budget."""

_TAG = "tag:"
_KINDS = ("engine", "session", "provider", "model", "turn", "root")
OF_TREES = ("turn", "root")
"""Scopes that have an account for each turn. The account is dropped when the turn ends."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A spending limit for calls. The maximum cost of a call is reserved before the call is sent.

    Raises:
        ValueError: There is no limit, a limit is negative, or a field has an invalid value.
    """

    max_cost_usd: Decimal | float | str | None = None
    """The maximum spending in the window, in US dollars; None means no limit on money."""
    max_tokens: int | None = None
    """The maximum of input plus output tokens in the window; None means no limit on tokens."""
    per: str = "engine"
    """The scope: ``engine``, ``session``, ``provider``, ``model``, ``turn``, ``root`` or ``tag:NAME``.

    Each session, provider, model, turn or value of the tag has its own account. Calls without such a value share
    one account. ``root`` is a turn together with all turns and calls that its tools start, and ``turn`` is a turn
    without them. Such an account ends with its turn, and has no window.
    """
    of: str | None = None
    """The one session, provider, model or tag value that is limited; None limits each one separately."""
    window: Calendar | timedelta | None = None
    """The time after which the account restarts from zero. None means never.

    ``hour``, ``day`` and ``month`` follow the calendar. A timedelta is a rolling window.
    """
    zone: str = "UTC"
    """The IANA time zone of the calendar."""
    when_full: WhenFull = "refuse"
    """What happens to a call that does not fit. ``refuse`` raises BudgetExceededError. ``wait`` waits until the
    call fits, because another call or the window ends. ``cheaper`` tries the next candidate that fits.
    """
    shorten_to: int | None = None
    """The smallest `max_output_tokens` to which a call may be shortened so that it fits. None means never."""
    unpriced: Literal["refuse", "allow"] = "refuse"
    """What happens to a call of unknown price. A budget that allows it does not count its cost."""
    low_at: float = 0.8
    """The fraction of the limit at which ``budget.low`` is published, once in a window."""
    follows_repricing: bool = False
    """Whether repricing past calls changes the amount spent. If False, a call counts with its cost at the time of
    the call.
    """
    counts_imported: bool = False
    """Whether imported calls of other programs count. Only calls that were imported before the engine reads the
    trace are included.
    """

    def __post_init__(self) -> None:
        if self.max_cost_usd is None and self.max_tokens is None:
            raise ValueError("a Budget needs max_cost_usd=, max_tokens=, or both")
        if self.max_nano_usd is not None and self.max_nano_usd < 0:
            raise ValueError(f"max_cost_usd={self.max_cost_usd}: must not be negative")
        if self.max_tokens is not None and self.max_tokens < 0:
            raise ValueError(f"max_tokens={self.max_tokens}: must not be negative")
        if self.per not in _KINDS and not (self.per.startswith(_TAG) and len(self.per) > len(_TAG)):
            raise ValueError(f"per={self.per!r}: must be one of {', '.join(_KINDS)}, or tag:NAME")
        if self.of is not None and self.per == "engine":
            raise ValueError("of= is a session, provider, model or tag value and needs per=")
        if self.per in OF_TREES and (self.of is not None or self.window is not None or self.follows_repricing):
            raise ValueError(
                f"per={self.per!r} does not support of=, window= or follows_repricing=: it ends with the turn"
            )
        if self.when_full not in ("refuse", "wait", "cheaper"):
            raise ValueError(f"when_full={self.when_full!r}: must be 'refuse', 'wait' or 'cheaper'")
        if self.unpriced not in ("refuse", "allow"):
            raise ValueError(f"unpriced={self.unpriced!r}: must be 'refuse' or 'allow'")
        if self.shorten_to is not None and self.shorten_to < 1:
            raise ValueError(f"shorten_to={self.shorten_to}: must be at least 1")
        if not 0 < self.low_at <= 1:
            raise ValueError(f"low_at={self.low_at}: must be above 0 and at most 1")
        _ = self.counted_over  # raises an error for an invalid window now

    @property
    def max_nano_usd(self) -> int | None:
        """The limit in nano-USD, rounded down."""
        if self.max_cost_usd is None:
            return None
        try:
            return int(Decimal(str(self.max_cost_usd)).scaleb(9))
        except (InvalidOperation, ValueError, OverflowError) as error:
            raise ValueError(f"max_cost_usd={self.max_cost_usd!r} is not an amount of US dollars") from error

    @property
    def counted_over(self) -> Window:
        """The budget's window, as a `Window`."""
        if isinstance(self.window, timedelta):
            return Window(rolling=self.window)
        return Window(calendar=self.window, zone=self.zone)

    def value_for(self, payer: Payer) -> str | None:
        """The account that a call belongs to; None if this budget does not apply to the call."""
        value = payer.value(self.per)
        return value if self.of is None or value == self.of else None

    def describe(self, value: str) -> str:
        """The account of the budget as text for errors: ``3 USD per tag:tenant 'acme' and day``."""
        limits = []
        if self.max_nano_usd is not None:
            limits.append(f"{usd_of(self.max_nano_usd).normalize():f} USD")
        if self.max_tokens is not None:
            limits.append(f"{self.max_tokens} tokens")
        account = "" if self.per == "engine" else f" per {self.per} {value!r}"
        when = f" and {self.window}" if self.window is not None else ""
        return " and ".join(limits) + account + when


class Payer(msgspec.Struct, frozen=True):
    """The session, provider, model and tags that select the budgets of a call."""

    model: str
    """The model as ``provider:name``."""
    session_id: str = ""
    """The session's id; empty for a call without a session."""
    tags: Mapping[str, str] = {}
    """The host's tags of the call."""
    turn_id: str = ""
    """The turn of the call. If a tool makes a call outside of a turn, this is the turn that runs the tool."""
    root_turn_id: str = ""
    """The turn at the root of the tree."""
    accounts: tuple[Any, ...] = ()
    """The accounts of the limits of the turns above, see `engine.tree`."""

    def value(self, per: str) -> str:
        """The call's value in a scope; empty if it has none."""
        match per:
            case "engine":
                return ""
            case "session":
                return self.session_id
            case "provider":
                return self.model.partition(":")[0]
            case "model":
                return self.model
            case "turn":
                return self.turn_id
            case "root":
                return self.root_turn_id
            case _:
                return self.tags.get(per.removeprefix(_TAG), "")


_DIMENSIONS = {"engine": None, "session": "session_id"}
"""The trace's names for scopes that have another name there."""


def query_of(budget: Budget, now_us: int) -> SpendingQuery:
    """The calls that count in a budget at a given time."""
    window = budget.counted_over
    slot = window.slot(now_us)
    since_us: int | None = slot.start_us
    slot_us: int | None = None
    if window.rolling is not None:
        slot_us = slot.end_us - slot.start_us
        since_us = window.slot(now_us - window.rolling_us).start_us
    elif window.calendar is None:
        since_us = None
    return SpendingQuery(
        by=_DIMENSIONS.get(budget.per, budget.per),
        value=budget.of,
        since_us=since_us,
        slot_us=slot_us,
        current=budget.follows_repricing,
        imported=budget.counts_imported,
    )
