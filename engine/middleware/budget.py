"""No more calls once enough has been spent."""

from __future__ import annotations

from decimal import Decimal

from adapters import CanonicalRequest, TokenUsage
from bus import CallboardError, Cost
from bus.usage import usd_of

from ..call import CallOutcome
from ..call_events import CallEnd, CallInfo
from .chain import Middleware, Next


class BudgetExceededError(CallboardError):
    """The budget is used up; the call was not made."""


class Budget(Middleware):
    """Refuses calls once their sum has reached a limit, of money or of tokens.

    Calls of every kind count, embeddings, images and videos too, and of those that failed or were cancelled what
    is known. max_cost_usd: of all calls; a call without a known price is refused nothing, but with `unpriced_ends`
    it uses up the budget, as nobody knows what is left. max_tokens: input and output. per_session: each session
    has the limits for itself; what belongs to none shares one. Calls that are under way when the limit is reached
    still end, so the sum may exceed it by as many as run at once; a video is counted when its end is seen. What
    was answered without a call counts nothing.
    """

    def __init__(
        self,
        *,
        max_cost_usd: Decimal | float | str | None = None,
        max_tokens: int | None = None,
        per_session: bool = False,
        unpriced_ends: bool = False,
    ) -> None:
        if max_cost_usd is None and max_tokens is None:
            raise ValueError("a Budget needs max_cost_usd=, max_tokens=, or both")
        self._max_nano_usd = None if max_cost_usd is None else int(Decimal(str(max_cost_usd)).scaleb(9))
        self._max_tokens = max_tokens
        self._unpriced_ends = unpriced_ends
        self._per_session = per_session
        self._spent: dict[str, _Spent] = {}

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        self._check(self._of(request.session_id))
        return await next(request)

    async def admit(self, call: CallInfo) -> None:
        self._check(self._of(call.session_id))

    def settle(self, call: CallInfo, end: CallEnd) -> None:
        if end.usage is not None:
            self._of(call.session_id).add(end.usage, end.cost)

    def _of(self, session_id: str) -> _Spent:
        return self._spent.setdefault(session_id if self._per_session else "", _Spent())

    def _check(self, spent: _Spent) -> None:
        if self._max_nano_usd is not None:
            if spent.nano_usd >= self._max_nano_usd:
                limit = usd_of(self._max_nano_usd)
                raise BudgetExceededError(
                    f"{spent.usd} of {limit} USD are spent; raise max_cost_usd, or reset() the Budget"
                )
            if self._unpriced_ends and spent.unpriced:
                raise BudgetExceededError(
                    f"{spent.unpriced} calls had no known price, so what is left is unknown; "
                    "add their prices, or allow it with unpriced_ends=False"
                )
        if self._max_tokens is not None and spent.tokens >= self._max_tokens:
            raise BudgetExceededError(
                f"{spent.tokens} of {self._max_tokens} tokens are used; raise max_tokens, or reset() the Budget"
            )

    def spent_usd(self, session_id: str = "") -> Decimal:
        """The known costs so far, in US dollars."""
        return self._spent.get(session_id, _Spent()).usd

    def spent_tokens(self, session_id: str = "") -> int:
        """Input and output tokens so far."""
        return self._spent.get(session_id, _Spent()).tokens

    def reset(self) -> None:
        """Begin anew, for all sessions."""
        self._spent.clear()


class _Spent:
    def __init__(self) -> None:
        self.nano_usd = 0
        self.tokens = 0
        self.unpriced = 0

    def add(self, usage: TokenUsage, cost: Cost | None) -> None:
        known = None if cost is None else cost.nano_usd
        self.tokens += usage.total_tokens
        self.nano_usd += known or 0
        self.unpriced += known is None

    @property
    def usd(self) -> Decimal:
        return usd_of(self.nano_usd)
