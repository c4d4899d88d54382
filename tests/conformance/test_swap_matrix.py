"""A session survives each swap between real adapters; steered turns and plain histories."""

from __future__ import annotations

import itertools
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import RetryPolicy, create_adapter
from callboard.adapters.config import AdapterConfig
from callboard.adapters.conformance import CALLS
from callboard.adapters.contract import AdapterCapabilities, CanonicalRequest, CanonicalResponse, ProviderAdapter
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.requests import history
from callboard.adapters.requests.history import NO_RESULT, NOT_EXECUTED
from callboard.bus import RequestTimeoutError
from callboard.bus.clock import Clock
from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import MessageComplete, ToolUseInputDelta, ToolUseStart
from callboard.bus.values.base import Json
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolDefinition
from callboard.bus.values.usage import StopReason
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, Session, Tool
from callboard.engine.tools.running import INTERRUPTED

from ..support.canonical_requests import MESSAGES, canonical_requests
from ..support.depth import quick_if
from ..support.fake_http import FakeReply, FakeTransport
from ..support.scripted import adapter_type
from ..support.virtual_time import FakeClock, run_virtual
from ..support.wires import CALLING_WIRES, QUIRKY, WIRES, Wire

SYSTEM = "You are in a swap."
TOOLS = tuple(
    ToolDefinition(name, "", {"type": "object", "properties": {key: {} for key in given}}) for name, given in CALLS
)
PICTURE = ImageBlock(data=b"\x89PNG\r\n\x1a\nof the user")
LINKED = ImageBlock(url="https://pictures.test/linked.png")
SHOT = ImageBlock(data=b"\x89PNG\r\n\x1a\nof a tool")
REPORT = DocumentBlock(data=b"%PDF-1.7 report", name="report.pdf")
SPEECH = AudioBlock(data=b"RIFF\0\0\0\0WAVE speech")


class Side:
    """One provider of a swap: its wire and its adapter with a name."""

    clock = FakeClock()  # one clock for all sides, so that ids never repeat

    def __init__(self, wire: Wire, name: str) -> None:
        self.wire = wire
        self.name = name

    @property
    def model(self) -> str:
        return f"{self.name}:some-model"

    def adapter(self, reply: FakeReply) -> tuple[HttpAdapter, FakeTransport]:
        transport = FakeTransport(reply)
        config = AdapterConfig(api_key="sk-conformance", base_url=self.wire.base_url, options=self.wire.options)
        made = create_adapter(
            self.wire.type_name, config, name=self.name, clock=self.clock, transport=self.wire.through(transport)
        )
        assert isinstance(made, HttpAdapter)
        return made, transport

    @property
    def capabilities(self) -> AdapterCapabilities:
        return self.adapter(FakeReply())[0].get_capabilities(self.model)

    def takes(self, block: ContentBlock) -> bool:
        """Whether a new turn may have the block. An unsupported block would be refused if it is not old."""
        can = self.capabilities
        match block:
            case ImageBlock(url=str()):
                return can.supports_images and self.wire.fetches
            case ImageBlock():
                return can.supports_images
            case AudioBlock():
                return can.supports_audio
            case DocumentBlock():
                return can.supports_documents
            case _:
                return True

    def request(self, messages: Sequence[Message]) -> CanonicalRequest:
        return CanonicalRequest(
            request_id="req_1",
            messages=tuple(messages),
            model=self.model,
            max_output_tokens=64,
            system_prompt=SYSTEM,
            tools=TOOLS if self.wire.calls_tools else (),
            session_id="ses_1",
        )

    async def ask(self, messages: Sequence[Message], body: Json) -> tuple[CanonicalResponse, bytes]:
        """The provider's reply to a conversation, and the request."""
        reply = FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"})
        adapter, transport = self.adapter(reply)
        response = await adapter.complete(self.request(messages))
        return response, transport.requests[0].body

    async def cancelled(self, messages: Sequence[Message], chunks: list[bytes]) -> Message:
        """The partial message of a reply that was cancelled during a tool's arguments or its text."""
        adapter, _ = self.adapter(FakeReply(*chunks))
        last: MessageComplete | None = None
        async for event in adapter.stream(self.request(messages)):
            if isinstance(event, ToolUseStart | ToolUseInputDelta) or not self.wire.calls_tools:
                await adapter.cancel("req_1")
            if isinstance(event, MessageComplete):
                last = event
        assert last is not None
        return Message(Role.ASSISTANT, last.final_content, id="msg_cut")

    def reply(self, text: str, calls: int = 0) -> Json:
        """A reply with reasoning, text and calls."""
        calls = calls if self.wire.calls_tools else 0
        return self.wire.reasoned(f"thinking of {text}", text, calls, "tools" if calls else "end")


