"""The tools of one turn: the calls of a reply that are run, the rules for them, and their events."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import msgspec

from callboard.adapters import (
    CallWarning,
    CanonicalResponse,
    Message,
    Role,
    StopReason,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus import CallboardError, ToolFinished, ToolProgress, ToolStarted, TurnStatus
from callboard.bus.errors import WarningCode
from callboard.bus.values.messages import ended_well

from ..tools import Answer, ToolRound, ToolRoundContext, answers_to, last_reply, open_calls
from ..tools.calls import handoff_in, not_executed, results_in
from ..tools.context import idempotency_key
from ..tools.definitions import Handoff
from ..tree import Caller, ChildTurn
from .results import Reply, StepResult
from .turn_context import TurnContext

Keep: TypeAlias = Callable[[tuple[ToolResultBlock, ...]], None]


class TurnTools:
    """The tools of one turn.

    Args:
        turn: The turn. Each tool is published on its stream and on the bus.
        keep: A function that receives the results, even those of a cancelled round.
    """

    def __init__(self, turn: TurnContext, keep: Keep) -> None:
        self._turn = turn
        self._keep = keep
        self._rounds = 0
        self.handed_to: Handoff | None = None
        """The agent that takes over the conversation, after a call of `handoff` has run."""

    def ends_before(self, reply: Message, stop_reason: StopReason) -> TurnStatus | None:
        """The status with which the turn ends instead of running the reply's calls; None if they are run.

        If a reply did not end normally, its calls are not run. If the reply used all its tokens, the turn
        continues: the model gets a result that explains this, and may call again.
        """
        calls = reply.tool_uses
        if not calls:
            return "completed"
        if not ended_well(stop_reason) and stop_reason is not StopReason.MAX_TOKENS:
            return "completed"
        passive = {tool.name for tool in self._turn.state.tools if tool.handler is None}
        if all(call.name in passive and not call.incomplete for call in calls):
            return "awaiting_tools"  # the host runs the calls itself
        return "max_tool_rounds" if self._rounds >= self._turn.options["max_tool_rounds"] else None

    def warned_of_limit(self, reply: Reply, response: CanonicalResponse) -> tuple[Reply, CanonicalResponse]:
        """Add a warning to the reply that its calls were not run, unless the caller allowed no rounds of tools."""
        limit = self._turn.options["max_tool_rounds"]
        if not limit:
            return reply, response
        text = (
            f"its tool calls were not run: the limit of {limit} tool rounds was reached. Set "
            f"max_tool_rounds= to allow more"
        )
        warnings = (*response.warnings, CallWarning(WarningCode.MAX_TOOL_ROUNDS, text))
        metadata = msgspec.structs.replace(reply.metadata, warnings=warnings)
        return (
            msgspec.structs.replace(reply, metadata=metadata),
            msgspec.structs.replace(response, warnings=warnings),
        )

    async def run(self, reply: Message, stop_reason: StopReason, history: tuple[Message, ...]) -> ToolRound:
        self._rounds += 1
        made = await self._round(reply.tool_uses, history, self._keep, cut_off=not ended_well(stop_reason))
        self.handed_to = None if made.waiting else self._handoff(history, made.results)
        return made

    def _handoff(self, history: tuple[Message, ...], results: Iterable[ToolResultBlock]) -> Handoff | None:
        """The handoff among the calls of the last reply, if one has run."""
        if not any(isinstance(tool, Handoff) for tool in self._turn.state.tools):
            return None
        ran = {result.tool_use_id for result in results if not result.is_error}
        return handoff_in(last_reply(history), self._turn.state.tools, ran | results_in(history).keys())

    def leave(self, calls: Sequence[ToolUseBlock]) -> None:
        """Add a result to each of these calls: the call was not run, because the turn has ended."""
        self._keep(tuple(not_executed(call) for call in calls))

    async def stops(self, steps: Sequence[StepResult]) -> bool:
        """Whether `stop_when` ends the turn. Raises CallboardError."""
        stop_when = self._turn.options.get("stop_when")
        if stop_when is None:
            return False
        try:
            stops = stop_when(tuple(steps))
            return bool(await stops if inspect.isawaitable(stops) else stops)
        except Exception as error:
            raise CallboardError(f"stop_when failed: {type(error).__name__}: {error}") from error

    async def take(self, answers: Mapping[str, Answer], history: tuple[Message, ...]) -> ToolRound:
        """Process the host's answers to open calls, and run the approved calls. Raises CallboardError."""
        calls = open_calls(history)
        sorted_out = answers_to(history, answers, self._turn.state.tools)
        results = dict(sorted_out.results)

        def keep(ran: tuple[ToolResultBlock, ...]) -> None:
            results.update((result.tool_use_id, result) for result in ran)
            self._keep(tuple(results[call.id] for call in calls if call.id in results))

        approved = frozenset(call.id for call in sorted_out.to_run)
        made = await self._round(sorted_out.to_run, history, keep, approved=approved)
        waiting = tuple(call for call in calls if call.id not in results)
        self.handed_to = None if waiting else self._handoff(history, results.values())
        return ToolRound(made.results, waiting)

    async def _round(
        self,
        calls: Sequence[ToolUseBlock],
        history: tuple[Message, ...],
        keep: Keep,
        *,
        cut_off: bool = False,
        approved: frozenset[str] = frozenset(),
    ) -> ToolRound:
        from ..tools import run_tools  # lazy, because many turns have no tools

        shared = ToolRoundContext(
            clock=self._turn.runtime.clock,
            tell=self._report,
            messages=history,
            session_id=self._turn.state.id or None,
            turn_id=self._turn.id,
            timeout_seconds=self._turn.runtime.timeouts.tool,
            approve=self._turn.options.get("approve"),
            repair=self._turn.options.get("repair_tool_call"),
            cut_off=cut_off,
            approved=approved,
            caller=partial(self._caller, history),
        )
        made = await run_tools(calls, self._turn.state.tools, shared, interrupted=keep)
        keep(made.results)
        return made

    def _caller(self, history: tuple[Message, ...], call: ToolUseBlock) -> Caller:
        """The context of a tool run, for turns and calls that the tool starts."""
        turn = self._turn
        question = next((message for message in reversed(history) if message.role is Role.ASSISTANT), None)
        return Caller(
            turn.in_tree(),
            call_id=None if question is None or question.metadata is None else question.metadata.request_id,
            tool_use_id=call.id,
            tool_name=call.name,
            runtime=turn.runtime,
            session_id=turn.state.id or None,
            tags=turn.tags,
            streamed=turn.streamed,
            key=lambda: idempotency_key(turn.state.id or None, history, call.id),
            tell=self._report_child,
            carry=turn.runtime.cluster.carry,
        )

    def _report_child(self, child: ChildTurn) -> None:
        if not self._turn.log.closed:
            self._report(
                ToolProgress(tool_use_id=child.tool_use_id, tool_name=child.tool_name, stream_id=child.turn_id)
            )

    def _report(self, event: ToolStarted | ToolProgress | ToolFinished) -> None:
        self._turn.log.append(event)
        self._turn.publish(event)
