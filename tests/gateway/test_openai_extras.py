"""Embeddings and images of OpenAI's clients."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.embeddings import EmbeddingRequest
from callboard.adapters.images import GeneratedImage, ImageRequest
from callboard.adapters.operations.openai_media import OpenAIImages
from callboard.adapters.operations.openai_wires import OpenAIEmbeddings
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage
from callboard.engine.gateway.openai_extras import (
    read_embeddings,
    read_images,
    write_embeddings,
    write_image_stream,
    write_images,
)
from callboard.engine.gateway.wire import BadRequest

from ..support.recordings import FOLDER, needs_recordings

PNG = b"\x89PNG\r\n\x1a\n"
USAGE = TokenUsage(input_tokens=5)
MODEL = "text-embedding-3-small"


def sdk(answer: Callable[[JsonObject], bytes], content_type: str = "application/json") -> openai.OpenAI:
    """The SDK, with a server that answers a request's body."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200, content=answer(json.loads(request.content)), headers={"content-type": content_type}
        )

    return openai.OpenAI(
        api_key="k", base_url="http://gateway.test/v1", max_retries=0,
        http_client=httpx2.Client(transport=httpx2.MockTransport(handle)),
    )  # fmt: skip


def refusal(read: Callable[[JsonObject], object], body: JsonObject) -> str:
    with pytest.raises(BadRequest) as caught:
        read(body)
    return caught.value.failure.message


# --- Embeddings ---

_VECTORS = st.lists(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2).map(lambda v: array("f", v)))


@given(
    inputs=st.lists(st.text(min_size=1), min_size=1, max_size=3),
    dimensions=st.none() | st.integers(1, 9),
    encoding=st.sampled_from([None, "base64", "float"]),
)
def test_an_embedding_request_of_the_adapter_is_read_as_itself(
    inputs: list[str], dimensions: int | None, encoding: Any
) -> None:
    request = EmbeddingRequest(
        request_id="", model=MODEL, inputs=tuple(inputs), dimensions=dimensions, encoding=encoding
    )
    asked = read_embeddings(json.loads(OpenAIEmbeddings().write(request, "openai").body))
    assert asked.request == msgspec.structs.replace(request, encoding=None)
    assert asked.encoding == (encoding or "float")
    assert not asked.losses


@given(vectors=_VECTORS, encoding=st.sampled_from(["base64", "float"]))
def test_vectors_that_are_written_are_read_as_themselves(vectors: list[Any], encoding: str) -> None:
    asked = read_embeddings({"model": MODEL, "input": "Hi", "encoding_format": encoding})
    reply = OpenAIEmbeddings().read(msgspec.json.encode(write_embeddings(asked, vectors, USAGE)), {})
    assert list(reply.vectors) == vectors
    assert reply.input_tokens == 5


@pytest.mark.parametrize("form", [openai.omit, "float", "base64"])
def test_the_sdk_gets_vectors_in_the_form_that_it_asks_for(form: Any) -> None:
    def answer(body: JsonObject) -> bytes:
        asked = read_embeddings(body)
        return msgspec.json.encode(write_embeddings(asked, [array("f", [0.5, -1.0])], USAGE))

    reply = sdk(answer).embeddings.create(model=MODEL, input=["Hi"], encoding_format=form)
    (item,) = reply.data
    expected: Any = "AAAAPwAAgL8=" if form == "base64" else [0.5, -1.0]
    assert item.embedding == expected
    assert (reply.model, reply.usage.prompt_tokens) == (MODEL, 5)


def test_a_purpose_and_other_fields_go_to_the_providers_that_know_them() -> None:
    asked = read_embeddings({"model": MODEL, "input": "Hi", "input_type": "query", "user": "u", "truncate": "END"})
    assert asked.request.input_type == "query"
    assert asked.request.provider_options["openai"] == {"user": "u", "truncate": "END"}
    assert [warning.message.split()[0] for warning in asked.losses] == ["truncate"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "you must provide a model parameter"),
        ({"model": "m"}, "Missing required parameter: 'input'."),
        ({"model": "m", "input": []}, "input cannot be an empty array"),
        ({"model": "m", "input": ""}, "input cannot be an empty string"),
        ({"model": "m", "input": [1, 2]}, "got tokens"),
        ({"model": "m", "input": [[1, 2]]}, "got tokens"),
        ({"model": "m", "input": {}}, "expected an array"),
        ({"model": "m", "input": [None]}, "but got null"),
        ({"model": "m", "input": "Hi", "dimensions": 0}, "Expected a value >= 1"),
        ({"model": "m", "input": "Hi", "encoding_format": "hex"}, "Supported values are: 'float', 'base64'"),
    ],
)
def test_a_wrong_request_for_embeddings_is_refused_in_the_vendors_words(body: JsonObject, said: str) -> None:
    assert said in refusal(read_embeddings, body)


