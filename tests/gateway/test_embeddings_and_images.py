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

from callboard.adapters import AdapterConfig, ImageBlock, ProviderAdapter
from callboard.adapters.conformance.http_kit import FakeReply, FakeTransport
from callboard.adapters.embeddings import EmbeddingInput, EmbeddingRequest
from callboard.adapters.images import GeneratedImage, ImageRequest
from callboard.adapters.operations.openai_media import OpenAIImages
from callboard.adapters.operations.openai_wires import OpenAIEmbeddings
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.adapters.requests.content import write_data_url
from callboard.adapters.requests.history_target import WireCall
from callboard.bus import Clock
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage
from callboard.engine import Engine, ModelRegistry
from callboard.engine.gateway import gateway
from callboard.engine.gateway.embeddings import read_openai, write_openai
from callboard.engine.gateway.failures import BadRequest
from callboard.engine.gateway.http import FormField, form_fields
from callboard.engine.gateway.images import read_image_edit, read_image_edit_json, read_images, write_images

from ..support.engines import entry, model, serving
from ..support.scripted import adapter_type

PNG = b"\x89PNG\r\n\x1a\n"
USAGE = TokenUsage(input_tokens=5)
MODEL = "text-embedding-3-small"


def openai_on(transport: FakeTransport) -> str:
    """The type of an OpenAI adapter with this network."""

    def make(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
        return OpenAIAdapter(AdapterConfig(api_key="k"), name=name, transport=transport, clock=clock)

    return adapter_type(make)


def client_of(engine: Engine) -> openai.AsyncOpenAI:
    """The SDK in front of a gateway without keys."""
    return openai.AsyncOpenAI(
        api_key="k", base_url="http://localhost/v1", max_retries=0,
        http_client=httpx2.AsyncClient(transport=httpx2.ASGITransport(gateway(engine, keyless=True))),
    )  # fmt: skip


def refusal(read: Callable[[JsonObject], object], body: JsonObject) -> str:
    with pytest.raises(BadRequest) as caught:
        read(body)
    return caught.value.failure.message


# --- Embeddings ---

_VECTORS = st.lists(st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=2).map(lambda v: array("f", v)))


@given(
    inputs=st.lists(st.text(min_size=1), min_size=1, max_size=3)
    | st.lists(st.lists(st.integers(0, 10**5), min_size=1, max_size=3).map(tuple), min_size=1, max_size=3),
    dimensions=st.none() | st.integers(1, 9),
    encoding=st.sampled_from([None, "base64", "float"]),
)
def test_an_embedding_request_of_the_adapter_is_read_as_itself(
    inputs: list[EmbeddingInput], dimensions: int | None, encoding: Any
) -> None:
    request = EmbeddingRequest(
        request_id="", model=MODEL, inputs=tuple(inputs), dimensions=dimensions, encoding=encoding
    )
    asked = read_openai(json.loads(OpenAIEmbeddings().write(request, "openai").body))
    assert asked.requests == (msgspec.structs.replace(request, encoding=None),)
    assert asked.encoding == (encoding or "float")
    assert not asked.losses


@given(vectors=_VECTORS, encoding=st.sampled_from(["base64", "float"]))
def test_vectors_that_are_written_are_read_as_themselves(vectors: list[Any], encoding: str) -> None:
    asked = read_openai({"model": MODEL, "input": "Hi", "encoding_format": encoding})
    reply = OpenAIEmbeddings().read(msgspec.json.encode(write_openai(asked, vectors, USAGE)), {})
    assert list(reply.vectors) == vectors
    assert reply.input_tokens == 5


def test_a_purpose_and_other_fields_go_to_the_providers_that_know_them() -> None:
    asked = read_openai({"model": MODEL, "input": "Hi", "input_type": "query", "user": "u", "truncate": "END"})
    assert asked.requests[0].input_type == "query"
    assert asked.requests[0].provider_options["openai"] == {"user": "u", "truncate": "END"}
    assert [warning.message.split()[0] for warning in asked.losses] == ["truncate"]


@pytest.mark.parametrize(("body", "said"), [
    ({}, "you must provide a model parameter"),
    ({"model": "m"}, "Missing required parameter: 'input'."),
    ({"model": "m", "input": []}, "input cannot be an empty array"),
    ({"model": "m", "input": ""}, "input cannot be an empty string"),
    ({"model": "m", "input": [1, "two"]}, "a token is not a valid integer"),
    ({"model": "m", "input": [True]}, "a token is not a valid integer"),
    ({"model": "m", "input": [[1, -2]]}, "a token is not a valid integer"),
    ({"model": "m", "input": [[1], "two"]}, "but got a string"),
    ({"model": "m", "input": ["two", [1]]}, "but got an array"),
    ({"model": "m", "input": [[]]}, "input cannot be an empty array"),
    ({"model": "m", "input": {}}, "expected an array"),
    ({"model": "m", "input": [None]}, "but got null"),
    ({"model": "m", "input": "Hi", "dimensions": 0}, "Expected a value >= 1"),
    ({"model": "m", "input": "Hi", "encoding_format": "hex"}, "Supported values are: 'float', 'base64'"),
])  # fmt: skip
def test_a_wrong_request_for_embeddings_is_refused_in_the_vendors_words(body: JsonObject, said: str) -> None:
    assert said in refusal(read_openai, body)


