"""No more calls once enough has been spent."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from adapters import AdapterError, CanonicalRequest, TokenUsage
from bus import CallboardError, Cost
from bus.usage import usd_of

from ..call import CallOutcome
from .chain import Middleware, Next


class BudgetExceededError(CallboardError):
    """The budget is used up; the call was not made, and costs nothing."""


class Budget(Middleware):
    """Refuses calls once their sum has reached a limit, of money or of tokens.

    A call that is refused raises BudgetExceededError. Calls that are under way when the limit is reached still
    end, so the sum may exceed it by as many as run at once. What was answered without a call counts nothing. Of a
    call that fails the tokens count, as far as they are known, and its cost, which middleware isn't told, does
    not.

    max_cost_usd: US dollars, of all calls; a call without a known price is refused nothing, but with
    `unpriced_ends` it uses up the budget, as nobody knows what is left. max_tokens: input and output. per_session:
    each session has the limits for itself; what belongs to none shares one.
    Raises ValueError without a limit.
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
        self._key: Callable[[CanonicalRequest], str] = (
            (lambda request: request.session_id) if per_session else (lambda request: "")
        )
        self._spent: dict[str, _Spent] = {}

    async def call(self, request: CanonicalRequest, next: Next) -> CallOutcome:
        spent = self._spent.setdefault(self._key(request), _Spent())
        self._check(spent)
        try:
            outcome = await next(request)
        except AdapterError as error:
            if error.usage is not None:
                spent.tokens += error.usage.total_tokens
            raise
        spent.add(outcome.usage, outcome.cost)
        return outcome

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
        """The known costs so far, in US dollars. session_id: of which, with `per_session`."""
        return self._spent.get(session_id, _Spent()).usd

    def spent_tokens(self, session_id: str = "") -> int:
        """Input and output tokens so far. session_id: of which, with `per_session`."""
        return self._spent.get(session_id, _Spent()).tokens

    def reset(self) -> None:
        """Begin anew, for all sessions."""
        self._spent.clear()


class _Spent:
    def __init__(self) -> None:
        self.nano_usd = 0
        self.tokens = 0
        self.unpriced = 0

    def add(self, usage: TokenUsage, cost: Cost) -> None:
        self.tokens += usage.total_tokens
        self.nano_usd += cost.nano_usd or 0
        self.unpriced += cost.nano_usd is None

    @property
    def usd(self) -> Decimal:
        return usd_of(self.nano_usd)
