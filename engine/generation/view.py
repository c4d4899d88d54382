"""The view of `stream()`. A state machine without I/O derives the view from a turn's events.

The state is the reader's position in the current message:

- between messages: nothing is open, and the last message has ended
- in a message, between segments: a block has ended, and the next has not started
- in a segment: text, reasoning or a tool call is open, and its delivered pieces are kept

If the log was folded after the last read, it yields a `StreamReset`: all earlier events, in fewer and larger
pieces. The reader's position shows which part is new, and only that part is passed on. So all readers get the same
sequence of events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add
from typing import TypeAlias

import msgspec

from callboard.adapters import CanonicalResponse, TokenUsage, UsageSource
from callboard.adapters.replies.whole import spelled_out
from callboard.bus import CallboardError, Cost, CostSource, StreamReset
from callboard.bus.errors import CancelledError
from callboard.bus.streams.events import (
    MessageComplete,
    MessageStart,
    ProviderBlock,
    ProviderEvent,
    StepFinish,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    TurnComplete,
    TurnEvent,
)

from ..calls.call import Call
from ..conversation.turn import Turn
from .view_events import (
    Finish,
    StreamAccumulator,
    StreamFailed,
    TextEnd,
    TextStart,
    ThinkingEnd,
    ThinkingStart,
    ViewEvent,
)


class UsageSoFar(msgspec.Struct, frozen=True):
    """The tokens that all calls of a turn have used up to now, and their cost.

    Until the provider reports usage, all input is treated as uncached.
    """

    usage: TokenUsage
    """The tokens of all ended calls, including failed ones, and of the call in progress.

    The call in progress is treated as if it ended now: it has the counts that the
    provider has reported, and an estimate of the rest.
    """
    cost: Cost
    """The cost of the tokens in `usage`; unknown if the cost of one call is unknown."""

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
        """The part of the last message that has arrived; None before it has started."""
        reply, steps = self._arrived(), self._turn.steps
        if not reply.started:
            return None
        if steps and steps[-1].message.id == reply.message_id:
            return steps[-1].response
        response, call = reply.response(), self._turn.call
        return msgspec.structs.replace(response, request_id=call.request.request_id) if call else response

    @property
    def usage(self) -> UsageSoFar:
        """The usage of the ended calls, and of the call in progress as if it ended now."""
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


Ending: TypeAlias = Callable[[], Finish | StreamFailed]

_NO_BLOCK = -1


class TurnView:
    """Derives the events of the view from the events of a turn.

    Args:
        ending: A function that returns how the turn ended, once it has ended. Without it, the view is derived only
            from the events.
    """

    def __init__(self, ending: Ending | None = None) -> None:
        self._ending = ending
        self._reply = StreamAccumulator()
        self._steps: list[StepFinish] = []
        self._messages: set[str] = set()
        self._message = ""
        self._message_complete = True
        self._block = _NO_BLOCK  # the last block that has started
        self._open: type[TextDelta | ThinkingDelta | ToolUseStart] | None = (
            None  # The kind of the open segment, while it may grow.
        )
        self._pieces: list[str] = []
        self._signature: str | None = None
        self._between = 0  # the number of events up to now that belong to no message

    def process(self, event: TurnEvent | StreamReset[TurnEvent]) -> Sequence[ViewEvent]:
        """The events of the view for one event of the turn; empty if there are none."""
        match event:
            case TextDelta():
                if self._open is TextDelta and event.content_block_index == self._block:
                    self._pieces.append(event.text)
                    return (event,)
                start = TextStart(event.segment_id, event.message_id, event.content_block_index)
                return (*self._begin(TextDelta, event.content_block_index), start, *self.process(event))
            case ThinkingDelta():
                if self._open is ThinkingDelta and event.content_block_index == self._block:
                    self._pieces.append(event.text)
                    self._signature = event.signature or self._signature
                    return (event,)
                first_events = ThinkingStart(event.segment_id, event.message_id, event.content_block_index)
                return (*self._begin(ThinkingDelta, event.content_block_index), first_events, *self.process(event))
            case ToolUseStart():
                return (*self._begin(ToolUseStart, event.content_block_index), event)
            case ToolUseInputDelta():
                self._pieces.append(event.partial_json)
                return (event,)
            case ToolUseEnd():
                self._open = None
                return (event,)
            case ProviderBlock():
                index = event.content_block_index
                return (*self._begin(None, index), ProviderEvent(event.kind, event.raw, event.message_id, index))
            case ProviderEvent():
                return (event,)
            case MessageStart():
                self._reply.process(event)
                self._messages.add(event.message_id)
                self._message, self._message_complete, self._block = event.message_id, False, _NO_BLOCK
                return (event,)
            case MessageComplete():
                self._reply.process(event)
                self._message_complete = True
                return (*self._close(), event)
            case StreamReset():
                return [shown for missing in self._missing(event.snapshot) for shown in self.process(missing)]
            case TurnComplete():
                self._between += 1
                return (*self._close(), self._ended(event))
            case _:
                self._between += 1
                if isinstance(event, StepFinish):
                    self._steps.append(event)
                return (event,)

    def _begin(
        self, kind: type[TextDelta | ThinkingDelta | ToolUseStart] | None, index: int
    ) -> Sequence[ViewEvent]:
        ends = self._close()
        self._open, self._block, self._pieces, self._signature = kind, index, [], None
        return ends

    def _close(self) -> Sequence[ViewEvent]:
        """The end of the open segment. A tool call has its own end event."""
        kind, self._open = self._open, None
        if kind is None or kind is ToolUseStart:
            return ()
        text, segment_id = "".join(self._pieces), f"{self._message}:{self._block}"
        if kind is TextDelta:
            return (TextEnd(segment_id, text, self._message, self._block),)
        return (ThinkingEnd(segment_id, text, self._signature, self._message, self._block),)

    def _ended(self, event: TurnComplete) -> ViewEvent:
        if self._ending is not None:
            return self._ending()
        if event.error is not None or not self._steps:
            error = CancelledError if event.status == "cancelled" else CallboardError
            return StreamFailed(error(event.error or event.status))
        response = self._reply.response()
        unknown = Cost(None, CostSource.UNPRICED)
        return Finish(
            stop_reason=response.stop_reason,
            usage=reduce(add, (step.usage for step in self._steps)),
            cost=reduce(add, (step.cost or unknown for step in self._steps)),
            response=response,
            status=event.status,
        )

    # --- Catching up ---

    def _missing(self, snapshot: Sequence[TurnEvent]) -> Iterator[TurnEvent]:
        """The new part of a snapshot of all events. Each event is processed when it is yielded."""
        earlier, between = self._between, 0
        for event in spelled_out(snapshot):
            match event:
                case MessageStart():
                    if event.message_id not in self._messages:
                        yield event
                case (
                    TextDelta()
                    | ThinkingDelta()
                    | ToolUseStart()
                    | ToolUseInputDelta()
                    | ToolUseEnd()
                    | ProviderBlock()
                    | MessageComplete()
                ):
                    if event.message_id == self._message and not self._message_complete:
                        yield from self._rest(event)
                case ProviderEvent():
                    pass  # only readers that were attached when it was published need this event
                case _:
                    between += 1
                    if between > earlier:
                        yield event

    def _rest(self, event: StreamEvent) -> Iterator[StreamEvent]:
        """The new part of an event of the current message."""
        if isinstance(event, ProviderEvent):
            return
        if isinstance(event, MessageComplete | MessageStart) or event.content_block_index > self._block:
            yield event
        elif event.content_block_index == self._block and self._open is not None:
            had = "".join(self._pieces)
            match event:
                case TextDelta(text=text, content_block_index=index, message_id=message_id):
                    if len(text) > len(had):
                        yield TextDelta(text[len(had) :], index, message_id)
                case ThinkingDelta(
                    text=text, signature=signature, content_block_index=index, message_id=message_id
                ):
                    if len(text) > len(had) or signature != self._signature:
                        yield ThinkingDelta(text[len(had) :], signature, index, message_id)
                case ToolUseInputDelta(tool_use_id=tool_use_id, partial_json=json, message_id=message_id):
                    # A complete message may not have the provider's own text of the arguments. The text is
                    # then in the message's end.
                    if len(json) > len(had) and json.startswith(had):
                        rest = json[len(had) :]
                        yield ToolUseInputDelta(tool_use_id, rest, event.content_block_index, message_id)
                case ToolUseEnd():
                    yield event
                case _:
                    pass
