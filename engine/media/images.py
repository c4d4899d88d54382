"""Images: made, edited, composed; one call for each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

import msgspec

from adapters import AttemptObserver, CallWarning, CapabilityError, ImageBlock, RetryPolicy, TokenUsage
from adapters.contract import ProviderAdapter
from adapters.images import GeneratedImage, ImageAdapter, ImageOperation, ImageRequest, ImageResponse
from adapters.images.wire import fit
from bus import Cost
from bus.values.json import Json

from ..calls.plain_call import PlainCall, first_that_works
from ..calls.serving import examiner, scene_of
from ..calls.slots import arrival
from ..routing.candidates import Named, Route, expand
from ..runtime.borrowed_adapters import BorrowedAdapters
from ..runtime.runtime import Runtime
from .inputs import ImageInput, Models, image_block


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to make an image.

    n: how many images, of one request. size: ``WIDTHxHEIGHT``, or the provider's word for it; aspect_ratio: such
    as ``16:9``. quality, background, output_format: as the model has them. What it hasn't is a CapabilityError
    before anything is sent.
    fallback: names of other models, tried in order if one surely made nothing; None leaves it to models.yaml.
    provider_options: merged into the request. max_retries, retry, timeout_seconds: instead of the adapter's.
    tags: of the call, in the trace.
    """

    n: int = 1
    size: str | None = None
    aspect_ratio: str | None = None
    quality: str | None = None
    background: str | None = None
    output_format: str | None = None
    fallback: Sequence[str] | None = None
    provider_options: Mapping[str, Json] = {}
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    tags: Mapping[str, str] = {}


class ImageArguments(TypedDict, total=False):
    """The fields of `ImageOptions` as keyword arguments, for type checkers."""

    n: int
    size: str | None
    aspect_ratio: str | None
    quality: str | None
    background: str | None
    output_format: str | None
    fallback: Sequence[str] | None
    provider_options: Mapping[str, Json]
    max_retries: int | None
    retry: RetryPolicy | None
    timeout_seconds: float | None
    tags: Mapping[str, str]


class ImageResult(msgspec.Struct, frozen=True, kw_only=True):
    """The images, and what was done.

    operation: ``generate``, ``edit``, ``edit-masked`` or ``composite``. model: ``provider:name`` of the one that
    served. usage: its tokens, or images as pieces. cost: of the call that made them; unknown where the model has
    no price. request_id: of that call, in the trace. warnings: what was left out, or came out otherwise.
    """

    images: tuple[GeneratedImage, ...]
    operation: ImageOperation
    model: str
    usage: TokenUsage
    cost: Cost
    request_id: str
    warnings: tuple[CallWarning, ...] = ()

    @property
    def image(self) -> GeneratedImage:
        """The first one."""
        return self.images[0]

    def save(self, path: str | Path) -> Path:
        """Write the first image to a file. Raises ValueError if there is only a URL; OSError."""
        return self.image.save(path)


async def make_images(
    runtime: Runtime,
    prompt: str,
    images: Sequence[ImageInput],
    mask: ImageInput | None,
    model: Models,
    options: ImageOptions,
) -> ImageResult:
    """See `MediaMethods.generate_image`."""
    plan = expand(runtime.registry, model, options.fallback)
    asked = tuple(image_block(image) for image in images)
    upon = None if mask is None else image_block(mask)
    await runtime.host.start()
    await runtime.host.admit()
    runtime.pricing.notice()
    borrowed, order = BorrowedAdapters(runtime), arrival()

    def request_to(name: str, request_id: str) -> ImageRequest:
        return _request(name, request_id, prompt, asked, upon, options)

    def check(adapter: ProviderAdapter, named: Named) -> None:
        if not isinstance(adapter, ImageAdapter):
            raise CapabilityError(f"{named.model} can't make images: its adapter has conversations only")
        model_name = f"{named.entry.adapter}:{named.entry.wire_name}"
        fit(request_to(model_name, ""), adapter.get_image_capabilities(named.entry.wire_name))

    async def call(route: Route, request_id: str, caused_by: str | None) -> ImageResult:
        entry = route.option.named.entry
        running = await borrowed.ready(route.decision, request_id)
        request = request_to(f"{entry.adapter}:{entry.wire_name}", request_id)
        request = msgspec.structs.replace(
            request,
            max_retries=entry.max_retries if options.max_retries is None else options.max_retries,
            retry=options.retry or entry.retry,
        )

        async def work(adapter: ProviderAdapter, on_attempt: AttemptObserver) -> ImageResponse:
            assert isinstance(adapter, ImageAdapter)
            return await adapter.make_images(request, on_attempt=on_attempt)

        scene = scene_of(runtime, route, running, caused_by, options.tags)
        made, cost = await PlainCall("image", request_id, scene).run(running.ref, running.slots, order, work)
        return ImageResult(
            images=made.images,
            operation=made.operation,
            model=made.model,
            usage=made.usage,
            cost=cost,
            request_id=request_id,
            warnings=made.warnings,
        )

    try:
        with runtime.in_flight.call():
            return await first_that_works(runtime, "image", plan, examiner(runtime, check), call)
    finally:
        borrowed.end()


def _request(
    model: str,
    request_id: str,
    prompt: str,
    images: tuple[ImageBlock, ...],
    mask: ImageBlock | None,
    options: ImageOptions,
) -> ImageRequest:
    return ImageRequest(
        request_id=request_id,
        model=model,
        prompt=prompt,
        images=images,
        mask=mask,
        n=options.n,
        size=options.size,
        aspect_ratio=options.aspect_ratio,
        quality=options.quality,
        background=options.background,
        output_format=options.output_format,
        provider_options=options.provider_options,
        timeout_seconds=options.timeout_seconds,
    )
