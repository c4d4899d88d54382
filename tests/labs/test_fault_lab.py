"""A few rounds of the fault lab; `labs/faults` runs any number."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from callboard.adapters import AdapterConfig, CanonicalRequest, ContextOverflowError, NetworkError, create_adapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.replies.assembler import Assembler
from callboard.bus import Message, OverloadedError, ServerError, TextBlock, ThinkingBlock, TokenUsage, ToolUseBlock
from labs.faults import checks
from labs.faults.plan import FAULTS, PROTOCOLS, STEADY, fault_of, make_plan, mark, turn_of
from labs.faults.replies import make_reply
from labs.faults.round import TOOLS, run_round
from labs.faults.server import FaultyServer
from tests.support.certificate import local_tls
from tests.support.depth import first_is_quick

from ..support.virtual_time import FakeClock

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Thousands of lines about what goes wrong on purpose say nothing."""
    ours = logging.getLogger("callboard")
    before = ours.level
    ours.setLevel(logging.CRITICAL)
    yield
    ours.setLevel(before)


@pytest.mark.parametrize("seed", first_is_quick([1, 8, 21, 27], "more seeds of a lab"))
def test_the_engine_keeps_its_promises_under_fire(seed: int, tmp_path: Path) -> None:
    """Whatever server and chaos do: no hang, one end per attempt, equal readers, valid histories, nothing left."""
    report = run_round(seed, tmp_path, sessions=5, turns=6)
    assert not report.failures, f"python -m labs.faults --seed {seed}\n" + "\n".join(report.failures)
    assert report.counts["attempts"] >= 10


@pytest.mark.deep("the lab of the quick seed, elsewhere")
@pytest.mark.parametrize("how", ["uvloop", "tls"])
def test_it_keeps_them_on_another_loop_and_over_tls(how: str, tmp_path: Path) -> None:
    """The same faults, seen through uvloop's transports and through an encrypted connection."""
    with local_tls(tmp_path) as context:
        tls = context if how == "tls" else None
        report = run_round(3, tmp_path, sessions=3, turns=4, uvloop=how == "uvloop", tls=tls)
    assert not report.failures, f"--{how} --seed 3 --sessions 3 --turns 4\n" + "\n".join(report.failures)
    assert report.counts["turns well"] >= 1


PROGRAM = """
import sys
from msgspec.json import encode
from labs.faults.plan import FAULTS, fault_of, make_plan
turns = [f"{session}.{turn}" for session in range(3) for turn in range(8)]
for key in [(turn, protocol, number) for turn in turns for protocol in ("messages", "chat") for number in (1, 2)]:
    fault, chance = fault_of(7, *key, FAULTS)
    print(fault, chance.random())
print(encode(make_plan(7, sessions=6, turns=8)).decode())
"""


