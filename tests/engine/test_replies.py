"""The fields of a reply: its text, its raw form, its provider's details. Also empty replies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callboard.adapters import (
    AdapterConfig,
    CanonicalRequest,
    Message,
    OpenAICompatibleAdapter,
    Role,
    ToolDefinition,
)
from callboard.bus import Clock, RawReply, WarningCode
from callboard.bus.values.content import TextBlock, ThinkingBlock
from callboard.bus.values.messages import is_empty
from callboard.bus.values.usage import StopReason
from callboard.engine import Engine, ModelRegistry, Reply, Tool
from callboard.engine.middleware import Guardrail, Held
from callboard.engine.middleware.ready_made import Cache

from ..support.engines import entry, keeping, model, registry, requests_of, running, said, serving
from ..support.fake_http import FakeReply, FakeTransport
from ..support.present import present
from ..support.reply_server import Chat, Responses
from ..support.scripted import ADD, CALLS_ADD, Say, adapter_type, scripted_type
from ..support.virtual_time import runs_on
from ..support.wires.chat import ChatWire, chunk

anyio_backend = runs_on("asyncio")

# The reply of a turn: a message with the metadata of its call.

ASKING = Say("Who?", calls=[("ask", {})])
PASSIVE = Tool(ToolDefinition("ask"))


def on(*replies: Say) -> Engine:
    return Engine(models=registry(*replies), trace=False)


async def test_every_way_to_call_returns_a_reply_with_metadata() -> None:
    """The ways are send, stream, submit, submit_stream, generate and the engine's stream."""
    async with on(Say("1"), Say("2"), ASKING, Say("3"), Say("4"), Say("5")) as engine:
        session = engine.session("s:m")
        replies = [await session.send("Hi")]
        async with session.stream("Hi") as turn:
            replies.append(await turn.message())
        session.tools = [PASSIVE]
        replies.append(await session.send("Hi"))
        answers = {call.id: "42" for call in session.pending_calls}
        async with session.submit_stream(answers) as turn:
            replies.append(await turn.message())
        replies.append((await engine.generate("s:m", "Hi")).message)
        async with engine.stream("s:m", "Hi") as stream:
            replies.append((await stream.result()).steps[0].message)
    assert [type(reply) for reply in replies] == [Reply] * 6
    assert [reply.text for reply in replies] == ["1", "2", "Who?", "3", "4", "5"]
    assert [reply.status for reply in replies] == ["completed"] * 2 + ["awaiting_tools"] + ["completed"] * 3
    for reply in replies:
        details = (reply.model, reply.usage, reply.cost, reply.routing, reply.warnings)
        metadata = reply.metadata
        assert details == (metadata.model, metadata.usage, metadata.cost, metadata.routing, metadata.warnings)
        assert (reply.model, reply.usage.output_tokens > 0) == ("s:m", True)


async def test_a_turn_with_open_calls_returns_the_reply_with_these_calls() -> None:
    """An imported reply without metadata is returned in the same way."""
    async with on(Say("Who?", calls=[("ask", {"n": 1}), ("ask", {"n": 2})])) as engine:
        session = engine.session("s:m", tools=[PASSIVE])
        asked = await session.send("Hi")
        exported = msgspec.json.decode(session.export())
        first = session.pending_calls[0].id
        assert await session.submit({first: "42"}) == asked
        del exported["messages"][1]["metadata"]
        by_hand = await engine.import_session(msgspec.json.encode(exported), session_id="other", tools=[PASSIVE])
        again = await by_hand.submit({first: "43"})
    assert (again.content, again.id) == (asked.content, asked.id)
    assert (again.model, again.cost.nano_usd) == ("unknown", None)


async def test_a_reply_equals_the_message_with_the_same_fields() -> None:
    """The two are equal in both directions, in lists, as a key and as JSON. Another message is not equal."""
    async with on(Say("Hello")) as engine:
        reply = await engine.session("s:m").send("Hi")
    message = Message(Role.ASSISTANT, reply.content, reply.id, None, reply.metadata)
    assert type(message) is not type(reply)
    assert (reply == message, message == reply, [message] == [reply]) == (True, True, True)
    assert (reply != message, message != reply) == (False, False)
    assert len({reply, message}) == 1
    other = msgspec.structs.replace(reply, id="msg_other")
    assert (reply == other, message == other, other == message) == (False, False, False)
    assert reply != "Hello"
    assert msgspec.json.encode(reply) == msgspec.json.encode(message)
    assert isinstance(msgspec.structs.replace(reply, name="Ann"), Reply)


