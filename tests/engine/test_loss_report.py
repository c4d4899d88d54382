"""The loss report of a preview: each part of the content that a model would not get, with its place."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from callboard import (
    CallboardError,
    CancelledError,
    ModelRegistry,
    RequestLoss,
    RequestPreview,
    Session,
    WrongLoop,
    tool,
)
from callboard.adapters import (
    AdapterConfig,
    AdapterError,
    AnthropicAdapter,
    GeminiAdapter,
    Message,
    OpenAIAdapter,
    OpenAICompatibleAdapter,
    Role,
    StopReason,
)
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.ollama.adapter import OllamaAdapter
from callboard.adapters.providers.tgi.adapter import TGIAdapter
from callboard.bus import Clock
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.engine import Engine

from ..support.engines import entry, model, registry, serving
from ..support.fake_http import FakeReply, FakeTransport
from ..support.scripted import ADD, Say, adapter_type
from ..support.virtual_time import runs_on
from ..support.wires import responses as r
from .slow_engines import WAYS, an_engine, drained

anyio_backend = runs_on("asyncio")

INTERACTIONS = "interactions:gemini-3-pro-preview"
CLAUDE, GPT, GEMINI = "claude:claude-opus-4-6", "gpt:gpt-5.2", "gemini:gemini-3-pro-preview"
PNG = b"\x89PNG\r\n\x1a\nx"


def raw(provider: str = "claude", of: str = "claude-opus-4-6", **data: Any) -> ProviderRaw:
    return ProviderRaw(provider, data, of)


SEARCH = raw(type="server_tool_use", id="s1", name="web_search", input={})
FOUND = raw(type="web_search_tool_result", tool_use_id="s1", content=[])
HISTORY = (
    Message(
        Role.USER,
        (
            TextBlock("Look", raw(cache_control={"type": "ephemeral"})),
            ImageBlock(data=PNG, detail="low"),
            AudioBlock(data=b"ID3x"),
            DocumentBlock(data=b"%PDF-1", name="r.pdf", provider_raw=raw(citations={"enabled": True})),
            OpaqueBlock("search_result", raw(type="search_result", source="x", title="x", content=[])),
        ),
    ),
    Message(
        Role.ASSISTANT,
        (
            ThinkingBlock("hm", "sig", raw()),
            RedactedThinkingBlock("zz", raw()),
            TextBlock("It is", raw(citations=[{"type": "char_location"}])),
            OpaqueBlock("server_tool_use", SEARCH),
            OpaqueBlock("web_search_tool_result", FOUND),
            ToolUseBlock("tu_1", "look", {"at": 1}, provider_raw=raw(id="toolu_1", caller={"type": "direct"})),
        ),
        "msg_1",
    ),
    Message(Role.TOOL, (ToolResultBlock("tu_1", (TextBlock("seen"), DocumentBlock(data=b"%PDF-2"))),)),
    Message(Role.ASSISTANT, (TextBlock("Fine", raw("gpt", "gpt-5.2", annotations=[{"type": "file"}])),)),
    Message(
        Role.ASSISTANT,
        (ToolUseBlock("tu_2", "look", {}, provider_raw=raw("gemini", "g", thoughtSignature="c2ln")),),
    ),
)
"""A conversation that Claude started, and that GPT and Gemini continued."""

CLAUDES = {
    (0, 4, None, "opaque.search_result"),
    (1, 0, None, "thinking"),
    (1, 1, None, "redacted_thinking"),
    (1, 2, None, "text.citations"),
    (1, 3, None, "opaque.server_tool_use"),
    (1, 4, None, "opaque.web_search_tool_result"),
    (0, 0, None, "text.cache_control"),
}
"""The parts that only Claude can use."""
CITED = (0, 3, None, "document.citations")
SPOKEN = (0, 2, None, "audio")
DETAIL, NAME = (0, 1, None, "image.detail"), (0, 3, None, "document.name")
NOTED, SIGNED = (3, 0, None, "text.annotations"), (4, 0, None, "tool_use.thoughtSignature")
WRITTEN = {(0, 3, None, "document"), (2, 0, 1, "document")}
IN_WORDS = {(1, 5, None, "tool_use"), (2, 0, None, "tool_result"), (4, 0, None, "tool_use")}

LOST = {
    CLAUDE: {SPOKEN, DETAIL, NOTED, SIGNED},
    GPT: {*CLAUDES, CITED, SPOKEN, SIGNED},
    GEMINI: {*CLAUDES, CITED, DETAIL, NAME, NOTED},
    INTERACTIONS: {*CLAUDES, CITED, DETAIL, NAME, NOTED, SIGNED},
    "chat:m": {*CLAUDES, *WRITTEN, SPOKEN, NOTED, SIGNED},
    "ollama:m": {*CLAUDES, *WRITTEN, SPOKEN, DETAIL, NOTED, SIGNED},
    "tgi:m": {*CLAUDES, *WRITTEN, *IN_WORDS, (0, 1, None, "image"), SPOKEN, NOTED},
    "emulated:m": {*CLAUDES, *WRITTEN, *IN_WORDS, SPOKEN, DETAIL, NOTED},
}
"""The parts that each model does not get, and their places."""

ADAPTERS: dict[str, type[HttpAdapter]] = {
    "anthropic": AnthropicAdapter,
    "openai": OpenAIAdapter,
    "gemini": GeminiAdapter,
    "openai_compatible": OpenAICompatibleAdapter,
    "ollama": OllamaAdapter,
    "tgi": TGIAdapter,
}


@tool(provider_options={"anthropic": {"defer_loading": True}, "openai": {"defer_loading": True}})
def look(at: int) -> str:
    """Looks."""
    return str(at)


def models() -> ModelRegistry:
    key = AdapterConfig(api_key="k")
    return serving(
        *(model(name) for name in (CLAUDE, GPT, GEMINI, INTERACTIONS)),
        claude=entry("claude", "anthropic", key),
        gpt=entry("gpt", "openai", key),
        gemini=entry("gemini", "gemini", key),
        interactions=entry("interactions", "gemini", AdapterConfig(api_key="k", options={"api": "interactions"})),
        chat=entry("chat", "openai_compatible", AdapterConfig(api_key="k", base_url="https://x.test")),
        ollama=entry("ollama", "ollama"),
        tgi=entry("tgi", "tgi"),
        emulated=entry("emulated", "ollama", AdapterConfig(options={"tools": "emulate"})),
    )


def conversation(engine: Engine, *messages: Message) -> Session:
    session = engine.session(CLAUDE, tools=[look])
    session._state.messages.extend(messages)
    return session


def places(preview: RequestPreview) -> set[tuple[int | None, int | None, int | None, str]]:
    return {
        (loss.message, loss.block, loss.part, loss.what) for loss in preview.losses if loss.message is not None
    }


def elsewhere(preview: RequestPreview) -> list[RequestLoss]:
    return [loss for loss in preview.losses if loss.message is None]


@pytest.mark.parametrize("name", LOST)
async def test_a_preview_lists_each_part_of_the_history_that_its_model_does_not_get(name: str) -> None:
    """Each place has a message, a block and a part. Every warning about content has a loss."""
    async with Engine(models=models()) as engine:
        preview = await engine.preview(conversation(engine, *HISTORY), model=name)
        assert preview.refused is None
        assert places(preview) == LOST[name]
        assert {loss.message_id for loss in preview.losses if loss.message == 1} <= {"msg_1"}
        dropped = [each.message for each in preview.warnings if each.code == WarningCode.CONTENT_DROPPED]
        reasons = [loss.reason for loss in preview.losses]
        assert all(any(message.endswith(reason) for reason in reasons) for message in dropped)
        assert bool(dropped) is any(loss.block is not None and "." not in loss.what for loss in preview.losses)
        assert json.loads(preview.body)


async def test_options_for_another_provider_are_in_the_report() -> None:
    """The options are those of the request and of tools, and settings that the model does not support."""
    options: Any = {
        "anthropic": {"context_management": {"edits": []}, "mcp_servers": []},
        "openai": {"tools": [{"type": "web_search"}]},
        "history": {"foreign_thinking": "text"},
        "gpt": {"service_tier": "flex"},
    }
    async with Engine(models=models()) as engine:
        session = conversation(engine)
        settings: Any = {"seed": 1, "stop_sequences": ("x",), "temperature": 0.1, "reasoning_effort": "high"}
        preview = await engine.preview(session, model=GPT, provider_options=options, **settings)
        assert [(loss.tool, loss.what) for loss in elsewhere(preview)] == [
            (None, "provider_options.anthropic.context_management"),
            (None, "provider_options.anthropic.mcp_servers"),
            ("look", "provider_options.anthropic.defer_loading"),
            *[(None, WarningCode.PARAMETER_DROPPED)] * 3,
        ]
        why = " ".join(loss.reason for loss in elsewhere(preview)[3:])
        assert [name in why for name in ("temperature", "seed", "stop_sequences")] == [True] * 3


async def test_a_schema_that_is_sent_as_text_is_in_the_report() -> None:
    """In auto mode a model without schemas gets the schema as an instruction. Otherwise the request is refused."""
    schema: Any = {"type": "object", "properties": {"a": {"type": "string"}}}
    registry_ = serving(
        model("chat:m", capabilities={"supports_structured_output": False}),
        chat=entry("chat", "openai_compatible", AdapterConfig(api_key="k", base_url="https://x.test")),
    )
    async with Engine(models=registry_) as engine:
        session = engine.session("chat:m", tools=[look])
        preview = await engine.preview(session, output_schema=schema, schema_mode="auto")
        kinds = [loss.what for loss in preview.losses if "provider_options" not in loss.what]
        assert kinds == [WarningCode.SCHEMA_AS_INSTRUCTION]
        refused = await engine.preview(session, output_schema=schema)
        assert (refused.losses, refused.refused is not None) == ((), True)


async def test_the_blocks_of_the_next_message_come_after_the_history() -> None:
    """The next message can be a list of blocks. If the model can't accept a block, `refused` has the reason."""
    async with Engine(models=models()) as engine:
        session = conversation(engine, HISTORY[3])
        blocks = [TextBlock("See", raw(cache_control={"type": "ephemeral"})), ImageBlock(data=PNG, detail="low")]
        preview = await engine.preview(session, blocks, model=GEMINI)
        assert {place for place in places(preview) if place[0] == 1} == {
            (1, 0, None, "text.cache_control"),
            (1, 1, None, "image.detail"),
        }
        refused = await engine.preview(session, [AudioBlock(data=b"ID3x")], model=GPT)
        assert "audio" in (refused.refused or "")