def test_the_same_seed_is_the_same_plan_in_every_process() -> None:
    """Of turns, chaos and faults, to the last detail; and another seed is another plan."""
    command = [sys.executable, "-c", PROGRAM]
    said = {
        subprocess.run(
            command,
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert msgspec.json.encode(make_plan(7, sessions=6, turns=8)).decode() == said.pop().splitlines()[-1]
    assert make_plan(7, sessions=6, turns=8) != make_plan(8, sessions=6, turns=8)


def test_a_round_plays_its_plan_whenever_its_seed_is_given(tmp_path: Path) -> None:
    """Two runs may differ in how far they come, not in what is done to the n-th request of a turn."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = (run_round(5, tmp_path / name, sessions=3, turns=5) for name in ("a", "b"))
    both = set(first.played) & set(second.played)
    assert len(both) >= 10
    assert {key: first.played[key] for key in both} == {key: second.played[key] for key in both}
    kinds = [{k: n for k, n in each.counts.items() if k.startswith("turn ")} for each in (first, second)]
    assert kinds[0] == kinds[1]
    for (turn, protocol, number), fault in first.played.items():
        assert fault_of(5, turn, protocol, number, FAULTS)[0] == fault


def test_a_smaller_round_of_a_seed_is_part_of_the_larger_one() -> None:
    """So that a failure can be looked at with fewer sessions in the way."""
    large, small = make_plan(9, sessions=6, turns=8), make_plan(9, sessions=2, turns=3)
    assert [session[:3] for session in large.sessions[:2]] == list(small.sessions)
    assert large.chaos == small.chaos


def test_the_last_mark_of_a_request_names_its_turn() -> None:
    """A request holds the marks of all turns before."""
    assert turn_of(f"{mark(1, 2)} and {mark(1, 3)}".encode()) == "1.3"
    assert turn_of(b"nothing") == "none"


def new_assembler() -> Assembler:
    return Assembler(
        message_id="msg",
        provider="p",
        requested_model="m",
        clock=FakeClock(),
        estimate_usage=lambda text: TokenUsage(0, 0),
    )


def said(assembler: Assembler) -> list[object]:
    """What a reply says, without the ids that each reading makes for itself."""
    assert assembler.complete
    return [
        (block.name, block.input) if isinstance(block, ToolUseBlock) else (type(block), block.text)
        for block in assembler.final_content
        if isinstance(block, TextBlock | ThinkingBlock | ToolUseBlock)
    ]


@pytest.mark.parametrize("provider", PROTOCOLS)
def test_the_server_says_the_same_whole_and_streamed_in_every_protocol(provider: str) -> None:
    """And its error within a stream is one that may be tried again. Some of the replies call tools."""
    adapter = create_adapter(
        PROTOCOLS[provider], AdapterConfig(api_key="key", base_url="https://provider.test"), name=provider
    )
    assert isinstance(adapter, HttpAdapter)
    request = CanonicalRequest(
        request_id="r",
        model="m",
        messages=(Message.user("Go on."),),
        max_output_tokens=100,
        tools=tuple(tool.definition for tool in TOOLS),
    )
    call = adapter.write_request(request, stream=True)
    calls = 0
    for seed in range(30):
        reply = make_reply(call.path, msgspec.json.decode(call.body), random.Random(seed))
        whole, streamed = new_assembler(), new_assembler()
        adapter.wire.read_reply(reply.whole, {}, whole)
        normaliser = adapter.wire.normaliser(streamed)
        normaliser.feed(reply.streamed)
        normaliser.close()
        assert said(streamed) == said(whole)
        calls += sum(isinstance(block, ToolUseBlock) for block in whole.final_content)
        broken = adapter.wire.normaliser(new_assembler())
        broken.feed(reply.error)
        assert isinstance(broken.error, OverloadedError | ServerError), broken.error
    assert calls >= 5


def test_requests_to_a_provider_are_counted_together_whether_streamed_or_not() -> None:
    """Or a turn's second request would get the first one's fault again."""
    server, body = FaultyServer(1), mark(0, 1).encode()
    for method in ("generateContent", "streamGenerateContent?alt=sse"):
        server.next_fault(f"/v1beta/models/m:{method}", body)
    assert list(server.played) == [("0.1", "generateContent", 1), ("0.1", "generateContent", 2)]


def test_a_failure_that_the_steady_provider_would_have_healed_is_found() -> None:
    """And only such a one: not what came after output, not a turn without that fallback."""
    turns = [turn for session in make_plan(1, sessions=6, turns=20).sessions for turn in session]
    reads = [turn for turn in turns if turn.kind == "read" and turn.timeout_seconds is None]
    safe = next(turn for turn in reads if turn.fallback == (f"{STEADY}:m",))
    alone = next(t for t in turns if t.fallback == ())
    delivered = NetworkError("broke off", provider="chat")
    delivered.content = (TextBlock("some"),)
    assert checks.of_fallback(safe, NetworkError("broke off", provider="chat"))
    assert checks.of_fallback(safe, ContextOverflowError("too long", provider="chat"))
    assert not checks.of_fallback(safe, delivered)
    assert not checks.of_fallback(alone, NetworkError("broke off", provider="chat"))
