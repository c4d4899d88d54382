"""The tools of one turn: which calls are run, which are left open, and whether the turn goes on after them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from adapters import Message, StopReason, ToolResultBlock, ToolUseBlock
from bus import CallboardError, StreamLog, ToolFinished, ToolProgress, ToolStarted, TurnStatus
from bus.streams.events import TurnEvent
from bus.values.whole_calls import ended_well

from ..runtime.runtime import Runtime
from ..tools import Answer, ToolRound, ToolRoundContext, answers_to, open_calls
from ..tools.rounds import not_executed
from .results import StepResult

if TYPE_CHECKING:
    from ..sessions.state import SessionState
    from .options import TurnOptions

Keep: TypeAlias = Callable[[tuple[ToolResultBlock, ...]], None]


class TurnTools:
    """log: the turn's stream, which hears of each tool, as the bus does. keep: is given the results, also of a
    round that is cancelled.
    """

    def __init__(
        self,
        runtime: Runtime,
        state: SessionState,
        options: TurnOptions,
        turn_id: str,
        log: StreamLog[TurnEvent],
        keep: Keep,
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._options = options
        self._turn_id = turn_id
        self._log = log
        self._keep = keep
        self._rounds = 0

    def ends_before(self, reply: Message, stop_reason: StopReason) -> TurnStatus | None:
        """How the turn ends if none of the reply's calls is run; None if there is a round to run.

        After a reply that did not end well there is none: its calls are no calls. Only where all its tokens were
        used the model is told so, and may call again.
        """
        calls = reply.tool_uses
        if not calls:
            return "completed"
        if not ended_well(stop_reason) and stop_reason is not StopReason.MAX_TOKENS:
            return "completed"
        passive = {tool.name for tool in self._state.tools if tool.handler is None}
        if all(call.name in passive and not call.incomplete for call in calls):
            return "awaiting_tools"  # the host answers
        return "max_tool_rounds" if self._rounds >= self._options["max_tool_rounds"] else None

    async def run(self, reply: Message, stop_reason: StopReason, history: tuple[Message, ...]) -> ToolRound:
        """Run what may be run. history: with the reply."""
        self._rounds += 1
        return await self._round(reply.tool_uses, history, self._keep, cut_off=not ended_well(stop_reason))

    def leave(self, calls: Sequence[ToolUseBlock]) -> None:
        """Run none of these, for the turn is over: each has a result that says so."""
        self._keep(tuple(not_executed(call) for call in calls))

    async def stops(self, steps: Sequence[StepResult]) -> bool:
        """What `stop_when` says. Raises CallboardError if it fails."""
        stop_when = self._options.get("stop_when")
        if stop_when is None:
            return False
        try:
            stops = stop_when(tuple(steps))
            return bool(await stops if inspect.isawaitable(stops) else stops)
        except Exception as error:
            raise CallboardError(f"stop_when failed: {type(error).__name__}: {error}") from error

    async def take(self, answers: Mapping[str, Answer], history: tuple[Message, ...]) -> ToolRound:
        """What the host answers to the open calls: results, and runs of those it approved.

        Raises CallboardError, before anything runs, for what is no answer to one of them.
        """
        calls = open_calls(history)
        sorted_out = answers_to(history, answers, self._state.tools)
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
            clock=self._runtime.clock,
            tell=self._tell,
            messages=history,
            session_id=self._state.id or None,
            turn_id=self._turn_id,
            timeout_seconds=self._runtime.timeouts.tool,
            approve=self._options.get("approve"),
            repair=self._options.get("repair_tool_call"),
            cut_off=cut_off,
            approved=approved,
        )
        made = await run_tools(calls, self._state.tools, shared, interrupted=keep)
        keep(made.results)
        return made

    def _tell(self, event: ToolStarted | ToolProgress | ToolFinished) -> None:
        self._log.append(event)
        self._runtime.bus.publish(event, session_id=self._state.id or None, turn_id=self._turn_id)