def answers(reply: Message, text: str) -> list[Message]:
    """A result for each call of a reply. The first call fails, and the others also return an image."""
    results = [
        ToolResultBlock(call.id, f"{text} failed", is_error=True)
        if number == 0
        else ToolResultBlock(call.id, (TextBlock(f"{text} worked"), SHOT))
        for number, call in enumerate(reply.tool_uses)
    ]
    return [Message(Role.TOOL, tuple(results), id=f"msg_{text}")] if results else []


async def at_home(side: Side) -> list[Message]:
    """A session with media, reasoning, parallel calls, a failed call and a cancelled turn."""
    blocks: list[ContentBlock] = [TextBlock("asked-at-home"), PICTURE, LINKED, REPORT, SPEECH]
    asked = tuple(block for block in blocks if side.takes(block))
    other = tuple(block for block in blocks if not side.takes(block))
    history = [
        Message(Role.USER, (TextBlock("asked-long-ago"), *other), id="msg_past"),
        Message(Role.ASSISTANT, (TextBlock("answered-long-ago"),), id="msg_past_answer"),
        Message(Role.USER, asked, id="msg_asked"),
    ]
    response, _ = await side.ask(history, side.reply("looking-around", calls=2))
    history.append(Message(Role.ASSISTANT, response.content, id="msg_called"))
    history += answers(history[-1], "home-tool")
    response, _ = await side.ask(history, side.reply("answered-at-home"))
    history.append(Message(Role.ASSISTANT, response.content, id="msg_answered"))
    history.append(Message(Role.USER, (TextBlock("asked-in-vain"),), id="msg_vain"))
    calls, stop = side.wire.most
    history.append(await side.cancelled(history, side.wire.chunks("cut-off-here", min(calls, 1), stop)))
    return history


def missing(history: Sequence[Message], body: str, side: Side) -> Iterator[str]:
    """The types of the blocks that a request lacks. A block that the model supports must not be missing."""
    can = side.capabilities
    for message in history:
        for block in message.content:
            if isinstance(block, ThinkingBlock):
                continue  # it is compared by its data, not by its text
            for kind, mark, expressible in marks(block, can):
                if mark not in body:
                    assert not expressible, f"{kind} {mark} is not in the request to {side.name}"
                    yield kind


def marks(block: ContentBlock, can: AdapterCapabilities) -> Iterator[tuple[str, str, bool]]:
    """The marks of a block in a request: its type, the text to search for, and whether the text is required."""
    match block:
        case TextBlock():
            yield "text", block.text, True
        case ImageBlock(url=str(url)):
            yield "image", url, False  # some providers only accept images as data
        case ImageBlock():
            yield "image", b64encode(block.data or b"").decode(), can.supports_images
        case DocumentBlock():
            yield "document", b64encode(block.data or b"").decode(), can.supports_documents
        case AudioBlock():
            yield "audio", b64encode(block.data or b"").decode(), can.supports_audio
        case ToolUseBlock():
            yield "tool_use", block.name, can.supports_tools
            for value in block.input.values():
                yield "tool_use", str(value).lower(), can.supports_tools
        case ToolResultBlock(content=str(text)):
            yield "tool_result", text, can.supports_tools
        case ToolResultBlock():
            for part in block.content:
                for kind, mark, _ in marks(part, can):
                    yield kind, mark, kind == "text" and can.supports_tools
        case _:
            pass


