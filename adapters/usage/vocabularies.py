"""Tokens of a text by the published vocabularies of tokenizers: about, from the traits of the text.

Models of today rarely have a published tokenizer, but each resembles one that is. What a vocabulary makes of each
trait is data (`vocabulary_rates`), fitted to text of many kinds that the real tokenizers had counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import mul

import msgspec

from ..provider import provider_named
from .text_traits import traits
from .vocabulary_rates import VOCABULARIES

_OF_MODELS: tuple[tuple[str, str], ...] = (
    (r"claude", "claude"),
    (r"gemini|gemma", "gemma"),
    (r"llama-?4", "o200k"),  # not published by a registry; of the same size
    (r"(?<!o)llama", "llama"),  # a model may have its provider's name before it, and one is Ollama's
    (r"qwen|qwq|glm", "qwen"),
    (r"deepseek", "deepseek"),
    (r"mistral|mixtral|pixtral|codestral|devstral|magistral", "tekken"),
    (r"gpt-3|gpt-4(?![.o])|text-embedding", "cl100k"),
)
"""Patterns of models' names with their vocabularies. The first pattern that fits counts."""

_USUAL = "o200k"

_NUMBERS: dict[str, tuple[float, ...]] = {
    name: msgspec.structs.astuple(rates) for name, rates in VOCABULARIES.items()
}

_REMEMBERED = 8192
_known: dict[str, dict[int, float]] = {name: {} for name in _NUMBERS}
"""What texts came to in each vocabulary, by their hash: a text isn't kept for it, and each is looked at once."""


def vocabulary_of(protocol: str, model: str) -> str:
    """The name of the vocabulary that is nearest to a model's.

    Args:
        protocol: An adapter's type, which decides where the model's name tells nothing.
        model: The model's name, with or without its provider.
    """
    for pattern, vocabulary in _OF_MODELS:
        if re.search(pattern, model, re.IGNORECASE):
            return vocabulary
    provider = provider_named(protocol)
    return _USUAL if provider is None or provider.vocabulary is None else provider.vocabulary


def tokens_of_all(texts: Iterable[str], vocabulary: str) -> float:
    """Tokens of all texts together, by a vocabulary of VOCABULARIES."""
    known, texts = _known[vocabulary], list(texts)
    try:
        return sum(map(known.__getitem__, map(hash, texts)))
    except KeyError:  # of the latest messages
        return sum(text_tokens(text, vocabulary) for text in texts)


def text_tokens(text: str, vocabulary: str) -> float:
    """Tokens of a text, by a vocabulary of VOCABULARIES."""
    known = _known[vocabulary]
    key = hash(text)
    tokens = known.get(key)
    if tokens is None:
        tokens = max(sum(map(mul, _NUMBERS[vocabulary], traits(text))), 0.0)
        if len(known) >= _REMEMBERED:
            known.clear()
        known[key] = tokens
    return tokens
