"""A refused request that the adapter mends is one call of two attempts, and nobody loses anything by it."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters import AdapterConfig, AnthropicAdapter, GeminiAdapter, Message, TextBlock, ThinkingBlock
from callboard.bus import LlmCallCompleted, LlmCallFailed, LlmCallStarted, Lossless
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, tool
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


def mending(
    *replies: FakeReply, kind: type[AnthropicAdapter | GeminiAdapter] = AnthropicAdapter
) -> tuple[Engine, FakeTransport]:
    """An engine with such an adapter, Anthropic's for one, and its network."""
    transport = FakeTransport(*replies)

    def make(config: AdapterConfig, **_: object) -> AnthropicAdapter | GeminiAdapter:
        return kind(config, name="a", transport=transport)

    adapters = {"a": AdapterEntry(name="a", type=adapter_type(make), config=AdapterConfig(max_retries=0))}
    models = {"a:m": ModelEntry(id="a:m", adapter="a", wire_name="gemini-3-pro-preview")}
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


CALL = {"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "c2lnLWNhbGw="}
SAID = {"text": "Said.", "thoughtSignature": "c2lnLXRleHQ="}


def gemini_reply(*parts: object) -> FakeReply:
    """A whole reply of generateContent."""
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 3}
    return FakeReply(msgspec.json.encode({"candidates": [candidate], "usageMetadata": usage}), headers=JSON)


@tool
def look() -> str:
    """Look."""
    return "A cat."


@pytest.mark.parametrize(
    "message",
    [
        "Corrupted thought signature.",
        "Invalid thought signature.",
        "Unable to submit request because Thought signature is not valid.. Learn more: https://cloud.google.com",
    ],
)
async def test_a_session_goes_on_after_gemini_has_refused_its_signatures(message: str) -> None:
    """Signatures of texts and calls are not offered again; what it signs from then on is."""
    refusal = FakeReply(
        msgspec.json.encode({"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}),
        status=400,
        headers=JSON,
    )
    later = {"text": "Later.", "thoughtSignature": "c2lnLWxhdGVy"}
    replies = (
        gemini_reply(CALL),
        gemini_reply(SAID),
        refusal,
        gemini_reply(later),
        gemini_reply({"text": "End."}),
    )
    engine, transport = mending(*replies, kind=GeminiAdapter)
    async with engine:
        session = engine.session("a:m", tools=[look])
        for text in ("One", "Two", "Three"):
            await session.send(text)
        assert session.messages[1].tool_uses[0].provider_raw is not None, "the stored history is as it was"
    signatures = [
        [name for name in (b"c2lnLWNhbGw=", b"c2lnLXRleHQ=", b"c2lnLWxhdGVy") if name in sent.body]
        for sent in transport.requests
    ]
    assert signatures == [
        [],
        [b"c2lnLWNhbGw="],
        [b"c2lnLWNhbGw=", b"c2lnLXRleHQ="],
        [],
        [b"c2lnLWxhdGVy"],
    ]
