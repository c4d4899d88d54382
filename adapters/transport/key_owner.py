"""The vendor that a key belongs to, by the name of its environment variable. One vendor's key must not go to
another.

Without a `base_url` an adapter asks the vendor of its type. A variable that names another vendor shows that this
is not meant. For a protocol that many vendors speak, the configuration must say which vendor is meant.
"""

from __future__ import annotations

import re

from callboard.bus.errors import ConfigurationError

from ..provider import providers
from .addresses import host_of

OTHER_WORDS = frozenset({
    "ai21", "amazon", "aws", "azure", "bedrock", "cerebras", "dashscope", "deepinfra", "deepseek", "fireworks",
    "grok", "groq", "hf", "huggingface", "hyperbolic", "jina", "kimi", "litellm", "minimax", "mistral", "moonshot",
    "nebius", "novita", "nvidia", "openrouter", "perplexity", "qwen", "replicate", "sambanova", "together", "xai",
    "zai", "zhipu",
})  # fmt: skip
"""Words that mean a vendor whose address no type has as its own."""


def check_key_goes_home(name: str, variable: str | None, address: str, *, of_many: bool) -> None:
    """Refuse a key that may be of another vendor than the one that it would be sent to.

    Args:
        name: The adapter's name.
        variable: The environment variable that the key came from, if that is known.
        address: The address of the type's own vendor, which is used for want of a `base_url`.
        of_many: Whether many vendors speak the protocol, so that only a variable of this vendor's own tells that
            the vendor is meant.

    Raises:
        ConfigurationError: The variable names another vendor, or it names none and the protocol is one of many.
    """
    host = host_of(address)
    words_of = _words()
    own = words_of.get(host)
    if own is None:
        return
    words = {word for word in re.split(r"[^a-z0-9]+", (variable or "").lower()) if word}
    others = OTHER_WORDS.union(*(other for known, other in words_of.items() if known != host)).difference(own)
    if not words & others and (words & set(own) or not of_many):
        return
    whose = f"the key of {variable}" if variable else "the key"
    raise ConfigurationError(
        f"{name}: without base_url {whose} would be sent to {host}; give base_url, or "
        f"api_key_env with a name of that vendor's own, such as {own[0].upper()}_API_KEY"
    )


def _words() -> dict[str, tuple[str, ...]]:
    """By the host of each vendor whose address some type has as its own, the words that mean the vendor."""
    return {provider.home: provider.key_words for provider in providers() if provider.home}
