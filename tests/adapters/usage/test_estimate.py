"""Token estimates, of requests and of any text, by the vocabulary of the model."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.provider import providers
from callboard.adapters.requests import text_traits
from callboard.adapters.requests.content import image_pixels
from callboard.adapters.requests.estimate import (
    RateRow,
    TokenRates,
    count,
    estimate_request,
    estimate_tokens,
    rate_rows,
    rates_for,
)
from callboard.adapters.requests.text_traits import VOCABULARIES, TextRates, text_tokens, traits, vocabulary_of
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

RATES = {(provider.name, row.host, row.model): row for provider in providers() for row in rate_rows(provider.name)}


def counted(
    *messages: Message, tools: tuple[ToolDefinition, ...] = (), system: str | None = None
) -> dict[str, float]:
    """What is there at all."""
    counts = count(messages, tools, system, "o200k")
    return {name: number for name, number in zip(TokenRates.__struct_fields__, counts, strict=False) if number}


def tokens(*texts: str) -> float:
    """What texts come to."""
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
    """So that no model is estimated by the rates of another protocol."""
    last = {provider: (host, model) for provider, host, model in RATES}
    assert set(last.values()) == {("", "")}
    assert {provider.name for provider in providers() if provider.rates} == set(last)


@pytest.mark.parametrize("row", RATES.values(), ids=map(" ".join, RATES))
def test_every_row_is_sensible_for_long_texts(row: RateRow) -> None:
    """Whatever the few samples said: 20,000 short words are 16,000 to 30,000 tokens."""
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


# -- Any text has an estimate, by the vocabulary nearest to that of its model, and is looked at once.


@given(st.text(st.characters(), max_size=300), st.sampled_from([*VOCABULARIES]))
def test_any_text_has_a_sensible_estimate(text: str, vocabulary: str) -> None:
    """Also one with half a character: never below zero, and never more than a few tokens for each character."""
    assert 0 <= text_tokens(text, vocabulary) <= 8 * len(text) + 2


def test_every_trait_has_its_rate() -> None:
    assert len(traits("plain")) == len(traits("ünlike")) == len(TextRates.__struct_fields__)


def test_a_text_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation is estimated before each of its calls, and only what is new in it costs anything."""
    text = "A text that nobody has estimated before, of some length."
    first = text_tokens(text, "o200k")
    monkeypatch.setattr(text_traits, "traits", lambda text: pytest.fail("looked at again"))
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
