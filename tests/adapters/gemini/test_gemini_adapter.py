"""What models of Gemini can do, and calls that are interrupted or make the round."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.requests.history import NOT_EXECUTED
from callboard.bus.values.base import Json
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.messages import Message

from ...support.fake_http import HANG, FakeReply, FakeTransport, request
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from ...support.wire_history import history_faults
from ...support.wires.gemini import USAGE, body, call, chunk, text

JSON = {"content-type": "application/json; charset=UTF-8"}


def adapter(
    *replies: FakeReply, base_url: str | None = None, retries: int = 0
) -> tuple[GeminiAdapter, FakeTransport]:
    transport = FakeTransport(*replies)
    config = AdapterConfig(api_key="secret-key", base_url=base_url, max_retries=retries)
    return GeminiAdapter(config, transport=transport, clock=FakeClock()), transport


def whole(*parts: Json, finish: str = "STOP") -> FakeReply:
    return FakeReply(msgspec.json.encode(chunk(*parts, finish=finish, usage=USAGE)), headers=JSON)


def test_capabilities_are_the_models_own() -> None:
    """With or without its prefix; one that isn't known has the usual."""
    gemini, _ = adapter()
    assert gemini.get_capabilities("gemini:gemini-2.0-flash").max_output_tokens == 8192
    assert not gemini.get_capabilities("gemini-2.0-flash").supports_thinking
    assert gemini.get_capabilities("models/gemini-2.5-pro").supports_thinking
    gemma = gemini.get_capabilities("gemma-3-27b-it")
    assert (gemma.supports_tools, gemma.supports_audio, gemma.supports_system_prompt) == (False, False, False)
    assert gemini.get_capabilities("unheard-of") == gemini.capabilities
    assert gemini.capabilities.accepted_image_media_types is not None
    assert "image/gif" not in gemini.capabilities.accepted_image_media_types


@pytest.mark.anyio
async def test_an_interrupted_call_is_answered_before_it_is_sent() -> None:
    """A call that came in pieces, the last of which never did."""
    begun = chunk({"functionCall": {"name": "a", "id": "c1", "willContinue": True}})
    gemini, transport = adapter(FakeReply(body([begun]), HANG), whole(text("Sorry.")))
    stream = gemini.stream(request())
    events = [await anext(stream), await anext(stream)]
    assert await gemini.cancel("req_1")
    events += [event async for event in stream]
    content = check_stream(events).final_content
    assert isinstance(content[0], ToolUseBlock)
    assert content[0].incomplete
    await gemini.complete(
        request(messages=(Message.user("Hi"), Message.assistant(content), Message.user("Again")))
    )
    sent = msgspec.json.decode(transport.requests[1].body)
    assert history_faults(transport.requests[1].url, sent) == []
    assert sent["contents"][2]["parts"][0]["functionResponse"]["response"] == {"error": NOT_EXECUTED}


@pytest.mark.anyio
async def test_a_conversation_makes_the_round() -> None:
    """A call that came without an id goes back with one, which its result has, too."""
    gemini, transport = adapter(whole(call("a", "c2ln", args={"x": 1})), whole(text("Done.")))
    reply = await gemini.complete(request())
    (used,) = reply.tool_uses
    await gemini.complete(
        request(
            messages=(Message.user("Hi"), Message.assistant(reply.content), Message.tool_result(used.id, "ok"))
        )
    )
    _, said, answered = msgspec.json.decode(transport.requests[1].body)["contents"]
    assert said["parts"] == [
        {"functionCall": {"id": used.id, "name": "a", "args": {"x": 1}}, "thoughtSignature": "c2ln"}
    ]
    assert answered["parts"][0]["functionResponse"] == {"id": used.id, "name": "a", "response": {"output": "ok"}}
