"""Images: the contract of adapters, and the wire of their requests and replies.

The inputs decide the operation: a prompt alone *generates*, one image *edits*, an image with a mask edits the
mask's transparent area, and several images are *composed* into one. Each image costs money. So if the answer to a
request is lost, the request is not repeated, and `OutcomeUnknownError` is raised. No field is dropped: a request
that the model can't fulfil is refused.
"""

from __future__ import annotations

import binascii
import math
import re
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from callboard.bus.errors import CapabilityError, InvalidRequestError, StreamError
from callboard.bus.files import write_private
from callboard.bus.values.base import JsonObject, ShortRepr
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.usage import TokenUsage

from .contract import AttemptObserver, CallRequest, CallResponse
from .requests.content import image_size, media_bytes, media_type_of
from .requests.history_target import WireCall
from .requests.settings import merge_own_options, own_options

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


# --- The wire: requests, replies and checks ---

_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_RATIO = re.compile(r"([1-9]\d{0,3}):([1-9]\d{0,3})")

USUAL_PIXELS = 1024 * 1024
"""The approximate number of pixels of an image for which only an aspect ratio was requested."""


def read_size(text: str) -> tuple[int, int] | None:
    """Width and height of ``WIDTHxHEIGHT``; None for anything else."""
    found = _SIZE.fullmatch(text)
    return (int(found[1]), int(found[2])) if found else None


def read_ratio(text: str) -> tuple[int, int] | None:
    """The two numbers of ``16:9`` in lowest terms; None for anything else."""
    found = _RATIO.fullmatch(text)
    if found is None:
        return None
    width, height = int(found[1]), int(found[2])
    common = math.gcd(width, height)
    return width // common, height // common


def ratio_of(width: int, height: int) -> str:
    """The aspect ratio of a size, as ``16:9``."""
    common = math.gcd(width, height)
    return f"{width // common}:{height // common}"


def size_of_ratio(ratio: tuple[int, int], step: int) -> tuple[int, int]:
    """The size of exactly that ratio, in multiples of `step` pixels, nearest to `USUAL_PIXELS`."""
    width, height = ratio[0] * step, ratio[1] * step
    factor = math.sqrt(USUAL_PIXELS / (width * height))
    lower = max(1, math.floor(factor))
    times = min((lower, lower + 1), key=lambda n: abs(math.log(n / factor)))
    return width * times, height * times


class ImageReply(msgspec.Struct):
    images: list[GeneratedImage]
    usage: TokenUsage | None = None
    model: str | None = None
    response_id: str | None = None
    said: str = ""


class ImageWire(Protocol):
    """One provider's protocol for images."""

    def capabilities(self, model: str) -> ImageCapabilities:
        """The capabilities of a model, by its name on the wire. Raises CapabilityError if it has none."""
        ...

    def write(self, request: ImageRequest, provider: str) -> WireCall:
        """Write the request on the wire. `fit_image` has fitted it to the model."""
        ...

    def read(self, body: bytes, request: ImageRequest) -> ImageReply:
        """Read the images in a reply. Raises AdapterError for a refusal, StreamError, or msgspec's decoding
        errors.
        """
        ...


def fit_image(request: ImageRequest, can: ImageCapabilities) -> ImageRequest:
    """The request fitted to the model: an aspect ratio becomes a size if the model has only sizes."""
    model = request.wire_model
    if not request.prompt.strip():
        raise InvalidRequestError("an image needs a prompt")
    if request.operation not in can.operations:
        raise CapabilityError(f"{model} can't {request.operation}. It supports {', '.join(can.operations)}")
    if can.max_images is not None and request.n > can.max_images:
        raise CapabilityError(f"{model} makes at most {can.max_images} images in one request, not {request.n}")
    if can.max_prompt_characters is not None and len(request.prompt) > can.max_prompt_characters:
        length = f"{len(request.prompt)} characters"
        raise CapabilityError(
            f"{model} accepts {can.max_prompt_characters} characters, but the prompt has {length}"
        )
    if can.max_input_images is not None and len(request.images) > can.max_input_images:
        raise CapabilityError(f"{model} accepts {can.max_input_images} images, not {len(request.images)}")
    for block in request.images:
        _check_input(block, can, model)
    if request.mask is not None:
        _check_mask(request.mask, request.images[0])
    for name, value, choices in (
        ("quality", request.quality, can.qualities),
        ("background", request.background, can.backgrounds),
        ("output_format", request.output_format, can.output_formats),
    ):
        if value is not None and choices is not None and value not in choices:
            raise CapabilityError(f"{model} has no {name} {value!r}: {_offer(choices)}")
    if request.background == "transparent" and request.output_format == "jpeg":
        raise CapabilityError("a JPEG can't be transparent: use png or webp")
    return _fit_size(request, can)