async def test_a_block_that_occurs_twice_is_lost_twice() -> None:
    """Each loss has its own place, although the block is one object."""
    block = AudioBlock(data=b"ID3x")
    so, asked = Message.assistant("So."), (Message.user([TextBlock("One"), block]), Message.user([block]))
    async with Engine(models=models()) as engine:
        session = conversation(engine, asked[0], so, asked[1], so)
        assert places(await engine.preview(session, model=GPT)) == {(0, 1, None, "audio"), (2, 0, None, "audio")}


async def test_refused_reasoning_and_signatures_are_in_the_report() -> None:
    """Every later request leaves out the refused parts. The call with a refused signature is still sent."""
    async with Engine(models=models()) as engine:
        session = conversation(engine, Message.user("Hi"), msgspec.structs.replace(HISTORY[4], id="msg_4"))
        session._state.refused_reasoning._refused["gemini"] = {"msg_4"}
        preview = await engine.preview(session, model=GEMINI)
        assert places(preview) == {(1, 0, None, "tool_use.signature")}
        session = conversation(engine, Message.user("Hi"), HISTORY[1], HISTORY[2])
        session._state.refused_reasoning._refused["claude"] = {"msg_1"}
        preview = await engine.preview(session)
        assert {(1, 0, None, "thinking"), (1, 1, None, "redacted_thinking")} <= places(preview)


