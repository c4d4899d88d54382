"""Embedding requests to each provider and the reading of their replies. The expected bodies are written by
hand.
"""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import AdapterError, CapabilityError, InvalidRequestError, StreamError
from callboard.adapters.conformance.http_kit import FakeReply
from callboard.adapters.embeddings import INPUT_TYPES, EmbeddingAdapter, EmbeddingRequest
from callboard.adapters.operations.wires import from_numbers, read_vector
from callboard.bus.errors import (
    ConfigurationError,
    ContextOverflowError,
    NotFoundError,
    RateLimitError,
    ServerError,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import UsageSource

from .making import MODELS, answer, maker, packed, reply, sent
from .making import embedding_request as request

pytestmark = pytest.mark.anyio
each_kind = pytest.mark.parametrize("kind", MODELS)
ONE = ("bedrock",)
"""The types that accept one text per request."""


def texts_for(kind: str) -> tuple[str, ...]:
    return ("hello",) if kind in ONE else ("hello", "world")


async def asked(kind: str, *texts: str, **changes: object) -> tuple[str, JsonObject]:
    """The path and the body of a request. The reply is ignored."""
    adapter, transport = maker(kind, reply({}))
    with pytest.raises(AdapterError):
        await adapter.embed(request(kind, *texts, max_retries=0, **changes))
    return transport.requests[0].url.partition("://")[2].partition("/")[2], sent(transport)


# -- requests


@pytest.mark.parametrize(
    ("kind", "path", "body"),
    [
        ("openai", "v1/embeddings", {"model": "text-embedding-3-small", "input": ["hello", "world"],
         "encoding_format": "base64", "dimensions": 256}),
        ("openai_compatible", "v1/embeddings", {"model": "all-minilm", "input": ["hello", "world"],
         "encoding_format": "base64", "dimensions": 256}),
        ("gemini", "v1beta/models/gemini-embedding-001:batchEmbedContents", {"requests": [
            {"model": "models/gemini-embedding-001", "taskType": "RETRIEVAL_QUERY", "outputDimensionality": 256,
             "content": {"parts": [{"text": text}]}} for text in ("hello", "world")]}),
        ("ollama", "api/embed", {"model": "nomic-embed-text", "input": ["hello", "world"], "truncate": False,
         "dimensions": 256}),
        ("voyage", "v1/embeddings", {"model": "voyage-3.5", "input": ["hello", "world"], "truncation": False,
         "encoding_format": "base64", "input_type": "query", "output_dimension": 256}),
        ("cohere", "v2/embed", {"model": "embed-v4.0", "embedding_types": ["float"], "texts": ["hello", "world"],
         "input_type": "search_query", "truncate": "NONE", "output_dimension": 256}),
        ("bedrock", "model/amazon.titan-embed-text-v2%3A0/invoke", {"inputText": "hello", "dimensions": 256}),
    ],
)  # fmt: skip
async def test_a_request_has_every_option_in_its_provider_s_form(kind: str, path: str, body: JsonObject) -> None:
    found = await asked(kind, *texts_for(kind), dimensions=256, input_type="query")
    assert found == (path, body)


@pytest.mark.parametrize(("base_url", "url", "body"), [
    ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/embeddings", {}),
    ("https://api.groq.com/openai", "https://api.groq.com/openai/v1/embeddings", {}),
    ("http://localhost:11434", "http://localhost:11434/v1/embeddings", {}),
    ("http://localhost:9000", "http://localhost:9000/v1/embeddings", {"encoding_format": None}),
    ("https://api.mistral.ai", "https://api.mistral.ai/v1/embeddings",
        {"output_dimension": 1, "dimensions": None}),
    ("https://x.openai.azure.com/openai/deployments/e",
        "https://x.openai.azure.com/openai/deployments/e/embeddings?api-version=2024-10-21", {}),
])  # fmt: skip
async def test_embeddings_of_servers_with_chat(base_url: str, url: str, body: JsonObject) -> None:
    """Mistral has its own name for dimensions. An unknown server gets no encoding."""
    adapter, transport = maker("openai_compatible", answer("openai_compatible", [[1.0], [2.0]]), base_url=base_url)
    await adapter.embed(request("openai_compatible", model="m:codestral-embed", dimensions=1))
    assert transport.requests[0].url == url
    assert {name: sent(transport).get(name) for name in body} == body


@pytest.mark.parametrize(("kind", "base_url", "accepts"), [
    ("openai", None, True), ("openai", "https://gw.example", False),
    ("openai_compatible", "https://x.openai.azure.com", True), ("openai_compatible", "https://gw.example", False),
    *((kind, None, False) for kind in MODELS if not kind.startswith("openai")),
])  # fmt: skip
async def test_tokens_are_sent_only_to_servers_that_are_known_to_accept_them(
    kind: str, base_url: str | None, accepts: bool
) -> None:
    adapter, transport = maker(kind, answer(kind, [[1.0]]), base_url=base_url)
    asked = request(kind, [5, 6])
    if accepts:
        await adapter.embed(asked)
        assert sent(transport)["input"] == [[5, 6]]
    else:
        with pytest.raises(CapabilityError, match=r"accepts only texts for .*, not tokens"):
            await adapter.embed(asked)
        assert not transport.requests


@pytest.mark.parametrize(("input_type", "text"), [
    ("query", "task: search result | query: hello"),
    ("document", "title: none | text: hello"),
    ("similarity", "task: sentence similarity | query: hello"),
    (None, "hello"),
])  # fmt: skip
async def test_newer_gemini_models_get_the_input_type_in_the_text(input_type: str | None, text: str) -> None:
    _, body = await asked("gemini", "hello", model="gemini:gemini-embedding-2", input_type=input_type)
    content: Json = {"parts": [{"text": text}]}
    assert body == {"requests": [{"model": "models/gemini-embedding-2", "content": content}]}


@each_kind
async def test_each_input_type_is_sent_or_left_out_with_a_warning(kind: str) -> None:
    """Nothing is dropped silently, and no unsupported field is sent."""
    for input_type in INPUT_TYPES:
        adapter, _ = maker(kind, answer(kind, [[1.0]]))
        response = await adapter.embed(request(kind, "hello", input_type=input_type))
        codes = [warning.code for warning in response.warnings]
        known = input_type in adapter.get_embedding_capabilities(MODELS[kind]).input_types
        assert ("parameter_dropped" in codes) is not known, (input_type, codes)


async def test_cohere_gets_the_type_document_by_default() -> None:
    """Cohere requires a type, so the reply has a warning with the assumed one."""
    adapter, transport = maker("cohere", answer("cohere", [[1.0], [2.0]]))
    response = await adapter.embed(request("cohere"))
    assert sent(transport)["input_type"] == "search_document"
    assert [warning.code for warning in response.warnings] == ["input_type_assumed"]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("cohere.embed-english-v3", {"texts": ["hello"], "input_type": "search_query", "truncate": "END"}),
        ("us.cohere.embed-v4:0", {"texts": ["hello"], "input_type": "search_query", "truncate": "END"}),
        ("amazon.nova-2-multimodal-embeddings-v1:0", {"taskType": "SINGLE_EMBEDDING", "singleEmbeddingParams": {
            "embeddingPurpose": "GENERIC_RETRIEVAL", "text": {"value": "hello", "truncationMode": "END"}}}),
        ("amazon.titan-embed-text-v1", {"inputText": "hello"}),
    ],
)  # fmt: skip
async def test_each_family_of_bedrock_has_its_own_body(model: str, body: JsonObject) -> None:
    found = await asked("bedrock", "hello", model=f"bedrock:{model}", input_type="query", truncate=True)
    assert found[1] == body