# Empty replies: a reply that ended normally without a text and without a call.

WAYS = ["session", "session streamed", "generate", "generate streamed"]


async def ask(engine: Engine, way: str, **options: Any) -> tuple[str, list[str]]:
    """The text of the last reply, from one of four ways to call, and the codes of its warnings."""
    match way:
        case "session":
            reply = await engine.session("s:m").send("Hi", **options)
        case "session streamed":
            reply = await engine.session("s:m").stream("Hi", **options).response()
        case "generate":
            reply = (await engine.generate("s:m", "Hi", **options)).steps[-1].response
        case _:
            async with engine.stream("s:m", "Hi", **options) as generated:
                reply = (await generated.result()).steps[-1].response
    return reply.text, [str(warning.code) for warning in reply.warnings]


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_reply_has_a_warning(way: str, tmp_path: Path) -> None:
    async with keeping(tmp_path / "t.db", Say(), Say("Yes.")) as engine:
        assert await ask(engine, way) == ("", [WarningCode.EMPTY_REPLY])
        assert await ask(engine, way) == ("Yes.", [])


@pytest.mark.parametrize("way", WAYS)
async def test_an_empty_reply_is_retried_as_often_as_requested(way: str, tmp_path: Path) -> None:
    """Each retry is a call of its own in the trace. After the last retry the empty reply has its warning."""
    async with keeping(tmp_path / "t.db", Say(), Say(), Say("Yes."), Say(), Say(), Say("Yes.")) as engine:
        assert await ask(engine, way, retry_empty=2) == ("Yes.", [])
        assert len({request.request_id for request in requests_of(engine)}) == 3
        await engine.flush()
        calls = await present(engine._runtime.store).calls()
        assert [call.usage.input_tokens for call in calls if call.usage is not None] == [10, 10, 10]
        assert len({call.request_id for call in calls}) == 3
        assert await ask(engine, way, retry_empty=1) == ("", ["empty_reply"])


async def test_empty_replies_cost_the_turn_and_are_not_in_the_history(tmp_path: Path) -> None:
    """The cost of the turn includes each call. A session keeps only the reply with text."""
    async with keeping(tmp_path / "t.db", Say(), Say("Yes."), Say(), Say("Yes.")) as engine:
        result = await engine.generate("s:m", "Hi", retry_empty=1)
        assert (result.cost_sum.calls, result.text) == (2, "Yes.")
        session = engine.session("s:m")
        await session.send("Hi", retry_empty=3)
        assert [message.text for message in session.messages] == ["Hi", "Yes."]
    async with on(Say()) as engine:
        result = await engine.generate("s:m", "Hi")
    assert [message.role for message in result.messages] == ["user", "assistant"], (
        "an empty last reply is part of the messages"
    )


def retrying_once() -> ModelRegistry:
    """A model with one retry of empty replies."""
    return serving(model("s:m", retry_empty=1), s=scripted_type(Say(), Say("Yes.")))


@pytest.mark.parametrize("way", WAYS)
async def test_a_model_can_set_the_number_of_retries(way: str, tmp_path: Path) -> None:
    """`retry_empty` of models.yaml is the default of the caller's argument."""
    for options, text in (({}, "Yes."), ({"retry_empty": 0}, "")):
        async with keeping(tmp_path / "t.db", models=retrying_once()) as engine:
            assert (await ask(engine, way, **options))[0] == text


@pytest.mark.parametrize(
    ("content", "reason", "empty"),
    [
        ((), StopReason.END_TURN, True),
        ((), StopReason.TOOL_USE, True),
        ((TextBlock(" \n"),), StopReason.END_TURN, True),
        ((ThinkingBlock("Hm."),), StopReason.END_TURN, True),
        ((TextBlock("x"),), StopReason.END_TURN, False),
        ((), StopReason.STOP_SEQUENCE, False),
        ((), StopReason.MAX_TOKENS, False),
        ((), StopReason.REFUSAL, False),
        ((), StopReason.PAUSE_TURN, False),
    ],
)
def test_which_replies_are_empty(content: Any, reason: StopReason, empty: bool) -> None:
    """A reply with only reasoning or white space is empty. A reply with another stop reason is not empty."""
    assert is_empty(content, reason) is empty


