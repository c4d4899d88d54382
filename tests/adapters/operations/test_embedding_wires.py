"""What each provider is asked for its vectors, and what is understood of its replies. Written by hand."""

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
"""Take one text a request."""


def texts_for(kind: str) -> tuple[str, ...]:
    return ("hello",) if kind in ONE else ("hello", "world")


async def asked(kind: str, *texts: str, **changes: object) -> tuple[str, JsonObject]:
    """The path and the body of a request, whatever the reply."""
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
async def test_a_request_says_everything_in_its_provider_s_words(kind: str, path: str, body: JsonObject) -> None:
    found = await asked(kind, *texts_for(kind), dimensions=256, input_type="query")
    assert found == (path, body)


async def test_an_unknown_server_is_not_told_of_an_encoding_it_may_not_know() -> None:
    adapter, transport = maker(
        "openai_compatible", answer("openai_compatible", [[1.0], [2.0]]), base_url="http://localhost:9000"
    )
    await adapter.embed(request("openai_compatible"))
    assert sent(transport) == {"model": "all-minilm", "input": ["hello", "world"]}


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/embeddings"),
        ("https://api.groq.com/openai", "https://api.groq.com/openai/v1/embeddings"),
        ("http://localhost:11434", "http://localhost:11434/v1/embeddings"),
        ("https://x.openai.azure.com/openai/deployments/e",
         "https://x.openai.azure.com/openai/deployments/e/embeddings?api-version=2024-10-21"),
    ],
)  # fmt: skip
async def test_embeddings_stand_beside_a_server_s_conversations(base_url: str, url: str) -> None:
    adapter, transport = maker("openai_compatible", answer("openai_compatible", [[1.0], [2.0]]), base_url=base_url)
    await adapter.embed(request("openai_compatible"))
    assert transport.requests[0].url == url


async def test_mistral_has_its_own_name_for_dimensions() -> None:
    adapter, transport = maker(
        "openai_compatible", answer("openai_compatible", [[1.0] * 8]), base_url="https://api.mistral.ai"
    )
    await adapter.embed(request("openai_compatible", "x", model="m:codestral-embed", dimensions=8))
    assert sent(transport)["output_dimension"] == 8


@pytest.mark.parametrize(("input_type", "text"), [
    ("query", "task: search result | query: hello"),
    ("document", "title: none | text: hello"),
    ("similarity", "task: sentence similarity | query: hello"),
    (None, "hello"),
])  # fmt: skip
async def test_newer_gemini_models_are_told_in_the_text_what_it_is_for(input_type: str | None, text: str) -> None:
    _, body = await asked("gemini", "hello", model="gemini:gemini-embedding-2", input_type=input_type)
    content: Json = {"parts": [{"text": text}]}
    assert body == {"requests": [{"model": "models/gemini-embedding-2", "content": content}]}


@each_kind
async def test_each_input_type_is_sent_or_left_out_with_a_warning(kind: str) -> None:
    """Nothing is dropped in silence, and nothing sent that the provider doesn't know."""
    for input_type in INPUT_TYPES:
        adapter, _ = maker(kind, answer(kind, [[1.0]]))
        response = await adapter.embed(request(kind, "hello", input_type=input_type))
        codes = [warning.code for warning in response.warnings]
        known = input_type in adapter.get_embedding_capabilities(MODELS[kind]).input_types
        assert ("parameter_dropped" in codes) is not known, (input_type, codes)


async def test_cohere_is_told_that_texts_are_documents_if_nobody_says_what_they_are() -> None:
    """It demands a type, so the reply says which one was assumed."""
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


async def test_a_bedrock_model_of_no_known_family_is_refused_before_the_network() -> None:
    adapter, transport = maker("bedrock")
    with pytest.raises(CapabilityError, match="not a known embedding model"):
        await adapter.embed(request("bedrock", "hello", model="bedrock:a.model"))
    assert transport.requests == []


async def test_bedrock_s_region_is_in_its_address_and_unknown_options_are_refused() -> None:
    adapter, transport = maker("bedrock", answer("bedrock", [[1.0]]), options={"region": "eu-west-1"})
    await adapter.embed(request("bedrock", "hello"))
    assert transport.requests[0].url.startswith("https://bedrock-runtime.eu-west-1.amazonaws.com/model/")
    with pytest.raises(ConfigurationError, match="options of type bedrock"):
        maker("bedrock", options={"zone": "x"})


