"""Embeddings and images: routed, limited, priced and traced like conversations, one call for each request.

Vectors of two models can't be compared, even if they have the same length. So a fallback must be the same model at
another provider, with the same space. If two providers name one model differently, set the same `embedding_space`
for both in models.yaml.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Awaitable, Iterator, Sequence
from functools import reduce
from operator import add
from pathlib import Path
from typing import TypeAlias

import msgspec

from callboard.adapters import AdapterError, AttemptObserver, CallWarning, CapabilityError, ImageBlock, TokenUsage
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.embeddings import (
    AT_ONCE,
    EmbeddingAdapter,
    EmbeddingCapabilities,
    EmbeddingInput,
    EmbeddingRequest,
    EmbeddingResponse,
    InputType,
    OnProgress,
    PartialEmbeddingError,
    Vector,
    count_tokens,
    plan_batches,
    read_inputs,
    run_batches,
)
from callboard.adapters.images import (
    GeneratedImage,
    ImageAdapter,
    ImageOperation,
    ImageRequest,
    ImageResponse,
    fit_image,
)
from callboard.adapters.requests.estimate import TokenRates, estimate_request, upper_end
from callboard.bus import CallboardError, ConfigurationError, Cost, CostSource, Message, TextBlock
from callboard.bus.values.base import ShortRepr

from ..budgets.worst_case import most_of_images
from ..models.entries import ModelEntry
from ..routing.candidates import Named, Plan, Route, choose
from ..runtime.runtime import Runtime
from .plain_calls import CallOptions, Models, PlainCalls, require_known

ImageInput: TypeAlias = ImageBlock | bytes | str | Path
"""An image: a block, the bytes of a file, or the path of a file."""


def image_block(image: ImageInput) -> ImageBlock:
    match image:
        case ImageBlock():
            return image
        case bytes():
            return ImageBlock(data=image)
        case str() | Path():
            return ImageBlock.from_path(image)


class ImageOptions(CallOptions, total=False):
    """The options for images. An unsupported option raises CapabilityError before anything is sent.

    A fallback is tried only if the previous model certainly created nothing.
    """

    n: int
    """The number of images; by default 1."""
    size: str | None
    """The size as ``WIDTHxHEIGHT``, or in the provider's own words."""
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
    """The model that made the images, as ``provider:name``."""
    usage: TokenUsage
    """The tokens of the call, or the number of images if tokens are not counted."""
    cost: Cost
    """The cost of the call; unknown if the model has no price."""
    request_id: str
    """The id of the call in the trace."""
    warnings: tuple[CallWarning, ...] = ()
    """Warnings about options that were left out, and about images that differ from the request."""

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
    options = require_known(options, ImageOptions)
    calls = PlainCalls("image", runtime, model, options, _maker, lambda: (prompt,))
    blocks = tuple(image_block(image) for image in images)
    upon = None if mask is None else image_block(mask)

    def request_to(named: Named, request_id: str) -> ImageRequest:
        return ImageRequest(
            model=f"{named.entry.adapter}:{named.entry.wire_name}",
            prompt=prompt,
            images=blocks,
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

        def work(adapter: ImageAdapter, on_attempt: AttemptObserver) -> Awaitable[ImageResponse]:
            return adapter.make_images(request, on_attempt=on_attempt)

        message = Message.user([TextBlock(prompt), *blocks])
        most = most_of_images(estimate_request([message], (), None, TokenRates()), request.n)
        made, cost = await calls.ask(route, request_id, caused_by, work, most=most)
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


class EmbeddingOptions(CallOptions, total=False):
    """The options of `embed`. The options of `CallOptions` apply to each batch.

    `fallback` must name the same model at other providers.
    """

    dimensions: int | None
    """The length of the vectors; None uses the model's own length."""
    input_type: InputType | None
    """The purpose of the embeddings."""
    truncate: bool
    """Whether to cut a text that is too long. Otherwise such a text is an error, if the provider supports this."""
    batch_size: int | None
    """The maximum number of texts in a batch; None uses the provider's maximum."""
    at_once: int
    """The maximum number of concurrent batches."""
    on_progress: OnProgress | None
    """A function that receives the number of finished texts and of all texts after each batch."""


class EmbeddingResult(ShortRepr, frozen=True, kw_only=True):
    """The vectors of the texts, with usage and cost."""

    vectors: tuple[Vector, ...]
    """The vectors in the order of the texts."""
    model: str
    """The model that served the first batch that ended, as ``provider:name``."""
    usage: TokenUsage
    """The tokens of all calls that returned vectors."""
    cost: Cost
    """The cost of these calls; unknown if one cost is unknown."""
    calls: tuple[str, ...] = ()
    """The request ids of these calls, in the order in which they ended."""
    warnings: tuple[CallWarning, ...] = ()
    """Warnings about texts and options that were left out, changed or estimated. Each is listed once."""

    @property
    def dimensions(self) -> int:
        """The length of each vector; 0 without vectors."""
        return len(self.vectors[0]) if self.vectors else 0

    def matrix(self) -> Vector:
        """All vectors in one `array('f')`: ``numpy.frombuffer(…, "f4").reshape(len, -1)``."""
        values: Vector = array("f")
        for vector in self.vectors:
            values.extend(vector)
        return values


async def embed(
    runtime: Runtime, texts: Sequence[str | Sequence[int]], model: Models, options: EmbeddingOptions
) -> EmbeddingResult:
    options = require_known(options, EmbeddingOptions)
    inputs = read_inputs((texts,) if isinstance(texts, str) else texts)

    def sent() -> Iterator[str]:
        return (each for each in inputs if isinstance(each, str))

    calls = PlainCalls("embeddings", runtime, model, options, _that_embeds, sent)
    require_same_space(calls.plan)
    if (size := options.get("batch_size")) is not None and size < 1:
        raise ValueError(f"batch_size={size}: must be at least 1")
    if not inputs:
        await runtime.host.start()
        nothing = Cost(0, CostSource.COMPUTED)
        return EmbeddingResult(vectors=(), model=calls.plan.named[0].model, usage=TokenUsage(), cost=nothing)
    return await calls.run(_Embedding(calls, inputs, options).run)


def require_same_space(plan: Plan) -> None:
    first = plan.named[0]
    for named in plan.named[1:]:
        if space_of(named.entry) != space_of(first.entry):
            raise ConfigurationError(
                f"{named.model} can't replace {first.model}: vectors of different models can't be "
                f"compared. If both are the same model, set the same embedding_space for both in models.yaml"
            )


def space_of(entry: ModelEntry) -> str:
    """The space in which a model's vectors can be compared: the model's `embedding_space`, or its name if that is
    not set.

    In the name, a leading organisation and a trailing ``:latest`` are ignored, because not all providers use them.
    """
    if entry.embedding_space is not None:
        return entry.embedding_space
    return entry.wire_name.rpartition("/")[2].removesuffix(":latest").lower()


class _Embedding:
    def __init__(
        self, calls: PlainCalls[EmbeddingAdapter], inputs: tuple[EmbeddingInput, ...], options: EmbeddingOptions
    ) -> None:
        self._calls = calls
        self._inputs = inputs
        self._has_tokens = any(not isinstance(each, str) for each in inputs)
        self._options = options
        self._estimates: list[int] = []
        self._costs: list[Cost] = []

    async def run(self) -> EmbeddingResult:
        first, limits = self._first_and_limits()
        size = self._options.get("batch_size")
        if size is not None:
            limits = msgspec.structs.replace(limits, max_inputs=min(size, limits.max_inputs))
        adapter, model = self._calls.adapter(first), first.entry.wire_name

        def estimate(text: str) -> int:
            return adapter.estimate_text_tokens(text, model=model)

        self._estimates = [count_tokens(each, estimate) for each in self._inputs]
        gathered = await run_batches(
            plan_batches(self._estimates, limits),
            self._run,
            texts=len(self._inputs),
            at_once=self._options.get("at_once", AT_ONCE),
            on_progress=self._options.get("on_progress"),
        )
        try:
            vectors = gathered.complete()
        except PartialEmbeddingError as error:
            error.cost = reduce(add, self._costs)
            raise
        return EmbeddingResult(
            vectors=vectors,
            model=gathered.responses[0].model,
            usage=gathered.usage,
            cost=reduce(add, self._costs),
            calls=tuple(response.request_id for response in gathered.responses),
            warnings=gathered.warnings,
        )

    async def _run(self, batch: range) -> EmbeddingResponse:

        async def call(route: Route, request_id: str, caused_by: str | None) -> EmbeddingResponse:
            response, cost = await self._call(batch, route, request_id, caused_by)
            self._costs.append(cost)
            return response

        try:
            return await self._calls.first_that_works(self._abilities, call)
        except AdapterError:
            raise
        except CallboardError as refusal:  # for example, a budget is used up
            if not self._costs:
                raise
            # The error must be an AdapterError, so that the vectors of the other batches are kept.
            raise AdapterError(str(refusal), retryable=False) from refusal

    def _abilities(self, adapter: EmbeddingAdapter, named: Named) -> EmbeddingCapabilities:
        can = adapter.get_embedding_capabilities(named.entry.wire_name)
        dimensions = self._options.get("dimensions")
        if dimensions is not None and (refusal := can.refusal(dimensions)) is not None:
            raise CapabilityError(f"{named.model} does not support {dimensions} dimensions: {refusal}")
        if self._has_tokens and not can.supports_tokens:
            raise CapabilityError(f"{named.model} embeds only texts, not tokens")
        return can

    def _first_and_limits(self) -> tuple[Named, EmbeddingCapabilities]:
        """The first model that can serve, and limits that fit all models that can serve.

        An exception of `choose` is raised here if no model can serve.
        """
        calls = self._calls
        able: list[tuple[Named, EmbeddingCapabilities]] = []
        for named in calls.plan.named:
            with contextlib.suppress(ConfigurationError, CapabilityError):
                able.append((named, self._abilities(calls.adapter(named), named)))
        if not able:
            choose(calls.plan, [calls.examine(named, self._abilities) for named in calls.plan.named])
        return able[0][0], _tightest([can for _, can in able])

    async def _call(
        self, batch: range, route: Route, request_id: str, caused_by: str | None
    ) -> tuple[EmbeddingResponse, Cost]:
        options = self._options
        inputs = self._inputs[batch.start : batch.stop]
        request = EmbeddingRequest(
            model=route.decision.model,
            inputs=inputs,
            dimensions=options.get("dimensions"),
            input_type=options.get("input_type"),
            truncate=options.get("truncate", False),
            **self._calls.basics(route.option.named.entry, request_id),
        )
        estimate = sum(self._estimates[batch.start : batch.stop])

        async def work(adapter: EmbeddingAdapter, on_attempt: AttemptObserver) -> EmbeddingResponse:
            return await adapter.embed(request, on_attempt=on_attempt)

        exact = sum(len(each) for each in inputs if not isinstance(each, str))
        most = [TokenUsage(exact + (upper_end(estimate - exact) if estimate > exact else 0))]
        return await self._calls.ask(
            route, request_id, caused_by, work, estimated_input_tokens=estimate, most=most
        )


def _that_embeds(adapter: ProviderAdapter, named: Named) -> EmbeddingAdapter:
    if not isinstance(adapter, EmbeddingAdapter):
        raise CapabilityError(f"{named.model} can't embed: its adapter supports only conversations")
    return adapter


def _tightest(capabilities: Sequence[EmbeddingCapabilities]) -> EmbeddingCapabilities:
    sums = [each.max_request_tokens for each in capabilities if each.max_request_tokens is not None]
    return EmbeddingCapabilities(
        max_inputs=min(each.max_inputs for each in capabilities), max_request_tokens=min(sums, default=None)
    )