async def test_bedrock_s_region_is_in_its_address_and_unknown_families_and_options_are_refused() -> None:
    adapter, transport = maker("bedrock", answer("bedrock", [[1.0]]), options={"region": "eu-west-1"})
    await adapter.embed(request("bedrock", "hello"))
    assert transport.requests[0].url.startswith("https://bedrock-runtime.eu-west-1.amazonaws.com/model/")
    with pytest.raises(CapabilityError, match="not a known embedding model"):
        await adapter.embed(request("bedrock", "hello", model="bedrock:a.model"))
    assert len(transport.requests) == 1
    with pytest.raises(ConfigurationError, match="options of type bedrock"):
        maker("bedrock", options={"zone": "x"})


# -- unsupported settings


@pytest.mark.parametrize(("kind", "model", "dimensions"), [
    ("openai", "text-embedding-ada-002", 256),
    ("openai", "text-embedding-3-small", 3072),
    ("voyage", "voyage-3.5", 300),
    ("voyage", "voyage-law-2", 256),
    ("voyage", "voyage-code-2", 1024),
    ("cohere", "embed-english-v3.0", 512),
    ("bedrock", "amazon.titan-embed-text-v2:0", 300),
    ("gemini", "gemini-embedding-001", 5000),
    ("openai", "text-embedding-3-small", 0),
])  # fmt: skip
async def test_dimensions_that_a_model_has_not_are_refused_before_the_network(
    kind: str, model: str, dimensions: int
) -> None:
    adapter, transport = maker(kind)
    with pytest.raises(CapabilityError, match=f"no vectors of {dimensions} dimensions"):
        await adapter.embed(request(kind, "hello", model=f"{kind}:{model}", dimensions=dimensions))
    assert transport.requests == []


