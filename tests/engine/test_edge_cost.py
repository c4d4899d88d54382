"""The cost of a child's edge, as the number of bytecodes that Python runs.

On a busy machine the event loop may run more often, so the test uses the smallest of several counts.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import anyio
import pytest

from callboard import Engine, detached, tool
from callboard.engine.tree import current_tool
from tests.support.engines import registry
from tests.support.scripted import Say

MOST = 0.05
"""The largest allowed share of the edge in the cost of a call."""

CALLS = 10


class Counting:
    """Counts the bytecodes of the code in its context."""

    def __init__(self) -> None:
        self.bytecodes = 0

    def __enter__(self) -> Counting:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, value: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, value: Any) -> Any:
        self.bytecodes += event == "opcode"
        return self._step


async def bytecodes_of(calls: int, *, children: bool) -> int:
    """The bytecodes of this number of calls in a tool, including the sums of their costs."""
    counting = Counting()

    @tool
    async def go() -> None:
        """Go."""

        async def make() -> None:
            with counting:
                for _ in range(calls):
                    await engine.generate("a:m", "Go.")

        await engine.generate("a:m", "Go.")  # The first call of a model looks up its adapter.
        if not children:
            with detached():
                return await make()
        await make()
        caller = current_tool.get()
        with counting:
            assert caller.node.below.calls == calls + 1
            assert caller.node.below_usage.total_tokens
        return None

    models = registry(Say(calls=[("go", {})]), Say("Done."), a=[Say("x")] * (calls + 1))
    async with Engine(models=models, trace=False) as engine:
        await engine.session("s:m", tools=[go]).send("Go.")
    return counting.bytecodes


@pytest.mark.deep("each bytecode is counted")
def test_the_edge_of_a_child_costs_little() -> None:
    """The call is as small as possible: no trace, no network, and a short reply."""

    async def a_call(children: bool) -> float:
        least = [
            min([await bytecodes_of(calls, children=children) for _ in range(3)]) for calls in (CALLS, 2 * CALLS)
        ]
        return (least[1] - least[0]) / CALLS

    alone, child = anyio.run(a_call, False), anyio.run(a_call, True)
    assert child - alone < MOST * alone
