"""Which server an address belongs to, where its endpoint is, and how a configuration chooses."""

from __future__ import annotations

import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.providers.openai_compatible.adapter import OpenAICompatibleAdapter
from callboard.adapters.providers.openai_compatible.quirks import HOSTS, QUIRKS, choose_quirks, quirks_name
from callboard.bus.errors import ConfigurationError
from callboard.bus.values.base import Json

from ...support.fake_http import FakeTransport


@pytest.mark.parametrize(
    ("base_url", "name", "endpoint"),
    [
        (None, "openai", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/v1/", "openai", "https://api.openai.com/v1/chat/completions"),
        ("https://api.groq.com", "groq", "https://api.groq.com/openai/v1/chat/completions"),
        ("https://api.groq.com/openai/v1", "groq", "https://api.groq.com/openai/v1/chat/completions"),
        ("https://openrouter.ai/api/v1", "openrouter", "https://openrouter.ai/api/v1/chat/completions"),
        ("https://api.z.ai/api/paas/v4", "zai", "https://api.z.ai/api/paas/v4/chat/completions"),
        ("https://router.huggingface.co/v1", "huggingface", "https://router.huggingface.co/v1/chat/completions"),
        (
            "https://generativelanguage.googleapis.com/v1beta/openai/",
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
        ),
        (
            "https://generativelanguage.googleapis.com/v1beta",
            "gemini",
            "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions",
        ),
        (
            "https://mine.openai.azure.com/openai/v1",
            "azure",
            "https://mine.openai.azure.com/openai/v1/chat/completions",
        ),
        (
            "https://mine.openai.azure.com/openai/deployments/x",
            "azure",
            "https://mine.openai.azure.com/openai/deployments/x/chat/completions?api-version=2024-10-21",
        ),
        ("http://localhost:11434/v1", "ollama", "http://localhost:11434/v1/chat/completions"),
        ("http://127.0.0.1:8080", "default", "http://127.0.0.1:8080/v1/chat/completions"),
        ("http://proxy.test/openai/v1", "default", "http://proxy.test/openai/v1/chat/completions"),
        ("http://proxy.test/llm/v4", "default", "http://proxy.test/llm/v4/chat/completions"),
    ],
)
def test_addresses(base_url: str | None, name: str, endpoint: str) -> None:
    """With or without its version suffix, an address leads to the same endpoint."""
    adapter = OpenAICompatibleAdapter(AdapterConfig(base_url=base_url), transport=FakeTransport())
    assert adapter.wire.quirks == QUIRKS[name]
    assert adapter.base_url + adapter.wire.path == endpoint


def test_the_host_table_names_quirks_that_exist() -> None:
    """No address leads nowhere."""
    assert set(HOSTS.values()) <= set(QUIRKS)
    assert quirks_name("http://[broken") == "default"


def test_single_fields_can_be_set() -> None:
    """An object stands over the fields of its base, `tools` over the field of that name."""
    quirks = choose_quirks({"quirks": {"base": "groq", "max_stop": 2}, "tools": "emulate"}, "http://x.test")
    assert (quirks.max_stop, quirks.path, quirks.tools) == (2, QUIRKS["groq"].path, "emulate")


@pytest.mark.parametrize(
    "options",
    [
        {"quirks": "unheard-of"},
        {"quirks": 7},
        {"quirks": {"max_stop": "many"}},
        {"quirks": {"unheard_of": 1}},
        {"quirks": {"fixed_sampling": "("}},
        {"tools": "perhaps"},
    ],
)
def test_wrong_options_are_configuration_errors(options: dict[str, Json]) -> None:
    """The text names the key."""
    with pytest.raises(ConfigurationError, match="quirks"):
        choose_quirks(options, "http://x.test")


def test_a_path_can_be_given() -> None:
    """For endpoints that are nowhere where one would look."""
    config = AdapterConfig(base_url="http://x.test", options={"path": "/chat"})
    assert OpenAICompatibleAdapter(config, transport=FakeTransport()).wire.path == "/chat"
