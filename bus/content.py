"""Content blocks: what a message is made of.

Blocks are frozen values. What only one provider understands travels with the block in `provider_raw`, marked
with the provider it belongs to, so that it can go back there unchanged and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec

from .json_types import JsonObject


class ProviderRaw(msgspec.Struct, frozen=True):
    """What a provider attached to a block: opaque to everyone but that provider's adapter.

    provider: the adapter's name. data: the wire's own fields. model: the model that issued it, where it binds.
    """

    provider: str
    data: JsonObject
    model: str | None = None


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Plain text."""

    text: str
    provider_raw: ProviderRaw | None = None


class ImageBlock(msgspec.Struct, frozen=True, tag="image"):
    """An image: exactly one of `url` (http, https or data) and `data` (the file's bytes).

    media_type: such as ``image/png``; required with `data`. detail: ``low``, ``high`` or ``auto``.
    """

    url: str | None = None
    data: bytes | None = None
    media_type: str | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        if (self.url is None) == (self.data is None):
            raise ValueError("ImageBlock takes exactly one of url= and data=")
        if self.data is not None and self.media_type is None:
            media_type = _sniff_image(self.data)
            if media_type is None:
                raise ValueError("ImageBlock(data=...) needs media_type=: the bytes are no PNG, JPEG, GIF or WebP")
            msgspec.structs.force_setattr(self, "media_type", media_type)

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


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call of a tool, asked for by the model.

    id: our own id, ``tu_<ulid>``; the issuing provider's id is in `provider_raw`.
    input: the arguments. raw_arguments: the text the model sent, kept when it is no JSON object.
    incomplete: the call was cut off or cancelled, or its arguments don't parse; it must never be executed.
    """

    id: str
    name: str
    input: JsonObject
    raw_arguments: str | None = None
    incomplete: bool = False
    provider_raw: ProviderRaw | None = None


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result"):
    """What a tool answered. content: text, or text and image blocks. is_error: the tool failed."""

    tool_use_id: str
    content: str | tuple[TextBlock | ImageBlock, ...] = ""
    is_error: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.content, list):
            msgspec.structs.force_setattr(self, "content", tuple(self.content))

    @property
    def text(self) -> str:
        """The text of the result; images are left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """Reasoning that the provider shows. signature: what lets the issuing provider trust it on replay.

    A block without `provider_raw` but with a signature is taken to be Anthropic's, whose format it is.
    """

    text: str
    signature: str | None = None
    provider_raw: ProviderRaw | None = None


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag="redacted_thinking"):
    """Reasoning that the provider hides; `data` goes back verbatim."""

    data: str
    provider_raw: ProviderRaw | None = None


class OpaqueBlock(msgspec.Struct, frozen=True, tag="opaque"):
    """Content outside this catalogue, kept as it came. kind: the provider's own name for it."""

    kind: str
    provider_raw: ProviderRaw


ContentBlock: TypeAlias = (
    TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock | OpaqueBlock
)
