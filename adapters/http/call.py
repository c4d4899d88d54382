"""One conversation call to a provider over HTTP: the attempts, and what they send and have read so far."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

import anyio

from bus.errors import AdapterError
from bus.values.usage import TokenUsage

from ..contract import AttemptObserver, CanonicalRequest
from ..refusals.repair import Repair
from ..replies.assembler import Assembler
from .attempts import AttemptsOwner, HttpAttempts, given
from .wire_call import WireCall


class CallOwner(AttemptsOwner, Protocol):
    """The adapter, as far as a conversation's call needs it."""

    def estimate_usage(self, request: CanonicalRequest, output: str) -> TokenUsage:
        """Usage for a reply whose provider said nothing about it."""

    def repair(
        self, request: CanonicalRequest, wire: WireCall, error: AdapterError, done: Collection[str]
    ) -> Repair | None:
        """How to mend a request that was refused."""


class HttpCall(HttpAttempts):
    """One call over all its attempts. assembler: of the current attempt.

    on_drain: set while a cancelled call may be read on for its usage; told so when that begins, and whether
    somebody reads now. request: as it was last repaired. repairs: what was done to it.
    """

    def __init__(
        self,
        adapter: CallOwner,
        request: CanonicalRequest,
        on_attempt: AttemptObserver | None,
        *,
        stream: bool,
    ) -> None:
        super().__init__(adapter, request, on_attempt)
        self._owner = adapter
        self.request = request
        self.streamed = stream
        self.assembler: Assembler
        self.wire: WireCall | None = None
        self.repairs: tuple[Repair, ...] = ()
        self.on_drain: Callable[[bool], Awaitable[None]] | None = None
        self._drain_seconds = given(request.drain_for_usage, adapter.config.drain_for_usage)
        self._message_id = request.message_id or adapter.clock.new_id("msg")

    def new_assembler(self) -> Assembler:
        return Assembler(
            message_id=self._message_id,
            provider=self.adapter.name,
            requested_model=self.request.wire_model,
            clock=self.adapter.clock,
            estimate_usage=self._estimate_usage,
            request=self.request,
        )

    def prepare_attempt(self) -> None:
        self.assembler = self.new_assembler()

    def _estimate_usage(self, output: str) -> TokenUsage:
        return self._owner.estimate_usage(self.request, output)

    @property
    def heard(self) -> bool:
        return self.sent and self.assembler.heard

    def _count_used(self) -> TokenUsage:
        return self.assembler.usage_so_far()

    def mend(self, error: AdapterError) -> bool:
        """Mend the request, if the error says how and that was not tried before."""
        if self.wire is None or self.adapter.config.options.get("repair") is False or self.out_of_time():
            return False
        found = self._owner.repair(self.request, self.wire, error, [repair.kind for repair in self.repairs])
        if found is None:
            return False
        self.request = found.request
        self.repairs += (found,)
        self.wire = None
        return True

    async def cancel(self, *, at_once: bool = False) -> None:
        if self.on_drain is None or self._drain_seconds <= 0 or at_once:
            await super().cancel(at_once=at_once)
            return
        if not self.cancelled:
            self.cancelled = self.draining = True
            self._deadline = min(self._deadline or math.inf, anyio.current_time() + self._drain_seconds)
            if self._scope is not None:
                self._scope.deadline = min(self._scope.deadline, self._deadline)
            await self.on_drain(self._scope is not None)