# Raw replies of providers: every way to call, and the places where they are stored.

# A real loop: the store works in threads, and virtual time would run ahead of them.


def said_in(raw: RawReply | None) -> str:
    """The text in the lines of a scripted reply."""
    steps = raw.events or [json.loads(line) for line in str(raw.body).splitlines()]
    return "".join(step["piece"] for step in steps if isinstance(step, dict) and step["type"] == "said")


def written_to(folder: Path) -> bytes:
    """The bytes of all files of a folder."""
    return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("asked", [True, False, None])
async def test_a_session_gets_raw_replies_on_request(streamed: bool, asked: bool | None) -> None:
    """Each reply of the turn has a raw reply. Without a request, no reply has one."""
    async with running(CALLS_ADD, Say("It is ", "3.")) as (engine, _):
        session = engine.session("s:m", tools=[ADD])
        reply = await said(session, "1 + 2?", streamed=streamed, include_raw=asked)
        raws = [message.metadata.raw for message in session.messages if message.metadata is not None]
        assert len(raws) == 2
        if not asked:
            assert raws == [None, None]
            assert reply.raw is None
            assert "raw" not in reply.to_dict()
            return
        assert [said_in(raw) for raw in raws] == ["Let me see.", "It is 3."]
        assert reply.raw == raws[-1]
        assert bool(reply.raw and reply.raw.events) is streamed
        assert "piece" in str(reply.to_dict()["raw"])


async def test_every_other_way_to_call_has_the_raw_reply() -> None:
    """The ways are generate, stream, and a CanonicalRequest, with and without streaming."""
    async with running(*[Say("Blue.")] * 4) as (engine, _):
        request = CanonicalRequest(
            request_id="r", model="s:m", messages=(Message.user("?"),), max_output_tokens=9, include_raw=True
        )
        whole = await engine.generate("s:m", "?", include_raw=True)
        streamed = await engine.stream("s:m", "?", include_raw=True).response()
        as_it_is = await engine.complete(request)
        as_it_is_streamed = await engine.stream(request).response()
        for response in (whole.response, streamed, as_it_is, as_it_is_streamed):
            assert said_in(response.raw) == "Blue."


async def test_a_cache_separates_requests_with_and_without_raw_replies() -> None:
    async with running(Say("one"), Say("two"), middleware=[Cache()]) as (engine, _):
        first = await engine.generate("s:m", "?")
        second = await engine.generate("s:m", "?", include_raw=True)
        again = await engine.generate("s:m", "?", include_raw=True)
        assert (first.text, first.response.raw) == ("one", None)
        assert second.text == again.text == "two"
        assert second.response.raw == again.response.raw is not None


# Details of a provider that a reply has besides its content: every way to call, and where they are stored.

# A real loop: the store works in threads, and virtual time would run ahead of them.

DETAILS = {"system_fingerprint": "fp_1", "citations": ["https://secret.test"]}


def detailed(streamed: bool = False, times: int = 1) -> ModelRegistry:
    """A model that gives `times` replies with details."""
    wire = ChatWire()
    whole = json.dumps({**wire.body("Blue.", 0, "end"), **DETAILS}).encode()
    pieces = wire.stream(chunk(content="Blue."), {**chunk("stop"), **DETAILS})
    replies = [FakeReply(pieces if streamed else whole) for _ in range(times)]

    def made(config: AdapterConfig, *, name: str, clock: Clock) -> OpenAICompatibleAdapter:
        return OpenAICompatibleAdapter(config, name=name, clock=clock, transport=FakeTransport(*replies))

    config = AdapterConfig(api_key="k", base_url="https://x.test")
    return serving(c=entry("c", adapter_type(made), config))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_sessions_reply_has_the_details(streamed: bool) -> None:
    async with Engine(models=detailed(streamed), trace=False) as engine:
        session = engine.session("c:m")
        reply = await session.stream("?").message() if streamed else await session.send("?")
        assert reply.provider_details == DETAILS
        assert reply.to_dict()["provider_details"] == DETAILS
        assert session.messages[-1].metadata.provider_details == DETAILS  # type: ignore[union-attr]
        assert reply in {reply: 1}


