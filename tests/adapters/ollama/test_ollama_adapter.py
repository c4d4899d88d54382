"""The adapter over a scripted server: what it asks about models, what it sends, and what errors mean."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.stream import SLOW_MACHINE_SECONDS
from callboard.adapters.providers.ollama.adapter import OllamaAdapter
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.errors import CapabilityError, ConfigurationError, PromptTooLongError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.messages import Message, ToolChoice
from callboard.bus.values.usage import StopReason

from ...support.fake_http import FakeReply
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock
from ...support.wires.ollama import ask, body, last, line
from .test_ollama_request import LOOK, SHOWN

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json; charset=utf-8"}
NDJSON = {"content-type": "application/x-ndjson"}


def answer(value: Json, status: int = 200) -> FakeReply:
    return FakeReply(msgspec.json.encode(value), status=status, headers=JSON)


def streamed(*lines: Json) -> FakeReply:
    return FakeReply(*[body(one) for one in lines], headers=NDJSON)


class Server:
    """Ollama as a script."""

    def __init__(
        self, *chats: FakeReply | Exception, show: Json = SHOWN, tags: Json = None, wait: float = 0
    ) -> None:
        self.chats = list(chats)
        self.facts = {"/api/show": show, "/api/tags": tags}
        self.wait = wait
        self.requests: list[HttpRequest] = []
        self.replies: list[FakeReply] = []
        self.at_once = self.most_at_once = 0

    async def send(self, request: HttpRequest) -> HttpReply:
        self.requests.append(request)
        path = request.url.removeprefix("http://localhost:11434")
        if path == "/api/chat":
            reply = self.chats.pop(0)
            if isinstance(reply, Exception):
                raise reply
            await anyio.sleep(reply.wait)
        else:
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await anyio.sleep(self.wait)
            self.at_once -= 1
            found = self.facts.get(path)
            reply = answer({"error": "not found"}, 404) if found is None else answer(found)
        self.replies.append(reply)
        return reply

    async def aclose(self) -> None:
        pass

    def asked(self, path: str) -> list[HttpRequest]:
        return [request for request in self.requests if request.url.endswith(path)]

    def body(self, number: int = -1) -> JsonObject:
        found: JsonObject = msgspec.json.decode(self.asked("/api/chat")[number].body)
        return found


def made(server: Server, clock: FakeClock | None = None, **config: object) -> OllamaAdapter:
    return OllamaAdapter(AdapterConfig(**config), transport=server, clock=clock or FakeClock())  # type: ignore[arg-type]


async def test_a_model_is_asked_about_before_its_first_call_and_never_again() -> None:
    """And from then on its capabilities are the server's word."""
    server = Server(answer(last(content="Hi")), streamed(line(content="Hi"), last()))
    adapter = made(server)
    assert adapter.get_capabilities("qwen3:8b").supports_images
    assert (await adapter.complete(ask())).text == "Hi"
    stream = adapter.stream(ask())
    check_stream([event async for event in stream])
    (question,) = server.asked("/api/show")
    assert (question.method, msgspec.json.decode(question.body)) == ("POST", {"model": "qwen3:8b"})
    assert not adapter.get_capabilities("qwen3:8b").supports_images
    assert adapter.get_capabilities("qwen3:8b").max_context_tokens == 40960
    assert server.body()["think"] is True
    assert all(reply.closed for reply in server.replies)


async def test_a_server_that_doesn_t_say_is_asked_again_only_later() -> None:
    """The calls go on without; what isn't known isn't refused."""
    clock = FakeClock()
    server = Server(*[answer(last(content="Hi")) for _ in range(3)], show=None)
    adapter = made(server, clock)
    for _ in range(2):
        await adapter.complete(ask(tools=(LOOK,)))
    assert len(server.asked("/api/show")) == 1
    clock.advance(61)
    server.facts["/api/show"] = SHOWN
    await adapter.complete(ask())
    assert len(server.asked("/api/show")) == 2
    assert adapter.get_capabilities("qwen3:8b").max_context_tokens == 40960


async def test_a_silent_server_costs_a_call_five_seconds_at_most() -> None:
    """Asking is bounded."""
    adapter = made(Server(answer(last(content="Hi")), wait=1000))
    begun = anyio.current_time()
    await adapter.complete(ask())
    assert anyio.current_time() - begun == pytest.approx(5)


async def test_at_the_start_all_models_are_asked_about() -> None:
    """A few at a time; then nothing needs to be asked before a call."""
    names = [f"m{number}:1b" for number in range(10)]
    server = Server(answer(last(content="Hi")), tags={"models": [{"model": name} for name in names]}, wait=0.1)
    adapter = made(server)
    await adapter.initialize()
    assert {msgspec.json.decode(request.body)["model"] for request in server.asked("/api/show")} == set(names)
    assert server.most_at_once == 4
    assert not adapter.get_capabilities("m7:1b").supports_images
    await adapter.complete(ask(model="ollama:m3:1b"))
    assert len(server.asked("/api/show")) == 10
    assert await adapter.list_models() == tuple(names)


