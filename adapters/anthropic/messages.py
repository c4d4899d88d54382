"""A fitted history as the messages of a Messages API request. Pure.

The history is fitted by `adapters.history` first. What remains are this wire's own rules:

* Messages are `user` or `assistant`, in turns. Tool results stand in a user message, before
  anything else in it; text after them joins that message.
* Reasoning goes back word for word or not at all: without its signature it is worthless. What the reply showed of
  it may be empty text; the signature carries it.
* Calls of the provider's own tools come in pairs with their results, across messages; one without the other would
  make every later request fail. Only the last turn may still be waiting for a result.
* Text may not be empty, a failed tool's result must be text, and an image must be of a known kind.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from adapters.contract import CanonicalRequest
from adapters.data_urls import read_data_url
from adapters.history import FAILED_SILENTLY, FittedHistory, Loss
from bus.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from bus.errors import InvalidRequestError
from bus.json_types import Json, JsonObject
from bus.messages import Message, Role

IMAGE_MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def write_messages(
    request: CanonicalRequest, history: FittedHistory, provider: str
) -> tuple[list[Json], list[Loss]]:
    """The messages, and what had to be left out of them. provider: the adapter's name.

    Raises InvalidRequestError if there is no message to send.
    """
    return _Writer(request, history, provider).write()


class _Writer:
    def __init__(self, request: CanonicalRequest, history: FittedHistory, provider: str) -> None:
        self.request = request
        self.history = history
        self.provider = provider
        self.losses: list[Loss] = []

    def write(self) -> tuple[list[Json], list[Loss]]:
        unpaired = _unpaired_server_tools(self.history.messages)
        turns: list[tuple[str, list[Json]]] = []
        for message in self.history.messages:
            role = "assistant" if message.role is Role.ASSISTANT else "user"
            blocks: list[Json] = []
            for block in message.content:
                blocks += self._block(block, unpaired)
            if not blocks:
                continue
            if turns and turns[-1][0] == role:
                turns[-1][1].extend(blocks)
            else:
                turns.append((role, blocks))
        if not turns:
            raise InvalidRequestError(f"{self.provider}: the request has no message to send")
        if turns[-1][0] == "assistant":
            _trim_end(turns[-1][1])
        return [{"role": role, "content": content} for role, content in turns], self.losses

    def _block(self, block: ContentBlock, unpaired: frozenset[int]) -> Iterator[JsonObject]:
        match block:
            case TextBlock():
                yield {"type": "text", "text": block.text, **self._citations(block)}
            case ImageBlock():
                yield from self._image(block, block)
            case ToolUseBlock():
                yield self._tool_use(block)
            case ToolResultBlock():
                yield self._tool_result(block)
            case ThinkingBlock(signature=None) | ThinkingBlock(signature=""):
                self._lose(block, "thinking", "it has no signature")
            case ThinkingBlock():
                yield {"type": "thinking", "thinking": block.text, "signature": block.signature}
            case RedactedThinkingBlock():
                yield {"type": "redacted_thinking", "data": block.data}
            case OpaqueBlock() if id(block) in unpaired:
                self._lose(block, block.kind, "a provider's tool call and its result can only be sent together")
            case OpaqueBlock():
                yield _without_nulls(block.provider_raw.data)

    def _citations(self, block: TextBlock) -> JsonObject:
        raw = block.provider_raw
        given = raw.data.get("citations") if raw is not None and raw.provider == self.provider else None
        if not isinstance(given, list) or not given:
            return {}
        kept = [
            {name: value for name, value in citation.items() if name != "file_id"}  # replies have it, requests not
            for citation in given
            if isinstance(citation, dict)
        ]
        return {"citations": list(kept)}

    def _tool_use(self, block: ToolUseBlock) -> JsonObject:
        wire_block: JsonObject = {
            "type": "tool_use",
            "id": self.history.tool_ids[block.id],
            "name": block.name,
            "input": block.input,
        }
        raw = block.provider_raw
        if raw is not None and raw.provider == self.provider and raw.data.get("caller"):
            wire_block["caller"] = raw.data["caller"]
        return wire_block

    def _tool_result(self, block: ToolResultBlock) -> JsonObject:
        result: JsonObject = {"type": "tool_result", "tool_use_id": self.history.tool_ids[block.tool_use_id]}
        content: Json = self._result_content(block)
        if not content and block.is_error:
            content = FAILED_SILENTLY
        if content:
            result["content"] = content
        if block.is_error:
            result["is_error"] = True
        return result

    def _result_content(self, block: ToolResultBlock) -> str | list[Json]:
        if isinstance(block.content, str):
            return block.content if block.content.strip() else ""
        parts: list[Json] = []
        for part in block.content:
            if isinstance(part, TextBlock):
                if part.text.strip():
                    parts.append({"type": "text", "text": part.text})
            elif block.is_error:
                self._lose(block, "image", "the result of a failed tool takes text only")
            else:
                parts += self._image(part, block)
        return parts

    def _image(self, image: ImageBlock, home: ContentBlock) -> Iterator[JsonObject]:
        if image.url is not None and image.url.startswith(("https://", "http://")):
            yield {"type": "image", "source": {"type": "url", "url": image.url}}
            return
        found = read_data_url(image.url) if image.url is not None else (image.media_type or "", image.data or b"")
        if found is None:
            self._lose(home, "image", "its url is neither http(s) nor a data url")
            return
        media_type, data = found
        media_type = "image/jpeg" if media_type == "image/jpg" else media_type
        if media_type not in IMAGE_MEDIA_TYPES:
            self._lose(home, "image", f"{media_type or 'no media type'} is none of {', '.join(IMAGE_MEDIA_TYPES)}")
            return
        encoded = base64.b64encode(data).decode()
        yield {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": encoded}}

    def _lose(self, block: ContentBlock, kind: str, reason: str) -> None:
        homes = (message.id for message in self.request.messages if any(part is block for part in message.content))
        message_id = next(homes, None) or ""
        self.losses.append(Loss(self.request.session_id, message_id, kind, self.provider, reason))


def _unpaired_server_tools(messages: Iterable[Message]) -> frozenset[int]:
    """Opaque tool calls without a result and results without a call, by identity.

    A call in the last turn still waits for its result: the reply was paused, or a tool of ours has to run first.
    """
    waiting: dict[str, OpaqueBlock] = {}
    unpaired: set[int] = set()
    for message in messages:
        if message.role is Role.USER:
            unpaired.update(id(block) for block in waiting.values())
            waiting.clear()
        for block in message.content:
            if isinstance(block, OpaqueBlock):
                match block.provider_raw.data:
                    case {"type": str(kind), "tool_use_id": str(call_id)} if kind.endswith("_result"):
                        if waiting.pop(call_id, None) is None:
                            unpaired.add(id(block))
                    case {"type": "server_tool_use" | "mcp_tool_use", "id": str(call_id)}:
                        waiting[call_id] = block
                    case _:
                        pass
    return frozenset(unpaired)


def _trim_end(content: list[Json]) -> None:
    """A reply to be continued may not end in white space."""
    last = content[-1]
    if isinstance(last, dict) and last.get("type") == "text":
        last["text"] = str(last["text"]).rstrip()


def _without_nulls(data: JsonObject) -> JsonObject:
    """A block of a reply as a request takes it: its optional fields may be absent there, but not null."""
    return {name: value for name, value in data.items() if value is not None or name == "content"}
