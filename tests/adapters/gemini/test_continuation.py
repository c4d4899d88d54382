"""A reply that reached the provider's limit for one request goes on with its token, and with nothing else."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import OpaqueBlock
from callboard.bus.values.messages import Message
from callboard.bus.values.usage import StopReason
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry

from ...support.fake_http import FakeReply, FakeTransport, ask
from ...support.judges import contents_faults
from ...support.scripted import adapter_type
from ...support.wires import WIRES
from ...support.wires import gemini as g
from ...support.wires.reading import Reading, read, read_whole

GEMINI = WIRES[3]
MODEL = "gemini:gemini-3-flash"
QUESTION = Message.user("Write a long book.")


def part(text: str, token: Json = "next") -> JsonObject:
    return g.chunk(g.text(text), finish="CONTINUATION", usage=g.USAGE, continuationToken=token)


def said(reply: Reading) -> Message:
    return Message.assistant(reply.content)


def body_of(*messages: Message, model: str = MODEL, **changes: object) -> JsonObject:
    adapter = GeminiAdapter(AdapterConfig(), name=model.partition(":")[0])
    asked = ask(*messages, model=model, **changes)
    body: JsonObject = msgspec.json.decode(adapter.write_request(asked, stream=False).body)
    assert contents_faults(body) == []
    return body


def paused(text: str, token: str = "next") -> Message:
    return said(read_whole(GEMINI, part(text, token), model=MODEL))


@pytest.mark.parametrize("streamed", [False, True])
def test_it_has_paused_and_holds_its_token(streamed: bool) -> None:
    reading = (
        read(GEMINI, part("Once"), model=MODEL) if streamed else read_whole(GEMINI, part("Once"), model=MODEL)
    )
    assert reading.reply.stop_reason is StopReason.PAUSE_TURN
    assert reading.reply.raw_stop_reason == "CONTINUATION"
    assert reading.said == ["Once", {"continuationToken": {"continuationToken": "next"}}]


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_it_did_not_end_well(token: Json) -> None:
    reply = read_whole(GEMINI, part("Once", token), model=MODEL).reply
    assert reply.stop_reason is StopReason.PROVIDER_SPECIFIC
    assert reply.text == "Once"


def test_a_token_on_the_way_is_none_of_a_reply_that_ended() -> None:
    """A long reply has them as it comes."""
    reading = read(GEMINI, g.chunk(g.text("Once"), continuationToken="half"), g.END, model=MODEL)
    assert reading.reply.stop_reason is StopReason.END_TURN
    assert reading.said == ["Once"]
    assert reading.reply.provider_details == {"continuationToken": "half"}


def test_the_next_request_is_the_same_with_the_latest_token() -> None:
    first = body_of(QUESTION)
    assert body_of(QUESTION, paused("Once")) == {**first, "continuationToken": "next"}
    assert body_of(QUESTION, paused("Once"), paused(" upon", "last")) == {**first, "continuationToken": "last"}


def test_the_hosts_own_token_goes_before_it() -> None:
    own: JsonObject = {"gemini": {"continuationToken": "mine"}}
    assert body_of(QUESTION, paused("Once"), provider_options=own)["continuationToken"] == "mine"


@pytest.mark.parametrize("model", ["gemini:gemini-3-pro", "other:gemini-3-flash"])
def test_another_model_reads_it_as_what_was_said(model: str) -> None:
    """Its token is for the model that gave it."""
    body = body_of(QUESTION, paused("Once"), model=model)
    assert "continuationToken" not in str(body)
    assert body["contents"][1]["parts"] == [{"text": "Once"}]  # type: ignore[index, call-overload]


def test_what_is_said_behind_it_ends_the_wait() -> None:
    body = body_of(QUESTION, paused("Once"), said(read_whole(GEMINI, g.chunk(g.text(" upon"), finish="STOP"))))
    assert "continuationToken" not in str(body)
    body = body_of(QUESTION, paused("Once"), Message.user("Stop."))
    assert "continuationToken" not in str(body)
    assert [each["parts"] for each in body["contents"]] == [  # type: ignore[index, call-overload, union-attr]
        [{"text": "Write a long book."}], [{"text": "Once"}], [{"text": "Stop."}],
    ]  # fmt: skip


def test_another_provider_is_told_the_text_alone() -> None:
    adapter = AnthropicAdapter(AdapterConfig())
    asked = ask(QUESTION, paused("Once"), Message.user("Go on."), model="anthropic:claude-opus-4-6")
    call = adapter.write_request(asked, stream=False)
    assert b"Once" in call.body
    assert b"next" not in call.body
    assert [loss.block_type for loss in call.losses] == ["opaque"]


def test_a_session_goes_on_until_the_reply_is_whole() -> None:
    """Each part is a reply of its own, and a step of the turn; the calls that follow read as one conversation."""
    ending = g.chunk(g.text(" a time."), finish="STOP", usage=g.USAGE)
    bodies = [
        part("Once", "one"),
        part(" upon", "two"),
        ending,
        g.chunk(g.text("You are welcome."), finish="STOP"),
    ]
    transport = FakeTransport(
        *(FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"}) for body in bodies)
    )
    made = adapter_type(lambda config, *, name, clock: GeminiAdapter(config, name=name, transport=transport))
    entry = AdapterEntry(name="gemini", type=made, config=AdapterConfig(api_key="k"))
    models = {"gemini:m": ModelEntry(id="gemini:m", adapter="gemini", wire_name="gemini-3-flash")}

    async def go() -> tuple[Message, ...]:
        async with Engine(models=ModelRegistry({"gemini": entry}, models), trace=False) as engine:
            session = engine.session("gemini:m")
            assert (await session.send("Write.")).text == " a time."
            assert [message.text for message in session.messages[1:]] == ["Once", " upon", " a time."]
            await session.send("Thanks.")
            return session.messages

    messages = anyio.run(go)
    sent = [msgspec.json.decode(request.body) for request in transport.requests]
    assert [body.get("continuationToken") for body in sent] == [None, "one", "two", None]
    assert sent[0]["contents"] == sent[1]["contents"] == sent[2]["contents"]
    assert [each["parts"] for each in sent[3]["contents"]] == [
        [{"text": "Write."}], [{"text": "Once"}, {"text": " upon"}, {"text": " a time."}], [{"text": "Thanks."}],
    ]  # fmt: skip
    assert not any(isinstance(block, OpaqueBlock) for block in messages[3].content)
