"""Ollama's own API, `/api/chat` and `/api/embed`. (Its `/v1` is served by `openai_compatible`.)"""

from callboard.adapters.provider import Provider, Vendor

PROVIDER = Provider(
    name="ollama",
    adapter="adapter:OllamaAdapter",
    kinds=("chat", "embedding"),
    vendor=Vendor(name="ollama"),
)