async def test_unsupported_dimensions() -> None:
    """The model's own number of dimensions is not sent. If a server ignores a number, the vectors show it."""
    _, body = await asked("cohere", "hello", model="cohere:embed-english-v3.0", dimensions=1024)
    assert "output_dimension" not in body
    adapter, _ = maker("ollama", answer("ollama", [[1.0, 2.0, 3.0]]))
    with pytest.raises(CapabilityError, match="returned 3 dimensions instead of 2"):
        await adapter.embed(request("ollama", "hello", dimensions=2))


@pytest.mark.parametrize("vectors", [[[1.0]], [[1.0], [1.0, 2.0]], [[1.0], [2.0]]])
async def test_unusable_vectors_are_an_error_with_their_usage(vectors: list[list[float]]) -> None:
    """There may be too few vectors, or vectors of different or wrong lengths. The error has the usage."""
    adapter, _ = maker("openai", answer("openai", vectors))
    with pytest.raises(AdapterError) as caught:
        await adapter.embed(request("openai", "hello", "world", dimensions=2, max_retries=0))
    assert caught.value.usage is not None
    assert caught.value.usage.input_tokens == 7


async def test_an_invalid_request_is_refused() -> None:
    """The request has too many texts, none, a value that is no list of texts, or an unknown input type."""
    with pytest.raises(CapabilityError, match="accepts 96 texts in one request, not 97"):
        await maker("cohere")[0].embed(request("cohere", *["x"] * 97))
    with pytest.raises(InvalidRequestError, match="a text to embed"):
        await maker("openai")[0].embed(request("openai", inputs=()))
    with pytest.raises(TypeError, match="Put a single text into a list"):
        EmbeddingRequest(request_id="r", model="m", inputs="hello")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be one of query, document"):
        EmbeddingRequest(request_id="r", model="m", inputs=("x",), input_type="search")  # type: ignore[arg-type]


async def test_a_text_that_would_be_cut_silently_causes_a_warning() -> None:
    """Gemini can't refuse such a text. There is no warning if the caller allows cutting. OpenAI never cuts."""
    long = "word " * 5000
    adapter, _ = maker("gemini", answer("gemini", [[1.0], [2.0]]), answer("gemini", [[1.0], [2.0]]))
    (warning,) = (await adapter.embed(request("gemini", "short", long))).warnings
    assert (warning.code, warning.message.startswith("text 1: ")) == ("input_may_be_cut", True)
    assert (await adapter.embed(request("gemini", "short", long, truncate=True))).warnings == ()
    adapter, _ = maker("openai", answer("openai", [[1.0]]))
    (warning,) = (await adapter.embed(request("openai", "hello", truncate=True))).warnings
    assert warning.code == "parameter_dropped"


# -- replies