@pytest.mark.parametrize("server", [Server(), Server(tags=[]), Server(tags={"models": "x"}), Server(wait=1000)])
async def test_a_start_never_fails(server: Server) -> None:
    """Neither without a server nor with another one, and it doesn't take long."""
    adapter = made(server)
    with anyio.fail_after(6):
        await adapter.initialize()
    assert adapter.get_capabilities("x").supports_tools


async def test_asking_can_be_switched_off() -> None:
    """For servers that speak only the chat."""
    server = Server(answer(last(content="Hi")))
    adapter = made(server, options={"discover": False})
    await adapter.initialize()
    await adapter.complete(ask())
    assert len(server.requests) == 1


async def test_what_a_known_model_can_t_do_is_refused_before_the_chat() -> None:
    """The server would take an image and say something."""
    server = Server(show={"capabilities": ["completion"]})
    with pytest.raises(CapabilityError):
        await made(server).complete(ask(tools=(LOOK,)))
    assert server.asked("/api/chat") == []


async def test_each_call_asks_for_the_window_that_it_needs() -> None:
    """By prompt and output, within the model's own, and never less than before."""
    server = Server(*[answer(last(content="Hi")) for _ in range(4)])
    adapter = made(server)
    long = Message.user("word " * 8000)
    for request in (ask(), ask(long), ask(), ask(max_output_tokens=100_000)):
        await adapter.complete(request)
    windows = [server.body(number)["options"]["num_ctx"] for number in range(4)]
    assert windows == [4096, 16384, 16384, 40960]


async def test_a_prompt_that_was_not_counted_is_estimated_by_the_vocabulary_of_its_model() -> None:
    """Whole and streamed."""
    metrics: JsonObject = {"eval_count": 1}
    server = Server(
        answer(last("stop", metrics, content="Hi")), streamed(line(content="Hi"), last("stop", metrics))
    )
    adapter = made(server)
    request = ask(Message.user("人工智能正在改变企业做出决策的方式。" * 20))
    whole = (await adapter.complete(request)).usage
    stream = adapter.stream(request)
    check_stream([event async for event in stream])
    assert stream.response is not None
    expected = adapter.estimate_input_tokens(request.messages, model="qwen3:8b")
    assert (whole.input_tokens, stream.response.usage.input_tokens) == (expected, expected)
    assert expected != adapter.estimate_input_tokens(request.messages)


async def test_a_fixed_window_is_kept_and_what_can_t_fit_it_refused() -> None:
    """The configuration knows the machine's memory."""
    server = Server(answer(last(content="Hi")))
    adapter = made(server, options={"num_ctx": 2048, "keep_alive": "1h", "options": {"top_k": 3}})
    await adapter.complete(ask())
    assert server.body()["options"] == {"num_ctx": 2048, "num_predict": 64, "top_k": 3}
    assert server.body()["keep_alive"] == "1h"
    with pytest.raises(PromptTooLongError):
        await adapter.complete(ask(Message.user("word " * 8000)))


def test_a_cold_model_has_time_to_load() -> None:
    """Unless the configuration says otherwise."""
    assert made(Server()).config.first_event_timeout == SLOW_MACHINE_SECONDS
    assert made(Server(), first_event_timeout=7.0).config.first_event_timeout == 7.0


@pytest.mark.parametrize(
    "options", [{"num_ctx": "all"}, {"nun_ctx": 1}, {"tools": "some"}, {"options": []}], ids=str
)
def test_options_that_make_no_sense(options: JsonObject) -> None:
    """Named at once."""
    with pytest.raises(ConfigurationError, match="options of type ollama"):
        made(Server(), options=options)


async def test_tools_are_emulated_where_the_configuration_says_so() -> None:
    """By the format, which the server enforces; also for a model that knows no tools, and also by force."""
    decided = {"tool": "look", "arguments": {"at": 3}}
    server = Server(
        *[answer(last(content=msgspec.json.encode(decided).decode())) for _ in range(2)],
        show={"capabilities": ["completion"]},
    )
    adapter = made(server, options={"tools": "emulate"})
    response = await adapter.complete(ask(tools=(LOOK,), tool_choice=ToolChoice("required")))
    (use,) = response.tool_uses
    assert (use.name, use.input, response.stop_reason) == ("look", {"at": 3}, StopReason.TOOL_USE)
    assert "tools" not in server.body()
    assert server.body()["format"]["required"] == ["tool", "arguments"]
    assert [warning.code for warning in response.warnings] == ["tools_emulated"]
    assert adapter.get_capabilities("qwen3:8b").supports_tools
    events = [event async for event in adapter.stream(ask(tools=(LOOK,)))]
    assert isinstance(check_stream(events).final_content[0], ToolUseBlock)
