"""The descriptor of Ollama."""

from callboard.adapters.provider import Provider, Vendor

PROVIDER = Provider(
    name="ollama",
    adapter="adapter:OllamaAdapter",
    kinds=("chat", "embedding"),
    vendor=Vendor(name="ollama"),
)
