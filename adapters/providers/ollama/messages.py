"""A fitted history as Ollama's messages. This module is pure.

The content of a message is one string, and its images stand beside it as plain base64. The arguments of a tool
call are an object. A result names its tool, and for servers that know ids also the id of its call. The images of a
result follow in a message of the user, because templates show them only there.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from callboard.adapters.contract import AdapterCapabilities
from callboard.adapters.requests.history import FittedHistory, Loss
from callboard.adapters.requests.text import join_text
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.messages import Message, Role


def write_messages(
    history: FittedHistory, capabilities: AdapterCapabilities, *, provider: str, session_id: str
) -> tuple[list[Json], list[Loss]]:
    """Write a history as messages.

    Args:
        history: The fitted history.
        capabilities: The capabilities of the model.
        provider: The adapter's name.
        session_id: The session's id.

    Returns:
        The messages, system text included, and what had to be left out of them.
    """
    return _Writer(history, capabilities, provider, session_id).write()


def refused_image(image: ImageBlock, capabilities: AdapterCapabilities) -> str | None:
    """Why an image can't be sent; None if it can."""
    accepted = capabilities.accepted_image_media_types
    if accepted is not None and image.media_type is not None and image.media_type not in accepted:
        return f"the server takes no images of type {image.media_type}"
    if image_data(image) is None:
        return "the server takes images as data only, not by address"
    return None


def image_data(image: ImageBlock) -> str | None:
    """An image as base64 without any prefix; None if it has only an address."""
    if image.data is not None:
        return base64.b64encode(image.data).decode()
    head, comma, data = (image.url or "").partition(",")
    if not comma or not head.lower().startswith("data:"):
        return None
    try:
        raw = unquote_to_bytes(data)
        if head.endswith(";base64"):
            raw = base64.b64decode(b"".join(raw.split()), validate=True)
    except binascii.Error:
        return None
    return base64.b64encode(raw).decode() or None


class _Writer:
    def __init__(
        self, history: FittedHistory, capabilities: AdapterCapabilities, provider: str, session_id: str
    ) -> None:
        self.history = history
        self.capabilities = capabilities
        self.provider = provider
        self.session_id = session_id
        self.losses: list[Loss] = []
        self.messages: list[Json] = []

    def write(self) -> tuple[list[Json], list[Loss]]:
        if self.history.system is not None:
            self.messages.append({"role": "system", "content": self.history.system})
        for message in self.history.messages:
            match message.role:
                case Role.ASSISTANT:
                    self._reply(message)
                case Role.TOOL:
                    self._results(message)
                case _:
                    self._say(join_text(message.content), self._images(message, message.content))
        return self.messages, self.losses

    def _say(self, text: str, images: list[Json]) -> None:
        """A user's words and images, if there are any left."""
        if text or images:
            wire: JsonObject = {"role": "user", "content": text}
            if images:
                wire["images"] = images
            self.messages.append(wire)

    def _images(self, message: Message, content: Iterable[ContentBlock]) -> list[Json]:
        images: list[Json] = []
        for block in content:
            if isinstance(block, ImageBlock):
                reason = refused_image(block, self.capabilities)
                if reason is None:
                    images.append(image_data(block))
                else:
                    self._lose(message, block, reason)
        return images

    def _reply(self, message: Message) -> None:
        wire: JsonObject = {"role": "assistant", "content": join_text(message.content)}
        calls: list[Json] = []
        thinking = ""
        for block in message.content:
            match block:
                case ToolUseBlock():
                    function: JsonObject = {"name": block.name, "arguments": block.input}
                    calls.append({"id": self.history.tool_ids[block.id], "function": function})
                case ThinkingBlock():
                    thinking += block.text
                case OpaqueBlock() | RedactedThinkingBlock():
                    self._lose(message, block, "this protocol can't carry it")
                case _:
                    pass
        if thinking:
            wire["thinking"] = thinking
        if calls:
            wire["tool_calls"] = calls
        if calls or thinking or wire["content"]:
            self.messages.append(wire)

    def _results(self, message: Message) -> None:
        shown: list[Json] = []
        sources: list[str] = []
        for block in message.content:
            if not isinstance(block, ToolResultBlock):
                continue
            name = self.history.tool_names[block.tool_use_id]
            images = [] if isinstance(block.content, str) else self._images(message, block.content)
            if images:
                shown += images
                sources.append(name)
            text = block.text or ("The result is an image; it follows." if images else "")
            self.messages.append(
                {
                    "role": "tool",
                    "content": f"Error: {text}" if block.is_error else text,
                    "tool_name": name,
                    "tool_call_id": self.history.tool_ids[block.tool_use_id],
                }
            )
        if shown:
            self._say(f"Result of {', '.join(sources)}:", shown)

    def _lose(self, message: Message, block: ContentBlock, reason: str) -> None:
        kind = str(type(block).__struct_config__.tag)
        self.losses.append(Loss(self.session_id, message.id or "", kind, self.provider, reason, block))