def losses(response: CanonicalResponse) -> Counter[str]:
    found = [warning.message for warning in response.warnings if warning.code == "content_dropped"]
    return Counter(message.partition(" was not sent")[0] for message in found)


def check_request(body: bytes, response: CanonicalResponse, history: Sequence[Message], side: Side) -> None:
    """Check that the request is valid and has all content that the target supports. The loss report has exactly
    the rest.
    """
    assert side.wire.faults(body) + side.wire.judged(body) == []
    text = body.decode()
    assert SYSTEM in text
    gone, reported = Counter(missing(history, text, side)), losses(response)
    assert gone <= reported, f"missing: {gone}; reported: {reported}"
    changed = reported - gone
    own = {"thinking", "redacted_thinking"}
    cut = [call for message in history for call in message.tool_uses if call.raw_arguments]
    assert set(changed) <= own | {"tool_use"}
    assert changed["tool_use"] <= len(cut)


def conversation(body: bytes, wire: Wire) -> tuple[bytes, bytes, bytes]:
    """A request's bytes before its conversation, those of the conversation without its end, and those after it."""
    said = msgspec.json.encode(msgspec.json.decode(body)[wire.history])
    start = body.index(said)
    return body[:start], said[:-1], body[start + len(said) :]


PAIRS = [
    *itertools.permutations(((wire, wire.name) for wire in WIRES), 2),
    *(((wire, wire.name), (wire, f"other-{wire.name}")) for wire in WIRES),
]


def is_next(home: tuple[Wire, str], abroad: tuple[Wire, str]) -> bool:
    """Whether the second wire is next to the first. A quick run goes from each wire to the next."""
    return WIRES.index(abroad[0]) == (WIRES.index(home[0]) + 1) % len(WIRES)


@pytest.mark.parametrize(
    ("home", "abroad"),
    quick_if(
        ((Side(*home), Side(*abroad)) for home, abroad in PAIRS),
        lambda n: n >= len(PAIRS) - len(WIRES) or is_next(*PAIRS[n]),
        "all pairs of wires",
        rows=True,
    ),
    ids=lambda side: side.name,
)
def test_a_session_survives_a_swap_to_another_provider_and_back(home: Side, abroad: Side) -> None:
    """Both requests are valid and have all supported content. Back at the first provider, the history is
    unchanged.
    """

    async def swap() -> None:
        history = await at_home(home)
        assert all(call.incomplete for call in history[-1].tool_uses)
        asked = [*history, Message(Role.USER, (TextBlock("asked-abroad"),), id="msg_swap")]
        response, never_left = await home.ask(asked, home.reply("stayed"))
        check_request(never_left, response, asked, home)

        response, body = await abroad.ask(asked, abroad.reply("hello-from-abroad", calls=2))
        check_request(body, response, asked, abroad)
        assert not [secret for secret in home.wire.secrets if secret in body.decode()]
        content = [block for message in history for block in message.content]
        for kind in (ThinkingBlock, RedactedThinkingBlock):
            thought = [block for block in content if isinstance(block, kind)]
            assert losses(response)[str(kind.__struct_config__.tag)] == len(thought)
        if home.wire.calls_tools and abroad.wire.calls_tools:
            assert NOT_EXECUTED in body.decode() or NO_RESULT in body.decode()
        asked.append(Message(Role.ASSISTANT, response.content, id="msg_abroad"))
        asked += answers(asked[-1], "foreign-tool")
        response, body = await abroad.ask(asked, abroad.reply("done-abroad"))
        check_request(body, response, asked, abroad)
        asked.append(Message(Role.ASSISTANT, response.content, id="msg_done"))

        asked.append(Message(Role.USER, (TextBlock("asked-back-home"),), id="msg_back"))
        response, came_back = await home.ask(asked, home.reply("welcome"))
        check_request(came_back, response, asked, home)
        assert not [secret for secret in abroad.wire.secrets if secret in came_back.decode()] or (
            abroad.wire is home.wire
        )
        for secret in home.wire.secrets:
            assert secret in came_back.decode()
        if home.wire.calls_tools:
            assert home.wire.ids(msgspec.json.decode(came_back))[0][:2] == home.wire.ids_issued(2)
        before, said, after = conversation(never_left, home.wire)
        before_again, said_again, after_again = conversation(came_back, home.wire)
        assert said_again.startswith(said)
        assert (before_again, after_again) == (before, after)
        assert response.stop_reason is StopReason.END_TURN

    run_virtual(swap)


