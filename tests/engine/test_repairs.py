"""A refused request that the adapter mends is one call of two attempts, and nobody loses anything by it."""

from __future__ import annotations

import msgspec
import pytest

from adapters import AdapterConfig, AnthropicAdapter, Message, TextBlock, ThinkingBlock
from bus import LlmCallCompleted, LlmCallFailed, LlmCallStarted, Lossless
from engine import AdapterEntry, Engine, ModelEntry, ModelRegistry
from tests.support.fake_http import FakeReply, FakeTransport
from tests.support.scripted import adapter_type

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
FOREIGN = b'{"type":"error","error":{"type":"invalid_request_error","message":"%s"}}'
BOUND = b"messages.1.content.0: Invalid `signature` in `thinking` block"
THOUGHT = {"type": "thinking", "thinking": "Hm", "signature": "c2ln"}


def reply(*content: object) -> FakeReply:
    body = {
        "type": "message",
        "content": content,
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }
    return FakeReply(msgspec.json.encode(body), headers=JSON)


def mending(*replies: FakeReply) -> tuple[Engine, FakeTransport]:
    """An engine with Anthropic's adapter, and its network."""
    transport = FakeTransport(*replies)

    class Mending(AnthropicAdapter):
        def __init__(self, config: AdapterConfig, **_: object) -> None:
            super().__init__(config, name="a", transport=transport)

    adapters = {"a": AdapterEntry(name="a", type=adapter_type(Mending), config=AdapterConfig(max_retries=0))}
    models = {"a:m": ModelEntry(id="a:m", adapter="a", wire_name="m")}
    return Engine(models=ModelRegistry(adapters, models), trace=False), transport


async def test_the_session_keeps_what_the_repair_left_out() -> None:
    """Events show both attempts; the reply's warnings reach the event; the stored history is as it was."""
    said = {"type": "text", "text": "Said."}
    engine, transport = mending(
        reply(THOUGHT, said), FakeReply(FOREIGN % BOUND, status=400, headers=JSON), reply(said)
    )
    events = engine.bus.subscribe("llm.*", policy=Lossless(), name="test")
    async with engine:
        session = engine.session("a:m")
        await session.send("One")
        kept: tuple[Message, ...] = session.messages
        await session.send("Two")
        assert session.messages[:2] == kept
        assert [(type(block), getattr(block, "signature", None)) for block in kept[1].content] == [
            (ThinkingBlock, "c2ln"),
            (TextBlock, None),
        ]
    seen = [envelope.data for envelope in events.take()]
    assert [
        (type(event), getattr(event, "reason", None), getattr(event, "will_retry", None)) for event in seen[2:]
    ] == [
        (LlmCallStarted, "first", None),
        (LlmCallFailed, None, True),
        (LlmCallStarted, "repair", None),
        (LlmCallCompleted, None, None),
    ]
    assert isinstance(seen[-1], LlmCallCompleted)
    assert seen[-1].warnings == ("reasoning_refused",)
    assert [b'"thinking"' in sent.body for sent in transport.requests] == [False, True, False]


@pytest.mark.parametrize("forked", [False, True])
async def test_reasoning_that_was_refused_is_not_offered_again(forked: bool) -> None:
    """One refusal, not one in every later turn; what the model thinks from then on goes back to it."""
    said = {"type": "text", "text": "Said."}
    refusal = FakeReply(FOREIGN % BOUND, status=400, headers=JSON)
    engine, transport = mending(reply(THOUGHT, said), refusal, reply(THOUGHT, said), reply(said), reply(said))
    async with engine:
        session = engine.session("a:m", system_prompt="Brief.")
        await session.send("One")
        session.system_prompt = "Long."
        await session.send("Two")
        if forked:
            session = session.fork()
        await session.send("Three")
        await session.send("Four")
        assert [len(message.content) for message in session.messages[1:4:2]] == [2, 2]
    assert [sent.body.count(b'"thinking"') // 2 for sent in transport.requests] == [0, 1, 0, 1, 1]