@needs_recordings
def test_recorded_requests_for_embeddings_are_written_again_as_they_were() -> None:
    path = FOLDER / "embeddings_openai.jsonl"
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for case in cases:
        body: dict[str, Any] = {name: value for name, value in case["request_body"].items() if value is not None}
        if not _is_of_texts(body.get("input")):
            continue
        asked = read_embeddings(body)
        request = msgspec.structs.replace(asked.request, encoding=asked.encoding)
        sent = json.loads(OpenAIEmbeddings().write(request, "openai").body)
        if isinstance(body["input"], str):
            body["input"] = [body["input"]]
        assert sent == {"encoding_format": "float", **body}


def _is_of_texts(inputs: Json) -> bool:
    return isinstance(inputs, str) or (isinstance(inputs, list) and all(isinstance(text, str) for text in inputs))


# --- Images ---

_SIZES = st.none() | st.sampled_from(["1024x1024", "2K"])
_QUALITIES = st.none() | st.just("high")


@given(n=st.integers(1, 4), size=_SIZES, quality=_QUALITIES, form=st.none() | st.just("webp"))
def test_an_image_request_of_the_adapter_is_read_as_itself(
    n: int, size: str | None, quality: str | None, form: str | None
) -> None:
    request = ImageRequest(
        request_id="", model="gpt-image-2", prompt="A cat", n=n, size=size, quality=quality, output_format=form
    )
    asked = read_images(json.loads(OpenAIImages().write(request, "openai").body))
    assert asked.request == request
    assert not asked.losses


def test_auto_is_the_providers_own_choice() -> None:
    body: JsonObject = {"model": "m", "prompt": "A cat", "size": "auto", "quality": "auto", "background": "auto"}
    request = read_images(body).request
    assert (request.size, request.quality, request.background) == (None, None, None)


def test_images_that_are_written_are_read_as_themselves() -> None:
    usage = TokenUsage(
        input_tokens=8, cached_input_tokens=4, output_tokens=20,
        details={"image_input": 3, "image_cache_read": 2, "image_output": 20},
    )  # fmt: skip
    asked = read_images({"model": "m", "prompt": "A cat"})
    images = [
        GeneratedImage(data=PNG, revised_prompt="A black cat"), GeneratedImage(url="https://x.test/a.png")
    ]  # fmt: skip
    body = msgspec.json.encode(write_images(asked, images, usage, created=1))
    reply = OpenAIImages().read(body, asked.request)
    assert list(reply.images) == images
    assert reply.usage is not None
    assert msgspec.structs.replace(reply.usage, raw=None) == usage


def test_the_sdk_gets_images_whole_and_streamed() -> None:
    def answer(body: JsonObject) -> bytes:
        asked = read_images(body)
        images = [GeneratedImage(data=PNG)]
        if asked.stream:
            return write_image_stream(asked, images, USAGE, created=1)
        return msgspec.json.encode(write_images(asked, images, USAGE, created=1))

    whole = sdk(answer).images.generate(model="m", prompt="A cat")
    assert whole.data is not None
    assert whole.data[0].b64_json == "iVBORw0KGgo="
    assert (whole.created, whole.output_format) == (1, "png")
    assert whole.usage is not None
    assert whole.usage.input_tokens == 5
    events = list(sdk(answer, "text/event-stream").images.generate(model="m", prompt="A cat", stream=True))
    assert [(event.type, event.b64_json) for event in events] == [("image_generation.completed", "iVBORw0KGgo=")]


def test_a_client_that_asks_for_addresses_gets_addresses() -> None:
    asked = read_images({"model": "m", "prompt": "A cat", "response_format": "url"})
    written: Any = write_images(asked, [GeneratedImage(data=PNG)], TokenUsage(), created=1)
    assert written["data"] == [{"url": "data:image/png;base64,iVBORw0KGgo="}]
    assert "usage" not in written


def test_a_field_of_images_without_a_canonical_word_is_a_loss_elsewhere() -> None:
    asked = read_images({"model": "m", "prompt": "A cat", "moderation": "low", "user": "u"})
    assert asked.request.provider_options["openai"] == {"moderation": "low", "user": "u"}
    assert [warning.message for warning in asked.losses] == [
        "moderation is not sent to another protocol: only this protocol has it"
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "A cat"}, "you must provide a model parameter"),
        ({"model": "m"}, "Missing required parameter: 'prompt'."),
        ({"model": "m", "prompt": ""}, "prompt cannot be an empty string"),
        ({"model": "m", "prompt": "A cat", "n": 0}, "Expected a value >= 1"),
        ({"model": "m", "prompt": "A cat", "size": 5}, "Invalid type for 'size'"),
        ({"model": "m", "prompt": "A cat", "response_format": "hex"}, "Supported values are"),
    ],
)
def test_a_wrong_request_for_images_is_refused_in_the_vendors_words(body: JsonObject, said: str) -> None:
    assert said in refusal(read_images, body)
