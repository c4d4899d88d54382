"""A few rounds of the HTTP/1.1 client's fuzzer. `labs/http1` plays any number of rounds."""

from __future__ import annotations

import asyncio

import pytest

from callboard.adapters.transport.http1_connection import AgedConnectionError, Connection, ReplyParser
from labs.http1.__main__ import run
from labs.http1.rounds import read_round, talk_round
from tests.support.depth import first_is_quick
from tests.support.virtual_time import VirtualLoop


@pytest.mark.parametrize("seed", first_is_quick(range(4), "more seeds of a lab"))
def test_nothing_is_found(seed: int) -> None:
    """Every kind of round is played. Both readers accept some of the damaged replies."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:  # so that only replies that never arrive time out
        counts, failures = runner.run(run(seed))
    assert failures == []
    assert {name.partition(":")[0] for name in counts} == {"read", "spoil", "talk"}
    assert counts["talk: whole"] > 10
    assert counts["spoil: taken by both"] > 0


def test_a_request_that_is_sent_again_after_it_arrived_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may have processed the request, so a repetition is a fault."""
    monkeypatch.setattr(Connection, "_failure", lambda self, error: AgedConnectionError("gone"))
    with pytest.raises(AssertionError, match="was sent again though"):
        for seed in range(20):
            asyncio.run(talk_round(seed))


def test_an_incomplete_reply_that_is_accepted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply was broken off by the server."""

    def end(self: ReplyParser) -> bool:
        self.complete = not self.waits
        return self.complete

    monkeypatch.setattr(ReplyParser, "end", end)
    with pytest.raises(AssertionError, match="broken off"):
        for seed in range(50):
            asyncio.run(read_round(seed))
