"""The arrived part of a turn, and the tokens used so far, at any moment."""

from __future__ import annotations

from functools import reduce
from operator import add

import msgspec

from callboard.adapters import CanonicalResponse, TokenUsage, UsageSource
from callboard.bus import Cost, StreamReset

from ..calls.accumulator import StreamAccumulator
from ..calls.call import Call
from ..conversation.turn import Turn


class UsageSoFar(msgspec.Struct, frozen=True):
    """The tokens of all calls of a turn until now, and their cost.

    Until the provider reports usage, all input counts as uncached.
    """

    usage: TokenUsage
    """The tokens of the calls that are over, the failed ones included, and of the call in progress.

    That call counts with what would be booked if it ended now: the counts that the provider has reported, and an
    estimate of the rest.
    """
    cost: Cost
    """The cost of those tokens; unknown as soon as the cost of one call is."""

    @property
    def estimated(self) -> bool:
        """True while a part of the usage is an estimate."""
        return self.usage.source is not UsageSource.REPORTED


class Progress:
    """The progress of a turn, read from its log on request. Each event is read once.

    Args:
        turn: A turn whose log is open.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._accumulator = StreamAccumulator()
        self._seq = 0

    @property
    def response(self) -> CanonicalResponse | None:
        """The last message as far as it has come; None before it has started."""
        reply, steps = self._arrived(), self._turn.steps
        if not reply.started:
            return None
        if steps and steps[-1].message.id == reply.message_id:
            return steps[-1].response
        response, call = reply.response(), self._turn.call
        return msgspec.structs.replace(response, request_id=call.request.request_id) if call else response

    @property
    def usage(self) -> UsageSoFar:
        """The usage of the calls that are over, and of the one in progress as if it ended now."""
        turn, call = self._turn, self._turn.call
        usages, costs = [*turn.spending.usages], [*turn.spending.costs]
        if call is not None:
            usage = self._used_by(call)
            usages.append(usage)
            costs.append(call.cost_of(usage))
        return UsageSoFar(
            reduce(add, usages) if usages else TokenUsage(), reduce(add, costs) if costs else turn.cost
        )

    def _used_by(self, call: Call) -> TokenUsage:
        reply = self._arrived()
        return call.used_by_now(reply.content if reply.message_id == call.request.message_id else ())

    def _arrived(self) -> StreamAccumulator:
        log = self._turn.log
        if self._seq < log.first_seq:
            self._accumulator.process(StreamReset(log.snapshot, log.first_seq))
            self._seq = log.first_seq
        for event in log.since(self._seq):
            self._accumulator.process(event)
        self._seq = log.next_seq
        return self._accumulator
