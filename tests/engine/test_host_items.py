"""A turn of a model whose provider's own tools ask the host to act, over the Responses API."""

from __future__ import annotations

import json

import pytest

from callboard.adapters import AdapterConfig, OpaqueBlock, OpenAIAdapter, ProviderRaw, StopReason
from callboard.bus import Clock
from callboard.bus.values.base import JsonObject
from callboard.engine import Engine
from tests.support.engines import entry, model, serving
from tests.support.fake_http import FakeReply, FakeTransport
from tests.support.scripted import ADD, adapter_type
from tests.support.virtual_time import runs_on
from tests.support.wires import responses as r

pytestmark = pytest.mark.anyio
anyio_backend = runs_on("asyncio")

MAY_I: JsonObject = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "name": "pay",
    "server_label": "shop",
    "arguments": "{}",
}
YOU_MAY: JsonObject = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
PAID: JsonObject = {"type": "mcp_call", "id": "mcp_1", "name": "pay", "server_label": "shop", "arguments": "{}"}


def replies(streamed: bool, *outputs: list[JsonObject]) -> FakeTransport:
    def reply(output: list[JsonObject]) -> FakeReply:
        if not streamed:
            return FakeReply(json.dumps(r.response(output=output)).encode())
        items = [event for n, one in enumerate(output) for event in (r.added(n, one), r.done(n, one))]
        return FakeReply(r.body([r.CREATED, *items, r.ending()]))

    return FakeTransport(*map(reply, outputs))


def engine_of(transport: FakeTransport) -> Engine:
    def made(config: AdapterConfig, *, name: str, clock: Clock) -> OpenAIAdapter:
        return OpenAIAdapter(config, name=name, clock=clock, transport=transport)

    config = AdapterConfig(api_key="k", base_url="https://api.openai.com")
    return Engine(models=serving(model("openai:gpt-5.2"), openai=entry("openai", adapter_type(made), config)))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_call_that_waits_for_approval_goes_on_when_it_is_given(streamed: bool) -> None:
    """The turn ends with the request; what is said next has the answer, and the next turn has the result."""
    transport = replies(streamed, [MAY_I], [PAID, r.message("Paid.")])
    async with engine_of(transport) as engine:
        session = engine.session("openai:gpt-5.2")
        first = await session.stream("Pay").message() if streamed else await session.send("Pay")
        assert first.metadata.stop_reason is StopReason.TOOL_USE
        [asked] = first.content
        assert isinstance(asked, OpaqueBlock)
        assert asked.provider_raw.data == MAY_I
        answer = [OpaqueBlock("mcp_approval_response", ProviderRaw("openai", YOU_MAY))]
        preview = await engine.preview(session, answer)
        assert preview.losses == ()
        reply = await session.stream(answer).message() if streamed else await session.send(answer)
        assert reply.text == "Paid."
    sent = json.loads(transport.requests[1].body)["input"]
    assert sent[1:] == [MAY_I, YOU_MAY]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_of_ours_beside_an_approval_runs_and_the_request_stays_open(streamed: bool) -> None:
    """The reply asks for both. Ours is answered within the turn; the request is the host's, and isn't lost."""
    call = r.call("add", '{"a": 1, "b": 2}')
    transport = replies(streamed, [call, MAY_I], [r.message("3, and may I?")], [r.message("Paid.")])
    async with engine_of(transport) as engine:
        session = engine.session("openai:gpt-5.2", tools=[ADD])
        reply = await session.stream("Go").message() if streamed else await session.send("Go")
        assert reply.text == "3, and may I?"
        answer = [OpaqueBlock("mcp_approval_response", ProviderRaw("openai", YOU_MAY))]
        reply = await session.stream(answer).message() if streamed else await session.send(answer)
        assert reply.text == "Paid."
    bodies = [json.loads(request.body)["input"] for request in transport.requests]
    kinds = [[item.get("type") for item in body] for body in bodies]
    assert kinds[1] == [None, "function_call", "function_call_output"]
    assert kinds[2].count("mcp_approval_request") == kinds[2].count("mcp_approval_response") == 1
