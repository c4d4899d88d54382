"""The results of a batch: for each request a response or an error, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from callboard.adapters import AdapterError, CanonicalResponse
from callboard.adapters.batches import BatchStatus
from callboard.bus import Cost
from callboard.bus.values.cost_sum import CostSum, usage_is_unknown


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one request. It has a response or an error."""

    request_id: str
    """The id of the request; that of its call if the caller gave none."""
    call_id: str
    """The id of the request's call in the trace."""
    response: CanonicalResponse | None = None
    """The response; None if there is none."""
    error: AdapterError | None = None
    """Why there is no response."""
    cost: Cost | None = None
    """The cost; None if it is not known whether anything is billed."""

    @property
    def text(self) -> str:
        """All text of the response. Raises the error if there is none."""
        return self.unwrap().text

    def unwrap(self) -> CanonicalResponse:
        """The response.

        Raises:
            AdapterError: There is none.
        """
        if self.response is None:
            raise self.error or AdapterError(f"request {self.request_id} has no result")
        return self.response

    @property
    def cost_sum(self) -> CostSum:
        """The result's part in a sum."""
        if self.response is not None:
            return CostSum.of_call(self.response.usage, self.cost)
        error = self.error
        unknown = error is not None and usage_is_unknown(error.error_class, error.provider_status)
        return CostSum.of_call(None if error is None else error.usage, self.cost, unknown=unknown)


class BatchResults(msgspec.Struct, frozen=True, kw_only=True):
    """All results of a batch, in the order of its requests."""

    batch_id: str
    """The batch's id."""
    status: BatchStatus
    """How the batch ended."""
    results: tuple[BatchResult, ...]
    """The results."""

    def __iter__(self) -> Iterator[BatchResult]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, place: int) -> BatchResult:
        return self.results[place]

    @property
    def cost(self) -> CostSum:
        """The cost of all requests."""
        total = CostSum()
        for result in self.results:
            total += result.cost_sum
        return total
