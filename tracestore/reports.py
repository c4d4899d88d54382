"""What a repricing says that it did: as a whole, and by model, day and session.

Its two sums are over the same calls, those with a cost before and after, so that their difference means something.
Calls that only one of the two sides prices are beside them, with what they cost on that side.
"""

from __future__ import annotations

import msgspec


class RepriceSums(msgspec.Struct, frozen=True, kw_only=True):
    """What a repricing did to some calls.

    calls: all that have usage. unpriced: those without a cost now; unpriced_before: without one until now.
    before_nano_usd, after_nano_usd: sums over the calls with a cost before and after. newly_priced,
    no_longer_priced: calls with a cost only after, or only before; newly_priced_nano_usd,
    no_longer_priced_nano_usd: what they cost there. estimated: calls with usage that was estimated. unknown: calls
    beside all these of which not even the usage is known.
    """

    calls: int
    unpriced: int
    unpriced_before: int
    before_nano_usd: int
    after_nano_usd: int
    newly_priced: int = 0
    newly_priced_nano_usd: int = 0
    no_longer_priced: int = 0
    no_longer_priced_nano_usd: int = 0
    estimated: int = 0
    unknown: int = 0

    @property
    def compared(self) -> int:
        """How many calls the two sums are over."""
        return self.calls - self.unpriced - self.newly_priced

    @property
    def all_before_nano_usd(self) -> int:
        """The sum over every call with a cost before, whether it has one now or not."""
        return self.before_nano_usd + self.no_longer_priced_nano_usd

    @property
    def all_after_nano_usd(self) -> int:
        """The sum over every call with a cost now, whether it had one before or not."""
        return self.after_nano_usd + self.newly_priced_nano_usd


class ModelReprice(RepriceSums, frozen=True, kw_only=True):
    """What a repricing did to one model's calls. model: ``provider:name`` as routed."""

    model: str


class DayReprice(RepriceSums, frozen=True, kw_only=True):
    """What a repricing did to the calls of one day. day: an ISO date, UTC."""

    day: str


class SessionReprice(RepriceSums, frozen=True, kw_only=True):
    """What a repricing did to the calls of one session; of those without one, the id is empty."""

    session_id: str


class RepriceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repricing did, or would do.

    version: the price table's, 12 hex digits; label: its name for people. calls, unpriced, unpriced_before,
    newly_priced, no_longer_priced and their amounts, estimated, unknown: as in `RepriceSums`, of the calls that
    match the filter. sum_before_nano_usd, sum_after_nano_usd: over the calls with a cost before and after.
    in_flight: calls that had begun and not ended as it finished; they get their new costs when they end.
    as_model: what the calls were priced as, if that was asked for. models: the same by routed model, the
    greatest sum first; days: by day, in order; sessions: the greatest sum first, empty unless they were asked
    for. previous_version: the price version that was current before; `undo_reprice()` goes back to it. run_id:
    its number in the history; None if it was only tried.
    """

    version: str
    label: str
    dry_run: bool
    calls: int
    unpriced: int
    unpriced_before: int
    sum_before_nano_usd: int
    sum_after_nano_usd: int
    models: tuple[ModelReprice, ...]
    newly_priced: int = 0
    newly_priced_nano_usd: int = 0
    no_longer_priced: int = 0
    no_longer_priced_nano_usd: int = 0
    estimated: int = 0
    unknown: int = 0
    in_flight: int = 0
    days: tuple[DayReprice, ...] = ()
    sessions: tuple[SessionReprice, ...] = ()
    as_model: str | None = None
    previous_version: str | None = None
    run_id: int | None = None

    @property
    def total(self) -> RepriceSums:
        """The sums over all calls."""
        return RepriceSums(
            calls=self.calls,
            unpriced=self.unpriced,
            unpriced_before=self.unpriced_before,
            before_nano_usd=self.sum_before_nano_usd,
            after_nano_usd=self.sum_after_nano_usd,
            newly_priced=self.newly_priced,
            newly_priced_nano_usd=self.newly_priced_nano_usd,
            no_longer_priced=self.no_longer_priced,
            no_longer_priced_nano_usd=self.no_longer_priced_nano_usd,
            estimated=self.estimated,
            unknown=self.unknown,
        )
