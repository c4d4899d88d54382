"""The parts of a bill on each wire: fees, contradictory counts, modalities, searches and service tiers."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.operations.openai_media import read_usage as read_image_usage
from callboard.adapters.operations.openai_wires import read_reply as read_embeddings
from callboard.adapters.provider import providers
from callboard.adapters.providers.anthropic.response import _any_usage, _plain_usage, token_usage
from callboard.adapters.providers.gemini.interactions_response import read_usage as read_interaction
from callboard.adapters.providers.gemini.wire import UsageCounts
from callboard.adapters.providers.openai import wire as openai_wire
from callboard.adapters.providers.openai.wire import read_usage as read_responses
from callboard.adapters.providers.openai_compatible.wire import _read_any_usage, _read_plain_usage
from callboard.adapters.providers.openai_compatible.wire import read_usage as read_chat
from callboard.adapters.requests import estimate
from callboard.adapters.requests.content import image_pixels
from callboard.adapters.requests.estimate import (
    VOCABULARIES,
    RateRow,
    TextRates,
    TokenRates,
    count,
    estimate_request,
    estimate_tokens,
    rate_rows,
    rates_for,
    text_tokens,
    traits,
    vocabulary_of,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    DocumentBlock,
    ImageBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, ToolDefinition
from callboard.bus.values.usage import CostSource, TokenUsage, UsageSource
from callboard.tracestore import PriceRow, PriceTable

from ...support.wires import WIRES, chat, gemini, responses
from ...support.wires import anthropic as messages
from ...support.wires.reading import Reading, read, read_whole

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

CLAUDE, OPENAI, CHAT_WIRE, GOOGLE, *_ = WIRES

Read: TypeAlias = "Callable[[JsonObject], Found]"
"""Reads a reply with that usage. Returns the resulting usage and the codes of the warnings."""


Found: TypeAlias = tuple[TokenUsage, list[str]]


def found(reading: Reading) -> Found:
    return reading.usage, [warning.code for warning in reading.reply.warnings]


def _chat_whole(usage: JsonObject) -> Found:
    return found(read_whole(CHAT_WIRE, {**chat.reply(content="Hi"), "usage": usage}))


def _chat_streamed(usage: JsonObject) -> Found:
    return found(read(CHAT_WIRE, chat.chunk(content="Hi"), chat.chunk("stop"), {"choices": [], "usage": usage}))


def _responses_whole(usage: JsonObject) -> Found:
    return found(read_whole(OPENAI, responses.response(output=[responses.message("Hi")], usage=usage)))


def _responses_streamed(usage: JsonObject) -> Found:
    item = responses.message("Hi")
    events = (responses.CREATED, responses.added(0, item), responses.done(0, item), responses.ending(usage=usage))
    return found(read(OPENAI, *events))


def _messages_whole(usage: JsonObject) -> Found:
    body = {"content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn", "usage": usage}
    return found(read_whole(CLAUDE, body))


def _messages_streamed(usage: JsonObject) -> Found:
    delta = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    return found(read(CLAUDE, messages.message_start({"input_tokens": 1}), delta, {"type": "message_stop"}))


def _gemini_whole(usage: JsonObject) -> Found:
    return found(read_whole(GOOGLE, gemini.chunk(gemini.text("Hi"), finish="STOP", usage=usage)))


def _gemini_streamed(usage: JsonObject) -> Found:
    return found(read(GOOGLE, gemini.chunk(gemini.text("Hi")), gemini.chunk(finish="STOP", usage=usage)))


CHAT = {"chat": _chat_whole, "chat, streamed": _chat_streamed}
RESPONSES = {"responses": _responses_whole, "responses, streamed": _responses_streamed}
MESSAGES = {"messages": _messages_whole, "messages, streamed": _messages_streamed}
GEMINI = {"gemini": _gemini_whole, "gemini, streamed": _gemini_streamed}


def over(*cases: tuple[dict[str, Read], Json]) -> list[object]:
    """Each usage in each form in which its wire can send it."""
    return [
        pytest.param(read, usage, id=f"{name}: {usage}") for wire, usage in cases for name, read in wire.items()
    ]


def chat_counts(prompt: int, completion: int, total: int | None = None, **fields: Json) -> JsonObject:
    whole = prompt + completion if total is None else total
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": whole, **fields}


def counts(given: int, output: int, **fields: Json) -> JsonObject:
    return {"input_tokens": given, "output_tokens": output, **fields}


TABLE = PriceTable([PriceRow(model="p:m", input=1, output=1, cache_read=1, cache_write_5m=1, cache_write_1h=1)])


@pytest.mark.parametrize(("read", "usage"), over(
    (CHAT, chat_counts(10, 5, prompt_tokens_details={"cached_tokens": 500})),
    (RESPONSES, counts(10, 5, input_tokens_details={"cached_tokens": 500})),
    (MESSAGES, counts(10, 5, cache_creation_input_tokens=5, cache_creation={"ephemeral_1h_input_tokens": 9})),
    (GEMINI, {"promptTokenCount": 10, "candidatesTokenCount": 5, "cachedContentTokenCount": 500}),
))  # fmt: skip
def test_usage_that_contradicts_itself_has_no_price(read: Read, usage: JsonObject) -> None:
    """The provider's object is kept, and the reply has a warning. `test_counts` has each contradiction."""
    found, warnings = read(usage)
    assert found.source is UsageSource.INCONSISTENT
    assert "usage_inconsistent" in warnings
    assert found.raw is not None
    cost = TABLE.price("p:m", found, 0)
    assert (cost.nano_usd, cost.source, cost.reason) == (None, CostSource.UNPRICED, "usage inconsistent")


