"""An empty reply on every wire, streamed and whole: it has a warning, and is asked for again if that is wanted."""

from __future__ import annotations

import pytest

from callboard.adapters import StopReason
from callboard.bus import LlmCallCompleted, Lossless

from .test_endings import ALL, BY_NAME, Case, described, ends_in
from .test_objects_over_wires import asking

pytestmark = pytest.mark.anyio

QUIET = [case for case in ALL if not case.calls and case.means is StopReason.END_TURN]


@pytest.mark.parametrize("again", [0, 1])
@pytest.mark.parametrize("case", QUIET, ids=described)
async def test_an_empty_reply_is_marked_and_may_be_asked_for_again(case: Case, again: int) -> None:
    """The reply ends well and has no text. Each call is recorded with its own warnings."""
    wire = BY_NAME[case.wire]
    make = wire.streamed if case.streamed else wire.whole
    replies = [make("", 0, case.word), make("Well.", 0, case.word)]
    async with asking(wire, "some-model", *replies) as (engine, named, _):
        events = engine.bus.subscribe("llm.>", policy=Lossless(), name="test")
        session = engine.session(named)
        if case.streamed:
            async with session.stream("Hi", retry_empty=again) as turn:
                reply = await turn.message()
        else:
            reply = await session.send("Hi", retry_empty=again)
        ends = [each for each in ends_in(events) if isinstance(each, LlmCallCompleted)]
    assert reply.text == ("Well." if again else "")
    assert ["empty_reply" in end.warnings for end in ends] == [True, False][: 1 + again]
