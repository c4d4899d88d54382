"""Content blocks: what a message is made of.

Blocks are frozen values. What only one provider understands travels with the block in `provider_raw`, marked
with the provider it belongs to, so that it can go back there unchanged and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from .json import JsonObject


class ProviderRaw(msgspec.Struct, frozen=True, gc=False):
    """What a provider attached to a block: opaque to everyone but that provider's adapter.

    provider: the adapter's name. data: the wire's own fields. model: the model that issued it, where it binds.
    """

    provider: str
    data: JsonObject
    model: str | None = None


class TextBlock(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Plain text. provider_raw: what its provider attached to it, such as citations."""

    text: str
    provider_raw: ProviderRaw | None = None


class ImageBlock(msgspec.Struct, frozen=True, gc=False, tag="image"):
    """An image: exactly one of `url` (http, https or data) and `data` (the file's bytes).

    media_type: such as ``image/png``; required with `data` unless its bytes say it (PNG, JPEG, GIF, WebP). detail:
    ``low``, ``high`` or ``auto``, for providers that have the choice. Raises ValueError if a source or the type is
    missing, or there are two sources.
    """

    url: str | None = None
    data: bytes | None = None
    media_type: str | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        _one_source(self, "ImageBlock", _sniff_image, "no PNG, JPEG, GIF or WebP")

    @classmethod
    def from_path(cls, path: str | Path, *, detail: str | None = None) -> ImageBlock:
        """Read an image file now. Raises OSError, or ValueError if its bytes are no known image."""
        return cls(data=Path(path).read_bytes(), detail=detail)


def _sniff_image(data: bytes) -> str | None:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


class AudioBlock(msgspec.Struct, frozen=True, gc=False, tag="audio"):
    """A recording: exactly one of `url` (http, https or data) and `data` (the file's bytes).

    media_type: such as ``audio/wav``; required with `data` unless its bytes say it (WAV, MP3, FLAC, Ogg).
    Raises ValueError as ImageBlock does.
    """

    url: str | None = None
    data: bytes | None = None
    media_type: str | None = None

    def __post_init__(self) -> None:
        _one_source(self, "AudioBlock", _sniff_audio, "no WAV, MP3, FLAC or Ogg")

    @classmethod
    def from_path(cls, path: str | Path) -> AudioBlock:
        """Read an audio file now. Raises OSError, or ValueError if its bytes are of no known kind."""
        return cls(data=Path(path).read_bytes())


class DocumentBlock(msgspec.Struct, frozen=True, gc=False, tag="document"):
    """A document: exactly one of `url` (http, https or data) and `data` (the file's bytes).

    media_type: such as ``application/pdf`` or ``text/plain``; required with `data` unless it is a PDF.
    name: its file name or title, which some providers show the model. Raises ValueError as ImageBlock does.
    """

    url: str | None = None
    data: bytes | None = None
    media_type: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _one_source(self, "DocumentBlock", _sniff_document, "no PDF")

    @classmethod
    def from_path(cls, path: str | Path) -> DocumentBlock:
        """Read a document now, named as its file. Raises OSError, or ValueError if its kind can't be told."""
        from mimetypes import guess_type

        path = Path(path)
        return cls(data=path.read_bytes(), media_type=guess_type(path.name)[0], name=path.name)


def _one_source(
    block: ImageBlock | AudioBlock | DocumentBlock,
    name: str,
    sniff: Callable[[bytes], str | None],
    unknown: str,
) -> None:
    if (block.url is None) == (block.data is None):
        raise ValueError(f"{name} takes exactly one of url= and data=")
    if block.data is not None and block.media_type is None:
        media_type = sniff(block.data)
        if media_type is None:
            raise ValueError(f"{name}(data=...) needs media_type=: the bytes are {unknown}")
        msgspec.structs.force_setattr(block, "media_type", media_type)


def _sniff_audio(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    if data.startswith(b"ID3") or data[:2] in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"):
        return "audio/mpeg"
    if data.startswith(b"fLaC"):
        return "audio/flac"
    if data.startswith(b"OggS"):
        return "audio/ogg"
    return None


def _sniff_document(data: bytes) -> str | None:
    return "application/pdf" if data.startswith(b"%PDF-") else None


class ToolUseBlock(msgspec.Struct, frozen=True, gc=False, tag="tool_use"):
    """A call of a tool, asked for by the model.

    id: our own id, ``tu_<ulid>``; the issuing provider's id is in `provider_raw`. name: of the tool.
    input: the arguments. raw_arguments: the text the model sent, kept when it is no JSON object.
    incomplete: the call was cut off or cancelled, its reply did not end well, or its arguments don't parse; it
    must never be executed.
    """

    id: str
    name: str
    input: JsonObject
    raw_arguments: str | None = None
    incomplete: bool = False
    provider_raw: ProviderRaw | None = None


ResultPart: TypeAlias = TextBlock | ImageBlock | DocumentBlock
"""What a tool's result may be made of."""


class ToolResultBlock(msgspec.Struct, frozen=True, gc=False, tag="tool_result"):
    """What a tool answered. tool_use_id: of the call that it answers. content: text, or text, image and document
    blocks. is_error: the tool failed.
    """

    tool_use_id: str
    content: str | tuple[ResultPart, ...] = ""
    is_error: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            msgspec.structs.force_setattr(self, "content", tuple(self.content))

    @property
    def text(self) -> str:
        """The text of the result; images and documents are left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))


class ThinkingBlock(msgspec.Struct, frozen=True, gc=False, tag="thinking"):
    """Reasoning that the provider shows. text: empty where it is only signed. signature: what lets the issuing
    provider trust it on replay.

    A block without `provider_raw` but with a signature is taken to be Anthropic's, whose format it is.
    """

    text: str
    signature: str | None = None
    provider_raw: ProviderRaw | None = None


class RedactedThinkingBlock(msgspec.Struct, frozen=True, gc=False, tag="redacted_thinking"):
    """Reasoning that the provider hides; `data` goes back verbatim."""

    data: str
    provider_raw: ProviderRaw | None = None


class OpaqueBlock(msgspec.Struct, frozen=True, gc=False, tag="opaque"):
    """Content outside this catalogue, kept as it came. kind: the provider's own name for it."""

    kind: str
    provider_raw: ProviderRaw


ContentBlock: TypeAlias = (
    TextBlock
    | ImageBlock
    | AudioBlock
    | DocumentBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | OpaqueBlock
)
"""What a message consists of."""
