"""A model on this machine: llama.cpp in a child process, over its own HTTP server."""

from callboard.bus._lazy_names import face

from ...provider import Preset, Provider, Vendor

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

__getattr__, __dir__, __all__ = face(
    __name__,
    {
        ".adapter": "LocalAdapter",
        ".process": "LocalServer LocalServerStatistics SharedServer",
        ".child": "LocalServerSettings find_model",
    },
)