@each_kind
async def test_provider_options_are_merged_into_the_body(kind: str) -> None:
    _, body = await asked(kind, *texts_for(kind), provider_options={kind: {"user": "u1"}})
    where = body["requests"][0] if kind == "gemini" else body  # type: ignore[index, call-overload]
    assert where["user"] == "u1"


@each_kind
async def test_the_key_goes_into_a_header_and_nowhere_else(kind: str) -> None:
    adapter, transport = maker(kind, answer(kind, [[1.0]]))
    await adapter.embed(request(kind, "hello"))
    (sent_request,) = transport.requests
    assert "a-secret-key" in "".join(sent_request.headers.values())
    assert "a-secret-key" not in sent_request.url + sent_request.body.decode()


# -- what can't be had


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


async def test_the_dimensions_that_a_model_has_anyway_are_not_sent_where_they_can_t_be_chosen() -> None:
    _, body = await asked("cohere", "hello", model="cohere:embed-english-v3.0", dimensions=1024)
    assert "output_dimension" not in body


async def test_a_server_that_ignores_dimensions_is_found_out() -> None:
    adapter, _ = maker("ollama", answer("ollama", [[1.0, 2.0, 3.0]]))
    with pytest.raises(CapabilityError, match="returned 3 dimensions instead of 2"):
        await adapter.embed(request("ollama", "hello", dimensions=2))


@pytest.mark.parametrize("vectors", [[[1.0]], [[1.0], [1.0, 2.0]], [[1.0], [2.0]]])
async def test_vectors_that_are_of_no_use_were_paid_for(vectors: list[list[float]]) -> None:
    """Too few, of different lengths, or not as long as asked for: the error has the usage."""
    adapter, _ = maker("openai", answer("openai", vectors))
    with pytest.raises(AdapterError) as caught:
        await adapter.embed(request("openai", "hello", "world", dimensions=2, max_retries=0))
    assert caught.value.usage is not None
    assert caught.value.usage.input_tokens == 7


async def test_more_texts_than_go_into_one_request_are_refused() -> None:
    adapter, _ = maker("cohere")
    with pytest.raises(CapabilityError, match="takes 96 texts in one request, not 97"):
        await adapter.embed(request("cohere", *["x"] * 97))


async def test_no_text_is_no_request() -> None:
    adapter, _ = maker("openai")
    with pytest.raises(InvalidRequestError, match="no text"):
        await adapter.embed(request("openai", inputs=()))


async def test_a_text_that_a_provider_would_cut_in_silence_is_named() -> None:
    """Gemini can't be told to refuse it. Who wants it cut is not warned."""
    long = "word " * 5000
    adapter, _ = maker("gemini", answer("gemini", [[1.0], [2.0]]), answer("gemini", [[1.0], [2.0]]))
    (warning,) = (await adapter.embed(request("gemini", "short", long))).warnings
    assert warning.code == "input_may_be_cut"
    assert warning.message.startswith("text 1: ")
    assert (await adapter.embed(request("gemini", "short", long, truncate=True))).warnings == ()


async def test_a_wish_to_cut_is_reported_where_the_provider_never_does() -> None:
    adapter, _ = maker("openai", answer("openai", [[1.0]]))
    (warning,) = (await adapter.embed(request("openai", "hello", truncate=True))).warnings
    assert warning.code == "parameter_dropped"


def test_one_text_is_not_taken_for_its_letters() -> None:
    with pytest.raises(TypeError, match="Put a single text into a list"):
        EmbeddingRequest(request_id="r", model="m", inputs="hello")  # type: ignore[arg-type]


def test_an_unknown_input_type_is_refused() -> None:
    with pytest.raises(ValueError, match="none of query, document"):
        EmbeddingRequest(request_id="r", model="m", inputs=("x",), input_type="search")  # type: ignore[arg-type]


# -- replies


@each_kind
async def test_vectors_and_usage_are_read(kind: str) -> None:
    vectors = [[0.25, -1.5], [3.0, 0.0]][: len(texts_for(kind))]
    adapter, _ = maker(kind, answer(kind, vectors))
    response = await adapter.embed(request(kind, *texts_for(kind)))
    assert [vector.tolist() for vector in response.vectors] == vectors
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 0)
    assert response.usage.source is UsageSource.REPORTED
    assert response.model == f"{kind}:{MODELS[kind]}"
    assert response.dimensions == 2


@each_kind
async def test_usage_that_nobody_reports_is_an_estimate_and_says_so(kind: str) -> None:
    adapter, _ = maker(kind, answer(kind, [[1.0]], tokens=None))
    response = await adapter.embed(request(kind, "hello world", input_type="document"))
    assert response.usage.estimated
    assert response.usage.input_tokens > 0
    assert "usage_estimated" in [warning.code for warning in response.warnings]


