"""A fitted history as the steps of an interaction's input. Pure.

The history is fitted by `adapters.requests.history` first. What remain are this wire's own rules:

* What the user says is a step, and so are each thought, each call, each result, and what the model says between.
* A thought goes back with its signature, and without one it doesn't: it is a summary for people.
* A step that has no name of ours, of a reply or of the host's, is sent as it is. Anything else of the host's is a
  piece of what the user says.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator

from callboard.adapters.requests.fitted import FittedHistory, Loss
from callboard.adapters.requests.history import FAILED_SILENTLY
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.messages import Message, Role

from ..media import NEITHER, Media, sent_medium

CONTENT_TYPES = frozenset({"text", "image", "audio", "document", "video"})
"""The types of what stands in a step's content. An opaque block of any other type is a step."""

_OF_MEDIA = ("resolution", "processing", "name", "channels", "sample_rate")
"""What a host may say of a medium, in the `provider_raw` of its block."""


def write_steps(history: FittedHistory, model: str) -> tuple[list[JsonObject], list[Loss]]:
    """The steps of a history.

    Args:
        history: The fitted history.
        model: The model, as the wire names it.

    Returns:
        The steps, and the losses.

    Raises:
        InvalidRequestError: There is nothing to send.
    """
    writer = _Writer(history, model)
    return writer.write(), writer.losses


class _Writer:
    def __init__(self, history: FittedHistory, model: str) -> None:
        self.history = history
        self.model = model
        self.losses: list[Loss] = []
        self.steps: list[JsonObject] = []

    def write(self) -> list[JsonObject]:
        for message in self.history.messages:
            match message.role:
                case Role.ASSISTANT:
                    self._model_turn(message)
                case Role.TOOL:
                    results = (block for block in message.content if isinstance(block, ToolResultBlock))
                    self.steps += [self._result(block) for block in results]
                case _:
                    self._said(message)
        if not self.steps:
            raise InvalidRequestError(f"{self.history.adapter}: the request has no message to send")
        return self.steps

    def _add(self, kind: str, content: Iterable[Json]) -> None:
        """Content for a step of a kind: for the step before, if that is one."""
        last = self.steps[-1] if self.steps else {}
        before = last.get("content") if last.get("type") == kind else None
        if isinstance(before, list):
            before += content
        else:
            self.steps.append({"type": kind, "content": [*content]})

    # -- the user

    def _said(self, message: Message) -> None:
        for block in message.content:
            if isinstance(block, OpaqueBlock) and _type(block) not in CONTENT_TYPES:
                self.steps.append(block.provider_raw.data)
            elif content := list(self._content(block)):
                self._add("user_input", content)

    def _content(self, block: ContentBlock) -> Iterator[JsonObject]:
        match block:
            case TextBlock():
                yield {"type": "text", "text": block.text}
            case ImageBlock() | AudioBlock() | DocumentBlock():
                yield from self._media(block, block)
            case OpaqueBlock():
                yield block.provider_raw.data
            case _:
                self._lose(block, "this protocol has no such content")

    def _media(self, media: Media, home: ContentBlock) -> Iterator[JsonObject]:
        """A medium by its bytes or its address.

        Args:
            media: The medium.
            home: The block of the message that the medium is in.
        """
        sent = sent_medium(media)
        if sent is None:
            self._lose(home, NEITHER)
            return
        of_type: JsonObject = {} if sent.media_type is None else {"mime_type": sent.media_type}
        source: JsonObject = {"data": sent.data} if sent.url is None else {"uri": sent.url}
        own = self._fields(media.provider_raw)
        yield {"type": _kind(media, sent.media_type), **source, **of_type, **own}

    def _fields(self, raw: ProviderRaw | None) -> JsonObject:
        own = self.history.own(raw)
        return {name: own[name] for name in _OF_MEDIA if own.get(name) is not None} if own else {}

    # -- the model

    def _model_turn(self, message: Message) -> None:
        for block in message.content:
            match block:
                case TextBlock():
                    self._add("model_output", [self._text(block)])
                case ImageBlock():
                    self._add("model_output", [self._own_image(block)])
                case ToolUseBlock():
                    self.steps.append(self._call(block))
                case ThinkingBlock(signature=None) | ThinkingBlock(signature=""):
                    self._lose(block, "it has no signature")
                case ThinkingBlock():
                    self.steps.append(self._thought(block))
                case OpaqueBlock() if _type(block) in CONTENT_TYPES:
                    self._add("model_output", [block.provider_raw.data])
                case OpaqueBlock() if _type(block):
                    told = block.provider_raw.data.items()
                    self.steps.append({name: value for name, value in told if value is not None})
                case _:
                    self._lose(block, "this protocol has no such step")

    def _text(self, block: TextBlock) -> JsonObject:
        annotations = self.history.own(block.provider_raw).get("annotations")
        return {"type": "text", "text": block.text, **({"annotations": annotations} if annotations else {})}

    def _own_image(self, block: ImageBlock) -> JsonObject:
        assert block.provider_raw is not None
        source: JsonObject = {"uri": block.url}
        if block.data is not None:
            source = {"data": b64encode(block.data).decode()}
        return {"type": "image", **block.provider_raw.data, **source}

    def _call(self, block: ToolUseBlock) -> JsonObject:
        own = self.history.own(block.provider_raw)
        kept = {name: value for name, value in own.items() if name not in ("id", "arguments")}
        return {
            **kept,
            "type": "function_call",
            "id": self.history.tool_ids[block.id],
            "name": block.name,
            "arguments": block.input,
        }

    def _thought(self, block: ThinkingBlock) -> JsonObject:
        step: JsonObject = {"type": "thought", "signature": block.signature}
        summary = self.history.own(block.provider_raw).get("summary")
        if summary is not None:
            step["summary"] = summary
        elif block.text:
            step["summary"] = [{"type": "text", "text": block.text}]
        return step

    # -- the tools

    def _result(self, block: ToolResultBlock) -> JsonObject:
        result: list[Json] = []
        for part in (TextBlock(block.content),) if isinstance(block.content, str) else block.content:
            result += (
                self._content(part) if isinstance(part, TextBlock | OpaqueBlock) else self._media(part, block)
            )
        if block.is_error and not block.text:
            result.append({"type": "text", "text": FAILED_SILENTLY})
        return {
            "type": "function_result",
            "call_id": self.history.tool_ids[block.tool_use_id],
            "name": self.history.tool_names[block.tool_use_id],
            "result": result,
            **({"is_error": True} if block.is_error else {}),
        }

    def _lose(self, block: ContentBlock, reason: str) -> None:
        self.losses.append(self.history.loss(block, reason))


def _type(block: OpaqueBlock) -> str:
    found = block.provider_raw.data.get("type")
    return found if isinstance(found, str) else ""


def _kind(media: Media, media_type: str | None) -> str:
    match media:
        case ImageBlock():
            return "image"
        case AudioBlock():
            return "audio"
        case _:
            return "video" if media_type is None or media_type.startswith("video/") else "document"
