"""What the adapters send is what the vendors' own types say a request is, whatever a host asks for."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.ollama.adapter import OllamaAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import Message

from ..definition_of_done.rows import row
from ..support.canonical_requests import canonical_requests
from ..support.conversations import conversations
from ..support.judges import (
    chat_faults,
    contents_faults,
    interaction_faults,
    messages_faults,
    ollama_faults,
    responses_faults,
    steps_faults,
)
from ..support.wire_history import history_faults

CLAUDES = [
    "claude-3-5-haiku-latest",
    "claude-sonnet-4-5",
    "claude-opus-4-5",
    "claude-opus-4-8",
    "claude-sonnet-5",
    "claude-opus-5-5",
    "claude-of-tomorrow",
]
GPTS = ["gpt-4.1", "o3", "gpt-5-mini", "gpt-5.1", "gpt-5.6", "gpt-6-astra", "gpt-of-tomorrow"]
GEMINIS = [
    "gemma-3-27b-it",
    "gemini-2.0-flash",
    "gemini-2.5-flash",
    "gemini-2.5-pro",
    "gemini-3-pro",
    "of-tomorrow",
]
ANTHROPIC = AnthropicAdapter(AdapterConfig())
RESPONSES = OpenAIAdapter(AdapterConfig())
CHAT = OpenAICompatibleAdapter(AdapterConfig())
GEMINI = GeminiAdapter(AdapterConfig())
INTERACTIONS = GeminiAdapter(AdapterConfig(options={"api": "interactions"}), name="interactions")
OLLAMA = OllamaAdapter(AdapterConfig())
MODELS = {
    "anthropic": CLAUDES,
    "openai": GPTS,
    "openai_compatible": GPTS,
    "gemini": GEMINIS,
    "interactions": GEMINIS,
}

examples = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def body_of(adapter: HttpAdapter, asked: CanonicalRequest, *, stream: bool) -> JsonObject | None:
    """The body; None for what is refused before anything is sent."""
    try:
        wire = adapter.write_request(asked, stream=stream)
    except InvalidRequestError as error:
        event(f"refused: {type(error).__name__}")
        return None
    event("sent")
    body: JsonObject = msgspec.json.decode(wire.body)
    return body


@row("8.2.1", of="anthropic")
@given(canonical_requests([f"anthropic:{name}" for name in CLAUDES]), st.booleans())
@examples
def test_every_messages_request_is_of_the_vendors_type(asked: CanonicalRequest, stream: bool) -> None:
    body = body_of(ANTHROPIC, asked, stream=stream)
    if body is not None:
        assert messages_faults(body) == []
        marked = msgspec.json.encode(body).count(b'"cache_control":{"type":"ephemeral"}')
        assert marked <= 4


@row("8.2.1", of="openai")
@given(canonical_requests([f"openai:{name}" for name in GPTS]), st.booleans())
@examples
def test_every_responses_request_is_of_the_vendors_type(asked: CanonicalRequest, stream: bool) -> None:
    body = body_of(RESPONSES, asked, stream=stream)
    if body is not None:
        assert responses_faults(body) == []
        assert history_faults("/v1/responses", body) == []


@given(canonical_requests([f"openai_compatible:{name}" for name in GPTS]), st.booleans())
@examples
def test_every_chat_request_is_of_the_vendors_type(asked: CanonicalRequest, stream: bool) -> None:
    body = body_of(CHAT, asked, stream=stream)
    if body is not None:
        assert chat_faults(body) == []
        assert history_faults("/v1/chat/completions", body) == []


@row("8.2.1", of="gemini")
@given(canonical_requests([f"gemini:{name}" for name in GEMINIS]), st.booleans())
@examples
def test_every_gemini_request_is_of_the_vendors_type(asked: CanonicalRequest, stream: bool) -> None:
    body = body_of(GEMINI, asked, stream=stream)
    if body is not None:
        assert contents_faults(body) == []
        assert history_faults("/v1beta/models/x:generateContent", body) == []


@given(canonical_requests(["ollama:of-tomorrow"]), st.booleans())
@examples
def test_every_ollama_request_is_of_the_vendors_type(asked: CanonicalRequest, stream: bool) -> None:
    body = body_of(OLLAMA, asked, stream=stream)
    if body is not None:
        assert ollama_faults(body) == []


JUDGES: dict[str, tuple[HttpAdapter, Callable[[JsonObject], list[str]]]] = {
    "anthropic": (ANTHROPIC, messages_faults),
    "openai": (RESPONSES, lambda body: responses_faults(body) + history_faults("/v1/responses", body)),
    "openai_compatible": (CHAT, lambda body: chat_faults(body) + history_faults("/v1/chat/completions", body)),
    "gemini": (GEMINI, lambda body: contents_faults(body) + history_faults("x:generateContent", body)),
    "interactions": (INTERACTIONS, lambda body: interaction_faults(body) + steps_faults(body)),
}


@pytest.mark.parametrize("provider", list(JUDGES))
def test_what_any_provider_replied_is_of_the_next_ones_type(provider: str) -> None:
    """Conversations of replies of all the vendors' types, with the vendors' own kinds of content between them.

    They go to another provider or come back to the same; the settings are any.
    """
    adapter, judge = JUDGES[provider]

    @given(
        conversations(MODELS),
        canonical_requests([f"{provider}:{name}" for name in MODELS[provider]]),
        st.booleans(),
    )
    @settings(examples, max_examples=40)
    def check(history: tuple[Message, ...], asked: CanonicalRequest, stream: bool) -> None:
        body = body_of(adapter, msgspec.structs.replace(asked, messages=history), stream=stream)
        if body is not None:
            assert judge(body) == []

    check()


@pytest.mark.parametrize("adapter", [ANTHROPIC, RESPONSES, CHAT, GEMINI, OLLAMA], ids=lambda adapter: adapter.name)
def test_the_generated_requests_are_mostly_ones_that_can_be_sent(adapter: HttpAdapter) -> None:
    """Else the judges would have little to judge."""
    sent = 0

    @given(canonical_requests([f"{adapter.name}:of-tomorrow"]))
    @settings(examples, max_examples=100, database=None, derandomize=True)
    def count(asked: CanonicalRequest) -> None:
        nonlocal sent
        sent += body_of(adapter, asked, stream=False) is not None

    count()
    assert sent > 10
