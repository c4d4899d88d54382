"""Images: made, edited, composed; one call for each request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from callboard.adapters import AttemptObserver, CallWarning, CapabilityError, ImageBlock, TokenUsage
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.images import GeneratedImage, ImageAdapter, ImageOperation, ImageRequest, ImageResponse
from callboard.adapters.operations.media_wire import fit_image
from callboard.adapters.requests.estimate import TokenRates, estimate_request
from callboard.bus import Cost, Message, TextBlock
from callboard.bus.values.base import ShortRepr

from ..budgets.worst_case import most_of_images
from ..calls.plain_call import CallOptions, Models, PlainCalls, require_known
from ..routing.candidates import Named, Route
from ..runtime.runtime import Runtime

ImageInput: TypeAlias = ImageBlock | bytes | str | Path
"""An image: a block, the bytes of a file, or the path of a file."""


def image_block(given: ImageInput) -> ImageBlock:
    match given:
        case ImageBlock():
            return given
        case bytes():
            return ImageBlock(data=given)
        case str() | Path():
            return ImageBlock.from_path(given)


class ImageOptions(CallOptions, total=False):
    """The options of an image. An unsupported option is a CapabilityError before anything is sent.

    A fallback is tried only if the model before it certainly made nothing.
    """

    n: int
    """The number of images of one request; by default 1."""
    size: str | None
    """The size as ``WIDTHxHEIGHT``, or the provider's word for it."""
    aspect_ratio: str | None
    """The aspect ratio, such as ``16:9``."""
    quality: str | None
    """The quality, in the model's own words."""
    background: str | None
    """The background, in the model's own words."""
    output_format: str | None
    """The file format, in the model's own words."""


class ImageResult(ShortRepr, frozen=True, kw_only=True):
    """The images of one request."""

    images: tuple[GeneratedImage, ...]
    """The images."""
    operation: ImageOperation
    """The operation: ``generate``, ``edit``, ``edit-masked`` or ``composite``."""
    model: str
    """The model that served, as ``provider:name``."""
    usage: TokenUsage
    """The tokens of the call, or its images as pieces."""
    cost: Cost
    """The cost of the call that made the images; unknown if the model has no price."""
    request_id: str
    """The id of the call in the trace."""
    warnings: tuple[CallWarning, ...] = ()
    """Warnings about options that were left out, and about images that came out otherwise."""

    @property
    def image(self) -> GeneratedImage:
        """The first image."""
        return self.images[0]

    def save(self, path: str | Path) -> Path:
        """Write the first image to a file.

        Raises:
            ValueError: There is only a URL of the image.
            OSError: The file can't be written.
        """
        return self.image.save(path)


async def make_images(
    runtime: Runtime,
    prompt: str,
    images: Sequence[ImageInput],
    mask: ImageInput | None,
    model: Models,
    options: ImageOptions,
) -> ImageResult:
    """See `Engine.generate_image`."""
    options = require_known(options, ImageOptions)
    calls = PlainCalls("image", runtime, model, options, _maker, lambda: (prompt,))
    asked = tuple(image_block(image) for image in images)
    upon = None if mask is None else image_block(mask)

    def request_to(named: Named, request_id: str) -> ImageRequest:
        return ImageRequest(
            model=f"{named.entry.adapter}:{named.entry.wire_name}",
            prompt=prompt,
            images=asked,
            mask=upon,
            n=options.get("n", 1),
            size=options.get("size"),
            aspect_ratio=options.get("aspect_ratio"),
            quality=options.get("quality"),
            background=options.get("background"),
            output_format=options.get("output_format"),
            **calls.basics(named.entry, request_id),
        )

    def check(adapter: ImageAdapter, named: Named) -> None:
        fit_image(request_to(named, ""), adapter.get_image_capabilities(named.entry.wire_name))

    async def call(route: Route, request_id: str, caused_by: str | None) -> ImageResult:
        request = request_to(route.option.named, request_id)

        async def work(adapter: ImageAdapter, on_attempt: AttemptObserver) -> ImageResponse:
            return await adapter.make_images(request, on_attempt=on_attempt)

        made, cost = await calls.ask(route, request_id, caused_by, work, most=_most(request))
        return ImageResult(
            images=made.images,
            operation=made.operation,
            model=made.model,
            usage=made.usage,
            cost=cost,
            request_id=request_id,
            warnings=made.warnings,
        )

    return await calls.run(lambda: calls.first_that_works(check, call))


def _maker(adapter: ProviderAdapter, named: Named) -> ImageAdapter:
    if not isinstance(adapter, ImageAdapter):
        raise CapabilityError(f"{named.model} can't make images: its adapter supports only conversations")
    return adapter


def _most(request: ImageRequest) -> Sequence[TokenUsage]:
    """The most that a request can use."""
    said = Message.user([TextBlock(request.prompt), *request.images])
    return most_of_images(estimate_request([said], (), None, TokenRates()), request.n)