async def test_a_reported_zero_stays_zero() -> None:
    adapter, _ = maker("voyage", answer("voyage", [[1.0], [2.0]], tokens=0))
    usage = (await adapter.embed(request("voyage"))).usage
    assert (usage.input_tokens, usage.source) == (0, UsageSource.REPORTED)


async def test_bedrock_counts_tokens_in_a_header_where_the_body_doesn_t() -> None:
    lists = reply({"embeddings": [[1.0, 2.0]]}, x_amzn_bedrock_input_token_count="11")
    adapter, _ = maker("bedrock", lists)
    response = await adapter.embed(request("bedrock", "hi", model="bedrock:cohere.embed-english-v3"))
    assert (response.usage.input_tokens, response.usage.source) == (11, UsageSource.REPORTED)


async def test_cohere_s_images_are_a_part_of_what_it_bills() -> None:
    meta: Json = {"billed_units": {"input_tokens": 2, "image_tokens": 5}}
    adapter, _ = maker("cohere", reply({"embeddings": {"float": [[1.0]]}, "meta": meta}))
    usage = (await adapter.embed(request("cohere", "hello"))).usage
    assert (usage.input_tokens, usage.details) == (7, {"image_input": 5})


async def test_vectors_are_put_in_the_order_of_their_indices() -> None:
    """A server may answer in the order in which it was done."""
    data: Json = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
    adapter, _ = maker("openai", reply({"data": data}))
    response = await adapter.embed(request("openai"))
    assert [vector.tolist() for vector in response.vectors] == [[1.0], [2.0]]


async def test_servers_that_number_everything_alike_are_taken_by_their_order() -> None:
    data: Json = [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [2.0]}]
    adapter, _ = maker("openai", reply({"data": data}))
    response = await adapter.embed(request("openai"))
    assert [vector.tolist() for vector in response.vectors] == [[1.0], [2.0]]


async def test_what_a_gateway_says_that_it_charged_is_kept() -> None:
    """As OpenRouter does."""
    data: Json = [{"index": 0, "embedding": [1.0]}]
    adapter, _ = maker("openai_compatible", reply({"data": data, "usage": {"prompt_tokens": 5, "cost": 1e-7}}))
    usage = (await adapter.embed(request("openai_compatible", "x"))).usage
    assert (usage.input_tokens, usage.reported_cost_nano_usd) == (5, 100)


@pytest.mark.parametrize(("value", "what"), [
    ({"data": [{"index": 0, "embedding": [1.0]}]}, "2 texts were sent, but 1 vectors returned"),
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


async def test_an_error_inside_a_good_reply_is_that_error() -> None:
    """As gateways send it."""
    adapter, _ = maker("openai", reply({"error": {"code": "rate_limit_exceeded", "message": "slow"}}))
    with pytest.raises(RateLimitError, match="slow"):
        await adapter.embed(request("openai", max_retries=0))


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


async def test_bedrock_names_its_errors_in_a_header() -> None:
    refused = reply({"message": "wait"}, x_amzn_errortype="ThrottlingException:http://internal/")
    refused.status = 400
    adapter, _ = maker("bedrock", refused)
    with pytest.raises(RateLimitError) as caught:
        await adapter.embed(request("bedrock", "hello", max_retries=0))
    assert caught.value.provider_code == "ThrottlingException"


# -- vectors


SIZES = st.floats(-1024, 1024, width=32).map(lambda number: 0.0 if abs(number) < 1e-9 else number)


@given(st.lists(SIZES, min_size=1, max_size=40))
def test_base64_and_numbers_are_the_same_vector(numbers: list[float]) -> None:
    """float32 comes through either way as it was."""
    vector = array("f", numbers)
    assert read_vector(packed(*numbers)) == vector == from_numbers(numbers)
    assert memoryview(vector).format == "f"


@each_kind
def test_every_embedder_is_one_and_says_what_its_models_can(kind: str) -> None:
    adapter, _ = maker(kind)
    assert isinstance(adapter, EmbeddingAdapter)
    for model in (MODELS[kind], "of-tomorrow"):
        can = adapter.get_embedding_capabilities(model)
        assert can.max_inputs >= 1
        assert can.encodings
        assert set(can.input_types) <= set(INPUT_TYPES)
        assert can == adapter.get_embedding_capabilities(f"{kind}:{model}")
