"""The wires of images and videos: requests, replies, checks and billing. Pure.

Each image and each video costs money, so no field is dropped: a request that the model can't fulfil is refused. A
video is billed by seconds. The rate is named by resolution and sound: ``video_second``, ``video_second_1080p``
(the shorter side, above 720p), with ``_silent`` appended without sound. If the price table lacks the rate, the job
is unpriced, and the reason names the rate. A video of unknown length is billed as one ``video``.
"""

from __future__ import annotations

import binascii
import math
import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from callboard.bus.errors import CapabilityError, InvalidRequestError, StreamError
from callboard.bus.values.base import JsonObject
from callboard.bus.values.content import ImageBlock
from callboard.bus.values.usage import TokenUsage

from ..images import GeneratedImage, ImageCapabilities, ImageRequest
from ..requests.content import image_size, media_bytes, media_type_of
from ..requests.history_target import WireCall
from ..requests.settings import merge_own_options, own_options
from ..videos import VideoCapabilities, VideoJob, VideoRequest, VideoTerms, VideoVariant

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
    """The request fitted to the model: an aspect ratio becomes a size if the model has only sizes.

    No field is dropped, because each image costs money.
    """
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
        if pixels is not None and read_ratio(ratio_of(*pixels)) == ratio:
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


class VideoWire(Protocol):
    """One provider's protocol for video jobs."""

    def capabilities(self, model: str) -> VideoCapabilities:
        """The capabilities of a model, by its name on the wire. Raises CapabilityError if it has none."""
        ...

    def create(self, request: VideoRequest, provider: str) -> WireCall:
        """Write the request for a job. `check_video` has checked it."""
        ...

    def retrieve(self, job_id: str) -> WireCall:
        """The request for the state of a job."""
        ...

    def read(self, body: bytes, provider: str, model: str, terms: VideoTerms) -> VideoJob:
        """Read the job in a reply. Raises msgspec's decoding errors."""
        ...

    def content(self, job: VideoJob, variant: VideoVariant) -> str:
        """The download of a variant: a path below the base URL, or an address. Raises CapabilityError."""
        ...

    def delete(self, job_id: str) -> WireCall | None:
        """The request to delete a job; None if the provider has none."""
        ...

    def latest(self) -> WireCall | None:
        """The request for the latest jobs; None if the provider doesn't list them."""
        ...

    def read_latest(self, body: bytes, provider: str, request: VideoRequest) -> Sequence[VideoJob]: ...


def check_video(request: VideoRequest, can: VideoCapabilities) -> None:
    """Raise CapabilityError if the model can't make the video as requested. No field is dropped, because each
    video costs money.
    """
    model = request.wire_model
    if not request.prompt.strip():
        raise InvalidRequestError("a video needs a prompt")
    if request.seconds is not None and can.seconds is not None and request.seconds not in can.seconds:
        offer = ", ".join(map(str, can.seconds))
        raise CapabilityError(f"{model} does not offer videos of {request.seconds} s. It offers {offer}")
    if request.size is not None and can.sizes is not None and request.size not in can.sizes:
        raise CapabilityError(f"{model} has no size {request.size!r}: it offers {', '.join(can.sizes)}")
    if can.max_prompt_characters is not None and len(request.prompt) > can.max_prompt_characters:
        raise CapabilityError(f"{model} accepts {can.max_prompt_characters} characters in a prompt")
    match can.audio, request.audio:
        case "always", False:
            raise CapabilityError(f"{model} can't make videos without sound")
        case "never", True:
            raise CapabilityError(f"{model} can't make sound")
        case _:
            pass
    if request.first_frame is not None:
        if not can.first_frame:
            raise CapabilityError(f"{model} does not accept a first frame")
        media_type = media_type_of(request.first_frame)
        if can.first_frame_media_types is not None and media_type not in can.first_frame_media_types:
            offer = ", ".join(can.first_frame_media_types)
            raise CapabilityError(
                f"{model} does not accept a first frame of {media_type or 'that kind'}. It accepts {offer}"
            )


def merge_unpriced_options(
    fields: JsonObject,
    request: ImageRequest | VideoRequest,
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


def known_terms(terms: VideoTerms, can: VideoCapabilities) -> VideoTerms:
    """The terms of a job, with the model's defaults."""
    audio = {"always": True, "never": False}.get(can.audio, terms.audio)
    seconds = can.default_seconds if terms.seconds is None else terms.seconds
    return msgspec.structs.replace(terms, seconds=seconds, audio=None if can.audio == "never" else audio)


USUAL_SIDE = 720


def video_usage(terms: VideoTerms) -> TokenUsage:
    if terms.seconds is None:
        return TokenUsage(details={"video": 1})
    name = "video_second"
    size = None if terms.size is None else read_size(terms.size)
    if size is not None and min(size) > USUAL_SIDE:
        name += f"_{min(size)}p"
    if terms.audio is False:
        name += "_silent"
    return TokenUsage(details={name: terms.seconds})
