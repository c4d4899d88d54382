"""The tools of one turn: which calls are run, which are left open, and whether the turn goes on after them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from adapters import Message, Role, StopReason, ToolResultBlock, ToolUseBlock
from bus import CallboardError, StreamLog, ToolFinished, ToolProgress, ToolStarted
from bus.stream_events import TurnEvent

from .results import StepResult
from .tools import Answer, answers_to, open_calls

if TYPE_CHECKING:
    from .engine import Engine
    from .session_state import SessionState
    from .tools import ToolRound
    from .turn_options import TurnOptions

_WHOLE = (StopReason.TOOL_USE, StopReason.END_TURN)
"""How a reply ends whose calls are as the model meant them."""


class TurnTools:
    """log: the turn's stream, which hears of each tool, as the bus does."""

    def __init__(
        self, engine: Engine, state: SessionState, options: TurnOptions, turn_id: str, log: StreamLog[TurnEvent]
    ) -> None:
        self._engine = engine
        self._state = state
        self._options = options
        self._turn_id = turn_id
        self._log = log
        self._rounds = 0

    def ends_before(self, reply: Message) -> str | None:
        """How the turn ends if none of the reply's calls is run; None if there is a round to run."""
        calls = reply.tool_uses
        if not calls:
            return "completed"
        passive = {tool.name for tool in self._state.tools if tool.handler is None}
        if all(call.name in passive and not call.incomplete for call in calls):
            return "awaiting_tools"  # the host answers
        return "max_tool_rounds" if self._rounds >= self._options.max_tool_rounds else None

    async def run(self, reply: Message, stop_reason: StopReason, history: tuple[Message, ...]) -> ToolRound:
        """Run what may be run. history: with the reply."""
        self._rounds += 1
        return await self._round(reply.tool_uses, history, cut_off=stop_reason not in _WHOLE)

    async def stops(self, steps: Sequence[StepResult]) -> bool:
        """What `stop_when` says. Raises CallboardError if it fails."""
        if self._options.stop_when is None:
            return False
        try:
            stops = self._options.stop_when(tuple(steps))
            return bool(await stops if inspect.isawaitable(stops) else stops)
        except Exception as error:
            raise CallboardError(f"stop_when failed: {type(error).__name__}: {error}") from error

    async def take(self, answers: Mapping[str, Answer], history: tuple[Message, ...]) -> ToolRound:
        """What the host answers to the open calls: results, and runs of those it approved.

        Raises CallboardError, before anything runs, for what is no answer to one of them.
        """
        calls = open_calls(history)
        if not calls and not answers and (not history or history[-1].role is not Role.TOOL):
            raise CallboardError("nothing waits for an answer in this session; say something with send()")
        sorted_out = answers_to(calls, answers, self._state.tools)
        approved = frozenset(call.id for call in sorted_out.to_run)
        made = await self._round(sorted_out.to_run, history, approved=approved)
        results: dict[str, ToolResultBlock] = dict(sorted_out.results)
        results.update((result.tool_use_id, result) for result in made.results)
        return msgspec.structs.replace(
            made,
            results=tuple(results[call.id] for call in calls if call.id in results),
            waiting=tuple(call for call in calls if call.id not in results),
        )

    async def _round(
        self,
        calls: Sequence[ToolUseBlock],
        history: tuple[Message, ...],
        *,
        cut_off: bool = False,
        approved: frozenset[str] = frozenset(),
    ) -> ToolRound:
        from .tools import ToolScene, run_tools  # many turns have no tools

        scene = ToolScene(
            clock=self._engine.clock,
            tell=self._tell,
            messages=history,
            session_id=self._state.id or None,
            turn_id=self._turn_id,
            timeout_seconds=self._engine.timeouts.tool,
            approve=self._options.approve or self._state.approve,
            repair=self._options.repair_tool_call,
            cut_off=cut_off,
            approved=approved,
        )
        return await run_tools(calls, self._state.tools, scene)

    def _tell(self, event: ToolStarted | ToolProgress | ToolFinished) -> None:
        self._log.append(event)
        self._engine.bus.publish(event, session_id=self._state.id or None, turn_id=self._turn_id)
