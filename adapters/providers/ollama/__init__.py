"""Ollama's own API. (`openai_compatible` serves its `/v1`.)"""

from ...provider import Provider, Vendor

PROVIDER = Provider(
    name="ollama",
    adapter="adapter:OllamaAdapter",
    kinds=("chat", "embedding"),
    vendor=Vendor(name="ollama"),
)
