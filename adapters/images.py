"""The contract of adapters with images: protocol, requests and responses.

The inputs decide the operation: a prompt alone *generates*, one image *edits*, an image with a mask edits the
mask's transparent area, and several images are *composed* into one. Each image costs money. So if the answer to a
request is lost, the request is not repeated, and `OutcomeUnknownError` is raised.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from callboard.bus.files import write_private
from callboard.bus.values.base import ShortRepr
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.usage import TokenUsage

from .contract import AttemptObserver, CallRequest, CallResponse
from .requests.content import media_bytes

__all__ = [
    "GeneratedImage",
    "ImageAdapter",
    "ImageCapabilities",
    "ImageOperation",
    "ImageRequest",
    "ImageResponse",
]

ImageOperation: TypeAlias = Literal["generate", "edit", "edit-masked", "composite"]
"""What to do: generate an image from the prompt alone, edit one image, edit inside its mask, or compose several
images.
"""


class ImageCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a model. None means unknown, and then any value is accepted. An empty tuple means that the
    option does not exist.
    """

    operations: tuple[ImageOperation, ...] = ("generate", "edit", "edit-masked", "composite")
    """The supported operations."""
    max_images: int | None = None
    """The largest number of images of one request."""
    sizes: tuple[str, ...] | None = None
    """The sizes by the provider's names: ``1024x1024`` or ``2K``."""
    free_sizes: bool = False
    """Whether width and height may be any multiples of `size_step`, within `max_pixels` and an aspect ratio of
    3:1.
    """
    size_step: int = 16
    """Width and height must be multiples of this number of pixels."""
    max_pixels: int | None = None
    """The largest number of pixels of an image."""
    aspect_ratios: tuple[str, ...] | None = None
    """The aspect ratios, such as ``16:9``."""
    qualities: tuple[str, ...] | None = None
    """The qualities by the provider's names."""
    backgrounds: tuple[str, ...] | None = None
    """The backgrounds by the provider's names."""
    output_formats: tuple[str, ...] | None = None
    """The file formats by the provider's names."""
    max_input_images: int | None = None
    """The largest number of input images."""
    max_input_bytes: int | None = None
    """The largest number of bytes of an input image."""
    input_media_types: tuple[str, ...] | None = None
    """The media types of input images."""
    max_prompt_characters: int | None = None
    """The largest number of characters of a prompt."""


class ImageRequest(CallRequest, frozen=True, kw_only=True):
    """One request to one model. The request is not repeated if the provider may have run it.

    Raises:
        ValueError: `n` is below 1, there is a mask without an image, or an input has no bytes.
    """

    prompt: str
    """The description of the image or of the change."""
    images: tuple[ImageBlock, ...] = ()
    """The images to edit or compose, with their bytes."""
    mask: ImageBlock | None = None
    """A PNG of the first image's size. Its transparent part may be changed."""
    n: int = 1
    """The number of images to make."""
    size: str | None = None
    """The size as ``WIDTHxHEIGHT``, or by the provider's name."""
    aspect_ratio: str | None = None
    """The aspect ratio, such as ``16:9``. It is used in place of the size, or in addition to a named size."""
    quality: str | None = None
    """The model's name for the quality, such as ``high``."""
    background: str | None = None
    """The model's name for the background, such as ``transparent``."""
    output_format: str | None = None
    """The model's name for the file's format, such as ``webp``."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "images", tuple(self.images))
        if self.n < 1:
            raise ValueError(f"n={self.n}: must be at least 1")
        if self.mask is not None and not self.images:
            raise ValueError("a mask needs an image")
        for block in (*self.images, *(() if self.mask is None else (self.mask,))):
            if media_bytes(block) is None:
                raise ValueError("images to edit must be bytes. To read a file, use ImageBlock.from_path(path)")

    @property
    def operation(self) -> ImageOperation:
        """The operation that the inputs imply."""
        if self.mask is not None:
            return "edit-masked"
        match len(self.images):
            case 0:
                return "generate"
            case 1:
                return "edit"
            case _:
                return "composite"


class GeneratedImage(ShortRepr, frozen=True, kw_only=True):
    """An image. It has either `data` or `url`."""

    data: bytes | None = None
    """The bytes of the file."""
    url: str | None = None
    """The provider's address of the file, which expires soon."""
    media_type: str = "image/png"
    """The media type, such as ``image/png``."""
    width: int | None = None
    """The width in pixels; None if unknown without fetching the image."""
    height: int | None = None
    """The height in pixels; None as for `width`."""
    revised_prompt: str | None = None
    """The prompt as rewritten by the provider, if reported."""

    def save(self, path: str | Path) -> Path:
        """Write the bytes to a file that only its owner can read, replacing any file there.

        Raises:
            ValueError: There is only a URL.
            OSError: The file can't be written, or the path is a symbolic link.
        """
        if self.data is None:
            raise ValueError(f"the provider returned an address instead of bytes: {self.url}")
        target = Path(path)
        write_private(target, self.data)
        return target

    def block(self) -> ImageBlock:
        """The image as an input of another request or a conversation."""
        return ImageBlock(url=self.url, data=self.data, media_type=None if self.data is None else self.media_type)


class ImageResponse(CallResponse, frozen=True, kw_only=True):
    """The images of one request."""

    operation: ImageOperation
    """The operation."""
    images: tuple[GeneratedImage, ...]
    """The images."""
    usage: TokenUsage
    """The tokens, if the provider counts them. Otherwise the number of images, in `TokenUsage.details`."""


@runtime_checkable
class ImageAdapter(Protocol):
    """One provider's images.

    The adapter works alone: construct it, call it, close it. Calls may run concurrently on one event loop. A call
    raises only AdapterError and the loop's cancellation exception.
    """

    name: str
    """The adapter's name, which is the prefix of its models' names."""

    async def make_images(
        self, request: ImageRequest, *, on_attempt: AttemptObserver | None = None
    ) -> ImageResponse:
        """Make images. The request is repeated only if the provider certainly did not run it.

        Args:
            request: The images to make.
            on_attempt: Called with each report about an attempt, as in `ProviderAdapter.complete`.

        Raises:
            CapabilityError: The model lacks an ability. Nothing was sent.
            OutcomeUnknownError: The answer was lost. Images may have been made and billed.
            ContentFilterError: The provider refuses to make such an image.
            InvalidRequestError: The reply has only text. The error's `usage` is billed.
            AdapterError: The request failed for another reason.
        """
        ...

    def get_image_capabilities(self, model: str) -> ImageCapabilities:
        """The capabilities of a model, without the network. Raises CapabilityError if it makes no images."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a request. Returns True if it was in progress. Idempotent. The images may still be made and
        billed.
        """
        ...

    async def close(self) -> None:
        """Cancel all calls and release all connections. Idempotent."""
        ...
