"""Any text has an estimate, by the vocabulary nearest to that of its model, and is looked at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.usage import text_traits
from callboard.adapters.usage.text_traits import VOCABULARIES, TextRates, text_tokens, traits, vocabulary_of


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
