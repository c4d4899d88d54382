"""A turn: the messages to a model, the tool rounds, and the final reply.

The session manager starts a task for each turn. A turn has these phases, in this order:

    queued     the turn waits for the earlier turns of its session
    admitted   the trace writer is not too far behind, and the session belongs to this engine
    replying   the model is called; a paused reply is continued
    tools      the tool calls of the reply run; then the model is called again
    steered    the host's new messages are added; if there are any, the model is called again
    over       the status is published, the events are stored, and the stream ends

The turn's new messages enter the history together with the assistant's first content. If the turn fails before
that, the history is unchanged. If a reply is cancelled or broken, its partial content is kept with its stop
reason. A call without a session is a turn in a new conversation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Mapping, Sequence
from functools import reduce
from operator import add

import anyio
import msgspec

from callboard.adapters import (
    AdapterError,
    ContentBlock,
    Message,
    StopReason,
    ToolResultBlock,
)
from callboard.bus import (
    CallboardError,
    Cost,
    SessionBusy,
    SessionTakenOver,
    SessionTurnCompleted,
    SessionTurnStarted,
    StoreError,
    TaskCancelled,
    TurnStatus,
)
from callboard.bus.errors import CancelledError, ConfigurationError
from callboard.bus.events.calls import current_trace
from callboard.bus.streams.channel import OWNER_TAG
from callboard.bus.streams.events import StepFinish, TurnComplete, UserMessage
from callboard.tracestore import OpenReply

from ..calls.call import Call
from ..calls.outcome import NOTHING_SENT, CallOutcome, texts_of, without_quotes
from ..calls.preparation import BorrowedAdapters, place_below
from ..routing.model_choice import Model, model_text
from ..runtime.in_flight import CLOSED
from ..runtime.runtime import Runtime
from ..sessions.open import SessionState, TurnRight
from ..tools import Answer, last_reply
from ..tools.definitions import Handoff
from ..tree import Caller, ChildTurn
from .models_and_tools import ADVICE, TurnModels, TurnTools, within_window
from .options import DEFAULTS, StoredTurnOptions, TurnOptions, merged
from .results import Reply, StepResult, as_reply
from .step import Step
from .turn_context import (
    OWN_IDS,
    FirstIds,
    SteeringQueue,
    TurnContext,
    TurnHistory,
    provider_waits,
    steering_message,
)

MAX_WAITING_TURNS = 16
"""The number of turns of one session that may wait, not counting the turn that runs."""

MAX_PAUSES = 8
"""The number of times that a paused reply (`pause_turn`) is continued."""

_OVER = "the turn has ended or is about to end. Send the message with the next turn"


class Turn(TurnContext):
    """The state of one turn. Run it once.

    Args:
        runtime: The parts of the engine.
        state: The conversation.
        new: The messages of the turn, at least one, unless it has answers.
        model: The model; None uses the conversation's.
        options: The turn's own options.
        streamed: Whether the replies are streamed.
        first_ids: The ids for the first call, if the caller chose them.
        max_pauses: The maximum number of times that a paused reply is continued.
        answers: The answers to open calls by their ids. They continue an earlier turn.
        takes_up: The background reply of an earlier turn, which this turn resumes.
        turn_options: The model and the options of the earlier turn, if this one continues it; None uses
            `model` and `options`.
        caller: The tool run that starts the turn; None uses the tool run of the current task, if any.
    """

    # Python stores up to thirty attributes of an instance compactly. So a rarely used attribute is a class
    # attribute until it is set.
    _answers: Mapping[str, Answer] | None = None
    _ended_elsewhere = False

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
        takes_up: OpenReply | None = None,
        turn_options: StoredTurnOptions | None = None,
        caller: Caller | None = None,
    ) -> None:
        levels = merged(DEFAULTS, state.options_for(model), options)
        super().__init__(runtime, state, levels, streamed=streamed, caller=caller)
        self._turn_options = (
            StoredTurnOptions(model=model, options=options) if turn_options is None else turn_options
        )
        self.new = tuple(new)
        self.steps: list[StepResult] = []
        """The replies of this turn, each with the results of its tools."""
        self.status: TurnStatus = "failed"
        """How the turn ended. Valid only after the turn's end."""
        self.steering = SteeringQueue()
        """The steering messages that wait for the next step."""
        self._model = model
        self._first_ids = first_ids
        self._max_pauses = max_pauses
        # True if the provider continues the last call's reply in the background.
        self._continues_in_background = False
        if answers is not None:
            self._answers = answers
        if takes_up is not None:
            self.takes_up = takes_up
        self._over = False
        self._step: Step | None = None
        self._history = TurnHistory(runtime, state, self.id)
        self.on_accepted = self._history.keep_ahead
        self._trace_parent = current_trace()
        if self.caller is not None:
            self._trace_parent = self._trace_parent or self.caller.trace_parent
        self._right = TurnRight()  # replaced when the turn is admitted

    @property
    def model(self) -> Model:
        return self._model or self.state.model

    @property
    def ended_as(self) -> TurnStatus | None:
        """How the turn ended; None while it is in progress."""
        return self.status if self._over else None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, with everything that this turn has added."""
        return self._history.messages

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """The steering messages that no reply has answered."""
        unanswered = (message for message in self._history.pending if message.steers)
        return (*unanswered, *self.steering.waiting)

    def steer(self, content: str | Sequence[ContentBlock]) -> Message:
        """Add a message of the user before the next step. Any thread may call this.

        Raises NoTurnRunning or ValueError.
        """
        message = steering_message(content, self.runtime.clock.new_id("msg"))
        self.steering.add(message)
        return message

    def followed_by(self, *new: Message) -> Turn:
        """The next turn of the same conversation, with the same options and the same deadline.

        If the reply was empty, the messages of this turn did not enter the history. They are sent again.
        """
        options = self.options
        if self.scope.seconds is not None:
            remaining = max(0.0, self.scope.deadline - anyio.current_time())
            options = merged(options, {"timeout": remaining})
        return Turn(
            runtime=self.runtime,
            state=self.state,
            new=(*(message for message in self._history.pending if message.content), *new),
            model=self._model,
            options=options,
            streamed=self.streamed,
            max_pauses=self._max_pauses,
        )

    @property
    def call(self) -> Call | None:
        return self._step.call if self._step is not None else None

    def enter_queue(self) -> None:
        """Enter the session's queue, and open the stream. Raises SessionBusy."""
        state = self.state
        if state.waiting >= MAX_WAITING_TURNS + (state.running is None):
            raise SessionBusy(f"session {state.id} already has {MAX_WAITING_TURNS} turns waiting")
        if (caller := self.caller) is not None and not caller.internal:
            child = ChildTurn(
                turn_id=self.id,
                model=model_text(self.model),
                tool_use_id=caller.tool_use_id or "",
                tool_name=caller.tool_name,
                depth=caller.node.depth + 1,
            )
            caller.lend(self.id, self.runtime.streams)  # done before any reader can attach to it
            caller.start(self, self.cancel, child)
        state.queue.append(self)
        self.log = self.runtime.streams.open(
            self.id,
            self.tags.get(OWNER_TAG),
            session_id=state.calls_as or None,
            model=model_text(self.model),
        )
        if self.streamed or state.id:
            self.runtime.cluster.streams.follow(self.log, state.id, self.cancel)
        self.runtime.in_flight.add(self, lambda: self.cancel(CLOSED))
        self.runtime.sessions.announce(state)

    def leave_queue(self, error: BaseException) -> None:
        """Leave the queue and end the stream, because the turn will not run."""
        self.state.queue.remove(self)
        self._end(error)
        self._close_log(error)

    def cancel(self, why: str = "") -> bool:
        """Request the end of the turn. Returns false if the turn has ended. Raises WrongLoop."""
        if self._over:
            return False
        self.runtime.host.require_loop(
            "to end a turn from another task or thread, use the signal= of an AbortController"
        )
        self.scope.cancel(why)
        self.steering.close(
            "the turn was cancelled and accepts no more messages. Send the message with the next turn"
        )
        if self.node is not None:
            self.node.cancel_open()
        call = self.call
        if call is None:
            self.scope.cut()
        elif why == CLOSED:
            call.leave()
        else:  # the call ends itself, or is abandoned after a grace period; the turn ends after that
            call.cancel()
        return True

    async def run(self) -> Reply:
        """Run the turn. Returns the assistant's last message. Raises CallboardError."""
        error: BaseException | None = None
        try:
            try:
                with self.scope.enter(self.cancel):
                    await self._wait_in_queue()
                    adapters = BorrowedAdapters(self.runtime)
                    try:
                        await self._be_admitted()
                        reply = await self._converse(adapters)
                    finally:
                        adapters.end()
                        self.state.running = None
                        self.state.turns.release()
            except Exception as failure:
                await self._confirm_right(failure)
                raise
            await self._confirm_right(None)
            return reply
        except CallboardError as failure:
            error = failure
            failure.turn = self
            if isinstance(failure, AdapterError) and failure.cost is None:
                failure.cost = NOTHING_SENT  # no call was made
            if isinstance(failure, ConfigurationError):
                raise failure.with_traceback(None)  # noqa: B904 (30 frames of ours, and the mistake isn't there)
            raise
        except Exception as failure:  # raised by the host's own code, such as middleware
            error = failure
            raise
        finally:
            try:
                if self.node is not None:
                    await self._end_children(error)
            finally:
                self._end(error)
            try:
                await self.runtime.host.secure(self.id, last=True)
                if self.takes_up is not None and self.runtime.budgets:
                    # If this fails, the reservation remains until the next start.
                    with contextlib.suppress(StoreError):
                        await self.runtime.budgets.recount(all_of_them=True)
                if self.state.commits:
                    await self.runtime.sessions.commit()
            finally:
                self._close_log(error)
                await self.runtime.cluster.streams.hand_over(self.id)

    async def _end_children(self, error: BaseException | None) -> None:
        assert self.node is not None
        cut = error is not None or self.status == "failed"
        await self.node.end(f"turn {self.id} was cut off, so its tools can make no more calls" if cut else "")

    async def _confirm_right(self, failed: Exception | None) -> None:
        """Check whether this engine may still publish the turn's end. Raises SessionTakenOver."""
        try:
            await self._right.confirm()
        except SessionTakenOver as lost:
            self._ended_elsewhere = await self._right.is_ended_elsewhere()
            raise lost from failed

    async def _wait_in_queue(self) -> None:
        state = self.state
        try:
            await state.turns.acquire()
        finally:
            state.queue.remove(self)
        state.running = self

    async def _be_admitted(self) -> None:
        await self.scope.leave_if_cut()
        if (signal := self.options.get("signal")) is not None:
            signal.raise_if_aborted()
        await self.runtime.host.admit()
        self._right = await self.runtime.sessions.admit_turn(self.state, self.id)

    def _begin(self) -> None:
        """Publish the start of the turn."""
        self.runtime.pricing.notice()
        model = self.model
        started = SessionTurnStarted(model=model_text(model), trace_parent=self._trace_parent)
        if self.caller is not None:
            started = msgspec.structs.replace(started, **place_below(self.caller))
        self.publish(started)
        self._history.begin(self.new)
        if self.state.id:
            self.runtime.cluster.streams.begin(self.id, self.state, self._turn_options, self._history.pending)

    async def _waiting_reply(self, tools: TurnTools, answers: Mapping[str, Answer]) -> Reply | None:
        """Process the answers to open calls. If calls still wait, returns the reply that contains them."""
        made = await tools.take(answers, self.messages)
        if not made.waiting:
            return None
        self.status = "awaiting_tools"
        self.steering.close(_OVER)
        reply = as_reply(last_reply(self.state.messages))
        reply.ended(self.status, self.undelivered)
        return reply

    async def _converse(self, adapters: BorrowedAdapters) -> Reply:
        self._begin()
        models = TurnModels(self, self.model, self._history.pending, adapters)
        tools = TurnTools(self, self._keep_results)
        if self._answers is not None and (reply := await self._waiting_reply(tools, self._answers)):
            return reply
        if tools.handed_to is not None:  # an approved call was a handoff
            models = self._hand_over(models, tools.handed_to)
        pauses = 0
        sends_back_unchanged = False
        caused_by: str | None = None
        while True:
            if not sends_back_unchanged:
                self._take_steering(models)
            if self.state.sources:
                self._take_tools(models)
            message, outcome = await self._reply(models, caused_by)
            response = outcome.response
            status = tools.ends_before(message, response.stop_reason)
            if status == "max_tool_rounds":
                message, response = tools.warned_of_limit(message, response)
            if message.tool_uses and self.state.id:
                self.runtime.sessions.keep_waiting_options(self.state, self._turn_options)
            self._history.add(message)
            caused_by = response.request_id
            self.steps.append(StepResult(message=message, response=response, cost=outcome.cost))
            paused = response.stop_reason is StopReason.PAUSE_TURN and not message.tool_uses
            if paused and pauses < self._max_pauses:
                sends_back_unchanged = True  # a paused reply is sent back unchanged
                pauses += 1
                self._finish_step()
                continue
            # The cancellation came too late for the call, but stops its tools.
            if self.scope.cancelled and message.tool_uses:
                tools.leave(message.tool_uses)
                raise CancelledError("the turn was cancelled; its tools were not run")
            if status == "completed":
                tools.leave(message.tool_uses)
            if status is None:
                # A tool runs the host's own code, which may end this process. So all earlier events must be safe
                # first.
                await self.runtime.host.secure(self.id)
                await self._right.require()
                made = await tools.run(message, response.stop_reason, self.messages)
                if self.scope.cancelled:  # for example because a tool has cancelled the turn
                    tools.leave(made.waiting)
                    raise CancelledError("the turn was cancelled while its tools ran")
                if made.waiting:
                    status = "awaiting_tools"
                else:
                    if tools.handed_to is not None:
                        models = self._hand_over(models, tools.handed_to)
                    if await tools.stops(self.steps):
                        status = "stopped"
            self._finish_step()
            if status is not None and not (status == "completed" and self._is_steered()):
                self.steering.close(_OVER)
                self.status = status
                return message
            sends_back_unchanged = status is None and provider_waits(message)

    def _hand_over(self, models: TurnModels, agent: Handoff) -> TurnModels:
        """Hand the conversation to another agent. Returns the models for the rest of the turn."""
        state, sessions = self.state, self.runtime.sessions
        self._model = None
        if state.id:
            sessions.change_model(state, agent.model)
        state.model, state.system_prompt = agent.model, agent.system_prompt
        state.use_tools(agent.tools)
        if state.announced:
            sessions.publish_setup(state)
        self.options = self.options.copy()
        self.options.pop("tool_choice", None)  # the choice refers to the previous agent's tools
        return TurnModels(self, agent.model, self.new, models.adapters)

    def _take_steering(self, models: TurnModels) -> None:
        """Move the waiting steering messages into the turn."""
        steering = self.steering.take()
        if not steering:
            return
        self._history.await_reply(steering)
        models.also_asks(steering)
        for message in steering:
            self.log.append(UserMessage(message.content, message.id or ""))

    def _take_tools(self, models: TurnModels) -> None:
        """Refresh the tools from sources whose tools may change."""
        if self.state.refresh_tools():
            models.use_tools(self.state.definitions)
            if self.state.announced:
                self.runtime.sessions.publish_setup(self.state)

    def _is_steered(self) -> bool:
        """Whether the turn continues after its last reply, because of a steering message."""
        return not self.scope.cancelled and not self.steering.close_if_empty(_OVER)

    def _finish_step(self) -> None:
        step = self.steps[-1]
        self.log.append(
            StepFinish(len(self.steps) - 1, step.stop_reason, step.usage, step.cost, step.message.id or "")
        )

    def _keep_results(self, results: tuple[ToolResultBlock, ...]) -> None:
        self._history.add_results(results)
        if self.steps:
            earlier_results = self.steps[-1].tool_results
            self.steps[-1] = msgspec.structs.replace(self.steps[-1], tool_results=(*earlier_results, *results))

    # --- One reply ---

    def _reply(
        self, models: TurnModels, caused_by: str | None
    ) -> Coroutine[object, object, tuple[Reply, CallOutcome]]:
        policy = self.options.get("context")
        if policy is None:
            return self._call(models, self.messages, caused_by, advice=ADVICE)
        return within_window(
            policy, self, models, self.messages, self._ask, lambda sent: self._call(models, sent, caused_by)
        )

    async def _ask(self, text: str) -> str:
        """Make a helper call for the conversation, such as a summary, and return its text. The turn's cost
        includes it.
        """
        state = self.state
        fallback: TurnOptions = {"fallback": state.options.get("fallback")}
        turn = Turn(
            runtime=self.runtime,
            state=SessionState("", self._model or state.model, None, (), self.tags, options=fallback),
            new=(Message.user(text),),
            model=None,
            options=TurnOptions(max_tool_rounds=0),
            streamed=False,
            caller=Caller(self.in_tree(), internal=True),
        )
        turn._trace_parent = self._trace_parent
        try:
            message = await run_turn(turn)
        finally:
            self.spending.include(turn.spending)
        return message.text

    def _call(
        self, models: TurnModels, messages: tuple[Message, ...], caused_by: str | None, *, advice: str = ""
    ) -> Coroutine[object, object, tuple[Reply, CallOutcome]]:
        first = not self.steps
        self._step = Step(
            self,
            models,
            messages,
            first_ids=self._first_ids if first else OWN_IDS,
            first=first,
            caused_by=caused_by,
            advice=advice,
        )
        return self._step.run(self._step_over)

    def _step_over(self, step: Step) -> None:
        self._step = None
        self._continues_in_background = step.continues_in_background
        if step.partial is not None:
            self._history.add(step.partial)
        if self.scope.cancelled:  # even if the call has just completed
            self.scope.cut()

    # --- The end ---

    def _end(self, error: BaseException | None) -> None:
        """Publish how the turn ended. There is no `await` here, so no other task runs in between."""
        self._over = True
        self.runtime.in_flight.remove(self)
        if error is not None:
            self.status = self._status_of(error)
            if not self._continues_in_background:
                self._history.forget_ahead()
                # The resumed reply has been read, so it is no longer open.
                if self.takes_up is not None and self.spending.calls:
                    self._history.forget_question(self.takes_up.turn_id or "")
        self.steering.close(_OVER)
        undelivered = self.undelivered
        usage = reduce(add, [step.usage for step in self.steps]) if self.steps else None
        cost = self.cost
        if self.runtime.budgets:
            self.runtime.budgets.forget_turn(self.id)
        tree = self.tree_cost, self.tree_usage
        for step in self.steps:
            step.message.ended(self.status, undelivered, usage=usage, cost=cost, tree=tree)
        if not self._ended_elsewhere:
            self._publish_end(error, cost)

    def _status_of(self, error: BaseException) -> TurnStatus:
        if self._right.may_be_lost and isinstance(error, SessionTakenOver):
            return "outcome_unknown"
        return "cancelled" if isinstance(error, CancelledError) else "failed"

    def _publish_end(self, error: BaseException | None, cost: Cost) -> None:
        spent = self.spending
        self.publish(
            SessionTurnCompleted(
                status=self.status,
                calls=spent.calls,
                cost_nano_usd=cost.nano_usd,
                error=None if error is None else self._published(in_a_line(error)),
                attempts=spent.sum.calls,
                known_nano_usd=spent.sum.nano_usd,
                estimated=spent.sum.estimated,
                unpriced=spent.sum.unpriced,
                unknown=spent.sum.unknown,
            )
        )

    def _published(self, text: str) -> str:
        if self.runtime.keeps_all_content:
            return text
        return without_quotes(text, texts_of((*self.messages, *self.new), self.state.system_prompt))

    def _close_log(self, error: BaseException | None) -> None:
        if self.caller is not None:
            self.caller.node.release(self)
        if not self.log.closed:
            self.log.append(TurnComplete(self.status, None if error is None else in_a_line(error)))
            self.log.close()


def in_a_line(error: BaseException) -> str:
    """Format an error as ``Type: text``."""
    return f"{type(error).__name__}: {error}"


async def run_turn(turn: Turn) -> Reply:
    """Start a turn, and wait for its reply. If this task is cancelled, the turn is cancelled, too."""
    task = await turn.runtime.host.start_turn(turn)
    try:
        return await task.wait()
    except TaskCancelled as error:
        cancelled = CancelledError("the turn was cancelled")
        cancelled.turn, cancelled.cost = turn, turn.cost
        raise cancelled from error
    finally:
        if not task.done:
            turn.cancel()
            with anyio.CancelScope(shield=True):
                with contextlib.suppress(CallboardError):
                    await task.wait()