def scripted(side: Side, transport: FakeTransport) -> AdapterEntry:
    """An engine's entry for a provider with these replies."""

    def made(config: AdapterConfig, *, name: str, clock: Clock) -> HttpAdapter:
        return side.wire.adapter(config, name=name, clock=clock, transport=side.wire.through(transport))

    config = AdapterConfig(api_key="sk-conformance", base_url="https://provider.test", options=side.wire.options)
    return AdapterEntry(name=side.name, type=adapter_type(made), config=config)


def as_reply(body: Json) -> FakeReply:
    return FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"})


async def work(arguments: dict[str, Json]) -> str:
    return f"worked on {sorted(arguments)}"


@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire.calls_tools], ids=lambda wire: wire.name)
def test_a_cancelled_round_does_not_break_the_history(wire: Wire) -> None:
    """Finished and interrupted calls are sent as results that both providers accept."""
    home = Side(wire, wire.name)
    abroad = Side(other := next(each for each in WIRES if each.calls_tools and each is not wire), other.name)
    at_home = FakeTransport(as_reply(home.reply("looking-around", calls=2)), as_reply(home.reply("welcome")))
    elsewhere = FakeTransport(as_reply(abroad.reply("hello-from-abroad")))
    sides = {home.name: scripted(home, at_home), abroad.name: scripted(abroad, elsewhere)}
    models = {f"{name}:m": ModelEntry(id=f"{name}:m", adapter=name, wire_name="m") for name in sides}
    ran: list[str] = []

    async def hang(arguments: dict[str, Json]) -> str:
        ran.append("hang")
        await anyio.sleep_forever()
        return ""

    async def go() -> None:
        async with Engine(models=ModelRegistry(sides, models), trace=False) as engine:
            tools = [Tool(TOOLS[0], work), Tool(TOOLS[1], hang)]  # type: ignore[arg-type]
            session = engine.session(f"{home.name}:m", tools=tools)
            with pytest.raises(RequestTimeoutError):
                await session.send("asked-at-home", max_output_tokens=64, timeout=5)
            await session.send("asked-abroad", max_output_tokens=64, model=f"{abroad.name}:m")
            assert (await session.send("asked-back-home", max_output_tokens=64)).text == "welcome"

    run_virtual(go)
    assert ran == ["hang"]
    for side, sent in ((home, at_home), (abroad, elsewhere)):
        body = sent.requests[-1].body
        assert side.wire.faults(body) + side.wire.judged(body) == []
        assert INTERRUPTED in body.decode()
        assert "worked on" in body.decode()


# -- A message that steers a turn, over every provider's adapter. It follows the results, in the form of the wire.


STEERED_WIRES = (*CALLING_WIRES, *QUIRKY)


def named(wire: Wire) -> str:
    return f"{wire.name}-{wire.options.get('quirks', '')}"