@pytest.mark.parametrize("value", [b"1e999", b'"\xff"'])
def test_a_field_that_cannot_be_decoded_does_not_hide_the_counts(value: bytes) -> None:
    def raw(names: str) -> msgspec.Raw:
        given, output = names.split()
        return msgspec.Raw(b'{"%b":3,"%b":2,"note":%b}' % (given.encode(), output.encode(), value))

    of_gemini = UsageCounts()
    of_gemini.add(raw("promptTokenCount candidatesTokenCount"))
    found = (
        read_chat(raw("prompt_tokens completion_tokens")),
        read_responses(raw("input_tokens output_tokens")),
        of_gemini.total(final=True),
        read_interaction(raw("total_input_tokens total_output_tokens")),
    )
    assert [usage and (usage.input_tokens, usage.output_tokens) for usage in found] == [(3, 2)] * 4


# -- Fees


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_tools_of_openai_are_in_the_bill(streamed: bool) -> None:
    """Searches and the model of an image have a price if the table has a rate. Otherwise they are named."""
    tool_usage: JsonObject = {
        "web_search": {"num_requests": 5},
        "image_gen": {"input_tokens": 40, "output_tokens": 4000, "output_tokens_details": {"image_tokens": 4000}},
    }
    fields: JsonObject = {"usage": counts(10, 5), "tool_usage": tool_usage}
    if streamed:
        usage = read(OPENAI, responses.CREATED, responses.ending(**fields)).usage
    else:
        usage = read_whole(OPENAI, responses.response(**{"output": [responses.message("Hi")], **fields})).usage
    assert usage.details == {"web_search": 5, "image_tool_input": 40, "image_tool_output": 4000}
    assert usage.raw is not None
    assert msgspec.json.decode(usage.raw)["tool_usage"] == tool_usage
    rates = {"web_search": 10_000_000_000, "image_tool_input": 5_000_000, "image_tool_output": 40_000_000}
    priced = PriceTable([PriceRow(model="p:m", input=0, output=0, extra=rates)]).price("p:m", usage, 0)
    assert priced.nano_usd == 50_000_000 + 200_000 + 160_000_000
    unpriced = TABLE.price("p:m", usage, 0)
    assert (unpriced.nano_usd, unpriced.reason) == (None, "no image_tool_input rate for p:m")


