"""What has arrived of a turn, and what that has used, at any moment and whoever reads it."""

from __future__ import annotations

from functools import reduce
from operator import add

import msgspec

from adapters import CanonicalResponse, ContentBlock, Message, Role, TokenUsage, UsageSource
from adapters.actor import AdapterActor
from bus import Cost, StreamReset

from ..accumulator import StreamAccumulator
from ..call import Call
from ..turn import Turn

_NOTHING_SAID = Message(Role.ASSISTANT, ())


class UsageSoFar(msgspec.Struct, frozen=True):
    """What all calls of a turn have used until now.

    usage: `estimated` while a reply comes, the provider's figures afterwards. cost: of that; unknown as soon as
    one call's is.

    While it is estimated, all input counts as read afresh: what came from a cache is only known at the end.
    """

    usage: TokenUsage
    cost: Cost

    @property
    def estimated(self) -> bool:
        """True while a part of the usage is an estimate."""
        return self.usage.estimated


class Progress:
    """Looks at a turn's log when it is asked, and at each event once. turn: one whose log is open."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._accumulator = StreamAccumulator()
        self._seq = 0

    @property
    def response(self) -> CanonicalResponse | None:
        """The last message as far as it has come; None before it has begun."""
        reply, steps = self._arrived(), self._turn.steps
        if not reply.started:
            return None
        if steps and steps[-1].message.id == reply.message_id:
            return steps[-1].response
        response, call = reply.response(), self._turn.call
        return msgspec.structs.replace(response, request_id=call.request.request_id) if call else response

    @property
    def usage(self) -> UsageSoFar:
        """What is known of the calls that are over, with an estimate of the one under way."""
        turn, call = self._turn, self._turn.call
        usages, costs = [step.usage for step in turn.steps], [*turn.costs]
        if call is not None:
            reply = self._arrived()
            current = reply.message_id == call.request.message_id
            if current and reply.complete is not None:
                usage = reply.complete.usage
            else:
                usage = _estimated(call, reply.content if current else ())
            usages.append(usage)
            costs.append(call.price(usage))
        return UsageSoFar(
            reduce(add, usages, TokenUsage()) if len(usages) != 1 else usages[0],
            reduce(add, costs) if costs else turn.cost,
        )

    def _arrived(self) -> StreamAccumulator:
        log = self._turn.log
        if self._seq < log.first_seq:
            self._accumulator.process(StreamReset(log.snapshot, log.first_seq))
            self._seq = log.first_seq
        for event in log.since(self._seq):
            self._accumulator.process(event)
        self._seq = log.next_seq
        return self._accumulator


def _estimated(call: Call, content: tuple[ContentBlock, ...]) -> TokenUsage:
    """Input as it was estimated before the call, output from what has arrived."""
    output, actor = 0, call.scene.adapter.actor
    if content and isinstance(actor, AdapterActor):
        model, estimate = call.request.wire_model, actor.adapter.estimate_input_tokens
        said = estimate((Message(Role.ASSISTANT, content),), model=model)
        output = max(said - estimate((_NOTHING_SAID,), model=model), 0)
    return TokenUsage(call.scene.estimated_input_tokens or 0, output, source=UsageSource.ESTIMATED)
