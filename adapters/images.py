"""The contract of adapters that make images: the protocol, its requests and its responses.

The interface stands beside that of conversations. A prompt and perhaps images go in, and images come out whole.
The input decides the operation: a prompt alone *generates*, one image *edits*, an image with a mask edits the area
that the mask leaves open, and several images are *composed* into one.

An image costs money each time it is made. So a request whose answer was lost is never sent again by itself. It
ends in an `OutcomeUnknownError`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from callboard.bus.files import write_private
from callboard.bus.values.base import Shown
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.usage import TokenUsage

from .contract import AttemptObserver, CallRequest, CallResponse
from .requests.media import media_bytes

__all__ = [
    "GeneratedImage",
    "ImageAdapter",
    "ImageCapabilities",
    "ImageOperation",
    "ImageRequest",
    "ImageResponse",
]

ImageOperation: TypeAlias = Literal["generate", "edit", "edit-masked", "composite"]
"""Made from the prompt alone; of one image; of one, where its mask allows; of several."""


class ImageCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a model. None is not known: nothing is refused for it. An empty tuple offers no choice."""

    operations: tuple[ImageOperation, ...] = ("generate", "edit", "edit-masked", "composite")
    """What the model can do."""
    max_images: int | None = None
    """The most images of one request."""
    sizes: tuple[str, ...] | None = None
    """The sizes, as the provider names them: ``1024x1024`` or ``2K``."""
    free_sizes: bool = False
    """Whether there are sizes of any multiples of `size_step`, as far as `max_pixels` and an aspect ratio of 3:1
    allow.
    """
    size_step: int = 16
    """The pixels of which width and height are multiples."""
    max_pixels: int | None = None
    """The most pixels of an image."""
    aspect_ratios: tuple[str, ...] | None = None
    """The aspect ratios, such as ``16:9``."""
    qualities: tuple[str, ...] | None = None
    """The provider's words for qualities."""
    backgrounds: tuple[str, ...] | None = None
    """The provider's words for backgrounds."""
    output_formats: tuple[str, ...] | None = None
    """The provider's words for formats of files."""
    max_input_images: int | None = None
    """The most images that go into one."""
    max_input_bytes: int | None = None
    """The most bytes of such an image."""
    input_media_types: tuple[str, ...] | None = None
    """The media types of such images."""
    max_prompt_characters: int | None = None
    """The most characters of a prompt."""


class ImageRequest(CallRequest, frozen=True, kw_only=True):
    """One request to one model. It is never sent again if it may have been carried out.

    Raises:
        ValueError: `n` is below 1, a mask lies upon no image, or an input has a URL and no bytes.
    """

    prompt: str
    """What to draw or to change."""
    images: tuple[ImageBlock, ...] = ()
    """The images to edit or to compose, each with its bytes."""
    mask: ImageBlock | None = None
    """A PNG as large as the first image. The transparent part of it is open to change."""
    n: int = 1
    """The number of images to make."""
    size: str | None = None
    """The size as ``WIDTHxHEIGHT``, or the provider's word for it."""
    aspect_ratio: str | None = None
    """The aspect ratio, such as ``16:9``: in place of a size, or beside one that is a word."""
    quality: str | None = None
    """The model's word for the quality, such as ``high``."""
    background: str | None = None
    """The model's word for the background, such as ``transparent``."""
    output_format: str | None = None
    """The model's word for the file's format, such as ``webp``."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "images", tuple(self.images))
        if self.n < 1:
            raise ValueError(f"n is {self.n}: at least one image is made")
        if self.mask is not None and not self.images:
            raise ValueError("a mask needs an image that it lies upon")
        for block in (*self.images, *(() if self.mask is None else (self.mask,))):
            if media_bytes(block) is None:
                raise ValueError("images to edit are given as bytes: ImageBlock.from_path(path) reads a file")

    @property
    def operation(self) -> ImageOperation:
        """What is asked for, as the inputs say."""
        if self.mask is not None:
            return "edit-masked"
        match len(self.images):
            case 0:
                return "generate"
            case 1:
                return "edit"
            case _:
                return "composite"


class GeneratedImage(Shown, frozen=True, kw_only=True):
    """An image. It has either `data` or `url`."""

    data: bytes | None = None
    """The bytes of the file."""
    url: str | None = None
    """The provider's address of the file, which soon expires."""
    media_type: str = "image/png"
    """The media type, such as ``image/png``."""
    width: int | None = None
    """The width in pixels; None if it isn't known without fetching the image."""
    height: int | None = None
    """The height in pixels; None as for `width`."""
    revised_prompt: str | None = None
    """The prompt as the provider rewrote it, if it reports that."""

    def save(self, path: str | Path) -> Path:
        """Write the bytes to a file that its owner alone can read, in place of any file that was there.

        Raises:
            ValueError: There is only a URL.
            OSError: The file can't be written, or the path is a symbolic link.
        """
        if self.data is None:
            raise ValueError(f"the provider gave an address, and no bytes: {self.url}")
        target = Path(path)
        write_private(target, self.data)
        return target

    def block(self) -> ImageBlock:
        """The image as the input of a further request, or of a conversation."""
        return ImageBlock(url=self.url, data=self.data, media_type=None if self.data is None else self.media_type)


class ImageResponse(CallResponse, frozen=True, kw_only=True):
    """The images of one request."""

    operation: ImageOperation
    """What was done."""
    images: tuple[GeneratedImage, ...]
    """The images."""
    usage: TokenUsage
    """The tokens, in the buckets of a conversation, if the provider counts tokens. Otherwise the images, as pieces
    (`TokenUsage.details`)."""


@runtime_checkable
class ImageAdapter(Protocol):
    """One provider's images.

    The adapter is usable alone: construct it, call it, close it. Calls may run side by side on one event loop. A
    call raises nothing but AdapterError and the loop's cancellation.
    """

    name: str
    """The adapter's name, which stands before the colon of its models' names."""

    async def make_images(
        self, request: ImageRequest, *, on_attempt: AttemptObserver | None = None
    ) -> ImageResponse:
        """The images. Each request costs money, so it is sent again only if surely no image was made.

        Args:
            request: The images to make.
            on_attempt: Called with each report about an attempt, as in `ProviderAdapter.complete`.

        Raises:
            CapabilityError: The model can't do this. Nothing was sent.
            OutcomeUnknownError: The answer was lost. Images may have been made and billed.
            ContentFilterError: The provider refuses to make such an image.
            InvalidRequestError: The reply holds words alone. The error has the `usage` that is billed.
            AdapterError: The request failed for another reason.
        """
        ...

    def get_image_capabilities(self, model: str) -> ImageCapabilities:
        """What a model can make. No network is used. Raises CapabilityError if the model makes no images."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a request. True if it was running. Idempotent. The images may still be made and billed."""
        ...

    async def close(self) -> None:
        """Cancel what runs and release all connections. Idempotent."""
        ...