@each_kind
async def test_vectors_and_usage_are_read(kind: str) -> None:
    """The key is in a header and nowhere else, and the provider's options are in the body. Unreported usage is
    marked as an estimate.
    """
    vectors = [[0.25, -1.5], [3.0, 0.0]][: len(texts_for(kind))]
    adapter, transport = maker(kind, answer(kind, vectors), answer(kind, [[1.0]], tokens=None))
    response = await adapter.embed(request(kind, *texts_for(kind), provider_options={kind: {"user": "u1"}}))
    assert [vector.tolist() for vector in response.vectors] == vectors
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 0)
    assert response.usage.source is UsageSource.REPORTED
    assert (response.model, response.dimensions) == (f"{kind}:{MODELS[kind]}", 2)
    (asked,) = transport.requests
    assert "a-secret-key" in "".join(asked.headers.values())
    assert "a-secret-key" not in asked.url + asked.body.decode()
    body = sent(transport)
    where = body["requests"][0] if kind == "gemini" else body
    assert where["user"] == "u1"
    response = await adapter.embed(request(kind, "hello world", input_type="document"))
    assert response.usage.estimated
    assert response.usage.input_tokens > 0
    assert "usage_estimated" in [warning.code for warning in response.warnings]


IMAGES_BILLED: Json = {"billed_units": {"input_tokens": 2, "image_tokens": 5}}


@pytest.mark.parametrize(("model", "said", "tokens", "details", "cost"), [
    ("voyage:voyage-3.5", answer("voyage", [[1.0]], tokens=0), 0, None, None),
    ("bedrock:cohere.embed-english-v3", reply({"embeddings": [[1.0]]}, x_amzn_bedrock_input_token_count="11"), 11,
        None, None),
    ("cohere:embed-v4.0", reply({"embeddings": {"float": [[1.0]]}, "meta": IMAGES_BILLED}), 7,
        {"image_input": 5}, None),
    ("openai_compatible:m", reply({"data": [{"index": 0, "embedding": [1.0]}],
        "usage": {"prompt_tokens": 5, "cost": 1e-7}}), 5, None, 100),
], ids=["zero", "in a header", "images", "a gateway's charge"])  # fmt: skip
async def test_usage_is_the_reported_one(
    model: str, said: FakeReply, tokens: int, details: JsonObject | None, cost: int | None
) -> None:
    """Zero is a value. Usage can be at any place, has a separate part for images, and includes a gateway's
    charge.
    """
    kind = model.partition(":")[0]
    adapter, _ = maker(kind, said)
    usage = (await adapter.embed(request(kind, "hello", model=model))).usage
    assert (usage.input_tokens, usage.source) == (tokens, UsageSource.REPORTED)
    assert (usage.details or None, usage.reported_cost_nano_usd) == (details, cost)


@pytest.mark.parametrize(("numbers", "expected"), [((1, 0), [[2.0], [1.0]]), ((0, 0), [[1.0], [2.0]])])
async def test_vectors_are_put_in_the_order_of_their_indices(numbers: tuple[int, int], expected: Json) -> None:
    """A server may reply in the order of completion, or give all vectors the same index."""
    data: Json = [{"index": number, "embedding": [one]} for number, one in zip(numbers, (1.0, 2.0), strict=True)]
    adapter, _ = maker("openai", reply({"data": data}))
    assert [vector.tolist() for vector in (await adapter.embed(request("openai"))).vectors] == expected


@pytest.mark.parametrize(("value", "what"), [
    ({"data": [{"index": 0, "embedding": [1.0]}]}, "expected 2 vectors, .* the reply has 1"),
    ({"data": [{"index": 0, "embedding": [1.0]}, {"index": 2, "embedding": [2.0]}]}, "indices"),
    ({"data": [{"index": 0, "embedding": [1.0]}, {"embedding": [2.0]}]}, "indices"),
    ({"data": [{"embedding": [1.0]}, {"embedding": [2.0, 3.0]}]}, "different dimensions"),
    ({"data": [{"embedding": []}, {"embedding": []}]}, "empty"),
    ({"data": [{"embedding": "AAA"}, {"embedding": "AAA"}]}, "base64"),
    ({"data": [{"embedding": "AAAA"}, {"embedding": "AAAA"}]}, "float32"),
    ({"data": [{"embedding": [None]}, {"embedding": [1.0]}]}, "not follow its protocol"),
    ({"choices": []}, "not follow its protocol"),
])  # fmt: skip
async def test_a_reply_without_the_vectors_is_an_error(value: JsonObject, what: str) -> None:
    adapter, _ = maker("openai", reply(value))
    with pytest.raises(StreamError, match=what):
        await adapter.embed(request("openai", max_retries=0))


