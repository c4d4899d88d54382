"""Batches as methods of the engine. What makes them is imported by the first call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from callboard.adapters import CanonicalRequest

from ..runtime.runtime import Runtime

if TYPE_CHECKING:
    from callboard.adapters.jobs import PollPolicy
    from callboard.tracestore import StoredBatch

    from ..calls.plain_call import Models
    from .handle import BatchHandle
    from .submitting import BatchOptions


class BatchMethods:
    """The methods of `Engine` for batches."""

    _runtime: Runtime

    async def create_batch(
        self,
        requests: Sequence[CanonicalRequest],
        *,
        model: Models = None,
        batch_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchHandle:
        """Many requests for one model, answered within a day or so and mostly for half the price.

        It returns when the provider has taken all of them on: `await handle.wait()` for the results. The batch
        goes on without this process, and `resume_batch` comes back to it. Requests that are more than one job of
        the provider may hold are split into several.

        Nothing is paid twice. A batch with an id of the caller's may be created again, by the same process or by
        another, with the same requests: what was sent already is found, and the rest is sent. So a program that
        may be killed at any moment says ``batch_id``, and simply runs again. Of several at once, all with the same
        trace, one sends it, and the others wait until it has done so.

        Args:
            requests: The requests. Their `request_id` comes back with the results; without one, the result has the
                id of the call.
            model: Any of the model's names; None is that of the requests, or the configured default.
            batch_id: The batch's id: 1 to 48 letters, digits, ``_`` and ``-``. None makes one.
            options: The fields of `BatchOptions`.

        Raises:
            InvalidRequestError: There are no requests, they are for several models, or the batch of that id has
                other requests.
            CapabilityError: The provider takes no batches, or the model can't do what a request asks.
            OutcomeUnknownError: The answer was lost, and the provider lists no such batch, or several. Create it
                again with the same id.
            BudgetExceededError: The most that the batch can cost doesn't fit into a budget.
            AdapterError: The provider failed or refused.
            ConfigurationError: The configuration is wrong.
            AdmissionError: The trace writer is too far behind.
            StoreError: The trace can't be read.
        """
        from .submitting import create_batch

        return await create_batch(self._runtime, requests, model, batch_id, options)

    async def resume_batch(
        self,
        batch_id: str,
        *,
        requests: Sequence[CanonicalRequest] | None = None,
        polling: PollPolicy | None = None,
        settle_seconds: float | None = None,
    ) -> BatchHandle:
        """A batch that was created before, also by another process, as it is now. Nothing is sent.

        Within one engine it is always the same handle. Results that are in the trace already are not counted
        again.

        Args:
            batch_id: The batch's id, `BatchHandle.id`.
            requests: The requests, if they are at hand: the results then have the warnings about what was left
                out, and inputs of tools are cleaned as in any other call.
            polling: The times at which the batch is looked at; None is the usual.
            settle_seconds: Seconds after which a job is listed, if it was ever created; None is the usual.

        Raises:
            NotFoundError: The trace or the provider knows no such batch.
            InvalidRequestError: The batch has other requests.
            AdapterError: The provider failed.
            ConfigurationError: The model is unknown, or the engine has no trace.
            StoreError: The trace can't be read.
        """
        from .handle import USUAL_BATCH_POLLING
        from .resuming import SETTLE_SECONDS, resume_batch

        settle = SETTLE_SECONDS if settle_seconds is None else settle_seconds
        return await resume_batch(self._runtime, batch_id, requests, polling or USUAL_BATCH_POLLING, settle)

    async def batches(self, limit: int = 100) -> list[StoredBatch]:
        """The latest batches in the trace, the latest first.

        Args:
            limit: The number of batches at most.

        Raises:
            StoreError: The trace can't be read.
        """
        from .stored import stored_batches

        await self._runtime.host.start()
        return await stored_batches(self._runtime, limit)
