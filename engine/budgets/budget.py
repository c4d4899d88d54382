"""What a host allows its calls to spend: a limit, on whom, and over what time. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Literal, TypeAlias

import msgspec

from callboard.bus.values.usage import usd_of

from .windows import Calendar, Window

WhenFull: TypeAlias = Literal["refuse", "wait", "cheaper"]
"""What becomes of a call that does not fit into a budget."""

_TAG = "tag:"
_KINDS = ("engine", "session", "provider", "model")


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on what calls may spend. The most that a call can cost is reserved before the call is sent.

    Raises:
        ValueError: There is no limit, a limit is negative, or a field has none of the values that it can have.
    """

    max_cost_usd: Decimal | float | str | None = None
    """The most that may be spent in the window, in US dollars; None is no limit on money."""
    max_tokens: int | None = None
    """The most input and output tokens of the window together; None is no limit on tokens."""
    per: str = "engine"
    """The scope that has the limit for itself: ``engine``, ``session``, ``provider``, ``model``, or ``tag:NAME``.

    Each session, provider, model or value of the tag has an account of its own. What has none shares one account.
    """
    of: str | None = None
    """The one session, provider, model or value of the tag that is limited; None limits each."""
    window: Calendar | timedelta | None = None
    """The time after which the account begins anew: ``hour``, ``day`` or ``month`` of the calendar, or a timedelta
    for a rolling window. None never begins anew."""
    zone: str = "UTC"
    """The IANA time zone of the calendar."""
    when_full: WhenFull = "refuse"
    """The fate of a call that does not fit. ``refuse`` raises BudgetExceededError. ``wait`` waits until the end of
    another call, or of the window, makes room. ``cheaper`` goes on to the next candidate that fits."""
    shorten_to: int | None = None
    """The smallest `max_output_tokens` to which a call may be shortened so that it fits; None shortens none."""
    unpriced: Literal["refuse", "allow"] = "refuse"
    """The fate of a call whose price nobody knows. A budget that allows it does not see its cost."""
    low_at: float = 0.8
    """The fraction of the limit at which ``budget.low`` is published, once in a window."""
    follows_repricing: bool = False
    """Whether repricing the past changes what counts as spent. If not, a call counts at the price of its time."""

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
            raise ValueError("of= names a session, provider, model or value of a tag: say which with per=")
        if self.when_full not in ("refuse", "wait", "cheaper"):
            raise ValueError(f"when_full={self.when_full!r}: must be 'refuse', 'wait' or 'cheaper'")
        if self.unpriced not in ("refuse", "allow"):
            raise ValueError(f"unpriced={self.unpriced!r}: must be 'refuse' or 'allow'")
        if self.shorten_to is not None and self.shorten_to < 1:
            raise ValueError(f"shorten_to={self.shorten_to}: must be at least 1")
        if not 0 < self.low_at <= 1:
            raise ValueError(f"low_at={self.low_at}: must be above 0 and at most 1")
        self.counted_over  # noqa: B018 - a wrong window is told here

    @property
    def max_nano_usd(self) -> int | None:
        """The limit in nano-USD, rounded down."""
        if self.max_cost_usd is None:
            return None
        try:
            return int(Decimal(str(self.max_cost_usd)).scaleb(9))
        except (InvalidOperation, ValueError, OverflowError) as error:
            raise ValueError(f"max_cost_usd={self.max_cost_usd!r} is no amount of US dollars") from error

    @property
    def counted_over(self) -> Window:
        """The window as a value that knows its slots."""
        if isinstance(self.window, timedelta):
            return Window(rolling=self.window)
        return Window(calendar=self.window, zone=self.zone)

    def value_for(self, payer: Payer) -> str | None:
        """The account that a call belongs to; None if this budget does not look at the call."""
        value = payer.value(self.per)
        return value if self.of is None or value == self.of else None

    def describe(self, value: str) -> str:
        """The budget's account in words, for errors: ``3 USD per tag:tenant 'acme' and day``."""
        limits = []
        if self.max_nano_usd is not None:
            limits.append(f"{usd_of(self.max_nano_usd).normalize():f} USD")
        if self.max_tokens is not None:
            limits.append(f"{self.max_tokens} tokens")
        whose = "" if self.per == "engine" else f" per {self.per} {value!r}"
        when = f" and {self.window}" if self.window is not None else ""
        return " and ".join(limits) + whose + when


class Payer(msgspec.Struct, frozen=True):
    """Whose budgets a call is held against."""

    model: str
    """The model as ``provider:name``."""
    session_id: str = ""
    """The session's id; empty for a call without a session."""
    tags: Mapping[str, str] = {}
    """The host's tags of the call."""

    def value(self, per: str) -> str:
        """What the call is called in a scope; empty where it has nothing of that kind."""
        match per:
            case "engine":
                return ""
            case "session":
                return self.session_id
            case "provider":
                return self.model.partition(":")[0]
            case "model":
                return self.model
            case _:
                return self.tags.get(per.removeprefix(_TAG), "")
