"""Requests to Ollama, checked by its official client's types, and its data about models."""

from __future__ import annotations

import base64
from typing import Any

import anyio
import msgspec
import ollama
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.stream import SLOW_MACHINE_SECONDS
from callboard.adapters.providers.ollama.adapter import OllamaAdapter
from callboard.adapters.providers.ollama.request import (
    ASK_AGAIN_SECONDS,
    MAX_MODELS,
    Catalogue,
    ModelFacts,
    Windows,
    full_name,
    read_show,
    read_tags,
    window_size,
    write_request,
)
from callboard.adapters.requests.estimate import at_most
from callboard.adapters.requests.history_target import WireCall
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.errors import (
    CapabilityError,
    ConfigurationError,
    PromptTooLongError,
    UnsupportedToolChoiceError,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, ToolChoice, ToolDefinition
from callboard.bus.values.usage import StopReason

from ...support.fake_http import FakeReply
from ...support.invariants import check_stream
from ...support.judges import ollama_faults
from ...support.virtual_time import FakeClock
from ...support.wires import WIRES
from ...support.wires.ollama import ask, body, call, last, line
from ...support.wires.reading import read_whole

pytestmark = pytest.mark.anyio


Plain = dict[str, Any]
PNG = b"\x89PNG\r\n\x1a\n"
BASE64 = base64.b64encode(PNG).decode()
THINKER = ModelFacts(frozenset({"completion", "tools", "thinking"}), 40960, "qwen3")
LEVELS = ModelFacts(frozenset({"completion", "tools", "thinking"}), 131072, "gptoss")
PLAIN = ModelFacts(frozenset({"completion"}), 8192, "llama")
LOOK = ToolDefinition(
    "look", "Look at it", {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
)


def wired(
    request: CanonicalRequest,
    facts: ModelFacts | None = None,
    *,
    estimated: int = 10,
    stream: bool = False,
    defaults: JsonObject | None = None,
) -> WireCall:
    facts = facts or ModelFacts()
    return write_request(
        request, provider="ollama", facts=facts, capabilities=facts.capabilities(), estimated_tokens=estimated,
        num_ctx=4096, defaults=defaults or {}, stream=stream,
    )  # fmt: skip


def written(request: CanonicalRequest, facts: ModelFacts | None = None, **options: Any) -> Plain:
    """The body. The official client's type must accept it, without a loss except for the newest fields."""
    body: Plain = msgspec.json.decode(wired(request, facts, **options).body)
    judged = ollama._types.ChatRequest.model_validate(body)
    kept = judged.model_dump(exclude_unset=True)
    assert kept["model"] == body["model"]
    for field in ("stream", "options", "format", "keep_alive", "think"):
        assert kept.get(field) == body.get(field), field
    assert ollama_faults(body) == []
    return body


def messages(*said: Message, **changes: object) -> list[Plain]:
    found: list[Plain] = written(ask(*said, **changes))["messages"]
    return found


def codes(request: CanonicalRequest, facts: ModelFacts | None = None, **options: Any) -> list[str]:
    return [warning.code for warning in wired(request, facts, **options).warnings]


def test_images_of_results_follow_in_a_users_message() -> None:
    """The images come after all results, which must directly follow their calls."""
    call_both = Message.assistant([ToolUseBlock("tu_1", "look", {}), ToolUseBlock("tu_2", "clock", {})])
    both = (ToolResultBlock("tu_1", (ImageBlock(data=PNG),)), ToolResultBlock("tu_2", "noon"))
    found = messages(Message.user("Hi"), call_both, Message(Role.TOOL, both))[2:]
    said = [("tool", "The result is an image. It follows."), ("tool", "noon"), ("user", "Result of look:")]
    assert [(message["role"], message["content"]) for message in found] == said
    assert found[-1]["images"] == [BASE64]


def test_a_block_without_a_canonical_form_is_a_loss() -> None:
    own = OpaqueBlock("odd", ProviderRaw("ollama", {"odd": 1}))
    assert codes(ask(Message.user("Hi"), Message.assistant([TextBlock("So."), own]))) == ["content_dropped"]


def test_tool_choices() -> None:
    """A forced call is refused before any network access, because there is no such field. For a model without
    tools, the text asks for the tool.
    """
    assert "tools" in written(ask(tools=(LOOK,), tool_choice=ToolChoice("auto")))
    for choice in (ToolChoice("required"), ToolChoice("named", "look")):
        with pytest.raises(UnsupportedToolChoiceError):
            wired(ask(tools=(LOOK,), tool_choice=choice))
    with pytest.raises(CapabilityError, match="tools: emulate"):
        wired(ask(tools=(LOOK,)), PLAIN)


@pytest.mark.parametrize(("facts", "effort", "expected", "warned"), [
    (THINKER, None, True, []),
    (THINKER, "none", False, []),
    (THINKER, "low", True, []),
    (THINKER, "max", True, []),
    (LEVELS, None, None, []),
    (LEVELS, "minimal", "low", ["parameter_changed"]),
    (LEVELS, "medium", "medium", []),
    (LEVELS, "xhigh", "high", ["parameter_changed"]),
    (LEVELS, "none", False, []),
    (PLAIN, None, None, []),
    (PLAIN, "none", None, []),
    (PLAIN, "high", None, ["parameter_dropped"]),
    (None, None, None, []),
    (None, "high", True, []),
    (None, "none", False, []),
])  # fmt: skip
def test_thinking(facts: ModelFacts | None, effort: str | None, expected: Json, warned: list[str]) -> None:
    """The setting depends on the known abilities of the model."""
    request = ask(reasoning_effort=effort)
    assert written(request, facts).get("think") == expected
    assert codes(request, facts) == warned


def test_options_of_the_request_replace_those_of_the_configuration() -> None:
    """Each option is replaced separately. The rest of the body does not change."""
    own = {"ollama": {"options": {"num_ctx": 9000, "top_k": 5}, "keep_alive": -1}}
    body = written(ask(provider_options=own), defaults={"options": {"top_k": 1, "num_gpu": 0}, "keep_alive": "5m"})
    assert body["options"] == {"num_ctx": 9000, "num_predict": 64, "top_k": 5, "num_gpu": 0}
    assert body["keep_alive"] == -1


def test_a_prompt_that_cannot_fit_is_refused_and_a_long_one_causes_a_warning() -> None:
    """The limit is the requested window. Older servers would drop the oldest messages silently."""
    assert codes(ask(), estimated=4096) == []
    assert codes(ask(), estimated=5000) == ["prompt_near_window"]
    with pytest.raises(PromptTooLongError, match="5121 tokens for a window of 4096"):
        wired(ask(), estimated=5121)
    roomy = ask(provider_options={"ollama": {"options": {"num_ctx": 8192}}})
    assert codes(roomy, estimated=5121) == []


@given(st.integers(0, 200_000), st.integers(1, 50_000))
def test_windows_have_few_sizes_and_room_for_prompt_and_output(estimated: int, output: int) -> None:
    """Each new size makes the server load the model again. No window is larger than the model's own. The window
    has room even if the estimate was a quarter too low.
    """
    assert window_size(at_most(estimated) + output, None) >= estimated * 1.25 + output
    for needed, limit, expected in (
        (1, None, 4096), (4096, None, 4096), (4097, None, 8192), (70_000, None, 131_072), (70_000, 40_960, 40_960),
        (100, 2048, 2048),
    ):  # fmt: skip
        assert window_size(needed, limit) == expected


def test_a_window_only_grows() -> None:
    """A short question after a long one must not reload the model. Models don't share their windows."""
    windows = Windows()
    assert windows.choose("a", 9000, None) == 16384
    assert windows.choose("a", 100, None) == 16384
    assert windows.choose("b", 100, None) == 4096
    assert windows.choose("a", 20_000, None) == 32768


ARGUMENTS = st.dictionaries(
    st.text(max_size=3), st.integers(-9, 9) | st.text(max_size=3) | st.none() | st.booleans(), max_size=2
)
SAID = st.text(min_size=1, max_size=8).filter(str.strip)


@settings(max_examples=60)
@given(st.one_of(st.none(), SAID), st.one_of(st.none(), SAID), st.lists(ARGUMENTS, max_size=2))
def test_a_reply_survives_the_round_trip(thought: str | None, text: str | None, calls: list[JsonObject]) -> None:
    """The server gets its own reply unchanged, with its own ids."""
    message: JsonObject = {"role": "assistant", "content": text or ""}
    if thought:
        message["thinking"] = thought
    if calls:
        message["tool_calls"] = [call("look", given, f"call_{n}") for n, given in enumerate(calls)]
    reply = read_whole(WIRES[4], {**last(), "message": message}, model="ollama:qwen3:8b")
    results = [Message.tool_result(use.id, "ok") for use in Message.assistant(reply.content).tool_uses]
    sent = written(ask(Message.user("Hi"), Message.assistant(reply.content), *results, Message.user("And?")))
    back = [one for one in sent["messages"] if one["role"] == "assistant"]
    assert back == ([message] if thought or text or calls else [])


# -- The server's data about its models, for servers of any age.


SHOWN: Json = {
    "modelfile": "FROM x",
    "parameters": "num_ctx 4096",
    "template": "{{ .Prompt }}",
    "details": {"format": "gguf", "family": "qwen3", "families": ["qwen3"], "parameter_size": "8.2B"},
    "model_info": {"general.architecture": "qwen3", "qwen3.block_count": 36, "qwen3.context_length": 40960},
    "capabilities": ["completion", "tools", "thinking"],
}


def test_the_data_about_a_model_is_read() -> None:
    """Abilities, window and family are read, with the resulting capabilities."""
    judged = ollama.ShowResponse.model_validate(SHOWN)
    assert judged.capabilities == ["completion", "tools", "thinking"]
    assert judged.modelinfo is not None
    facts = read_show(SHOWN)
    assert facts == ModelFacts(frozenset({"completion", "tools", "thinking"}), 40960, "qwen3")
    can = facts.capabilities()
    assert (can.supports_tools, can.supports_thinking, can.supports_images) == (True, True, False)
    assert (can.max_context_tokens, can.max_output_tokens) == (40960, 40960)
    assert not can.supports_tool_choice


@pytest.mark.parametrize(("shown", "expected"), [
    ({"details": {"family": "llama"}}, ModelFacts(family="llama")),
    ({"capabilities": ["vision"]}, ModelFacts(frozenset({"vision"}))),
    ({"model_info": {"general.architecture": "a", "b.context_length": 5}}, ModelFacts(context_tokens=5)),
    ({"model_info": {"a.context_length": True}, "details": None}, ModelFacts()),
    ({"model_info": {"a.context_length": "x"}, "capabilities": "all"}, ModelFacts()),
    ({"error": "model 'x' not found"}, None),
    ([], None),
    (None, None),
])  # fmt: skip
def test_data_of_servers_of_every_age(shown: Json, expected: ModelFacts | None) -> None:
    """Missing values are unknown. Only a server that lists abilities excludes the others."""
    assert read_show(shown) == expected
    assert expected is None or expected.capabilities().supports_tools is (expected.abilities is None)


NAMES = (
    "models", "model", "name", "details", "family", "capabilities", "model_info", "a.context_length",
    "general.architecture",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_no_answer_breaks_anything(answer: Json) -> None:
    facts = read_show(answer)
    assert facts is None or facts.capabilities().max_context_tokens > 0
    assert all(isinstance(name, str) for name in read_tags(answer))


def test_the_list_of_models() -> None:
    """The name is in `model`, which older servers call `name`."""
    assert read_tags({"models": [{"name": "a:1", "model": "a:1"}, {"name": "b:2"}, {}, None]}) == ("a:1", "b:2")
    assert read_tags({"models": None}) == ()
    (judged,) = ollama.ListResponse.model_validate({"models": [{"name": "a:1", "model": "a:1"}]}).models
    assert judged.model == "a:1"


def test_the_catalogue_asks_again_only_after_a_while() -> None:
    """A repetition costs each call a request, so it comes later. Known data is not requested again. Names without
    a tag are the latest. The oldest entry is removed first.
    """
    for name, full in (("llama3", "llama3:latest"), ("llama3:8b", "llama3:8b"), ("hf.co/a/b", "hf.co/a/b:latest"),
                       ("host:5000/a", "host:5000/a:latest")):  # fmt: skip
        assert full_name(name) == full
    catalogue = Catalogue()
    assert catalogue.wants("a", 0)
    catalogue.learn("a", None, 0)
    assert not catalogue.wants("a", ASK_AGAIN_SECONDS - 1)
    assert catalogue.wants("a:latest", ASK_AGAIN_SECONDS)
    catalogue.learn("a:latest", ModelFacts(family="x"), 70)
    assert not catalogue.wants("a", 1e9)
    assert catalogue.facts("a") == ModelFacts(family="x")
    for number in range(MAX_MODELS):
        catalogue.learn(str(number), ModelFacts(), 0)
    assert [catalogue.facts(name) is None for name in ("a", "0", str(MAX_MODELS - 1))] == [True, False, False]


# -- The adapter over a scripted server: questions about models, requests, and the meaning of errors.


HEADERS = {"content-type": "application/json; charset=utf-8"}
NDJSON = {"content-type": "application/x-ndjson"}


def answer(value: Json, status: int = 200) -> FakeReply:
    return FakeReply(msgspec.json.encode(value), status=status, headers=HEADERS)


def streamed(*lines: Json) -> FakeReply:
    return FakeReply(*[body(one) for one in lines], headers=NDJSON)


class Server:
    """A scripted Ollama server."""

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


async def test_the_server_is_asked_about_a_model_once() -> None:
    """After that, the model's capabilities are those of the server."""
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


async def test_a_server_without_data_is_asked_again_only_later() -> None:
    """Meanwhile, calls continue without the data. Unknown abilities are not refused."""
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
    adapter = made(Server(answer(last(content="Hi")), wait=1000))
    begun = anyio.current_time()
    await adapter.complete(ask())
    assert anyio.current_time() - begun == pytest.approx(5)


async def test_the_start_asks_about_all_models() -> None:
    """A few models are asked about concurrently. Then a call needs no question."""
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
    """Without a server, or with a server of another kind, the start is short and raises no error."""
    adapter = made(server)
    with anyio.fail_after(6):
        await adapter.initialize()
    assert adapter.get_capabilities("x").supports_tools


async def test_questions_about_models_can_be_switched_off() -> None:
    """Some servers only support the chat."""
    server = Server(answer(last(content="Hi")))
    adapter = made(server, options={"discover": False})
    await adapter.initialize()
    await adapter.complete(ask())
    assert len(server.requests) == 1


async def test_unsupported_features_of_a_known_model_are_refused() -> None:
    """The server would accept an image and reply with an invention."""
    server = Server(show={"capabilities": ["completion"]})
    with pytest.raises(CapabilityError):
        await made(server).complete(ask(tools=(LOOK,)))
    assert server.asked("/api/chat") == []


async def test_each_call_requests_the_window_that_it_needs() -> None:
    """The window has room for prompt and output, within the model's own limit. It never shrinks."""
    server = Server(*[answer(last(content="Hi")) for _ in range(4)])
    adapter = made(server)
    long = Message.user("word " * 8000)
    for request in (ask(), ask(long), ask(), ask(max_output_tokens=100_000)):
        await adapter.complete(request)
    windows = [server.body(number)["options"]["num_ctx"] for number in range(4)]
    assert windows == [4096, 16384, 16384, 40960]


async def test_a_prompt_that_was_not_counted_is_estimated_by_the_vocabulary_of_its_model() -> None:
    """Plain and streamed replies get the same estimate."""
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


async def test_a_fixed_window_is_kept_and_larger_prompts_are_refused() -> None:
    """The user sets the window for the memory of the machine."""
    server = Server(answer(last(content="Hi")))
    adapter = made(server, options={"num_ctx": 2048, "keep_alive": "1h", "options": {"top_k": 3}})
    await adapter.complete(ask())
    assert server.body()["options"] == {"num_ctx": 2048, "num_predict": 64, "top_k": 3}
    assert server.body()["keep_alive"] == "1h"
    with pytest.raises(PromptTooLongError):
        await adapter.complete(ask(Message.user("word " * 8000)))


def test_options_and_the_time_to_load() -> None:
    """A model that is not loaded has time to load, unless the configuration has a limit of its own."""
    for options in ({"num_ctx": "all"}, {"nun_ctx": 1}, {"tools": "some"}, {"options": []}):
        with pytest.raises(ConfigurationError, match="options of type ollama"):
            made(Server(), options=options)
    assert made(Server()).config.first_event_timeout == SLOW_MACHINE_SECONDS
    assert made(Server(), first_event_timeout=7.0).config.first_event_timeout == 7.0


async def test_tools_are_emulated_if_the_configuration_asks_for_it() -> None:
    """The server enforces the format. This also works for a model without tools, and for a forced call."""
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
