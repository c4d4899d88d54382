"""The model on this machine among the providers: by each protocol of llama.cpp, and once more to embed."""

from callboard.adapters.provider import Preset, Provider, Vendor

PROVIDER = Provider(
    name="local",
    adapter="adapter:LocalAdapter",
    kinds=("chat", "embedding"),
    presets=(
        Preset(name="local-chat", model="smollm2", options={"protocol": "chat"}),
        Preset(name="local-messages", model="smollm2", options={"protocol": "messages"}),
        Preset(name="local-responses", model="smollm2", options={"protocol": "responses"}),
        Preset(name="local-tools", model="smollm2", options={"protocol": "chat", "tools": "emulate"}),
        Preset(
            name="local-embed",
            model="smollm2",
            kind="embedding",
            options={"embeddings": "mean", "context_tokens": 2048, "slots": 2},
        ),
    ),
    runs_here=True,
    vendor=Vendor(name="local"),
)
