"""A fitted history as messages of Chat Completions. This module is pure.

Content that the protocol or the server doesn't take is left out and named among the losses. A tool's result has
only text in this protocol, so its images follow in a message of the user. Messages of one role are joined where
chat templates want the roles to alternate.
"""

from __future__ import annotations

from collections.abc import Iterable

from adapters.contract import AdapterCapabilities, CanonicalRequest
from adapters.requests.encoding import encode_json
from adapters.requests.history import FittedHistory, Loss
from adapters.requests.text import join_text
from bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ResultPart,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from bus.values.json import Json, JsonObject
from bus.values.messages import Message, Role

from ..quirks.servers import Quirks
from .media import media_part, refusal


def write_messages(
    request: CanonicalRequest,
    history: FittedHistory,
    quirks: Quirks,
    capabilities: AdapterCapabilities,
    provider: str,
) -> tuple[list[JsonObject], list[Loss]]:
    """The messages, without the system text, and what had to be left out of them. provider: the adapter's name."""
    return _Writer(request, history, quirks, capabilities, provider).write()


class _Writer:
    def __init__(
        self,
        request: CanonicalRequest,
        history: FittedHistory,
        quirks: Quirks,
        capabilities: AdapterCapabilities,
        provider: str,
    ) -> None:
        self.request = request
        self.history = history
        self.quirks = quirks
        self.capabilities = capabilities
        self.provider = provider
        self.losses: list[Loss] = []
        self.messages: list[JsonObject] = []

    def write(self) -> tuple[list[JsonObject], list[Loss]]:
        history = self.history.messages
        asked = [n for n, m in enumerate(history) if m.role is Role.USER and not m.steers]
        loop_start = max(asked, default=-1)
        for position, message in enumerate(history):
            match message.role:
                case Role.USER if self._only_text(message):
                    text = message.plain_text or "\n\n".join(map(_text, message.content))
                    self.messages.append({"role": "user", "content": text})
                case Role.USER:
                    self._say(self._parts(message.content, message))
                case Role.ASSISTANT if message.plain_text is not None:
                    self.messages.append({"role": "assistant", "content": message.plain_text})
                case Role.ASSISTANT:
                    self.messages.append(self._assistant(message, in_loop=position > loop_start))
                case Role.TOOL:
                    self._results(message)
                case _:
                    self.messages.append({"role": message.role.value, "content": join_text(message.content)})
        return self.messages, self.losses

    def _only_text(self, message: Message) -> bool:
        """Whether a user's message is text alone, with no user's message before it that it would join."""
        if self.messages and self.messages[-1]["role"] == "user":
            return False
        return message.plain_text is not None or all(type(block) is TextBlock for block in message.content)

    def _say(self, parts: list[JsonObject]) -> None:
        """A user's words. They join a user message before them: chat templates want roles to alternate."""
        if not parts:
            return
        before = self.messages[-1] if self.messages and self.messages[-1]["role"] == "user" else None
        if before is not None:
            content = before["content"]
            old: list[Json] = [_text_part(content)] if isinstance(content, str) else _as_list(content)
            before["content"] = [*old, *parts]
        elif all(part["type"] == "text" for part in parts):
            self.messages.append({"role": "user", "content": "\n\n".join(str(part["text"]) for part in parts)})
        else:
            self.messages.append({"role": "user", "content": list(parts)})

    def _parts(self, content: Iterable[ContentBlock], message: Message) -> list[JsonObject]:
        parts: list[JsonObject] = []
        for block in content:
            match block:
                case TextBlock():
                    parts.append(_text_part(block.text))
                case ImageBlock() if not self.capabilities.supports_images:
                    self._lose(message, block, "the model takes no images")
                case ImageBlock() | AudioBlock() | DocumentBlock():
                    reason = refusal(block, self.quirks)
                    if reason is None:
                        parts.append(media_part(block, self.quirks))
                    else:
                        self._lose(message, block, reason)
                case _:
                    pass
        return parts

    def _assistant(self, message: Message, *, in_loop: bool) -> JsonObject:
        calls = [block for block in message.content if isinstance(block, ToolUseBlock)]
        text = join_text(message.content)
        wire: JsonObject = {"role": "assistant", "content": text}
        if calls:
            wire["content"] = text or (None if self.quirks.null_content else "")
            wire["tool_calls"] = [self._call(call) for call in calls]
        self._replay(wire, message, with_calls=bool(calls) and in_loop)
        return wire

    def _call(self, call: ToolUseBlock) -> JsonObject:
        own = self.history.own(call.provider_raw)
        wire: JsonObject = {
            "id": self.history.tool_ids[call.id],
            "type": "function",
            # always an object: chat templates parse it
            "function": {"name": call.name, "arguments": encode_json(call.input).decode()},
        }
        if self.quirks.replays == "extra_content" and "extra_content" in own:
            wire["extra_content"] = own["extra_content"]
        return wire

    def _replay(self, wire: JsonObject, message: Message, *, with_calls: bool) -> None:
        """The reasoning that the server wants back; the rest is lost, and said to be."""
        details: list[Json] = []
        for block in message.content:
            if isinstance(block, TextBlock | ToolUseBlock):
                continue
            data = block.provider_raw.data if isinstance(block, ThinkingBlock) and block.provider_raw else {}
            match self.quirks.replays:
                case "tool_loop" if isinstance(block, ThinkingBlock) and with_calls:
                    wire["reasoning_content"] = f"{wire.get('reasoning_content', '')}{block.text}"
                case "reasoning_details" if "reasoning_details" in data:
                    details += _as_list(data["reasoning_details"])
                case "extra_content" if "extra_content" in data:
                    wire["extra_content"] = data["extra_content"]
                case _ if isinstance(block, ThinkingBlock):
                    self._lose(message, block, "this server takes no such reasoning back")
                case _ if isinstance(block, OpaqueBlock):
                    self._lose(message, block, "this protocol can't carry it")
                case _:
                    pass
        if details:
            wire["reasoning_details"] = details
        if with_calls and self.quirks.replays == "tool_loop":
            wire.setdefault("reasoning_content", "")

    def _results(self, message: Message) -> None:
        """One message for each result; their images follow in a user message, for results carry only text here."""
        images: list[JsonObject] = []
        for block in message.content:
            if not isinstance(block, ToolResultBlock):
                continue
            name = self.history.tool_names[block.tool_use_id]
            pictures = self._parts([part for part in _blocks(block) if isinstance(part, ImageBlock)], message)
            text = block.text or ("The result is an image; it follows." if pictures else "")
            result: JsonObject = {
                "role": "tool",
                "tool_call_id": self.history.tool_ids[block.tool_use_id],
                "content": f"Error: {text}" if block.is_error else text,
            }
            if self.quirks.tool_result_name:
                result["name"] = name
            self.messages.append(result)
            if pictures:
                images += [_text_part(f"Result of {name}:"), *pictures]
        self._say(images)

    def _lose(self, message: Message, block: ContentBlock, reason: str) -> None:
        kind = str(type(block).__struct_config__.tag)
        self.losses.append(Loss(self.request.session_id, message.id or "", kind, self.provider, reason))


def _blocks(result: ToolResultBlock) -> tuple[ResultPart, ...]:
    return (TextBlock(result.content),) if isinstance(result.content, str) else result.content


def _text(block: ContentBlock) -> str:
    return block.text if isinstance(block, TextBlock) else ""


def _text_part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []
