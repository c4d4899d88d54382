"""The tools of one turn: which calls are run, which are left open, and whether the turn goes on after them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from callboard.adapters import Message, StopReason, ToolResultBlock, ToolUseBlock
from callboard.bus import CallboardError, ToolFinished, ToolProgress, ToolStarted, TurnStatus
from callboard.bus.values.runnable_calls import ended_well

from ..tools import Answer, ToolRound, ToolRoundContext, answers_to, open_calls
from ..tools.rounds import not_executed
from .results import StepResult
from .turn_context import TurnContext

Keep: TypeAlias = Callable[[tuple[ToolResultBlock, ...]], None]


class TurnTools:
    """The tools of one turn.

    Args:
        turn: The turn. Its stream and the bus hear of each tool.
        keep: Is given the results, also the results of a round that is cancelled.
    """

    def __init__(self, turn: TurnContext, keep: Keep) -> None:
        self._turn = turn
        self._keep = keep
        self._rounds = 0

    def ends_before(self, reply: Message, stop_reason: StopReason) -> TurnStatus | None:
        """The way the turn ends if none of the reply's calls is run; None if there is a round to run.

        The calls of a reply that did not end well are not run. There is one exception: after a reply that used all
        its tokens, the model is told so and may call again.
        """
        calls = reply.tool_uses
        if not calls:
            return "completed"
        if not ended_well(stop_reason) and stop_reason is not StopReason.MAX_TOKENS:
            return "completed"
        passive = {tool.name for tool in self._turn.state.tools if tool.handler is None}
        if all(call.name in passive and not call.incomplete for call in calls):
            return "awaiting_tools"  # the host answers
        return "max_tool_rounds" if self._rounds >= self._turn.options["max_tool_rounds"] else None

    async def run(self, reply: Message, stop_reason: StopReason, history: tuple[Message, ...]) -> ToolRound:
        """Run the calls of a reply that may be run."""
        self._rounds += 1
        return await self._round(reply.tool_uses, history, self._keep, cut_off=not ended_well(stop_reason))

    def leave(self, calls: Sequence[ToolUseBlock]) -> None:
        """Give each of these calls a result that says that it was not run, because the turn is over."""
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
        """Take the host's answers to the open calls, and run the calls that it approved. Raises CallboardError."""
        calls = open_calls(history)
        sorted_out = answers_to(history, answers, self._turn.state.tools)
        results = dict(sorted_out.results)

        def keep(ran: tuple[ToolResultBlock, ...]) -> None:
            results.update((result.tool_use_id, result) for result in ran)
            self._keep(tuple(results[call.id] for call in calls if call.id in results))

        approved = frozenset(call.id for call in sorted_out.to_run)
        made = await self._round(sorted_out.to_run, history, keep, approved=approved)
        return ToolRound(made.results, tuple(call for call in calls if call.id not in results))

    async def _round(
        self,
        calls: Sequence[ToolUseBlock],
        history: tuple[Message, ...],
        keep: Keep,
        *,
        cut_off: bool = False,
        approved: frozenset[str] = frozenset(),
    ) -> ToolRound:
        from ..tools import run_tools  # many turns have no tools

        shared = ToolRoundContext(
            clock=self._turn.runtime.clock,
            tell=self._tell,
            messages=history,
            session_id=self._turn.state.id or None,
            turn_id=self._turn.id,
            timeout_seconds=self._turn.runtime.timeouts.tool,
            approve=self._turn.options.get("approve"),
            repair=self._turn.options.get("repair_tool_call"),
            cut_off=cut_off,
            approved=approved,
        )
        made = await run_tools(calls, self._turn.state.tools, shared, interrupted=keep)
        keep(made.results)
        return made

    def _tell(self, event: ToolStarted | ToolProgress | ToolFinished) -> None:
        self._turn.log.append(event)
        self._turn.publish(event)
