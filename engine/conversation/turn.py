"""One turn: what is said to the model, its reply, and the tool rounds between.

It runs in a task of its own below the session manager. A turn commits as a unit: its messages enter the history
when the first content of the assistant exists. Before that, a turn that fails leaves the history as it was. What
had arrived of a reply that was cancelled or broke off is kept, with its stop reason. What is asked without a
session is the only turn of a conversation of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add

import anyio
import msgspec

from adapters import CallWarning, CanonicalResponse, Message, StopReason, TokenUsage, ToolResultBlock
from bus import (
    CallboardError,
    ContextOverflowError,
    Cost,
    CostSource,
    PromptTooLongError,
    SessionBusy,
    SessionTurnCompleted,
    SessionTurnStarted,
    StreamLog,
    TaskCancelled,
    TaskHandle,
    TurnStatus,
)
from bus.errors import CancelledError
from bus.host_trace import current_trace
from bus.streams.events import StepFinish, TurnComplete, TurnEvent
from bus.values.cost_sum import CostSum
from bus.values.warning_codes import WarningCode

from ..calls.call import Call, CallOutcome
from ..calls.slots import arrival
from ..routing.candidates import expand
from ..routing.capabilities import check_tool_choice
from ..routing.choice import Model, in_words
from ..runtime.borrowed_adapters import BorrowedAdapters
from ..runtime.in_flight import CLOSED
from ..runtime.runtime import Runtime
from ..sessions.state import SessionState
from ..tools import Answer, last_reply
from .cancellation import TurnScope
from .context_window import ADVICE, shortened
from .history import TurnHistory
from .options import DEFAULTS, TurnOptions, merged
from .reply import Reply, as_reply
from .results import StepResult
from .step import Step
from .tools import TurnTools
from .turn_context import OWN_IDS, FirstIds, TurnContext, asked_of

MAX_WAITING_TURNS = 16
"""How many turns may wait for one session, besides the one that runs."""

MAX_PAUSES = 8
"""How often a reply that paused (`pause_turn`) is continued."""

NOTHING = Cost(0, CostSource.COMPUTED)


class Turn:
    """The state of one turn. id: ``trn_<ulid>``, also the id of its stream. Run it once.

    new: what it says, at least one message; or, to go on after a turn that ended with calls open, answers: to
    them, by their ids. steps: the replies so far, each with its tools' results. status: how it ended, once it is
    over. costs, usages: of its calls, the failed ones and their attempts included; cost_sum: what they add up to.
    max_pauses: how often a reply that paused is continued.
    """

    def __init__(
        self,
        *,
        runtime: Runtime,
        state: SessionState,
        new: Sequence[Message],
        model: Model | None,
        options: TurnOptions,
        streamed: bool,
        first_ids: FirstIds = OWN_IDS,
        max_pauses: int = MAX_PAUSES,
        answers: Mapping[str, Answer] | None = None,
    ) -> None:
        self.id = runtime.clock.new_id("trn")
        self.new = tuple(new)
        self.log: StreamLog[TurnEvent]  # from enter_queue on
        self.calls = 0
        self.steps: list[StepResult] = []
        self.status: TurnStatus = "failed"
        self.costs: list[Cost] = []
        self.usages: list[TokenUsage] = []
        self.cost_sum = CostSum()
        self._runtime = runtime
        self._state = state
        self._model = model
        self._streamed = streamed
        self._first_ids = first_ids
        self._max_pauses = max_pauses
        self._answers = answers
        self._over = False
        self._step: Step | None = None
        self._options = options = merged(DEFAULTS, state.options_for(model), options)
        seconds = options.get("timeout_seconds", runtime.timeouts.turn)
        self._scope = TurnScope(seconds, options.get("signal"), runtime.in_flight)
        self._order = arrival()
        self._history = TurnHistory(state, runtime.bus, runtime.clock, self.id)
        self._trace_parent = current_trace()

    @property
    def cost(self) -> Cost:
        """Of all calls so far; unknown as soon as one is: a sum without it would look like the whole."""
        return reduce(add, self.costs) if self.costs else NOTHING

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, with all that this turn has added to it so far."""
        return self._history.messages

    def followed_by(self, *new: Message) -> Turn:
        """The next turn of the same conversation, asked in the same way and within the same time.

        What this turn didn't bring into the history, because the reply was empty, the next one says again.
        """
        options = self._options
        if self._scope.seconds is not None:
            left = max(0.0, self._scope.deadline - anyio.current_time())
            options = merged(options, {"timeout_seconds": left})
        return Turn(
            runtime=self._runtime,
            state=self._state,
            new=(*(message for message in self._history.pending if message.content), *new),
            model=self._model,
            options=options,
            streamed=self._streamed,
            max_pauses=self._max_pauses,
        )

    @property
    def call(self) -> Call | None:
        """The call under way."""
        return self._step.call if self._step is not None else None

    def enter_queue(self) -> None:
        """Take a place among the session's waiting turns, and open the stream. Raises SessionBusy."""
        state = self._state
        if state.waiting >= MAX_WAITING_TURNS + (state.running is None):
            raise SessionBusy(f"session {state.id} already has {MAX_WAITING_TURNS} turns waiting")
        state.waiting += 1
        self.log = self._runtime.streams.open(self.id)
        self._runtime.in_flight.add(self, lambda: self.cancel(CLOSED))
        self._runtime.sessions.announce(state)

    def leave_queue(self, error: BaseException) -> None:
        """Give the place back, and end the stream: there is nobody to run this turn."""
        self._state.waiting -= 1
        self._end(error)
        self._close_log(error)

    def cancel(self, why: str = "") -> bool:
        """Ask the turn to end. why: the text of its CancelledError. False if it is over. Idempotent.

        Raises WrongLoop.
        """
        if self._over:
            return False
        self._runtime.host.require_loop("the signal= of an AbortController ends a turn from anywhere")
        self._scope.cancel(why)
        # a call ends in order, or without its adapter after a grace; then so does the turn
        if self._step is None or not self._step.cancel():
            self._scope.cut()
        return True

    async def run(self) -> Reply:
        """The assistant's last message. Raises AdapterError and the like, with `.turn` set."""
        error: BaseException | None = None
        try:
            return await self._scope.run(self._in_turn, self.cancel)
        except CallboardError as failure:
            error = failure
            failure.turn = self
            raise
        except Exception as failure:  # of a host's own code, such as middleware
            error = failure
            raise
        finally:
            self._end(error)
            try:
                await self._runtime.host.secure()
            finally:
                self._close_log(error)

    async def _in_turn(self) -> Reply:
        state = self._state
        try:
            await state.turns.acquire()
        finally:
            state.waiting -= 1
        try:
            state.running = self
            if (signal := self._options.get("signal")) is not None:
                signal.raise_if_aborted()
            await self._runtime.host.admit()
            await self._runtime.sessions.require_ownership(state)
            return await self._begin()
        finally:
            state.running = None
            state.turns.release()

    async def _begin(self) -> Reply:
        state, runtime = self._state, self._runtime
        runtime.pricing.notice()
        model = in_words(self._model or state.model)
        began = SessionTurnStarted(model=model, trace_parent=self._trace_parent)
        runtime.bus.publish(began, session_id=state.id or None, turn_id=self.id)
        self._history.begin(self.new)
        turn = self._context()
        tools = TurnTools(runtime, state, self._options, self.id, self.log, self._keep_results)
        try:
            if self._answers is not None:
                made = await tools.take(self._answers, self.messages)
                if made.waiting:
                    self.status = "awaiting_tools"
                    reply = as_reply(last_reply(state.messages))
                    reply.ended(self.status)
                    return reply
            return await self._converse(turn, tools)
        finally:
            turn.adapters.end()

    async def _converse(self, turn: TurnContext, tools: TurnTools) -> Reply:
        pauses = 0
        caused_by: str | None = None
        while True:
            message, outcome = await self._reply(turn, first=not self.steps, caused_by=caused_by)
            response = outcome.response
            status = tools.ends_before(message, response.stop_reason)
            if status == "max_tool_rounds":
                message, response = self._warned_of_limit(message, response)
            self._history.add(message)
            caused_by = response.request_id
            self.steps.append(StepResult(message=message, response=response, cost=outcome.cost))
            paused = response.stop_reason is StopReason.PAUSE_TURN and not message.tool_uses
            if paused and pauses < self._max_pauses:
                pauses += 1
                self._finish_step()
                continue
            if self._scope.cancelled and message.tool_uses:  # too late for the call, not for what would follow
                tools.leave(message.tool_uses)
                raise CancelledError("the turn was cancelled; its tools were not run")
            if status == "completed":
                tools.leave(message.tool_uses)
            if status is None:
                await self._runtime.host.secure()  # tools are the host's own code
                made = await tools.run(message, response.stop_reason, self.messages)
                if self._scope.cancelled:  # by one of them, say
                    tools.leave(made.waiting)
                    raise CancelledError("the turn was cancelled while its tools ran")
                if made.waiting:
                    status = "awaiting_tools"
                elif await tools.stops(self.steps):
                    status = "stopped"
            self._finish_step()
            if status is not None:
                self.status = status
                return message

    def _finish_step(self) -> None:
        step = self.steps[-1]
        self.log.append(
            StepFinish(len(self.steps) - 1, step.stop_reason, step.usage, step.cost, step.message.id or "")
        )

    def _keep_results(self, results: tuple[ToolResultBlock, ...]) -> None:
        self._history.add_results(results)
        if self.steps:
            known = self.steps[-1].tool_results
            self.steps[-1] = msgspec.structs.replace(self.steps[-1], tool_results=(*known, *results))

    # -- one reply

    async def _reply(self, turn: TurnContext, *, first: bool, caused_by: str | None) -> tuple[Reply, CallOutcome]:
        policy = self._options.get("context")
        if policy is None:
            try:
                message, outcome = await self._call(turn, self.messages, first=first, caused_by=caused_by)
            except (PromptTooLongError, ContextOverflowError) as error:
                error.add_note(ADVICE)
                raise
        else:
            message, outcome = await shortened(
                policy,
                turn,
                history=self.messages,
                ask=self._ask,
                call=lambda sent: self._call(turn, sent, first=first, caused_by=caused_by),
            )
        return message, outcome

    def _warned_of_limit(self, message: Reply, response: CanonicalResponse) -> tuple[Reply, CanonicalResponse]:
        """The same reply, which says that its calls were not run, unless its caller wants none to be."""
        limit = self._options["max_tool_rounds"]
        if not limit:
            return message, response
        text = f"its calls were not run, as there were {limit} rounds of tools; max_tool_rounds= allows more"
        warnings = (*response.warnings, CallWarning(WarningCode.MAX_TOOL_ROUNDS, text))
        metadata = msgspec.structs.replace(message.metadata, warnings=warnings)
        return (
            msgspec.structs.replace(message, metadata=metadata),
            msgspec.structs.replace(response, warnings=warnings),
        )

    async def _ask(self, text: str) -> str:
        """A call beside the conversation, for its sake: paid with the turn."""
        runtime, state = self._runtime, self._state
        beside: TurnOptions = {"fallback": state.options.get("fallback")}
        turn = Turn(
            runtime=runtime,
            state=SessionState("", self._model or state.model, None, (), state.tags, options=beside),
            new=(Message.user(text),),
            model=None,
            options=TurnOptions(max_tool_rounds=0),
            streamed=False,
        )
        turn._trace_parent = self._trace_parent
        try:
            message = await own(turn, await runtime.host.start_turn(turn))
        finally:
            self.calls += turn.calls
            self.costs += turn.costs
            self.cost_sum += turn.cost_sum
            self.usages += turn.usages
        return message.text

    async def _call(
        self, turn: TurnContext, messages: tuple[Message, ...], *, first: bool, caused_by: str | None
    ) -> tuple[Reply, CallOutcome]:
        step = self._step = Step(turn, messages, first=first, caused_by=caused_by)
        try:
            return await step.run()
        finally:
            self._step = None
            self.calls += step.calls
            self.costs += step.costs
            self.cost_sum += step.cost_sum
            self.usages += step.usages
            if step.partial is not None:
                self._history.add(step.partial)
            if self._scope.cancelled:  # even if the call came to its end just then
                self._scope.cut()

    def _context(self) -> TurnContext:
        """Where this turn may go. Raises ConfigurationError."""
        runtime, state, options = self._runtime, self._state, self._options
        plan = expand(runtime.registry, self._model or state.model, options.get("fallback"))
        asked = asked_of(state, options, plan, self._history.pending)
        check_tool_choice(asked)
        return TurnContext(
            runtime=runtime,
            state=state,
            options=options,
            registry=runtime.registry,
            plan=plan,
            asked=asked,
            log=self.log,
            turn_id=self.id,
            streamed=self._streamed,
            first_ids=self._first_ids,
            order=self._order,
            deadline=self._scope.deadline,
            hold_time=self._scope.hold_time,
            adapters=BorrowedAdapters(runtime),
        )

    # -- the end

    def _end(self, error: BaseException | None) -> None:
        """Say how the turn ended; no await, so that nothing can come between."""
        self._over = True
        self._runtime.in_flight.remove(self)
        if error is not None:
            self.status = "cancelled" if isinstance(error, CancelledError) else "failed"
        for step in self.steps:
            step.message.ended(self.status)
        self._runtime.bus.publish(
            SessionTurnCompleted(
                status=self.status,
                calls=self.calls,
                cost_nano_usd=self.cost.nano_usd,
                error=None if error is None else in_a_line(error),
                attempts=self.cost_sum.calls,
                known_nano_usd=self.cost_sum.nano_usd,
                estimated=self.cost_sum.estimated,
                unpriced=self.cost_sum.unpriced,
                unknown=self.cost_sum.unknown,
            ),
            session_id=self._state.id or None,
            turn_id=self.id,
        )

    def _close_log(self, error: BaseException | None) -> None:
        if not self.log.closed:
            self.log.append(TurnComplete(self.status, None if error is None else in_a_line(error)))
            self.log.close()


def in_a_line(error: BaseException) -> str:
    """What went wrong, in words."""
    return f"{type(error).__name__}: {error}"


async def own(turn: Turn, task: TaskHandle[Reply]) -> Reply:
    """Wait for a turn that belongs to this task: if this task is cancelled, so is the turn."""
    try:
        return await task.wait()
    except TaskCancelled as error:
        raise CancelledError("the turn was cancelled") from error
    finally:
        if not task.done:
            turn.cancel()
            with anyio.CancelScope(shield=True):
                with contextlib.suppress(CallboardError):
                    await task.wait()
