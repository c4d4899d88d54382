"""A limit for the money or the tokens that calls may use."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from adapters import CanonicalRequest
from bus import CallboardError
from bus.values.cost_sum import CostSum
from bus.values.usage import usd_of

from ..calls.outcome import CallEnd, CallInfo, CallOutcome, WorstCase, cost_sum, output_is_unknown
from .contract import Middleware, Next


class BudgetExceededError(CallboardError):
    """The budget is used up. The call was not made, and costs nothing."""


class Budget(Middleware):
    """Refuses calls once their sum has reached a limit of money or of tokens.

    Calls of every kind count with each of their attempts, also embeddings, images and videos. The usage of an
    attempt is unknown if it timed out, was cancelled or broke off before anything arrived. Such an attempt counts
    as its worst case: all input that was sent, and all output that was allowed. A call that is refused raises
    BudgetExceededError.

    Calls that are under way when the limit is reached still end, so the sum may exceed the limit by the calls that
    run at once. A video is counted when its end is seen. A request that was answered without a call counts
    nothing.

    Args:
        max_cost_usd: The limit in US dollars.
        max_tokens: The limit in tokens, input and output together.
        per_session: Whether each session has the limits for itself. Calls without a session share one.
        unpriced_ends: Whether a call without a known price and without a worst case uses up the budget, because
            nobody knows what is left. Otherwise such a call counts nothing.
        most_sessions: The number of sessions that are remembered. Beyond it, the session that was quiet for
            longest is forgotten. If that session comes back, its budget begins anew.

    Raises:
        ValueError: There is no limit, or `most_sessions` is below 1.
    """

    def __init__(
        self,
        *,
        max_cost_usd: Decimal | float | str | None = None,
        max_tokens: int | None = None,
        per_session: bool = False,
        unpriced_ends: bool = False,
        most_sessions: int = 10_000,
    ) -> None:
        if max_cost_usd is None and max_tokens is None:
            raise ValueError("a Budget needs max_cost_usd=, max_tokens=, or both")
        if most_sessions < 1:
            raise ValueError(f"most_sessions={most_sessions}: must be at least 1")
        self._max_nano_usd = None if max_cost_usd is None else int(Decimal(str(max_cost_usd)).scaleb(9))
        self._max_tokens = max_tokens
        self._unpriced_ends = unpriced_ends
        self._per_session = per_session
        self._most_sessions = most_sessions
        self._spent: dict[str, _Spent] = {}  # the one that was quiet for longest first

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        self._check(self._of(request.session_id))
        return await next(request)

    async def admit(self, call: CallInfo) -> None:
        self._check(self._of(call.session_id))

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        spent = self._of(call.session_id)
        for attempt in (*call.failed_before, end):
            spent.add(attempt, call.worst_case if output_is_unknown(attempt) else None)

    def _of(self, session_id: str) -> _Spent:
        key = session_id if self._per_session else ""
        spent = self._spent.pop(key) if key in self._spent else _Spent()
        self._spent[key] = spent
        while len(self._spent) > self._most_sessions:
            del self._spent[next(iter(self._spent))]
        return spent

    def _check(self, spent: _Spent) -> None:
        if self._max_nano_usd is not None:
            if spent.sum.nano_usd >= self._max_nano_usd:
                limit = usd_of(self._max_nano_usd)
                raise BudgetExceededError(
                    f"{spent.sum.usd} of {limit} USD are spent; raise max_cost_usd, or reset() the Budget"
                )
            if self._unpriced_ends and spent.in_no_sum:
                raise BudgetExceededError(
                    f"{spent.in_no_sum} calls had no known price, so what is left is unknown; "
                    "add their prices, or allow it with unpriced_ends=False"
                )
        if self._max_tokens is not None and spent.tokens >= self._max_tokens:
            raise BudgetExceededError(
                f"{spent.tokens} of {self._max_tokens} tokens are used; raise max_tokens, or reset() the Budget"
            )

    def spent(self, session_id: str = "") -> CostSum:
        """The sum so far, and how far it can be trusted.

        Args:
            session_id: The session, with `per_session`.
        """
        return self._spent.get(session_id, _Spent()).sum

    def spent_usd(self, session_id: str = "") -> Decimal:
        """The sum so far in US dollars, of a session with `per_session`."""
        return self.spent(session_id).usd

    def spent_tokens(self, session_id: str = "") -> int:
        """The input and output tokens so far, of a session with `per_session`."""
        return self._spent.get(session_id, _Spent()).tokens

    def reset(self) -> None:
        """Begin anew for all sessions."""
        self._spent.clear()


class _Spent:
    """The part of a budget that is spent."""

    def __init__(self) -> None:
        self.sum = CostSum()
        """The sum of all attempts, with unknown attempts at their worst case."""
        self.tokens = 0
        """The tokens of all attempts."""
        self.in_no_sum = 0
        """The number of attempts that have neither a price nor a worst case."""

    def add(self, end: CallEnd, worst: WorstCase | None) -> None:
        part = cost_sum(end)
        usage, cost = (end.usage, end.cost) if worst is None else (worst.usage, worst.cost)
        nano = cost.nano_usd if cost is not None else None
        self.tokens += 0 if usage is None else usage.total_tokens
        self.sum += msgspec.structs.replace(part, nano_usd=nano or 0)
        self.in_no_sum += nano is None and bool(part.unpriced or part.unknown)
