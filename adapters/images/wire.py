"""The wire of a provider's images: how a request is written and read, and the checks before. All is pure."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Protocol

import msgspec

from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.requests.image_size import image_size
from callboard.adapters.requests.media import media_bytes, media_type_of
from callboard.bus.errors import CapabilityError, InvalidRequestError, StreamError
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.usage import TokenUsage

from .contract import GeneratedImage, ImageCapabilities, ImageRequest
from .sizes import ratio_of, read_ratio, read_size, size_of_ratio


class ImageReply(msgspec.Struct):
    """What a reply says."""

    images: list[GeneratedImage]
    """The images."""
    usage: TokenUsage | None = None
    """The usage; None if the reply doesn't say."""
    model: str | None = None
    """The model that served the request."""
    response_id: str | None = None
    """The provider's id of the reply."""
    said: str = ""
    """Words in place of an image."""


class ImageWire(Protocol):
    """One provider's way to write a request and a reply."""

    def capabilities(self, model: str) -> ImageCapabilities:
        """What a model can make, by its name on the wire. Raises CapabilityError if that is nothing."""
        ...

    def write(self, request: ImageRequest, provider: str) -> WireCall:
        """The request on the wire. It comes from `fit`: it asks for nothing that the model lacks."""
        ...

    def read(self, body: bytes, request: ImageRequest) -> ImageReply:
        """The images. Raises AdapterError for a refusal, StreamError, or msgspec's decoding errors."""
        ...


def fit(request: ImageRequest, can: ImageCapabilities) -> ImageRequest:
    """The request as the model has it: an aspect ratio alone becomes a size where the model has only sizes.

    Nothing is left out of a request, for each image costs money.

    Raises:
        CapabilityError: The model can't do what is asked.
        InvalidRequestError: There is no prompt.
    """
    model = request.wire_model
    if not request.prompt.strip():
        raise InvalidRequestError("there is no prompt to make an image of")
    if request.operation not in can.operations:
        raise CapabilityError(f"{model} can't {request.operation}: it can {', '.join(can.operations)}")
    if can.max_images is not None and request.n > can.max_images:
        raise CapabilityError(f"{model} makes at most {can.max_images} images in one request, not {request.n}")
    if can.max_prompt_characters is not None and len(request.prompt) > can.max_prompt_characters:
        length = f"{len(request.prompt)} characters"
        raise CapabilityError(f"{model} reads {can.max_prompt_characters} characters, and the prompt has {length}")
    if can.max_input_images is not None and len(request.images) > can.max_input_images:
        raise CapabilityError(f"{model} takes {can.max_input_images} images, not {len(request.images)}")
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
        raise CapabilityError("a JPEG can't be transparent: ask for png or webp")
    return _fit_size(request, can)


def _fit_size(request: ImageRequest, can: ImageCapabilities) -> ImageRequest:
    model, size, aspect = request.wire_model, request.size, request.aspect_ratio
    ratio = None if aspect is None else read_ratio(aspect)
    if aspect is not None and ratio is None:
        raise CapabilityError(f"the aspect ratio {aspect!r} is none: write it as 16:9")
    pixels = None if size is None else read_size(size)
    if ratio is not None and pixels is not None:
        raise CapabilityError(f"ask for the size {size} or for the aspect ratio {aspect}, not for both")
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
        known = read_size(named)
        if known is not None and read_ratio(ratio_of(*known)) == ratio:
            return msgspec.structs.replace(request, size=named, aspect_ratio=None)
    if can.aspect_ratios is None:
        return request
    raise CapabilityError(f"{model} has no aspect ratio {aspect}: {_offer(can.aspect_ratios or can.sizes or ())}")


def _check_free(size: tuple[int, int], can: ImageCapabilities, model: str) -> None:
    width, height = size
    if width % can.size_step or height % can.size_step:
        raise CapabilityError(f"{model} has sizes of multiples of {can.size_step} pixels, not {width}x{height}")
    if max(width, height) > 3 * min(width, height):
        raise CapabilityError(f"{model} has aspect ratios from 1:3 to 3:1, not that of {width}x{height}")
    if can.max_pixels is not None and width * height > can.max_pixels:
        raise CapabilityError(f"{model} has no size {width}x{height}: at most {can.max_pixels} pixels")


def _check_input(block: ImageBlock, can: ImageCapabilities, model: str) -> None:
    media_type, data = input_bytes(block)
    if can.input_media_types is not None and media_type not in can.input_media_types:
        raise CapabilityError(f"{model} takes no {media_type or 'such image'}: {_offer(can.input_media_types)}")
    if can.max_input_bytes is not None and len(data) > can.max_input_bytes:
        raise CapabilityError(f"{model} takes images of {can.max_input_bytes} bytes, not {len(data)}")


def _check_mask(mask: ImageBlock, image: ImageBlock) -> None:
    media_type, data = input_bytes(mask)
    if media_type != "image/png":
        raise CapabilityError(f"a mask is a PNG, not {media_type or 'of an unknown type'}")
    own, other = image_size(data), image_size(input_bytes(image)[1])
    if own is not None and other is not None and own != other:
        raise CapabilityError(f"the mask is of {own[0]}x{own[1]} pixels, and its image of {other[0]}x{other[1]}")


def _offer(choices: tuple[str, ...]) -> str:
    return f"it offers {', '.join(choices)}" if choices else "it offers no choice"


def input_bytes(block: ImageBlock) -> tuple[str, bytes]:
    """The media type and the bytes of an input. `ImageRequest` has checked that the bytes are there."""
    found = media_bytes(block)
    assert found is not None
    return media_type_of(block) or found[0], found[1]


def from_base64(text: str, media_type: str, revised_prompt: str | None = None) -> GeneratedImage:
    """An image from a reply.

    Args:
        text: The image's bytes in base64.
        media_type: The media type where the bytes don't show it.
        revised_prompt: The prompt as the provider rewrote it.

    Raises:
        StreamError: The text is no base64, or empty.
    """
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise StreamError(f"an image is no base64: {error}") from error
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
    """The media type that the bytes themselves show; None if they show no known type."""
    try:
        return ImageBlock(data=data).media_type
    except ValueError:
        return None


def pieces(images: int) -> TokenUsage:
    """The usage of images whose provider counts no tokens."""
    return TokenUsage(details={"image": images})
