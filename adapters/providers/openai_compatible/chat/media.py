"""Images, audio and documents as parts of a user's message. This module is pure."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import TypeAlias

from callboard.adapters.requests.media import media_bytes, write_data_url
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock
from callboard.bus.values.json import JsonObject

from ..quirks.fields import Quirks

MediaBlock: TypeAlias = ImageBlock | AudioBlock | DocumentBlock

AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
TEXT_TYPES = ("text/plain", "text/markdown", "text/html", "text/csv", "application/json", "application/xml")
PDF = "application/pdf"


def hears(quirks: Quirks, model: str) -> bool:
    """Whether a model takes audio."""
    return bool(quirks.audio_models and re.search(quirks.audio_models, model))


def document_types(quirks: Quirks) -> tuple[str, ...]:
    """The media types of documents that the server takes."""
    return TEXT_TYPES if quirks.documents == "text" else (PDF, *TEXT_TYPES)


def refusal(block: MediaBlock, quirks: Quirks) -> str | None:
    """Why the server doesn't take a block in the form that it has; None if it does."""
    found = media_bytes(block)
    if found is None:
        return _address_refusal(block, quirks)
    media_type = found[0]
    match block:
        case AudioBlock() if media_type not in AUDIO_FORMATS:
            return f"the server takes no {media_type or 'untyped'} audio, only WAV and MP3"
        case DocumentBlock() if media_type not in document_types(quirks):
            return f"the server takes no {media_type or 'untyped'} documents"
        case _:
            return None


def _address_refusal(block: MediaBlock, quirks: Quirks) -> str | None:
    match block:
        case ImageBlock():
            return None if quirks.image_urls else "the server takes images as data only, not by address"
        case AudioBlock():
            return "the server takes audio as data only, not by address"
        case DocumentBlock():
            return None if quirks.document_urls else "the server takes documents as data only, not by address"


def media_part(block: MediaBlock, quirks: Quirks) -> JsonObject:
    """The part for a block that isn't refused."""
    match block:
        case ImageBlock():
            return _image(block)
        case AudioBlock():
            found = media_bytes(block)
            assert found is not None
            sound: JsonObject = {"data": b64encode(found[1]).decode(), "format": AUDIO_FORMATS[found[0]]}
            return {"type": "input_audio", "input_audio": sound}
        case DocumentBlock():
            return _document(block, quirks)


def _image(block: ImageBlock) -> JsonObject:
    found = media_bytes(block)
    url = block.url if found is None else write_data_url(*found)
    image: JsonObject = {"url": url}
    if block.detail is not None:
        image["detail"] = block.detail
    return {"type": "image_url", "image_url": image}


def _document(block: DocumentBlock, quirks: Quirks) -> JsonObject:
    found = media_bytes(block)
    if found is not None and found[0] in TEXT_TYPES:
        text = found[1].decode("utf-8", "replace")
        return {"type": "text", "text": f"{block.name}:\n\n{text}" if block.name else text}
    url = block.url if found is None else write_data_url(*found)
    if quirks.documents == "document_url":
        part: JsonObject = {"type": "document_url", "document_url": url}
        if block.name:
            part["document_name"] = block.name
        return part
    return {"type": "file", "file": {"filename": block.name or "document.pdf", "file_data": url}}