@pytest.mark.parametrize(("tokens", "sent"), [([5, 6, 7], [[5, 6, 7]]), ([[5], [6, 7]], [[5], [6, 7]])])
async def test_the_sdk_sends_tokens_to_a_provider_that_accepts_them(tokens: Any, sent: Json) -> None:
    vectors = [{"index": at, "embedding": [0.5, at]} for at in range(2 if tokens == [[5], [6, 7]] else 1)]
    reply = {"data": vectors, "model": MODEL, "usage": {"prompt_tokens": 3, "total_tokens": 3}}
    transport = FakeTransport(FakeReply(json.dumps(reply).encode()))
    models = serving(model(f"a:{MODEL}", kind="embedding"), a=openai_on(transport))
    async with Engine(models=models, trace=False) as engine:
        found = await client_of(engine).embeddings.create(model=f"a:{MODEL}", input=tokens)
    assert [item.embedding for item in found.data] == [item["embedding"] for item in vectors]
    assert found.usage.prompt_tokens == 3
    assert json.loads(transport.requests[0].body)["input"] == sent


@pytest.mark.parametrize(
    ("name", "said"),
    [("a:voyage-4", "a:voyage-4 embeds only texts"), (MODEL, "'voyage-4', which may have other tokens")],
)
async def test_token_ids_that_the_served_model_would_misread_are_refused(name: str, said: str) -> None:
    """One provider only accepts text. The other name belongs to a model with its own vocabulary."""
    models = ModelRegistry(
        {"a": entry("a", "voyage", AdapterConfig(api_key="k"))},
        {"a:voyage-4": model("a:voyage-4", kind="embedding")},
        client_names={MODEL: ["a:voyage-4"]},
    )
    async with Engine(models=models, trace=False) as engine:
        with pytest.raises(openai.BadRequestError, match=said):
            await client_of(engine).embeddings.create(model=name, input=[5, 6, 7])


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


@pytest.mark.parametrize(("body", "said"), [
    ({"prompt": "A cat"}, "you must provide a model parameter"),
    ({"model": "m"}, "Missing required parameter: 'prompt'."),
    ({"model": "m", "prompt": ""}, "prompt cannot be an empty string"),
    ({"model": "m", "prompt": "A cat", "n": 0}, "Expected a value >= 1"),
    ({"model": "m", "prompt": "A cat", "size": 5}, "Invalid type for 'size'"),
    ({"model": "m", "prompt": "A cat", "response_format": "hex"}, "Supported values are"),
])  # fmt: skip
def test_a_wrong_request_for_images_is_refused_in_the_vendors_words(body: JsonObject, said: str) -> None:
    assert said in refusal(read_images, body)


# --- Images to edit ---


def form_of(call: WireCall) -> list[FormField]:
    assert call.body.startswith(b"--")
    return form_fields(call.body, {**call.headers}["content-type"])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("mask", [None, ImageBlock(data=PNG + b"mask")])
def test_an_edit_of_the_adapter_is_read_as_itself(count: int, mask: ImageBlock | None) -> None:
    images = tuple(ImageBlock(data=PNG + b"\r\n--%d" % number, media_type="image/png") for number in range(count))
    request = ImageRequest(
        request_id="", model="gpt-image-2", prompt="A cat", images=images, mask=mask, n=2, quality="high"
    )
    asked = read_image_edit(form_of(OpenAIImages().write(request, "openai")))
    assert asked.request == msgspec.structs.replace(
        request, mask=mask and msgspec.structs.replace(mask, media_type="image/png")
    )


async def test_the_sdk_edits_an_image_through_the_gateway() -> None:
    """The provider gets the client's image, and the client gets the provider's."""
    reply = {"data": [{"b64_json": "iVBORw0KGgo="}], "usage": {"input_tokens": 5, "output_tokens": 7}}
    transport = FakeTransport(*[FakeReply(json.dumps(reply).encode()) for _ in range(2)])

    models = serving(model("a:gpt-image-2", kind="image"), a=openai_on(transport))
    async with Engine(models=models, trace=False) as engine:
        client = client_of(engine)
        edited = await client.images.edit(model="a:gpt-image-2", prompt="A hat", image=("a.png", PNG, "image/png"))
        made = await client.images.generate(model="a:gpt-image-2", prompt="A cat")
    for images in (edited, made):
        assert images.data is not None
        assert images.data[0].b64_json == "iVBORw0KGgo="
    assert [request.url.rpartition("/")[2] for request in transport.requests] == ["edits", "generations"]
    assert PNG in transport.requests[0].body


def test_images_in_json_are_data_and_no_addresses() -> None:
    body: JsonObject = {
        "model": "m",
        "prompt": "A hat",
        "images": [{"image_url": write_data_url("image/png", PNG)}],
    }
    assert read_image_edit_json(body).request.images == (ImageBlock(data=PNG, media_type="image/png"),)
    body["images"] = [{"image_url": "http://169.254.169.254/a.png"}]
    assert "expected an image_url with data" in refusal(read_image_edit_json, body)
    assert "Missing required parameter: 'image'" in refusal(
        read_image_edit_json, {"model": "m", "prompt": "A hat"}
    )


@pytest.mark.parametrize(("body", "kind"), [
    (b"--b\r\n\r\n--b--", "multipart/form-data"),
    (b"", "multipart/form-data; boundary=b"),
    (b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\nx', "multipart/form-data; boundary=b"),
    (b"--b\r\n\r\nx\r\n--b--", "multipart/form-data; boundary=b"),
    (b"--b" + b'\r\ncontent-disposition: form-data; name="a"\r\n\r\nx\r\n--b' * 70 + b"--",
        "multipart/form-data; boundary=b"),
], ids=["no boundary", "empty", "cut", "no name", "too many"])  # fmt: skip
def test_a_form_that_is_none_is_refused(body: bytes, kind: str) -> None:
    with pytest.raises(BadRequest):
        form_fields(body, kind)


def test_a_file_that_is_no_image_is_refused() -> None:
    with pytest.raises(BadRequest, match="not a PNG"):
        read_image_edit([FormField("image", b"text", "text/plain")])
