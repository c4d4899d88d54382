"""A few rounds of the fault lab. `labs/faults` plays any number of rounds."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from callboard.adapters import AdapterConfig, CanonicalRequest, ContextOverflowError, NetworkError, create_adapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.replies.assembler import Assembler
from callboard.bus import Message, OverloadedError, ServerError, TextBlock, ThinkingBlock, TokenUsage, ToolUseBlock
from labs.faults import checks
from labs.faults.plan import FAULTS, PROTOCOLS, STEADY, fault_of, make_plan
from labs.faults.replies import make_reply
from labs.faults.round import TOOLS, run_round
from tests.support.certificate import local_tls
from tests.support.depth import first_is_quick

from ..support.virtual_time import FakeClock

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide the thousands of log lines about injected faults."""
    ours = logging.getLogger("callboard")
    before = ours.level
    ours.setLevel(logging.CRITICAL)
    yield
    ours.setLevel(before)


@pytest.mark.parametrize("seed", first_is_quick([1, 8, 21, 27], "more seeds of a lab"))
def test_the_engine_keeps_its_guarantees_under_faults(seed: int, tmp_path: Path) -> None:
    """No call hangs, each attempt has one end, readers agree, histories are valid, and no task is left."""
    report = run_round(seed, tmp_path, sessions=5, turns=6)
    assert not report.failures, f"python -m labs.faults --seed {seed}\n" + "\n".join(report.failures)
    assert report.counts["attempts"] >= 1, "the plan may close the engine at an early moment"


@pytest.mark.deep("the lab of the quick seed, elsewhere")
@pytest.mark.parametrize("how", ["uvloop", "tls"])
def test_the_guarantees_hold_on_uvloop_and_over_tls(how: str, tmp_path: Path) -> None:
    """The same faults are played on uvloop and over an encrypted connection."""
    with local_tls(tmp_path) as context:
        tls = context if how == "tls" else None
        report = run_round(3, tmp_path, sessions=3, turns=4, uvloop=how == "uvloop", tls=tls)
    assert not report.failures, f"--{how} --seed 3 --sessions 3 --turns 4\n" + "\n".join(report.failures)
    assert report.counts["turns well"] >= 1


def test_a_seed_gives_the_same_faults_in_every_run(tmp_path: Path) -> None:
    """Two runs can end at different points. The fault for the n-th request of a turn is the same."""
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


def new_assembler() -> Assembler:
    return Assembler(
        message_id="msg",
        provider="p",
        requested_model="m",
        clock=FakeClock(),
        estimate_usage=lambda text: TokenUsage(0, 0),
    )


def said(assembler: Assembler) -> list[object]:
    """The content of a reply, without the ids that each reading creates."""
    assert assembler.complete
    return [
        (block.name, block.input) if isinstance(block, ToolUseBlock) else (type(block), block.text)
        for block in assembler.final_content
        if isinstance(block, TextBlock | ThinkingBlock | ToolUseBlock)
    ]


@pytest.mark.parametrize("provider", PROTOCOLS)
def test_the_server_sends_the_same_reply_plain_and_streamed(provider: str) -> None:
    """An error within a stream can be retried. Some of the replies call tools."""
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


def test_a_failure_that_the_fallback_could_have_avoided_is_found() -> None:
    """A failure after output, or in a turn without that fallback, is no fault."""
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
