"""A fitted history as the contents of a generateContent request. Pure.

The history is fitted by `adapters.history` first. What remain are this wire's own rules:

* Contents are `user` or `model`; the first and the last are the user's.
* All results of a model's calls stand in one content, as many as there were calls, and nothing else stands in it.
* A signature goes back in the part that it came in. A newer model wants one on the first call of each of its
  turns; where that call was another's, a fixed one says that there is none.
* A result is an object, and images in it are for newer models only; for others they follow it.
* Visible thoughts are a summary for people. Only signed ones go back.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from mimetypes import guess_type
from urllib.parse import urlsplit

from adapters.contract import CallWarning, CanonicalRequest
from adapters.data_urls import read_data_url
from adapters.history import FAILED_SILENTLY, FittedHistory, Loss
from bus.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from bus.errors import InvalidRequestError
from bus.json_types import Json, JsonObject
from bus.messages import Role

from .data import Family
from .response import REPLY_KINDS

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif")
AUDIO_TYPES = (
    "audio/wav", "audio/mp3", "audio/mpeg", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac",
)  # fmt: skip
DOCUMENT_TYPES = (
    "application/pdf", "application/json", "text/plain", "text/markdown", "text/html", "text/css", "text/csv",
    "text/xml", "text/md", "text/x-python", "text/rtf", "text/javascript",
)  # fmt: skip

NO_SIGNATURE = b64encode(b"skip_thought_signature_validator").decode()
"""Stands for the signature of a call that Gemini did not make."""

_ALIASES = {
    "image/jpg": "image/jpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/mpeg": "audio/mp3",
    "audio/x-aiff": "audio/aiff",
    "audio/x-flac": "audio/flac",
    "application/json": "text/plain",
}

Media = ImageBlock | AudioBlock | DocumentBlock


def write_contents(
    request: CanonicalRequest, history: FittedHistory, provider: str, row: Family
) -> tuple[list[JsonObject], list[Loss], list[CallWarning]]:
    """The contents, what had to be left out of them, and what had to be added. provider: the adapter's name.

    Raises InvalidRequestError if there is nothing to send.
    """
    writer = _Writer(request, history, provider, row)
    return writer.write(), writer.losses, writer.warnings


class _Writer:
    def __init__(self, request: CanonicalRequest, history: FittedHistory, provider: str, row: Family) -> None:
        self.request = request
        self.history = history
        self.provider = provider
        self.row = row
        self.losses: list[Loss] = []
        self.warnings: list[CallWarning] = []
        self.contents: list[JsonObject] = []
        self._may_join = False  # whether the last content takes more of the user's parts

    def write(self) -> list[JsonObject]:
        for message in self.history.messages:
            match message.role:
                case Role.ASSISTANT:
                    self._add("model", self._model_turn(message.content))
                case Role.TOOL:
                    self._results([block for block in message.content if isinstance(block, ToolResultBlock)])
                case _:
                    self._add("user", [part for block in message.content for part in self._said(block)])
        if not self.contents:
            raise InvalidRequestError(f"{self.provider}: the request has no message to send")
        if self.contents[0]["role"] == "model":
            self._pad(0, "begin")
        if self.contents[-1]["role"] == "model":
            self._pad(len(self.contents), "end")
        return self.contents

    def _pad(self, at: int, edge: str) -> None:
        self.contents.insert(at, {"role": "user", "parts": [{"text": ""}]})
        message = f"{self.provider}: a conversation must {edge} with the user; an empty turn was added"
        self.warnings.append(CallWarning("turn_added", message))

    def _add(self, role: str, parts: list[Json], *, alone: bool = False) -> None:
        if not parts:
            return
        last = self.contents[-1] if self.contents else None
        if last is not None and role == "user" and self._may_join and not alone:
            joined = last["parts"]
            assert isinstance(joined, list)
            joined += parts
            return
        self.contents.append({"role": role, "parts": parts})
        self._may_join = role == "user" and not alone

    # -- the user

    def _said(self, block: ContentBlock) -> Iterator[JsonObject]:
        match block:
            case TextBlock():
                yield {"text": block.text}
            case ImageBlock() | AudioBlock() | DocumentBlock():
                yield from self._media(block, block)
            case _:
                self._lose(block, "this protocol has no such part")

    def _media(self, media: Media, home: ContentBlock) -> Iterator[JsonObject]:
        """A part of bytes or of an address. home: the block of the message that it is in."""
        known = _known_types(media)
        if media.url is not None and not media.url.lower().startswith("data:"):
            scheme = urlsplit(media.url).scheme.lower()
            if scheme not in ("https", "http", "gs"):
                self._lose(home, "its url is neither http(s), gs nor a data url")
                return
            media_type = media.media_type or guess_type(urlsplit(media.url).path)[0]
            file: JsonObject = {"fileUri": media.url}
            if media_type is not None:
                file = {"mimeType": _ALIASES.get(media_type, media_type), **file}
            yield {"fileData": file}
            return
        found = read_data_url(media.url) if media.url is not None else (media.media_type or "", media.data or b"")
        if found is None:
            self._lose(home, "its data url can't be read")
            return
        media_type, data = found
        if media_type not in known and _ALIASES.get(media_type) not in known:
            self._lose(home, f"{media_type or 'no media type'} is none of {', '.join(known)}")
            return
        encoded = b64encode(data).decode()
        yield {"inlineData": {"mimeType": _ALIASES.get(media_type, media_type), "data": encoded}}

    # -- the model

    def _model_turn(self, content: tuple[ContentBlock, ...]) -> list[Json]:
        parts: list[Json] = []
        signed = False
        for block in content:
            match block:
                case TextBlock():
                    parts += self._text(block)
                case ToolUseBlock():
                    part = self._call(block)
                    if self.row.modern and not signed:
                        part.setdefault("thoughtSignature", NO_SIGNATURE)
                    signed = True
                    parts.append(part)
                case ThinkingBlock(signature=None) | ThinkingBlock(signature=""):
                    self._lose(block, "it has no signature")
                case ThinkingBlock():
                    parts.append(self._thought(block))
                case OpaqueBlock() if block.kind in REPLY_KINDS:
                    pass  # about the reply, and no part of it
                case OpaqueBlock():
                    parts.append(block.provider_raw.data)
                case _:
                    self._lose(block, "this protocol has no such part")
        return parts

    def _thought(self, block: ThinkingBlock) -> JsonObject:
        start = self._own(block).get("start")
        said = block.text[start:] if isinstance(start, int) else block.text
        return {"text": said, "thought": True, "thoughtSignature": block.signature}

    def _own(self, block: TextBlock | ToolUseBlock | ThinkingBlock) -> JsonObject:
        raw = block.provider_raw
        return raw.data if raw is not None and raw.provider == self.provider else {}

    def _text(self, block: TextBlock) -> Iterator[JsonObject]:
        """The parts that a text came in, as far as their signatures tell them apart."""
        at = 0
        signed = self._own(block).get("signatures")
        for piece in signed if isinstance(signed, list) else ():
            match piece:
                case {"start": int(start), "end": int(end), "signature": str(signature)}:
                    if not at <= start <= end <= len(block.text):
                        break  # the text is no longer what was signed
                    if start > at:
                        yield {"text": block.text[at:start]}
                    yield {"text": block.text[start:end], "thoughtSignature": signature}
                    at = end
        if at < len(block.text):
            yield {"text": block.text[at:]}

    def _call(self, block: ToolUseBlock) -> JsonObject:
        call: JsonObject = {
            "id": self.history.tool_ids[block.id],
            "name": _tool_name(block.name),
            "args": block.input,
        }
        signature = self._own(block).get("thoughtSignature")
        return {"functionCall": call, **({"thoughtSignature": signature} if signature else {})}

    # -- the tools

    def _results(self, results: list[ToolResultBlock]) -> None:
        parts: list[Json] = []
        after: list[Json] = []
        for block in results:
            name = _tool_name(self.history.tool_names[block.tool_use_id])
            said: JsonObject = (
                {"error": block.text or FAILED_SILENTLY} if block.is_error else {"output": block.text}
            )
            response: JsonObject = {"id": self.history.tool_ids[block.tool_use_id], "name": name, "response": said}
            images = list(self._images(block))
            within: list[Json] = [part for part in images if self.row.modern and "inlineData" in part]
            if within:
                response["parts"] = within
            parts.append({"functionResponse": response})
            behind = [part for part in images if part not in within]
            if behind:
                after += [{"text": f"Images in the result of {name}:"}, *behind]
        self._add("user", parts, alone=True)
        self._add("user", after)

    def _images(self, block: ToolResultBlock) -> Iterator[JsonObject]:
        for image in () if isinstance(block.content, str) else block.content:
            if isinstance(image, ImageBlock):
                yield from self._media(image, block)

    def _lose(self, block: ContentBlock, reason: str) -> None:
        homes = (message.id for message in self.request.messages if any(part is block for part in message.content))
        kind = str(type(block).__struct_config__.tag)
        message_id = next(homes, None) or ""
        self.losses.append(Loss(self.request.session_id, message_id, kind, self.provider, reason))


def _known_types(media: Media) -> tuple[str, ...]:
    match media:
        case ImageBlock():
            return IMAGE_TYPES
        case AudioBlock():
            return AUDIO_TYPES
        case DocumentBlock():
            return DOCUMENT_TYPES


def _tool_name(name: str) -> str:
    """A name that the wire takes; a model may have made one up."""
    fitted = re.sub(r"[^A-Za-z0-9_.:-]", "_", name)[:128]
    return fitted if re.match("[A-Za-z_]", fitted) else f"_{fitted}"[:128]
