"""Content blocks: the parts of a message.

Blocks are frozen values. Data for one provider is in `provider_raw`, with the provider's name. The data is sent
back unchanged, and only to that provider. A host may set fields in it, such as a breakpoint of the provider's
cache.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec

from .base import JsonObject, ShortRepr


class ProviderRaw(ShortRepr, frozen=True, gc=False):
    """Data that a provider attached to a block; only that provider's adapter understands it."""

    provider: str
    """The adapter's name."""
    data: JsonObject
    """The fields in the provider's format."""
    model: str | None = None
    """The model that issued the data, if the data is bound to that model."""


class TextBlock(ShortRepr, frozen=True, gc=False, tag="text"):
    """Plain text."""

    text: str
    """The text."""
    provider_raw: ProviderRaw | None = None
    """The data that the provider attached to the text, such as citations. In a user's text, extra request fields
    for one provider.
    """


class ImageBlock(ShortRepr, frozen=True, gc=False, tag="image"):
    """An image, given by exactly one of `url` and `data`.

    Raises:
        ValueError: The source or the type is missing, or there are two sources.
    """

    url: str | None = None
    """An address with the scheme http, https or data."""
    data: bytes | None = None
    """The file's bytes."""
    media_type: str | None = None
    """The type, such as ``image/png``. Required with `data`, unless the bytes show the type (PNG, JPEG, GIF,
    WebP).
    """
    detail: str | None = None
    """``low``, ``high`` or ``auto``, for providers that offer the choice."""
    provider_raw: ProviderRaw | None = None
    """Extra request fields for one provider. In an image from a model, the data that the provider attached to the
    image.
    """

    def __post_init__(self) -> None:
        _one_source(self, _sniff_image, "not a PNG, JPEG, GIF or WebP image")

    @classmethod
    def from_path(cls, path: str | Path, *, detail: str | None = None) -> ImageBlock:
        """Read an image file now.

        Raises:
            OSError: The file can't be read.
            ValueError: The bytes are not a known image.
        """
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


class AudioBlock(ShortRepr, frozen=True, gc=False, tag="audio"):
    """A recording, given by exactly one of `url` and `data`.

    Raises:
        ValueError: The source or the type is missing, or there are two sources.
    """

    url: str | None = None
    """An address with the scheme http, https or data."""
    data: bytes | None = None
    """The file's bytes."""
    media_type: str | None = None
    """The type, such as ``audio/wav``. Required with `data`, unless the bytes show the type (WAV, MP3, FLAC,
    Ogg).
    """
    provider_raw: ProviderRaw | None = None
    """Extra request fields for one provider."""

    def __post_init__(self) -> None:
        _one_source(self, _sniff_audio, "not a WAV, MP3, FLAC or Ogg file")

    @classmethod
    def from_path(cls, path: str | Path) -> AudioBlock:
        """Read an audio file now.

        Raises:
            OSError: The file can't be read.
            ValueError: The bytes are of no known kind.
        """
        return cls(data=Path(path).read_bytes())


class DocumentBlock(ShortRepr, frozen=True, gc=False, tag="document"):
    """A document, given by exactly one of `url` and `data`.

    Raises:
        ValueError: The source or the type is missing, or there are two sources.
    """

    url: str | None = None
    """An address with the scheme http, https or data."""
    data: bytes | None = None
    """The file's bytes."""
    media_type: str | None = None
    """The type, such as ``application/pdf`` or ``text/plain``. Required with `data`, unless the document is a
    PDF.
    """
    name: str | None = None
    """The file name or the title, which some providers show the model."""
    provider_raw: ProviderRaw | None = None
    """Extra request fields for one provider."""

    def __post_init__(self) -> None:
        _one_source(self, _sniff_document, "no PDF")

    @classmethod
    def from_path(cls, path: str | Path) -> DocumentBlock:
        """Read a document file now. The document's name is the file name.

        Raises:
            OSError: The file can't be read.
            ValueError: The kind of the document is unknown.
        """
        from mimetypes import guess_type

        path = Path(path)
        return cls(data=path.read_bytes(), media_type=guess_type(path.name)[0], name=path.name)


def _one_source(
    block: ImageBlock | AudioBlock | DocumentBlock, sniff: Callable[[bytes], str | None], unknown: str
) -> None:
    name = type(block).__name__
    if (block.url is None) == (block.data is None):
        raise ValueError(f"{name} needs exactly one of url= and data=")
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


class OpaqueBlock(ShortRepr, frozen=True, gc=False, tag="opaque"):
    """Content of a kind that Callboard does not know, unchanged."""

    kind: str
    """The provider's name for the kind of content."""
    provider_raw: ProviderRaw
    """The content as the provider sent it."""


class ToolUseBlock(ShortRepr, frozen=True, gc=False, tag="tool_use"):
    """A tool call that the model asks for."""

    id: str
    """Callboard's id, ``tu_<ulid>``. The provider's id is in `provider_raw`."""
    name: str
    """The tool's name."""
    input: JsonObject
    """The arguments."""
    raw_arguments: str | None = None
    """The text that the model sent, if it is not a JSON object."""
    incomplete: bool = False
    """Whether the call must not be run: it or its reply was cut off, or its arguments can't be parsed."""
    provider_raw: ProviderRaw | None = None
    """The data that the provider attached to the call."""


ResultPart: TypeAlias = TextBlock | ImageBlock | DocumentBlock | OpaqueBlock
"""A block in a tool's result."""


class ToolResultBlock(ShortRepr, frozen=True, gc=False, tag="tool_result"):
    """The result of a tool call."""

    tool_use_id: str
    """The id of the tool call."""
    content: str | tuple[ResultPart, ...] = ""
    """Text, or a sequence of text, image, document and provider blocks."""
    is_error: bool = False
    """Whether the tool failed."""
    provider_raw: ProviderRaw | None = None
    """Extra request fields for one provider."""

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            msgspec.structs.force_setattr(self, "content", tuple(self.content))

    @property
    def text(self) -> str:
        """The text of the result; images and documents are left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))


class ThinkingBlock(ShortRepr, frozen=True, gc=False, tag="thinking"):
    """Reasoning that the provider shows.

    A block with a signature and without `provider_raw` is treated as Anthropic's reasoning.
    """

    text: str
    """The reasoning; empty if it is only signed."""
    signature: str | None = None
    """The signature that the provider verifies when the block is sent back."""
    provider_raw: ProviderRaw | None = None
    """The data that the provider attached to the block."""


class RedactedThinkingBlock(ShortRepr, frozen=True, gc=False, tag="redacted_thinking"):
    """Reasoning that the provider hides."""

    data: str
    """The hidden text, which is sent back unchanged."""
    provider_raw: ProviderRaw | None = None
    """The data that the provider attached to the block."""


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
"""A part of a message."""