async def test_details_and_the_raw_reply_are_in_the_trace_with_content(tmp_path: Path) -> None:
    """Another process resumes the session with both. Without content neither is stored."""
    async with keeping(tmp_path / "t.db", models=detailed()) as engine:
        session = await engine.open_session("ses", model="c:m")
        reply = await session.send("?", include_raw=True)
    async with keeping(tmp_path / "t.db", models=detailed()) as other:
        resumed = await other.open_session("ses", model="c:m")
        metadata = present(resumed.messages[-1].metadata)
        assert (metadata.provider_details, metadata.raw) == (DETAILS, present(reply.raw))
    (tmp_path / "none").mkdir()
    async with Engine(models=detailed(), store=tmp_path / "none" / "t.db") as engine:
        await engine.session("c:m").send("?", include_raw=True)
    assert b"secret.test" not in written_to(tmp_path / "none")


@pytest.mark.parametrize("kept", ["changed", "same", "nothing"])
async def test_with_a_redaction_hook_no_details_and_no_raw_reply_are_stored(tmp_path: Path, kept: str) -> None:
    """Both may contain the redacted text. The message is stored as the hook returns it."""

    def redact(message: Message) -> Message | None:
        if kept == "nothing":
            return None
        return message if kept == "same" else Message(message.role, "…", metadata=message.metadata)

    async with keeping(tmp_path / "t.db", models=detailed(), redact=redact) as engine:
        session = await engine.open_session("ses", model="c:m")
        reply = await session.send("?", include_raw=True)
        assert (reply.provider_details, reply.raw is not None) == (DETAILS, True)
    written = written_to(tmp_path)
    assert (b"secret.test" in written, b"Blue." in written) == (False, kept == "same")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_that_a_guardrail_changed_has_no_details_and_no_raw_reply(streamed: bool) -> None:
    """Both would contain the removed text. An unchanged reply has both."""

    def hide(held: Held) -> str:
        return held.text.replace("Blue", "…")

    def look(held: Held) -> str:
        return held.text

    for guard, found in ((hide, {}), (look, DETAILS)):
        async with Engine(models=detailed(streamed), trace=False, middleware=[Guardrail(guard)]) as engine:
            if streamed:
                response = await engine.stream("c:m", "?", include_raw=True).response()
            else:
                response = (await engine.generate("c:m", "?", include_raw=True)).response
            assert (response.provider_details, response.raw is None) == (found, not found)


# OPENAI_BASE_URL with any kind of server: the protocol is detected once and kept.


@contextmanager
def server(*, responses: bool) -> Iterator[tuple[str, list[str]]]:
    """A server of Chat Completions and, with `responses`, of Responses. Yields its URL and the requested paths."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(self.path)
            status, reply = 200, Chat.whole()
            if self.path == "/v1/embeddings":
                assert body.get("encoding_format") != "base64"
                vectors = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
                reply = {"object": "list", "data": vectors, "model": "m", "usage": {"prompt_tokens": 1}}
            elif self.path == "/v1/responses":
                status, reply = (200, Responses.whole()) if responses else (404, {"detail": "Not Found"})
                if responses and not body:
                    status, reply = 400, {"error": {"message": "model is required", "code": None}}
            data = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}/v1", asked
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("responses", "path"), [(False, "/v1/chat/completions"), (True, "/v1/responses")], ids=["chat", "responses"]
)
async def test_the_protocol_of_a_server_in_the_environment_is_detected_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, responses: bool, path: str, listed: bool
) -> None:
    """The detection is one empty request that costs nothing. All later calls use the detected protocol."""
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    if listed:
        (tmp_path / "models.yaml").write_text("adapters: {openai: {type: openai, api_key_env: OPENAI_API_KEY}}")
    with server(responses=responses) as (url, asked):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        async with Engine(trace=False) as engine:
            for _ in range(2):
                assert (await engine.generate("openai:some-model", "Hi")).text.startswith("The curtain")
            result = await engine.embed(["Hi"], model="openai:vectors")
            assert [list(vector) for vector in result.vectors] == [[0.5, 0.25]]
    assert asked == ["/v1/responses", path, path, "/v1/embeddings"]