async def test_a_model_without_tools_loses_the_reasoning_of_calls() -> None:
    """Reasoning belongs to its call. If the call is sent as text, the report lists its reasoning as lost."""
    registry_ = serving(
        model(CLAUDE, capabilities={"supports_tools": False}),
        claude=entry("claude", "anthropic", AdapterConfig(api_key="k")),
    )
    async with Engine(models=registry_) as engine:
        session = engine.session(CLAUDE)
        session._state.messages.extend([Message.user("Hi"), HISTORY[1], HISTORY[2]])
        preview = await engine.preview(session)
        lost = {(1, 0, None, "thinking"), (1, 1, None, "redacted_thinking"), (1, 5, None, "tool_use")}
        assert lost <= places(preview)


async def test_a_conversation_of_plain_text_loses_nothing() -> None:
    """An unknown option is a TypeError."""
    async with Engine(models=registry(Say("Hello"))) as engine:
        session = engine.session("s:m", system_prompt="Be kind.")
        await session.send("Hi")
        assert (await engine.preview(session)).losses == ()
        with pytest.raises(TypeError, match="temperature"):
            await engine.preview(session, temprature=1)  # type: ignore[call-arg]


def test_a_preview_needs_no_event_loop() -> None:
    with Engine(models=models()) as engine:
        session = conversation(engine, *HISTORY)
        assert places(engine.preview_sync(session, model=GPT)) == LOST[GPT]
        assert places(engine.preview_sync(session.id, model=GEMINI)) == LOST[GEMINI]


