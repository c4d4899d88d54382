"""The conformance kits of Callboard's adapters: the same replies in each protocol.

To add a provider, write a subclass of Wire in this folder and add it to WIRES. All checks of
`adapters.conformance` and all tests here then run with it.
"""

from __future__ import annotations

from .anthropic import AnthropicWire
from .chat import ChatWire
from .gemini import GeminiWire
from .interactions import InteractionsWire
from .ollama import OllamaWire
from .responses import ResponsesWire
from .tgi import TGIWire, WordyTGIWire
from .wire import Wire

__all__ = ["CALLING_WIRES", "KITS", "QUIRKY", "WIRES", "AnthropicWire", "ChatWire", "ResponsesWire", "Wire"]

WIRES: tuple[Wire, ...] = (
    AnthropicWire(), ResponsesWire(), ChatWire(), GeminiWire(), OllamaWire(), TGIWire(), InteractionsWire(),
)  # fmt: skip
CALLING_WIRES = tuple(wire for wire in WIRES if wire.calls_tools)
KITS = (*CALLING_WIRES, WordyTGIWire())

QUIRKY: tuple[Wire, ...] = (
    ChatWire("openai"), ChatWire("vllm"), ChatWire("ollama"), ChatWire("deepseek"),
    ChatWire("mistral", id_prefix="abcdefgh"), ChatWire("openrouter"), ChatWire("cerebras"),
    ChatWire("llama.cpp"),
)  # fmt: skip
"""Servers of one protocol that need different requests."""
