"""What an adapter that makes images is: the protocol, its requests and its responses.

An interface of its own, beside that of conversations: a prompt and perhaps images go in, images come out whole.
What is done follows from what goes in: nothing but a prompt *generates*, one image *edits*, an image with a mask
edits what the mask leaves open, and several images are *composed* into one.

An image costs money each time it is made, so a request whose answer was lost is never sent again by itself: it
ends in an `OutcomeUnknownError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from adapters.contract import AttemptObserver, CallWarning, RateLimitInfo, RetryPolicy
from adapters.requests.media import media_bytes
from bus.private_file import write_private
from bus.values.content import ImageBlock
from bus.values.json import Json
from bus.values.usage import TokenUsage

ImageOperation: TypeAlias = Literal["generate", "edit", "edit-masked", "composite"]
"""Made from the prompt alone; of one image; of one, where its mask allows; of several."""


class ImageCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can make. None: not known, so nothing is refused for it; () : there is no such choice.

    operations: what it can do. max_images: of one request. sizes: as the provider names them, ``1024x1024`` or
    ``2K``. free_sizes: any ``WIDTHxHEIGHT`` of multiples of `size_step` pixels, of an aspect of 3:1 at most and no
    more than `max_pixels` in all. aspect_ratios: as ``16:9``. qualities, backgrounds, output_formats: the words
    that it knows. max_input_images: of what is edited; max_input_bytes: of one of these; input_media_types: of
    what kind they are. max_prompt_characters: of the prompt.
    """

    operations: tuple[ImageOperation, ...] = ("generate", "edit", "edit-masked", "composite")
    max_images: int | None = None
    sizes: tuple[str, ...] | None = None
    free_sizes: bool = False
    size_step: int = 16
    max_pixels: int | None = None
    aspect_ratios: tuple[str, ...] | None = None
    qualities: tuple[str, ...] | None = None
    backgrounds: tuple[str, ...] | None = None
    output_formats: tuple[str, ...] | None = None
    max_input_images: int | None = None
    max_input_bytes: int | None = None
    input_media_types: tuple[str, ...] | None = None
    max_prompt_characters: int | None = None


class ImageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to one model.

    request_id: the caller's, passed to `cancel()`. prompt: what to draw or to change.
    model: with or without its ``provider:`` prefix; a name with a colon of its own needs it. images: what to edit
    or compose, each with its bytes. mask: a PNG as large as the first image; what is transparent in it is open
    to change. n: how many images to make. size: ``WIDTHxHEIGHT``, or the provider's word for it; aspect_ratio:
    such as ``16:9``, in place of a size or beside one that is a word. quality, background, output_format: in
    the model's words, such as ``high``, ``transparent``, ``webp``. provider_options: merged into the request, by
    protocol or provider.
    max_retries, retry, timeout_seconds: instead of the configuration's, see `AdapterConfig`; what may have been
    carried out is never sent again, whatever `max_retries` allows.
    Raises ValueError for `n` below 1, a mask without an image, and inputs that have a URL and no bytes.
    """

    request_id: str
    model: str
    prompt: str
    images: tuple[ImageBlock, ...] = ()
    mask: ImageBlock | None = None
    n: int = 1
    size: str | None = None
    aspect_ratio: str | None = None
    quality: str | None = None
    background: str | None = None
    output_format: str | None = None
    provider_options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None

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
    def wire_model(self) -> str:
        """The model's name without a ``provider:`` prefix."""
        return self.model.partition(":")[2] or self.model

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


class GeneratedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image: exactly one of `data` (the file's bytes) and `url`, which is the provider's and soon expires.

    media_type: such as ``image/png``. width, height: in pixels; None if they aren't known without fetching it.
    revised_prompt: what the provider made of the prompt, if it says so.
    """

    data: bytes | None = None
    url: str | None = None
    media_type: str = "image/png"
    width: int | None = None
    height: int | None = None
    revised_prompt: str | None = None

    def save(self, path: str | Path) -> Path:
        """Write the bytes to a file, in place of any that was there. Its owner alone can read it.

        Raises ValueError if there is only a URL; OSError, also if there is a symbolic link.
        """
        if self.data is None:
            raise ValueError(f"the provider gave an address, and no bytes: {self.url}")
        target = Path(path)
        write_private(target, self.data)
        return target

    def block(self) -> ImageBlock:
        """The image as the input of a further request, or of a conversation."""
        return ImageBlock(url=self.url, data=self.data, media_type=None if self.data is None else self.media_type)


class ImageResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The images of one request, and what was done. model: ``provider:name`` of the one that served it.

    usage: tokens where the provider counts them, in the same disjoint buckets as a conversation's; otherwise the
    images, as pieces (`TokenUsage.details`). latency_ms: milliseconds, with all attempts. response_id,
    provider_request_id: the provider's own. warnings: such as ``fewer_images``, if not as many came as asked for.
    """

    request_id: str
    model: str
    provider: str
    operation: ImageOperation
    images: tuple[GeneratedImage, ...]
    usage: TokenUsage
    latency_ms: int = 0
    response_id: str | None = None
    warnings: tuple[CallWarning, ...] = ()
    rate_limit: RateLimitInfo | None = None
    provider_request_id: str | None = None


@runtime_checkable
class ImageAdapter(Protocol):
    """One provider's images. Usable alone: construct, call, close. Calls may run side by side, on one event loop.

    Only AdapterError is ever raised by a call, besides the loop's cancellation. name: stands before the colon of
    its models' names.
    """

    name: str

    async def make_images(
        self, request: ImageRequest, *, on_attempt: AttemptObserver | None = None
    ) -> ImageResponse:
        """The images. Each request costs money, so it is only sent again if surely nothing came of it.

        Raises CapabilityError, before anything is sent, for what the model can't do; OutcomeUnknownError if the
        answer was lost, and images may have been made and be billed; ContentFilterError; InvalidRequestError, with
        the `usage` that is billed, for a reply of words alone; other AdapterErrors.
        """
        ...

    def get_image_capabilities(self, model: str) -> ImageCapabilities:
        """What that model can make; no network. Raises CapabilityError if it makes no images at all."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a request. True if it was running. Idempotent. What was asked for may be made and billed all the
        same.
        """
        ...

    async def close(self) -> None:
        """Cancel what runs and release all connections. Idempotent."""
        ...