def _fit_size(request: ImageRequest, can: ImageCapabilities) -> ImageRequest:
    model, size, aspect = request.wire_model, request.size, request.aspect_ratio
    ratio = None if aspect is None else read_ratio(aspect)
    if aspect is not None and ratio is None:
        raise CapabilityError(f"invalid aspect ratio {aspect!r}: write it as 16:9")
    pixels = None if size is None else read_size(size)
    if ratio is not None and pixels is not None:
        raise CapabilityError(f"set the size {size} or the aspect ratio {aspect}, not both")
    if size is not None and can.sizes is not None and size not in can.sizes:
        if not can.free_sizes or pixels is None:
            raise CapabilityError(f"{model} has no size {size!r}: {_offer(can.sizes)}")
        _check_free(pixels, can, model)
    if ratio is None or (can.aspect_ratios is not None and aspect in can.aspect_ratios):
        return request
    if can.free_sizes:
        found = size_of_ratio(ratio, can.size_step)
        _check_free(found, can, model)
        return msgspec.structs.replace(request, size=f"{found[0]}x{found[1]}", aspect_ratio=None)
    for named in can.sizes or ():
        pixels = read_size(named)
        if pixels is not None and ratio_of(*pixels) == ratio_of(*ratio):
            return msgspec.structs.replace(request, size=named, aspect_ratio=None)
    if can.aspect_ratios is None:
        return request
    raise CapabilityError(f"{model} has no aspect ratio {aspect}: {_offer(can.aspect_ratios or can.sizes or ())}")


def _check_free(size: tuple[int, int], can: ImageCapabilities, model: str) -> None:
    width, height = size
    if width % can.size_step or height % can.size_step:
        raise CapabilityError(f"{model} needs multiples of {can.size_step} pixels, not {width}x{height}")
    if max(width, height) > 3 * min(width, height):
        raise CapabilityError(f"{model} needs an aspect ratio from 1:3 to 3:1, not that of {width}x{height}")
    if can.max_pixels is not None and width * height > can.max_pixels:
        raise CapabilityError(f"{model} has no size {width}x{height}: at most {can.max_pixels} pixels")


def _check_input(block: ImageBlock, can: ImageCapabilities, model: str) -> None:
    media_type, data = input_bytes(block)
    if can.input_media_types is not None and media_type not in can.input_media_types:
        raise CapabilityError(
            f"{model} does not accept {media_type or 'such an image'}: {_offer(can.input_media_types)}"
        )
    if can.max_input_bytes is not None and len(data) > can.max_input_bytes:
        raise CapabilityError(f"{model} accepts images of {can.max_input_bytes} bytes, not {len(data)}")


def _check_mask(mask: ImageBlock, image: ImageBlock) -> None:
    media_type, data = input_bytes(mask)
    if media_type != "image/png":
        raise CapabilityError(f"a mask must be a PNG, not {media_type or 'of an unknown type'}")
    mask_size, other = image_size(data), image_size(input_bytes(image)[1])
    if mask_size is not None and other is not None and mask_size != other:
        raise CapabilityError(
            f"the mask has {mask_size[0]}x{mask_size[1]} pixels, but its image has {other[0]}x{other[1]}"
        )


def _offer(choices: tuple[str, ...]) -> str:
    return f"it offers {', '.join(choices)}" if choices else "it offers no choice"


def input_bytes(block: ImageBlock) -> tuple[str, bytes]:
    """The media type and bytes of an input. `ImageRequest` guarantees that it has bytes."""
    found = media_bytes(block)
    assert found is not None
    return media_type_of(block) or found[0], found[1]


def from_base64(text: str, media_type: str, revised_prompt: str | None = None) -> GeneratedImage:
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise StreamError(f"an image is not base64: {error}") from error
    if not data:
        raise StreamError("an image is empty")
    width, height = image_size(data) or (None, None)
    return GeneratedImage(
        data=data,
        media_type=sniffed(data) or media_type,
        width=width,
        height=height,
        revised_prompt=revised_prompt,
    )


def sniffed(data: bytes) -> str | None:
    """The media type that the bytes show; None if unknown."""
    try:
        return ImageBlock(data=data).media_type
    except ValueError:
        return None


def pieces(images: int) -> TokenUsage:
    """The usage of images, if the provider counts no tokens."""
    return TokenUsage(details={"image": images})


def merge_unpriced_options(
    fields: JsonObject,
    request: CallRequest,
    protocol: str,
    provider: str,
    priced: Mapping[str, str],
) -> None:
    """Merge the request's `provider_options` for one protocol into a body, in place.

    Args:
        fields: The body.
        request: The request.
        protocol: The key of `provider_options` for all servers of the protocol.
        provider: The adapter's name, another key.
        priced: The fields that change the price, with advice for the caller. They are refused, because budgets and
            costs use only the request's own arguments.

    Raises:
        InvalidRequestError: The options have such a field.
    """
    for options in own_options(request, protocol, provider):
        for name in options:
            if name in priced:
                raise InvalidRequestError(
                    f"provider_options can't set {name!r}, because the price depends on it: {priced[name]}"
                )
    merge_own_options(fields, request, protocol, provider)
