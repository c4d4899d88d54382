"""The servers of the lab: the wires of each server, and the configuration of an adapter for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from callboard.adapters.servers import Note, notes
from callboard.bus.values.base import Json
from tests.support.wires import AnthropicWire, ChatWire, ResponsesWire, Wire
from tests.support.wires.gemini import GeminiWire
from tests.support.wires.ollama import OllamaWire
from tests.support.wires.tgi import TGIWire

WIRES: Mapping[str, Wire] = {
    "chat": ChatWire(),
    "messages": AnthropicWire(),
    "responses": ResponsesWire(),
    "gemini": GeminiWire(),
    "ollama": OllamaWire(),
    "tgi": TGIWire(),
}
"""The test kit of each wire."""

TYPES: Mapping[str, str] = {
    "chat": "openai_compatible",
    "messages": "anthropic",
    "responses": "openai",
    "gemini": "gemini",
    "ollama": "ollama",
    "tgi": "tgi",
}
"""The adapter's type for each wire."""


class Temper(NamedTuple):
    """One wire of one server."""

    server: str
    """The server's name in the field notes."""
    wire: str
    """The name of the wire in the field notes."""
    quirks: str = ""
    """Its name in the quirk table, if it is listed there."""
    model: str = "some-model"
    """The model's name in requests."""

    @property
    def name(self) -> str:
        """The adapter's name, which is also the first part of the URL's path."""
        return f"{self.server}-{self.wire}"

    @property
    def kit(self) -> Wire:
        """The test kit of its wire."""
        return WIRES[self.wire]

    @property
    def options(self) -> dict[str, Json]:
        """The options of the adapter."""
        if self.wire == "chat":
            return {"quirks": self.quirks} if self.quirks else {}
        return {"num_ctx": 32768} if self.wire == "ollama" else {}

    @property
    def tools(self) -> bool:
        """Whether the model supports tools."""
        return self.wire != "tgi"

    @property
    def images(self) -> bool:
        """Whether the model accepts images."""
        return self.wire != "tgi" and self.server not in ("perplexity", "cerebras")


TEMPERS: tuple[Temper, ...] = (
    Temper("openai", "responses", model="gpt-5.2"),
    Temper("openai", "chat", "openai", model="gpt-4.1"),
    Temper("azure", "chat", "azure", model="gpt-4.1"),
    Temper("anthropic", "messages", model="claude-opus-4-6"),
    Temper("bedrock", "messages", model="claude-opus-4-6"),
    Temper("bedrock", "chat"),
    Temper("vertex", "gemini", model="gemini-3-flash-preview"),
    Temper("gemini", "gemini", model="gemini-3-flash-preview"),
    Temper("gemini-compatible", "chat", "gemini", model="gemini-3-flash-preview"),
    Temper("openrouter", "chat", "openrouter"),
    Temper("deepseek", "chat", "deepseek", model="deepseek-reasoner"),
    Temper("deepseek", "messages", model="deepseek-reasoner"),
    Temper("moonshot", "chat", "moonshot", model="kimi-k2-thinking"),
    Temper("moonshot", "messages", model="kimi-k2-thinking"),
    Temper("zai", "chat", "zai", model="glm-4.7"),
    Temper("zai", "messages", model="glm-4.7"),
    Temper("dashscope", "chat", model="qwen3-max"),
    Temper("minimax", "chat", model="MiniMax-M2"),
    Temper("minimax", "messages", model="MiniMax-M2"),
    Temper("mistral", "chat", "mistral", model="mistral-large-latest"),
    Temper("xai", "chat", "xai", model="grok-4"),
    Temper("groq", "chat", "groq"),
    Temper("together", "chat", "together"),
    Temper("fireworks", "chat"),
    Temper("cerebras", "chat", "cerebras"),
    Temper("perplexity", "chat", "perplexity", model="sonar"),
    Temper("databricks", "chat"),
    Temper("huggingface", "chat", "huggingface"),
    Temper("github", "chat"),
    Temper("cloudflare", "chat", "cloudflare"),
    Temper("vllm", "chat", "vllm"),
    Temper("sglang", "chat", "sglang"),
    Temper("llama.cpp", "chat", "llama.cpp"),
    Temper("ollama", "ollama"),
    Temper("ollama", "chat", "ollama"),
    Temper("lmstudio", "chat", "lmstudio"),
    Temper("tgi", "tgi"),
    Temper("tgi", "chat", "tgi"),
    Temper("litellm", "chat"),
    Temper("anthropic", "chat", model="claude-opus-4-6"),
    Temper("vertex", "messages", model="claude-opus-4-6"),
    Temper("xai", "responses", model="grok-4"),
    Temper("fireworks", "messages"),
    Temper("llama.cpp", "messages"),
)


@cache
def _notes() -> tuple[Note, ...]:
    return tuple(notes())


def notes_of(temper: Temper, *kinds: str) -> list[Note]:
    """The field notes of these kinds for one wire of a server."""
    return [
        note
        for note in _notes()
        if note.kind in kinds and note.server == temper.server and note.wire in (temper.wire, "any")
    ]
