"""One run's events as they come in: from pages in any order, doubled or lost, and from the shared store.

    following    everything up to `known` was given, and nothing beyond it has been heard of
    lacking      something beyond `known` has been heard of; what lies between is asked of the store

Pages that came early wait, within a bound; what there is no room for is asked of the store as well. The store may
be behind, since what is there was shipped; it is asked again and again. What never comes there, because its host
is gone with its disk, is passed over where the reader has set a limit to its patience, and counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from callboard.bus import Envelope

MOST_HELD = 64
"""The number of pages that wait for those before them at most."""

FIRST_WAIT = 0.05
"""Seconds before the store is asked for what is missing. They double with each answer that has nothing new."""

LONGEST_WAIT = 1.0
"""The most that these seconds come to."""

GRACE_SECONDS = 1.0
"""Seconds for which a page is waited for whose events are in the store already."""


class Arrived(msgspec.Struct, frozen=True):
    """A page that came."""

    after: int
    """The `seq` of the event before its first one."""
    last: int
    """The `seq` of its last event."""
    envelopes: Sequence[Envelope] | None
    """Its events; None if they are in the store alone."""


class Incoming:
    """The events of one run. Times are seconds of any clock that never goes back.

    Args:
        known: The `seq` up to which the reader wants nothing. None: the first page says it.
        patience: Seconds without any progress after which what is missing is passed over; infinity for never.
    """

    def __init__(self, known: int | None, patience: float) -> None:
        self.known = known
        """The `seq` up to which everything was given."""
        self.wanted = known or 0
        """The `seq` of the last event that was heard of."""
        self.passed_over = 0
        """The number of gaps that were passed over."""
        self._patience = patience
        self._held: dict[int, Arrived] = {}  # by `after`
        self._wait = FIRST_WAIT
        self._ask_at = 0.0
        self._give_up_at = 0.0
        self._stuck_since = 0.0

    @property
    def stuck_since(self) -> float | None:
        """The time since when something is missing without any progress; None if nothing is."""
        return self._stuck_since if self.lacking else None

    @property
    def lacking(self) -> bool:
        """Whether anything is missing."""
        return self.known is not None and self.known < self.wanted

    @property
    def ask_at(self) -> float | None:
        """When to ask the store for what is behind `known`; None if nothing is missing."""
        return self._ask_at if self.lacking else None

    def heard(self, page: Arrived, now: float) -> list[Envelope]:
        """A page came. Returns the events that the reader is given now, in order."""
        if self.known is None:
            self.known = self.wanted = page.after
        if page.last <= self.known:
            return []
        self._want(page.last, now, FIRST_WAIT)
        if page.envelopes is None:
            self._ask_at = min(self._ask_at, now + FIRST_WAIT)
            return []
        if len(self._held) < MOST_HELD or page.after <= self.known:
            held = self._held.get(page.after)
            if held is None or held.last < page.last:
                self._held[page.after] = page
        return self._given(now)

    def stored(self, last: int, now: float) -> None:
        """The store has events up to this one, says a look at all runs. Pages of them may be on their way."""
        if self.known is None:
            self.known = self.wanted = last
        elif last > self.wanted:
            self._want(last, now, GRACE_SECONDS)

    def answered(self, envelopes: Sequence[Envelope], through: int, now: float) -> list[Envelope]:
        """The store was asked for what is behind `known`.

        Args:
            envelopes: The events that it has, in order: some, or all up to `through`.
            through: The `seq` up to which the store has nothing else.
            now: The time.

        Returns:
            The events that the reader is given now.
        """
        assert self.known is not None
        given = [envelope for envelope in envelopes if envelope.seq > self.known]
        reached = max(self.known, through, given[-1].seq if given else 0)
        self.wanted = max(self.wanted, reached)
        if reached > self.known:
            self.known = reached
            self._progressed(now)
            return given + self._given(now)
        self._wait = min(self._wait * 2, LONGEST_WAIT)
        self._ask_at = now + self._wait
        return self._passed_over(now) if now >= self._give_up_at else []

    def unanswered(self, now: float) -> None:
        """The store can't be asked. Nothing is passed over for that."""
        self._ask_at = now + LONGEST_WAIT
        self._give_up_at = max(self._give_up_at, now + self._patience)

    def without_store(self, now: float) -> list[Envelope]:
        """There is no store: what is missing is passed over at once. Returns the events that are given now."""
        return self._passed_over(now) if self.lacking else []

    # -- inside

    def _want(self, last: int, now: float, wait: float) -> None:
        if not self.lacking:
            self._wait = FIRST_WAIT
            self._ask_at = now + wait
            self._stuck_since = now
            self._give_up_at = now + self._patience
        self.wanted = max(self.wanted, last)

    def _progressed(self, now: float) -> None:
        self._wait = FIRST_WAIT
        self._ask_at = now
        self._stuck_since = now
        self._give_up_at = now + self._patience

    def _given(self, now: float) -> list[Envelope]:
        """The events of held pages that follow on what is known."""
        assert self.known is not None
        given: list[Envelope] = []
        while (page := self._next_held(self.known)) is not None:
            del self._held[page.after]
            if page.last <= self.known:
                continue
            assert page.envelopes is not None
            given += [envelope for envelope in page.envelopes if envelope.seq > self.known]
            self.known = page.last
            self._progressed(now)
        return given

    def _next_held(self, known: int) -> Arrived | None:
        return next((page for after, page in self._held.items() if after <= known), None)

    def _passed_over(self, now: float) -> list[Envelope]:
        """Go on behind the gap."""
        assert self.known is not None
        self.passed_over += 1
        self.known = min(self._held, default=self.wanted)
        self._progressed(now)
        return self._given(now)