@each_kind
@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[]", b"null", b'{"embeddings":7,"data":7}', b"\xff"])
async def test_what_is_no_reply_of_the_protocol_is_an_error_of_ours(kind: str, body: bytes) -> None:
    adapter, _ = maker(kind, FakeReply(body))
    with pytest.raises(StreamError):
        await adapter.embed(request(kind, *texts_for(kind), max_retries=0))


async def test_an_error_is_found_inside_a_good_reply_and_in_bedrock_s_header() -> None:
    """Gateways send such a body, and Bedrock sends such a header."""
    adapter, _ = maker("openai", reply({"error": {"code": "rate_limit_exceeded", "message": "slow"}}))
    with pytest.raises(RateLimitError, match="slow"):
        await adapter.embed(request("openai", max_retries=0))
    refused = reply({"message": "wait"}, 400, x_amzn_errortype="ThrottlingException:http://internal/")
    adapter, _ = maker("bedrock", refused)
    with pytest.raises(RateLimitError) as caught:
        await adapter.embed(request("bedrock", "hello", max_retries=0))
    assert caught.value.provider_code == "ThrottlingException"


@pytest.mark.parametrize(
    ("kind", "status", "body", "expected"),
    [
        ("openai", 404, {"error": {"code": "model_not_found", "message": "no"}}, NotFoundError),
        ("openai", 400, {"error": {"message": "maximum context length is 8192 tokens"}}, ContextOverflowError),
        ("voyage", 400, {"detail": "Model x is not supported."}, InvalidRequestError),
        ("voyage", 429, {"detail": "slow down"}, RateLimitError),
        ("cohere", 404, {"id": "i", "message": "model 'x' not found"}, NotFoundError),
        ("gemini", 404, {"error": {"code": 404, "status": "NOT_FOUND", "message": "no"}}, NotFoundError),
        ("ollama", 404, {"error": 'model "x" not found, try pulling it first'}, NotFoundError),
        ("ollama", 400, {"error": "the input length exceeds the context length"}, ContextOverflowError),
        ("bedrock", 503, {"message": "busy"}, ServerError),
        ("openai_compatible", 500,
         {"error": {"message": "input (6001 tokens) is too large to process."}}, ContextOverflowError),
    ],
)  # fmt: skip
async def test_refusals_have_the_classes_of_every_call(
    kind: str, status: int, body: JsonObject, expected: type[AdapterError]
) -> None:
    refused = reply(body)
    refused.status = status
    adapter, _ = maker(kind, refused)
    with pytest.raises(expected) as caught:
        await adapter.embed(request(kind, *texts_for(kind), max_retries=0))
    assert caught.value.provider_status == status
    assert caught.value.request_id == "req_1"


# -- vectors


SIZES = st.floats(-1024, 1024, width=32).map(lambda number: 0.0 if abs(number) < 1e-9 else number)


@given(st.lists(SIZES, min_size=1, max_size=40))
def test_base64_and_numbers_are_the_same_vector(numbers: list[float]) -> None:
    """float32 values are the same in both forms."""
    vector = array("f", numbers)
    assert read_vector(packed(*numbers)) == vector == from_numbers(numbers)
    assert memoryview(vector).format == "f"


@each_kind
def test_every_embedder_has_the_capabilities_of_its_models(kind: str) -> None:
    adapter, _ = maker(kind)
    assert isinstance(adapter, EmbeddingAdapter)
    for model in (MODELS[kind], "of-tomorrow"):
        can = adapter.get_embedding_capabilities(model)
        assert can.max_inputs >= 1
        assert can.encodings
        assert set(can.input_types) <= set(INPUT_TYPES)
        assert can == adapter.get_embedding_capabilities(f"{kind}:{model}")