@pytest.mark.parametrize(("item", "details"), [
    ({"type": "web_search_call", "action": {"type": "search", "query": "x"}}, {"web_search": 1}),
    ({"type": "web_search_call"}, {"web_search": 1}),
    ({"type": "web_search_call", "action": {"type": "open_page", "url": "u"}}, None),
    ({"type": "file_search_call"}, {"file_search": 1}),
    ({"type": "code_interpreter_call", "container_id": "c"}, {"code_interpreter": 1}),
    ({"type": "image_generation_call"}, {"image_tool": 1}),
])  # fmt: skip
def test_a_reply_without_tool_usage_is_billed_by_its_items(item: JsonObject, details: Json) -> None:
    """Opening a page is no search. A container is billed once for any number of uses."""
    given = {"id": "i", "status": "completed", **item}
    usage = read_whole(OPENAI, responses.response(output=[given, responses.message("Hi")])).usage
    assert usage.details == details


def test_tools_of_xai_are_named_in_the_usage() -> None:
    """Billed tools have the names of the provider."""
    named = {"web_search_calls": 2, "x_search_calls": 1, "mcp_calls": 4, "code_interpreter_calls": 0}
    usage, _ = _responses_whole(counts(10, 5, server_side_tool_usage_details=named))
    assert usage.details == {"web_search": 2, "x_search": 1}


@pytest.mark.parametrize(("fields", "output", "details"), [
    ({"server_tool_use": {"web_search_requests": 2}}, 5, {"web_search": 2}),
    ({"num_sources_used": 3}, 5, {"live_search_source": 3}),
    ({"citation_tokens": 20, "num_search_queries": 4, "reasoning_tokens": 70}, 75,
        {"citation_tokens": 20, "web_search": 4}),
])  # fmt: skip
def test_fees_of_chat_completions(fields: JsonObject, output: int, details: JsonObject) -> None:
    """Searches, sources and citations are counted. Perplexity's reasoning is separate from its completion and
    total.
    """
    usage, _ = _chat_whole(chat_counts(10, 5, **fields))
    assert (usage.output_tokens, usage.details, usage.source) == (output, details, UsageSource.REPORTED)


CITED: JsonObject = {"annotations": [{"type": "url_citation", "url_citation": {"url": "u"}}] * 3}
RAN: JsonObject = {"executed_tools": [{"index": 0, "type": "search"}, {"index": 1, "type": "python"}]}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("shown", "fields", "details"), [
    (CITED, {}, {"web_search": 1}),
    (RAN, {}, {"web_search": 1}),
    ({**CITED, **RAN}, {"server_tool_use": {"web_search_requests": 2}}, {"web_search": 2}),
    (CITED, {"cost": 0.01}, None),
    ({"annotations": []}, {}, None),
])  # fmt: skip
def test_a_search_without_a_count_is_in_the_bill(
    streamed: bool, shown: JsonObject, fields: JsonObject, details: Json
) -> None:
    """Citations or tool results show the search. A count in the usage or in the server's bill comes first."""
    usage = chat_counts(10, 5, **fields)
    if streamed:
        chunks = (chat.chunk(content="Hi", **shown), chat.chunk("stop", **shown))
        outcome = read(CHAT_WIRE, *chunks, {"choices": [], "usage": usage})
    else:
        outcome = read_whole(CHAT_WIRE, {**chat.reply(content="Hi", **shown), "usage": usage})
    assert outcome.usage.details == details


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("model", "queries", "searches"),
    [("gemini-2.5-flash", 3, 1), ("gemini-3-pro-preview", 3, 3), ("gemini-3-pro-preview", 0, None)],
)
def test_grounding_of_gemini_is_in_the_bill(
    streamed: bool, model: str, queries: int, searches: int | None
) -> None:
    """Since Gemini 3 each query counts, before that each grounded request. Requested but unused searches don't
    count.
    """
    grounding: JsonObject = {"webSearchQueries": ["secret"] * queries, "searchEntryPoint": {}}
    counted: JsonObject = {"promptTokenCount": 10, "toolUsePromptTokenCount": 7}
    whole = gemini.chunk(gemini.text("Hi"), finish="STOP", usage=counted, groundingMetadata=grounding)
    last = {**whole, "modelVersion": model}
    usage = read(GOOGLE, last).usage if streamed else read_whole(GOOGLE, last).usage
    assert usage.details == (None if searches is None else {"web_search": searches})
    assert usage.input_tokens == 17
    assert usage.raw is not None
    assert b"secret" not in bytes(usage.raw)
    assert (b"web_search" in bytes(usage.raw)) == (searches is not None)


