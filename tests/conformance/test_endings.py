"""Every end of every wire: do its tools run, is it an error and of which class, and what is booked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest

from adapters import StopReason, ToolUseBlock
from adapters.conformance import CALLS, TOOLS
from bus import AdapterError
from bus.whole_calls import ended_well
from engine import Session, Tool

from ..support.fake_http import FakeReply
from ..support.virtual_time import Backend, backend
from .endings import ENDINGS, ending
from .test_objects_over_wires import asking
from .wires import WIRES

pytestmark = pytest.mark.anyio

BY_NAME = {wire.name: wire for wire in WIRES}


@pytest.fixture
def anyio_backend() -> Backend:
    return backend("virtual-asyncio")


class Case(msgspec.Struct, frozen=True):
    """A reply of a wire with some calls that ends with a word."""

    wire: str
    word: str
    streamed: bool
    calls: int

    @property
    def means(self) -> StopReason | type[AdapterError]:
        return ending(self.wire, self.word, streamed=self.streamed, calls=self.calls)

    def reply(self) -> FakeReply:
        wire = BY_NAME[self.wire]
        make = wire.streamed if self.streamed else wire.whole
        return make("Well.", self.calls, self.word)


def cases() -> Iterator[Case]:
    for name, words in ENDINGS.items():
        numbers = (0, 1, 2) if BY_NAME[name].calls_tools else (0,)
        for word, streamed, calls in itertools.product(words, (False, True), numbers):
            yield Case(name, word, streamed, calls)


def described(case: object) -> str:
    if not isinstance(case, Case):
        return str(case)
    mode = "streamed" if case.streamed else "whole"
    return f"{case.wire}-{case.word or 'nothing'}-{mode}-{case.calls}"


each_case = pytest.mark.parametrize("case", [*cases()], ids=described)


def tools(ran: list[str]) -> list[Tool]:
    """The tools that the wires call, which note that they ran."""

    def noting(name: str) -> Tool:
        async def run(**given: object) -> str:
            ran.append(name)
            return "done"

        return Tool(next(tool for tool in TOOLS if tool.name == name), run)

    return [noting(name) for name, _ in CALLS]


async def said(session: Session, streamed: bool) -> None:
    if streamed:
        async with session.stream("Go on") as turn:
            await turn.message()
    else:
        await session.send("Go on")


@each_case
async def test_tools_run_only_from_replies_that_ended_well(case: Case) -> None:
    """And whether it is an error, of which class, is the table's word."""
    wire, ran = BY_NAME[case.wire], list[str]()
    after = wire.streamed("Fine.") if case.streamed else wire.whole("Fine.")
    async with asking(wire, "some-model", case.reply(), after) as (engine, named, _):
        session = engine.session(named, tools=tools(ran) if case.calls else ())
        if isinstance(case.means, type):
            with pytest.raises(case.means) as caught:
                await said(session, case.streamed)
            assert type(caught.value) is case.means
            reply = caught.value.content
        else:
            await said(session, case.streamed)
            metadata = session.messages[1].metadata
            assert metadata is not None
            assert metadata.stop_reason is case.means
            reply = session.messages[1].content
        assert session.pending_calls == ()
    well = not isinstance(case.means, type) and ended_well(case.means)
    assert sorted(ran) == sorted(name for name, _ in CALLS[: case.calls] if well)
    calls = [block for block in reply if isinstance(block, ToolUseBlock)]
    assert [call.incomplete for call in calls] == [not well] * len(calls)