class Refusing(FakeTransport):
    """A transport that answers every request with status 400."""

    def __init__(self) -> None:
        super().__init__(*[FakeReply(b'{"error": {"message": "no"}}', status=400) for _ in range(3)])


@pytest.mark.parametrize("name", LOST)
async def test_a_preview_shows_the_request_of_a_turn(name: str) -> None:
    """The body and the path are the same for each model, with the same options."""
    options: Any = {"temperature": 0.5, "max_output_tokens": 99, "provider_options": {"openai": {"store": False}}}
    transport = Refusing()
    registry_ = models()
    provider = name.partition(":")[0]
    there = registry_.adapters[provider]
    kind = ADAPTERS[there.type]

    def made(config: AdapterConfig, *, name: str, clock: Clock) -> HttpAdapter:
        return kind(config, name=name, clock=clock, transport=transport)

    registry_.adapters[provider] = msgspec.structs.replace(there, type=adapter_type(made))
    async with Engine(models=registry_) as engine:
        session = conversation(engine, *HISTORY)
        preview = await engine.preview(session, "And now?", model=name, **options)
        with pytest.raises(AdapterError):
            await session.stream("And now?", model=name, max_retries=0, **options).message()
    [sent] = [request for request in transport.requests if request.method == "POST"][-1:]
    assert json.loads(sent.body) == json.loads(preview.body)
    assert sent.url.endswith(preview.path)


# A turn over the Responses API with tools that the provider runs, and that need the host's approval.

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
async def test_a_call_that_waits_for_approval_continues_when_it_is_approved(streamed: bool) -> None:
    """The first turn ends with the request for approval."""
    transport = replies(streamed, [MAY_I], [PAID, r.message("Paid.")])
    async with engine_of(transport) as engine:
        session = engine.session("openai:gpt-5.2")
        first = await session.stream("Pay").message() if streamed else await session.send("Pay")
        assert first.metadata.stop_reason is StopReason.TOOL_USE
        [asked] = first.content
        assert asked.provider_raw.data == MAY_I
        answer = [OpaqueBlock("mcp_approval_response", ProviderRaw("openai", YOU_MAY))]
        preview = await engine.preview(session, answer)
        assert preview.losses == ()
        reply = await session.stream(answer).message() if streamed else await session.send(answer)
        assert reply.text == "Paid."
    assert json.loads(transport.requests[1].body)["input"][1:] == [MAY_I, YOU_MAY]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_local_tool_runs_while_an_approval_stays_open(streamed: bool) -> None:
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


# An engine that is used in the wrong loop or after its close: every method raises an error.

OTHERS: dict[str, Callable[[Engine], Awaitable[object]]] = {
    "submit": lambda engine: engine.session("s:m").submit({}),
    "submit_stream": lambda engine: drained(engine.session("s:m").submit_stream({})),
    "resume": lambda engine: engine.resume("ses_1"),
    "sessions": lambda engine: engine.sessions(),
    "delete_session": lambda engine: engine.delete_session("ses_1"),
    "import_session": lambda engine: engine.import_session(b"{}"),
    "reload": lambda engine: engine.reload(),
    "reprice": lambda engine: engine.reprice("first"),
    "undo_reprice": lambda engine: engine.undo_reprice(),
    "flush": lambda engine: engine.flush(),
    "resume_video": lambda engine: engine.resume_video("video_1", "s:m"),
    "start": lambda engine: engine.start(),
}
EVERY_WAY = {**WAYS, **OTHERS}


