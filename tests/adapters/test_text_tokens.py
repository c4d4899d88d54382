"""Text of every kind is estimated about as the vendors' tokenizers counted it, and looked at once."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.usage import vocabularies
from adapters.usage.estimate import upper_end
from adapters.usage.text_traits import TextRates, traits
from adapters.usage.vocabularies import text_tokens, vocabulary_of
from adapters.usage.vocabulary_rates import VOCABULARIES
from benchmarks.fit_vocabularies import errors, judged_texts
from benchmarks.texts.counted import CountedText, counted_texts
from benchmarks.texts.kinds import KINDS

MEDIAN = 0.10
NINE_IN_TEN = 0.20
NINE_IN_TEN_TOKENS = 50


def is_near(counted: CountedText, vocabulary: str, off: float) -> bool:
    """Within 20 % or 50 tokens, whichever is more."""
    return abs(off) <= max(NINE_IN_TEN, NINE_IN_TEN_TOKENS / counted.tokens[vocabulary])


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_half_of_the_estimates_are_within_a_tenth_and_nine_in_ten_within_a_fifth(vocabulary: str) -> None:
    """Of texts that the rates were not fitted to, counted by the real tokenizer."""
    found = errors(vocabulary, judged_texts())
    assert statistics.median(abs(off) for _, off in found) <= MEDIAN
    assert sum(is_near(counted, vocabulary, off) for counted, off in found) >= 0.9 * len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_text_is_far_off(kind: str) -> None:
    """By the vocabulary of most models, three in four estimates of each kind are within a fifth or 50 tokens.

    Names of code, one after the other with nothing between, are estimated too high by a quarter.
    """
    found = errors("o200k", [counted for counted in counted_texts() if counted.kind == kind])
    assert sum(is_near(counted, "o200k", off) for counted, off in found) >= (
        0.4 if kind == "identifier" else 0.75
    ) * len(found)


def test_the_upper_end_is_hardly_ever_exceeded() -> None:
    """Over all kinds and vocabularies, 999 counts in 1,000 are below it."""
    pairs = [(counted, name, tokens) for counted in counted_texts() for name, tokens in counted.tokens.items()]
    above = [
        (counted.kind, counted.seed, name)
        for counted, name, tokens in pairs
        if tokens > upper_end(round(text_tokens(counted.text, name)))
    ]
    assert len(above) <= len(pairs) / 1000, above


@given(st.text(st.characters(), max_size=300), st.sampled_from([*VOCABULARIES]))
def test_any_text_has_a_sensible_estimate(text: str, vocabulary: str) -> None:
    """Also one with half a character: never below zero, and never more than a few tokens for each character."""
    assert 0 <= text_tokens(text, vocabulary) <= 8 * len(text) + 2


@given(st.sampled_from([counted.text for counted in counted_texts()[::7]]), st.integers(3, 40))
def test_a_long_text_is_known_by_samples(text: str, times: int) -> None:
    """What is said often comes to about as much as that many times what it comes to once."""
    part = (text * 100)[:2000]
    whole = text_tokens(part * times, "o200k")
    assert whole == pytest.approx(times * text_tokens(part, "o200k"), rel=0.3)


def test_every_trait_has_its_rate() -> None:
    assert len(traits("plain")) == len(traits("ünlike")) == len(TextRates.__struct_fields__)


def test_a_text_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation is estimated before each of its calls, and only what is new in it costs anything."""
    text = "A text that nobody has estimated before, of some length."
    first = text_tokens(text, "o200k")
    monkeypatch.setattr(vocabularies, "traits", lambda text: pytest.fail("looked at again"))
    assert text_tokens(text, "o200k") == first


@pytest.mark.parametrize(
    ("protocol", "model", "vocabulary"),
    [
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
    ],
)
def test_a_model_is_counted_by_the_vocabulary_nearest_to_its_own(
    protocol: str, model: str, vocabulary: str
) -> None:
    assert vocabulary_of(protocol, model) == vocabulary