# -- The cost from a gateway

OWN_KEY: JsonObject = {"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.0025}}


@pytest.mark.parametrize(("fields", "total", "upstream"), [
    (OWN_KEY, 2_500_000, 2_500_000),
    ({**OWN_KEY, "cost": 0.0001}, 2_600_000, 2_500_000),
    ({**OWN_KEY, "is_byok": None}, 2_500_000, 2_500_000),
    ({**OWN_KEY, "is_byok": False}, 0, None),
    ({**OWN_KEY, "cost": None}, 2_500_000, 2_500_000),
    ({"cost": 0.5, "cost_details": {"upstream_inference_cost": 0.5}}, 500_000_000, None),
    ({**OWN_KEY, "cost_details": {"upstream_inference_cost": 0}}, 0, 0),
    ({**OWN_KEY, "cost_details": {"upstream_inference_cost": None, "upstream_inference_input_cost": 0.001,
        "upstream_inference_output_cost": 0.002}}, 3_000_000, 3_000_000),
    ({"cost": {"input_tokens_cost": 0.001, "total_cost": 0.006}}, 6_000_000, None),
    ({"cost": 1e-9}, 1, None), ({"cost": 0}, 0, None), ({"cost": 0.00019325}, 193_250, None), ({}, None, None),
    *[({"cost": odd}, None, None) for odd in ("0.1", True, -1, 1e300)],
])  # fmt: skip
@pytest.mark.parametrize("wire", ["chat", "chat, streamed", "responses", "embeddings", "images"])
def test_a_gateways_fee_and_the_upstream_cost_are_one_cost(
    wire: str, fields: JsonObject, total: int | None, upstream: int | None
) -> None:
    """With the user's own key, the cost is the sum of both. Both figures are kept. Invalid values are no cost."""
    stated = {name: value for name, value in fields.items() if value is not None}
    if wire == "embeddings":
        body = {"data": [{"embedding": [1.0]}], "usage": chat_counts(10, 0, **stated)}
        assert read_embeddings(msgspec.json.encode(body)).cost == (total, upstream)
        return
    if wire == "images":
        found = read_image_usage(msgspec.json.encode(counts(10, 5, **stated)))
        assert found is not None
    else:
        usage = chat_counts(10, 5) if wire in CHAT else counts(10, 5)
        found, _ = {**CHAT, **RESPONSES}[wire]({**usage, **stated})
    assert (found.reported_cost_nano_usd, found.upstream_cost_nano_usd) == (total, upstream)


# -- Parts with separate prices: modalities, searches and the service tier, as each wire reports them.


def raw(value: JsonObject) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@pytest.mark.parametrize(("said", "tier"), [
    ({"service_tier": "standard"}, None),
    ({"service_tier": "batch"}, "batch"),
    ({"service_tier": "standard", "speed": "fast"}, "fast"),
    ({"service_tier": "standard", "inference_geo": "global"}, None),
    ({"service_tier": "standard", "inference_geo": "not_available"}, None),
    ({"service_tier": "standard", "inference_geo": "us"}, "geo-us"),
    ({"service_tier": "batch", "speed": "fast", "inference_geo": "us"}, "fast+geo-us"),
])  # fmt: skip
def test_anthropic_reports_its_tier_speed_and_searches(said: JsonObject, tier: str | None) -> None:
    """The standard tier is None. Fast is a separate tier."""
    counts: JsonObject = {"input_tokens": 1, "output_tokens": 2, "server_tool_use": {"web_search_requests": 3}}
    usage = token_usage({**counts, **said})
    assert usage is not None
    assert (usage.details, usage.service_tier) == ({"web_search": 3}, tier)


def test_chat_counts_audio_as_a_part_of_another_count() -> None:
    """Audio never exceeds the count that contains it."""
    counts: JsonObject = {"prompt_tokens": 10, "completion_tokens": 5}
    heard: JsonObject = {"audio_tokens": 4}
    usage = read_chat(
        raw({**counts, "prompt_tokens_details": heard, "completion_tokens_details": {"audio_tokens": 9}}), "flex"
    )
    assert usage is not None
    assert (usage.details, usage.service_tier) == ({"audio_input": 4, "audio_output": 5}, "flex")
    plain = read_chat(raw({**counts, "prompt_tokens_details": {"audio_tokens": 0}}))
    assert plain is not None
    assert plain.details is None


def test_responses_uses_the_served_tier() -> None:
    """Default is the standard tier."""
    counts = raw({"input_tokens": 1, "output_tokens": 1})
    tiers = [usage.service_tier for word in ("default", "priority") if (usage := read_responses(counts, word))]
    assert tiers == [None, "priority"]


def test_gemini_splits_modalities_between_fresh_and_cached() -> None:
    """Cached tokens of a modality do not count as fresh ones. Values that later chunks do not repeat are kept."""
    counts = UsageCounts()
    counts.add(raw({
        "promptTokenCount": 100, "cachedContentTokenCount": 30, "serviceTier": "FLEX",
        "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 60}, {"modality": "TEXT", "tokenCount": 40}],
        "cacheTokensDetails": [{"modality": "AUDIO", "tokenCount": 20}],
    }))  # fmt: skip
    image = {"modality": "IMAGE", "tokenCount": 7}
    counts.add(raw({"candidatesTokenCount": 7, "candidatesTokensDetails": [image]}))
    usage = counts.total(final=True)
    assert usage is not None
    assert usage.details == {"audio_input": 40, "audio_cache_read": 20, "image_output": 7}
    assert usage.service_tier == "flex"


def test_openrouters_searches_are_counted_under_its_own_name_too() -> None:
    """Without `server_tool_use_details`, the call would have a price without searches."""
    counts: JsonObject = {"prompt_tokens": 10, "completion_tokens": 5}
    usage = read_chat(raw({**counts, "server_tool_use_details": {"web_search_requests": 1}}))
    assert usage is not None
    assert usage.details == {"web_search": 1}


@pytest.mark.parametrize(("cached", "written", "buckets"), [
    (2161, 2161, (7, 2161, 0)),
    (2000, 2100, (68, 2000, 100)),
    (2000, 168, (0, 2000, 168)),
    (2161, 0, (7, 2161, 0)),
])  # fmt: skip
def test_tokens_that_were_read_and_written_are_counted_once(
    cached: int, written: int, buckets: tuple[int, int, int]
) -> None:
    """OpenRouter reports Gemini's cached tokens as read and written. Together, the counts are the prompt."""
    details: JsonObject = {"cached_tokens": cached, "cache_write_tokens": written}
    chat = read_chat(raw({"prompt_tokens": 2168, "completion_tokens": 1, "prompt_tokens_details": details}))
    responses = read_responses(raw({"input_tokens": 2168, "output_tokens": 1, "input_tokens_details": details}))
    for usage in (chat, responses):
        assert usage is not None
        found = (usage.input_tokens, usage.cached_input_tokens, usage.cache_creation_input_tokens)
        assert (found, usage.total_input_tokens) == (buckets, 2168)


# -- Token estimates of requests and of any text, by the vocabulary of the model.


RATES = {(provider.name, row.host, row.model): row for provider in providers() for row in rate_rows(provider.name)}


def counted(
    *messages: Message, tools: tuple[ToolDefinition, ...] = (), system: str | None = None
) -> dict[str, float]:
    """Everything that is counted."""
    counts = count(messages, tools, system, "o200k")
    return {name: number for name, number in zip(TokenRates.__struct_fields__, counts, strict=False) if number}


def tokens(*texts: str) -> float:
    """The number of tokens of some texts."""
    return pytest.approx(sum(text_tokens(text, "o200k") for text in texts))  # type: ignore[no-any-return]


def test_a_request_is_counted_by_its_parts() -> None:
    schema = {"type": "object", "properties": {"at": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
    tool = ToolDefinition("look", "Look at it", schema)
    found = counted(
        Message.user([TextBlock("Hé there"), ImageBlock(url="https://x.test/a.png")]),
        Message.assistant([ToolUseBlock("tu_1", "look", {"at": {"x": 1}})]),
        Message.tool_result("tu_1", '{"seen": true}'),
        tools=(tool, tool),
        system="Be brief.",
    )
    described = "look" + json.dumps(schema, separators=(",", ":"))
    assert found == {
        "request": 1, "message": 3, "system": 1, "tools": 1, "tool": 2, "property": 4,
        "text": tokens("Hé there", '{"seen": true}', "Be brief.", "Look at it", "Look at it"),
        "json": tokens("look", '{"at":{"x":1}}'), "schema": tokens(described, described),
        "call": 1, "result": 1, "image": 1, "pixels": 800,
    }  # fmt: skip


def test_prose_counts_for_less_than_a_key_or_chinese_of_its_length() -> None:
    texts = [part * 400 for part in ("the cat ", "k3Y+pQ9/", "猫在睡觉了吗呢啊")]
    prose, *others = (estimate_request([Message.user(text)], (), None, TokenRates()) for text in texts)
    assert all(other > 2 * prose for other in others)


def test_signatures_media_and_documents_are_not_free() -> None:
    raw = ProviderRaw("gemini", {"thoughtSignature": "s" * 500, "id": "short"})
    found = counted(
        Message.assistant([ThinkingBlock("Hm", "s" * 100), ToolUseBlock("tu_1", "look", {}, provider_raw=raw)]),
        Message.user(
            [
                AudioBlock(data=b"RIFF1234WAVE"),
                DocumentBlock(data=b"%PDF-1"),
                DocumentBlock(data=b"plain words", media_type="text/plain"),
            ]
        ),
    )
    assert found["opaque"] == 600
    assert (found["audio"], found["document"], found["text"]) == (1, 1, tokens("Hm", "plain words"))


def test_rates_are_those_of_protocol_server_and_model() -> None:
    claude = rates_for("anthropic", "https://api.anthropic.com", "anthropic:claude-sonnet-4-5")
    assert claude.tools > 200, "Anthropic adds a prompt of its own when there are tools"
    assert claude != rates_for("anthropic", "https://api.anthropic.com", "claude-opus-4-8")
    assert (
        rates_for("openai_compatible", "http://localhost:8080", "anything")
        == rate_rows("openai_compatible")[-1].rates
    )
    assert rates_for("unheard-of", "", "") == TokenRates()
    assert rates_for("unheard-of", "", "qwen3") == TokenRates(vocabulary="qwen")


def test_every_protocol_with_rows_ends_with_one_for_all_its_models() -> None:
    """No model is estimated with the rates of another protocol."""
    last = {provider: (host, model) for provider, host, model in RATES}
    assert set(last.values()) == {("", "")}
    assert {provider.name for provider in providers() if provider.rates} == set(last)


@pytest.mark.parametrize("row", RATES.values(), ids=map(" ".join, RATES))
def test_every_row_is_sensible_for_long_texts(row: RateRow) -> None:
    """For any samples, 20,000 short words are 16,000 to 30,000 tokens."""
    assert 16_000 <= estimate_tokens("word " * 20_000, row.rates) <= 30_000


@pytest.mark.parametrize(("data", "pixels"), [
    (b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + struct.pack(">II", 30, 20), 600),
    (b"GIF89a" + struct.pack("<HH", 30, 20), 600),
    (b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\x1d\0\0\x13\0\0", 600),
    (b"RIFF\0\0\0\0WEBPVP8L" + bytes(5) + (29 | 19 << 14).to_bytes(4, "little"), 600),
    (b"RIFF\0\0\0\0WEBPVP8 " + bytes(10) + struct.pack("<HH", 30, 20), 600),
    (b"\xff\xd8\xff\xe0\0\4ab\xff\xc2\0\x11\x08" + struct.pack(">HH", 20, 30), 600),
    (b"\xff\xd8\xff\xe0\0\4ab", None),
    (b"\x89PNG\r\n\x1a\n", None),
    (b"RIFF\0\0\0\0WEBPVP9 ", None),
    (b"something else", None),
    (b"", None),
])  # fmt: skip
def test_image_sizes_are_read_from_the_file(data: bytes, pixels: int | None) -> None:
    assert image_pixels(data) == pixels


# -- Any text has an estimate by the vocabulary nearest to its model's, and is examined once.


@given(st.text(st.characters(), max_size=300), st.sampled_from([*VOCABULARIES]))
def test_any_text_has_a_sensible_estimate(text: str, vocabulary: str) -> None:
    """This includes half a character. The estimate is never negative, and at most a few tokens for each
    character.
    """
    assert 0 <= text_tokens(text, vocabulary) <= 8 * len(text) + 2


def test_every_trait_has_its_rate() -> None:
    assert len(traits("plain")) == len(traits("ünlike")) == len(TextRates.__struct_fields__)


def test_a_text_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation is estimated before each call. Only new text costs time."""
    text = "A text that nobody has estimated before, of some length."
    first = text_tokens(text, "o200k")
    monkeypatch.setattr(estimate, "traits", lambda text: pytest.fail("looked at again"))
    assert text_tokens(text, "o200k") == first


@pytest.mark.parametrize(("protocol", "model", "vocabulary"), [
    ("anthropic", "claude-sonnet-4-5", "claude"),
    ("anthropic", "my-deployment", "claude"),
    ("openai_compatible", "anthropic/claude-3.5-sonnet", "claude"),
    ("gemini", "gemini-2.5-pro", "gemma"),
    ("ollama", "gemma3:4b", "gemma"),
    ("ollama", "ollama:qwen3:8b", "qwen"),
    ("ollama", "ollama:phi4", "o200k"),
    ("ollama", "ollama:llama3.2", "llama"),
    ("openai_compatible", "llama-3.3-70b-versatile", "llama"),
    ("openai_compatible", "deepseek-r1-distill-llama-70b", "llama"),
    ("openai_compatible", "deepseek-chat", "deepseek"),
    ("openai_compatible", "Qwen/Qwen3-32B", "qwen"),
    ("openai_compatible", "mistral-large-latest", "tekken"),
    ("openai", "gpt-5-mini", "o200k"),
    ("openai", "gpt-4o", "o200k"),
    ("openai", "gpt-4.1", "o200k"),
    ("openai", "gpt-4-turbo", "cl100k"),
    ("openai", "text-embedding-3-small", "cl100k"),
    ("openai_compatible", "anything", "o200k"),
])  # fmt: skip
def test_a_model_is_counted_by_the_vocabulary_nearest_to_its_own(
    protocol: str, model: str, vocabulary: str
) -> None:
    assert vocabulary_of(protocol, model) == vocabulary


# -- Usual counts are read in one step, with the same result.


_COUNTS = st.none() | st.integers(min_value=-1, max_value=9) | st.just(3.0)
_MODALITIES = st.none() | st.lists(
    st.fixed_dictionaries({"modality": st.sampled_from(["TEXT", "AUDIO"])}, optional={"tokenCount": _COUNTS}),
    max_size=2,
)


def _some(*names: str) -> st.SearchStrategy[dict[str, Json]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, _COUNTS))


def _of_gemini(usage: JsonObject) -> tuple[object, object]:
    counts = UsageCounts()
    counts.add(raw(usage))
    return counts._plain_total(), counts._any_total(final=True)


Both: TypeAlias = "Callable[[JsonObject], tuple[object, object]]"
PLAIN: dict[str, tuple[st.SearchStrategy[JsonObject], JsonObject, Both]] = {
    "chat": (st.fixed_dictionaries({"prompt_tokens": _COUNTS, "completion_tokens": _COUNTS}, optional={
        "total_tokens": _COUNTS, "prompt_tokens_details": st.none() | _some("cached_tokens", "audio_tokens"),
        "completion_tokens_details": st.none() | _some("reasoning_tokens", "rejected_prediction_tokens"),
    }), {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9,
         "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 0}, "completion_tokens_details": {
             "reasoning_tokens": 1, "audio_tokens": 0, "accepted_prediction_tokens": 0}},
        lambda usage: (_read_plain_usage(raw(usage), "flex"), _read_any_usage(raw(usage), "flex"))),
    "messages": (st.fixed_dictionaries({"input_tokens": _COUNTS, "output_tokens": _COUNTS}, optional={
        **dict.fromkeys(("cache_read_input_tokens", "cache_creation_input_tokens"), _COUNTS),
        "cache_creation": _some("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens"),
        "service_tier": st.sampled_from(["standard", "priority"]), "speed": st.sampled_from(["fast", "standard"]),
        "inference_geo": st.sampled_from(["not_available", "us"]),
    }), {"input_tokens": 3, "output_tokens": 4, "cache_creation_input_tokens": 2, "service_tier": "standard",
         "cache_creation": {"ephemeral_5m_input_tokens": 2}},
        lambda usage: (_plain_usage(raw(usage), final=True), _any_usage(raw(usage), final=True))),
    "messages so far": (st.fixed_dictionaries({"input_tokens": _COUNTS, "output_tokens": _COUNTS}),
        {"input_tokens": 3, "output_tokens": 4},
        lambda usage: (_plain_usage(raw(usage), final=False), _any_usage(raw(usage), final=False))),
    "responses": (st.fixed_dictionaries({"input_tokens": _COUNTS, "output_tokens": _COUNTS}, optional={
        "total_tokens": _COUNTS, "input_tokens_details": st.none() | _some("cached_tokens", "cache_write_tokens"),
        "output_tokens_details": st.none() | _some("reasoning_tokens"),
    }), {"input_tokens": 5, "output_tokens": 4, "total_tokens": 9, "input_tokens_details": {"cached_tokens": 2},
         "output_tokens_details": {"reasoning_tokens": 1}},
        lambda usage: (openai_wire._read_plain_usage(raw(usage), "flex"),
                       openai_wire._read_any_usage(raw(usage), "flex", None, openai_wire.EMPTY))),
    "gemini": (st.fixed_dictionaries({}, optional={
        **dict.fromkeys(("promptTokenCount", "candidatesTokenCount", "cachedContentTokenCount"), _COUNTS),
        **dict.fromkeys(("thoughtsTokenCount", "totalTokenCount", "toolUsePromptTokenCount"), _COUNTS),
        **dict.fromkeys(("promptTokensDetails", "cacheTokensDetails", "candidatesTokensDetails"), _MODALITIES),
        "serviceTier": st.none() | st.just("flex"),
    }), {"promptTokenCount": 5, "candidatesTokenCount": 4, "totalTokenCount": 9,
         "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 5}]}, _of_gemini),
}  # fmt: skip


@pytest.mark.parametrize("wire", PLAIN)
@given(data=st.data())
def test_plain_counts_are_read_as_all_others_are(wire: str, data: st.DataObject) -> None:
    """The usual counts of each wire are plain."""
    usages, usual, read_both = PLAIN[wire]
    assert read_both(usual)[0] is not None
    plain, general = read_both(data.draw(usages))
    assert plain in (None, general)