@pytest.mark.parametrize("wire", STEERED_WIRES, ids=named)
@pytest.mark.parametrize("calls", [1, 2])
def test_the_provider_accepts_a_steering_message_after_the_results(wire: Wire, calls: int) -> None:
    """A retry sends the same body. Nothing is lost, repeated or out of order."""
    transport = FakeTransport(
        as_reply(wire.body("looking", calls, "tools")),
        FakeReply(b"{}", status=503),
        as_reply(wire.body("there it is", 0, "end")),
        as_reply(wire.body("once more", 0, "end")),
    )

    def make(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
        return wire.make(transport, clock, max_retries=1, retry=RetryPolicy())

    entry = AdapterEntry(name=wire.name, type=adapter_type(make), config=AdapterConfig())
    model = f"{wire.name}:some-model"
    models = {model: ModelEntry(id=model, adapter=wire.name, wire_name="some-model")}
    said: list[Session] = []
    picture = [ImageBlock(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")] if wire is WIRES[0] else []

    async def work(arguments: dict[str, Json]) -> str:
        if said:
            said.pop().steer([TextBlock("and-in-french"), *picture])
        return "worked"

    async def go() -> None:
        async with Engine(models=ModelRegistry({wire.name: entry}, models), trace=False) as engine:
            session = engine.session(model, tools=[Tool(tool, work) for tool in TOOLS])  # type: ignore[arg-type]
            said.append(session)
            await session.send("look-around", max_output_tokens=64)
            await session.send("and-again", max_output_tokens=64)

    run_virtual(go)
    bodies = [request.body for request in transport.requests]
    # these providers have no types of the vendor
    judged = wire.judged if wire in CALLING_WIRES else lambda body: []
    assert [wire.faults(body) + judged(body) for body in bodies] == [[]] * 4
    assert bodies[1] == bodies[2]
    assert [body.count(b"and-in-french") for body in bodies] == [0, 1, 1, 1]
    sent = bodies[3].decode()
    order = [sent.rindex(mark) for mark in ("look-around", "worked", "and-in-french", "there it is", "and-again")]
    assert order == sorted(order)
    assert "steers" not in sent, "the mark of a steering message is not sent"
    if picture:
        steered = msgspec.json.decode(bodies[1])[wire.history][-1]["content"]
        assert [block["type"] for block in steered] == [*["tool_result"] * calls, "text", "image"]


# -- Plain text of a user and an assistant in turn is written in one step, with the same result.


SAID = st.text("ab \n☃", max_size=3) | st.just("Word " * 4000)
TEXTS = st.lists(SAID, max_size=7) | st.lists(st.text('a"☃', max_size=3), min_size=12, max_size=30)
HISTORIES = TEXTS.map(
    lambda texts: [Message((Role.USER, Role.ASSISTANT)[n % 2], text) for n, text in enumerate(texts)]
)


def written(adapter: HttpAdapter, request: CanonicalRequest) -> object:
    try:
        call = adapter.write_request(request, stream=False)
    except AdapterError as refusal:
        return type(refusal), str(refusal)
    return call.body, call.warnings, call.headers


@pytest.mark.parametrize(
    "wire", [wire for wire in WIRES if issubclass(wire.adapter, HttpAdapter)], ids=lambda wire: wire.name
)
@settings(max_examples=60)
@given(data=st.data())
def test_a_request_is_the_same_however_its_history_is_taken(wire: Wire, data: st.DataObject) -> None:
    adapter = wire.adapter(AdapterConfig(api_key="k", base_url="https://api.example.com/v1"))
    said = data.draw(HISTORIES) + data.draw(st.lists(MESSAGES, max_size=3))
    request = data.draw(canonical_requests([f"{wire.type_name}:some-model"]))
    cut = data.draw(st.integers(0, len(said)))
    requests = [msgspec.structs.replace(request, messages=tuple(each)) for each in (said[:cut], said, said[:cut])]
    at_once = [written(adapter, each) for each in requests]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "plain_beginning", lambda messages, beginning: ())
        assert at_once == [written(adapter, each) for each in requests]