async def error_of(use: Callable[[], Any]) -> BaseException | None:
    """The exception that the use raises."""
    try:
        async with asyncio.timeout(20):
            found = use()
            if inspect.isawaitable(found):
                await found
    except Exception as error:
        return error
    return None


async def wrong_elsewhere(use: Callable[[], Any]) -> BaseException | None:
    """The exception that the use raises in another thread, on a loop of its own."""
    return await asyncio.to_thread(asyncio.run, error_of(use))


async def test_every_use_of_a_closed_engine_is_refused() -> None:
    engine = an_engine()
    await engine.start()
    await engine.aclose()
    errors = {name: await error_of(lambda use=use: use(engine)) for name, use in EVERY_WAY.items()}
    assert [name for name, error in errors.items() if "this engine is closed" not in str(error)] == []


async def test_every_use_in_another_loop_is_refused() -> None:
    """The call is refused before it waits."""
    ways = {**EVERY_WAY, "aclose": Engine.aclose, "attach": lambda engine: engine.attach("trn_1")}
    async with an_engine() as engine:
        errors = {name: await wrong_elsewhere(lambda use=use: use(engine)) for name, use in ways.items()}
    allowed = [name for name, error in errors.items() if not isinstance(error, WrongLoop)]
    assert (allowed, [str(error) for error in errors.values() if "its own loop" not in str(error)]) == ([], [])


USES: dict[str, Callable[[Session, Any], Any]] = {
    "Session.cancel": lambda session, turn: session.cancel(),
    "cancel": lambda session, turn: turn.cancel(),
    "message": lambda session, turn: turn.message(),
    "iterate": lambda session, turn: drained_here(turn),
    "text_stream": lambda session, turn: drained_here(turn.text_stream),
    "exit": lambda session, turn: turn.__aexit__(None, None, None),
}


async def drained_here(events: Any) -> None:
    async for _ in events:
        pass


@pytest.mark.parametrize("use", USES)
async def test_a_turn_cannot_be_used_in_another_loop(use: str) -> None:
    """The turn continues, and the error has advice."""
    async with an_engine() as engine:
        session = engine.session("s:m")
        async with session.stream("Hi") as turn:
            assert await anext(aiter(turn))
            error = await wrong_elsewhere(lambda: USES[use](session, turn))
            assert isinstance(error, WrongLoop)
            assert ("AbortController" in str(error)) is use.lower().endswith("cancel")
            assert await turn.cancel()
            with pytest.raises(CancelledError):
                await turn.message()


@pytest.mark.parametrize("use", ["cancel", "aclose", "result", "response"])
@pytest.mark.parametrize("kind", ["stream", "stream_object"])
async def test_a_stream_without_a_session_cannot_be_used_in_another_loop(kind: str, use: str) -> None:
    async with an_engine() as engine:
        made: Any = (
            engine.stream("s:m", "Hi") if kind == "stream" else engine.stream_object("s:m", "Hi", schema=int)
        )
        async with made as stream:
            use = "object" if (kind, use) == ("stream_object", "response") else use
            error = await wrong_elsewhere(lambda: getattr(stream, use)())
            assert isinstance(error, WrongLoop)
            assert await stream.cancel()


def test_without_a_loop_a_stream_is_refused_with_the_sync_function() -> None:
    engine = an_engine()
    with pytest.raises(CallboardError, match=r"running event loop.*stream_sync\(\)"):
        engine.stream("s:m", "Hi")
    with pytest.raises(CallboardError, match=r"running event loop.*run_sync\(\)"):
        engine.session("s:m").stream("Hi")


async def test_an_engine_that_was_closed_can_be_closed_from_anywhere() -> None:
    """The second close returns the same report."""
    engine = an_engine()
    await engine.start()
    report = await engine.aclose()
    assert await asyncio.to_thread(asyncio.run, engine.aclose()) == report
