"""Whose a key is, by the name of the variable that it came from: one vendor's key must not go to another.

Without a `base_url` an adapter asks its type's own vendor. A variable that names another vendor says that this is
not meant; and a protocol that many vendors speak must be told which of them is.
"""

from __future__ import annotations

import re

from bus.errors import ConfigurationError

from .addresses import host_of

OWN_WORDS = {
    "api.openai.com": ("openai",),
    "api.anthropic.com": ("anthropic", "claude"),
    "generativelanguage.googleapis.com": ("gemini", "google", "vertex"),
    "api.cohere.com": ("cohere",),
    "api.voyageai.com": ("voyage", "voyageai"),
}
"""Words of a variable's name that mean a vendor whose address some type has as its own; by host."""

OTHER_WORDS = frozenset(
    {
        *(
            "azure",
            "groq",
            "mistral",
            "deepseek",
            "openrouter",
            "together",
            "fireworks",
            "xai",
            "grok",
            "perplexity",
        ),
        *("cerebras", "sambanova", "hf", "huggingface", "nvidia", "moonshot", "kimi", "zai", "zhipu", "dashscope"),
        *(
            "aws",
            "bedrock",
            "amazon",
            "qwen",
            "minimax",
            "nebius",
            "novita",
            "deepinfra",
            "hyperbolic",
            "litellm",
            "ai21",
            "replicate",
            "jina",
        ),
    }
)
"""Words that mean a vendor who is none of these."""


def check_key_goes_home(name: str, variable: str | None, address: str, *, of_many: bool) -> None:
    """Raise ConfigurationError if a key would go to a vendor that it may not be of, for want of a `base_url`.

    variable: where the key came from, if that is known. address: of the type's own vendor. of_many: many vendors
    speak the protocol, so only a variable of this one's own says that it is meant.
    """
    host = host_of(address)
    own = OWN_WORDS.get(host)
    if own is None:
        return
    words = {word for word in re.split(r"[^a-z0-9]+", (variable or "").lower()) if word}
    others = OTHER_WORDS.union(*(words for known, words in OWN_WORDS.items() if known != host))
    if not words & others and (words & set(own) or not of_many):
        return
    whose = f"the key of {variable}" if variable else "the key"
    raise ConfigurationError(
        f"{name}: without base_url {whose} would be sent to {host}; give base_url, or "
        f"api_key_env with a name of that vendor's own, such as {own[0].upper()}_API_KEY"
    )
