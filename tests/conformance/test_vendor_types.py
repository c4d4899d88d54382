"""Requests for chat, images, videos and embeddings are valid by the vendors' own types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from callboard.adapters import CapabilityError, ImageBlock, create_adapter
from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.embeddings import INPUT_TYPES, EmbeddingRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.images import fit_image
from callboard.adapters.operations.wires import check_video, fit_texts
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.gemini.adapter import GeminiAdapter
from callboard.adapters.providers.ollama.adapter import OllamaAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import JsonObject

from ..adapters.operations.making import form, image_request, image_wire, video_request, video_wire
from ..definition_of_done.rows import row
from ..support.canonical_requests import canonical_requests
from ..support.depth import examples
from ..support.judges import (
    chat_faults,
    contents_faults,
    embed_contents_faults,
    embeddings_faults,
    image_edits_faults,
    images_faults,
    interaction_faults,
    messages_faults,
    ollama_embed_faults,
    ollama_faults,
    responses_faults,
    steps_faults,
    video_parameters_faults,
    videos_faults,
)
from ..support.media_server import png
from ..support.wire_history import history_faults

CLAUDES = [
    "claude-3-5-haiku-latest", "claude-sonnet-4-5", "claude-opus-4-5", "claude-opus-4-8", "claude-sonnet-5",
    "claude-opus-5-5", "claude-of-tomorrow",
]  # fmt: skip
GPTS = ["gpt-4.1", "o3", "gpt-5-mini", "gpt-5.1", "gpt-5.6", "gpt-6-astra", "gpt-of-tomorrow"]
GEMINIS = [
    "gemma-3-27b-it", "gemini-2.0-flash", "gemini-2.5-flash", "gemini-2.5-pro", "gemini-3-pro", "of-tomorrow",
]  # fmt: skip
ANTHROPIC = AnthropicAdapter(AdapterConfig())
RESPONSES = OpenAIAdapter(AdapterConfig())
CHAT = OpenAICompatibleAdapter(AdapterConfig())
GEMINI = GeminiAdapter(AdapterConfig())
INTERACTIONS = GeminiAdapter(AdapterConfig(options={"api": "interactions"}), name="interactions")
OLLAMA = OllamaAdapter(AdapterConfig())
MODELS = {
    "anthropic": CLAUDES, "openai": GPTS, "openai_compatible": GPTS, "gemini": GEMINIS, "interactions": GEMINIS,
}  # fmt: skip

Judge = Callable[[bytes], list[str]]

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def body_of(adapter: HttpAdapter, asked: CanonicalRequest, *, stream: bool) -> JsonObject | None:
    """The body. None if the request is refused before it is sent."""
    try:
        wire = adapter.write_request(asked, stream=stream)
    except InvalidRequestError as error:
        event(f"refused: {type(error).__name__}")
        return None
    body: JsonObject = msgspec.json.decode(wire.body)
    return body


def messages_judge(body: JsonObject) -> list[str]:
    """The faults of a Messages request. It may have at most four cache marks."""
    assert msgspec.json.encode(body).count(b'"cache_control":{"type":"ephemeral"}') <= 4
    return messages_faults(body)


JUDGES: dict[str, tuple[HttpAdapter, Callable[[JsonObject], list[str]]]] = {
    "anthropic": (ANTHROPIC, messages_judge),
    "openai": (RESPONSES, lambda body: responses_faults(body) + history_faults("/v1/responses", body)),
    "openai_compatible": (CHAT, lambda body: chat_faults(body) + history_faults("/v1/chat/completions", body)),
    "gemini": (GEMINI, lambda body: contents_faults(body) + history_faults("x:generateContent", body)),
    "interactions": (INTERACTIONS, lambda body: interaction_faults(body) + steps_faults(body)),
    "ollama": (OLLAMA, ollama_faults),
}


@pytest.mark.more("more examples")
@row("8.2.1")
@pytest.mark.parametrize("provider", JUDGES)
def test_every_request_is_of_the_vendors_type(provider: str) -> None:
    adapter, judge = JUDGES[provider]
    models = MODELS.get(provider, ["of-tomorrow"])

    @given(canonical_requests([f"{provider}:{name}" for name in models]), st.booleans())
    @settings(PATIENT, max_examples=examples(120))
    def check(asked: CanonicalRequest, stream: bool) -> None:
        body = body_of(adapter, asked, stream=stream)
        assert body is None or judge(body) == []

    check()


# -- Requests for images and videos are valid by the vendors' own types.


BOAT = ImageBlock(data=png())


@pytest.mark.parametrize(("kind", "model", "judge"), [
    ("openai", "gpt-image-2", images_faults),
    ("openai", "gpt-image-1.5", images_faults),
    ("openai_compatible", "gpt-image-2", images_faults),
    ("openai", "gpt-5", responses_faults),
    ("gemini", "gemini-3-pro-image", contents_faults),
    ("gemini", "gemini-2.5-flash-image", contents_faults),
])  # fmt: skip
@given(st.integers(0, 2), st.booleans(), st.fixed_dictionaries({
    "n": st.integers(1, 2),
    "size": st.sampled_from([None, "1024x1024", "2K"]),
    "aspect_ratio": st.sampled_from([None, "16:9", "3:2"]),
    "quality": st.sampled_from([None, "low", "high"]),
    "background": st.sampled_from([None, "transparent", "opaque"]),
    "output_format": st.sampled_from([None, "webp", "jpeg"]),
}))  # fmt: skip
@settings(max_examples=40)
def test_requests_for_images_are_such_as_the_vendor_s_types_allow(
    kind: str, model: str, judge: Judge, inputs: int, masked: bool, asked: dict[str, object]
) -> None:
    wire = image_wire(kind, model)
    mask = BOAT if masked and inputs else None
    request = image_request(f"{kind}:{model}", images=[BOAT] * inputs, mask=mask, **asked)
    try:
        call = wire.write(fit_image(request, wire.capabilities(model)), kind)
    except CapabilityError:
        return
    if "content-type" not in call.headers:
        assert judge(call.body) == []
        return
    fields, files = form(call)
    typed: JsonObject = {name: int(text) if name == "n" else text for name, text in fields.items()}
    assert image_edits_faults(typed) == []
    assert set(files) <= {"image", "image[]", "mask"}


@pytest.mark.parametrize(("kind", "model", "judge"), [
    ("openai", "sora-2", videos_faults),
    ("openai", "sora-2-pro", videos_faults),
    ("gemini", "veo-3.1-generate-preview", video_parameters_faults),
    ("gemini", "veo-2.0-generate-001", video_parameters_faults),
    ("gemini", "of-tomorrow", video_parameters_faults),
])  # fmt: skip
@given(st.booleans(), st.fixed_dictionaries({
    "seconds": st.sampled_from([None, 4, 6, 8]),
    "size": st.sampled_from([None, "1280x720", "720x1280", "1080x1920", "1792x1024"]),
    "audio": st.sampled_from([None, True, False]),
}))  # fmt: skip
@settings(max_examples=30)
def test_requests_for_videos_are_such_as_the_vendor_s_types_allow(
    kind: str, model: str, judge: Callable[[bytes | JsonObject], list[str]], frame: bool, asked: dict[str, object]
) -> None:
    wire = video_wire(kind)
    request = video_request(f"{kind}:{model}", first_frame=BOAT if frame else None, **asked)
    try:
        check_video(request, wire.capabilities(model))
        call = wire.create(request, kind)
    except CapabilityError:
        return
    if "content-type" not in call.headers:
        assert judge(call.body) == []
        return
    fields, files = form(call)
    assert judge(dict(fields)) == []
    assert set(files) == {"input_reference"}


# -- Requests for embeddings are valid by the vendors' own types.


EMBEDDING_JUDGES: dict[str, tuple[Judge, tuple[str, ...]]] = {
    "openai": (embeddings_faults, ("text-embedding-3-large", "text-embedding-ada-002", "of-tomorrow")),
    "openai_compatible": (embeddings_faults, ("text-embedding-3-large", "of-tomorrow")),
    "gemini": (embed_contents_faults, ("gemini-embedding-001", "gemini-embedding-2", "text-embedding-004")),
    "ollama": (ollama_embed_faults, ("nomic-embed-text", "qwen3-embedding:0.6b")),
}


def written(kind: str, asked: EmbeddingRequest) -> bytes | None:
    """The body. None if the request is refused before it is sent."""
    adapter = create_adapter(kind, AdapterConfig(), name=kind)
    assert isinstance(adapter, HttpAdapter)
    wire = adapter.wire.other_wires().embeddings
    assert wire is not None
    try:
        fitted, _ = fit_texts(asked, wire.capabilities(asked.wire_model), kind, len)
    except CapabilityError:
        return None
    return wire.write(fitted, kind).body


@pytest.mark.parametrize("kind", EMBEDDING_JUDGES)
@given(st.integers(0, 2), st.fixed_dictionaries({
    "inputs": st.lists(st.text(min_size=1), min_size=1, max_size=5).map(tuple),
    "dimensions": st.one_of(st.none(), st.sampled_from([256, 768, 1536])),
    "input_type": st.one_of(st.none(), st.sampled_from(INPUT_TYPES)),
    "truncate": st.booleans(),
}))  # fmt: skip
@settings(max_examples=40)
def test_requests_for_vectors_are_such_as_the_vendor_s_types_allow(
    kind: str, which: int, asked: dict[str, Any]
) -> None:
    judge, models = EMBEDDING_JUDGES[kind]
    model = f"{kind}:{models[which % len(models)]}"
    body = written(kind, EmbeddingRequest(request_id="r", model=model, **asked))
    assert body is None or judge(body) == []
