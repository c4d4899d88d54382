"""Texts to vectors: routed, bounded, priced and traced like conversations, one call for each batch.

Vectors of two models can't be compared, even where they have the same length. So a fallback is only ever another
way to the same model: its space must be the same, which `embedding_space` in models.yaml says where the names of
two providers for one model don't show it.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import TypedDict

import msgspec

from adapters import AdapterError, AttemptObserver, CallWarning, CapabilityError, RetryPolicy, TokenUsage
from adapters.contract import ProviderAdapter
from adapters.embeddings import (
    AT_ONCE,
    EmbeddingAdapter,
    EmbeddingCapabilities,
    EmbeddingRequest,
    EmbeddingResponse,
    InputType,
    Vector,
    plan_batches,
    run_batches,
)
from bus import CallboardError, ConfigurationError, Cost, CostSource
from bus.values.json import Json

from .calls.plain_call import PlainCall, first_that_works
from .calls.serving import examiner, scene_of
from .calls.slots import arrival
from .models.entries import ModelEntry
from .models.registry import ModelRegistry
from .routing.candidates import Named, Plan, Route, choose, expand
from .runtime.borrowed_adapters import BorrowedAdapters
from .runtime.runtime import Runtime


class EmbeddingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to embed.

    dimensions: of the vectors; None is the model's own number. input_type: what the texts are embedded for.
    truncate: cut a text that is too long; otherwise that is an error, where the provider lets us say so.
    fallback: names of the same model at other providers, to be tried in order; None leaves it to models.yaml.
    at_once: batches under way side by side, at most. provider_options: merged into the requests. max_retries,
    retry, timeout_seconds: of each batch, instead of the adapter's. tags: of the calls, in the trace; never sent.
    """

    dimensions: int | None = None
    input_type: InputType | None = None
    truncate: bool = False
    fallback: Sequence[str] | None = None
    at_once: int = AT_ONCE
    provider_options: Mapping[str, Json] = {}
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    tags: Mapping[str, str] = {}


class EmbeddingArguments(TypedDict, total=False):
    """The fields of `EmbeddingOptions` as keyword arguments, for type checkers."""

    dimensions: int | None
    input_type: InputType | None
    truncate: bool
    fallback: Sequence[str] | None
    at_once: int
    provider_options: Mapping[str, Json]
    max_retries: int | None
    retry: RetryPolicy | None
    timeout_seconds: float | None
    tags: Mapping[str, str]


class EmbeddingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors, in the order of the texts.

    model: ``provider:name`` of the one that served the batch that ended first. usage, cost: of all calls that gave
    vectors; the cost is unknown as soon as one of them is. calls: their request ids, in the order in which they
    ended.
    warnings: what was left out, changed or estimated, each once.
    """

    vectors: tuple[Vector, ...]
    model: str
    usage: TokenUsage
    cost: Cost
    calls: tuple[str, ...] = ()
    warnings: tuple[CallWarning, ...] = ()

    @property
    def dimensions(self) -> int:
        """Of each vector; 0 if there is none."""
        return len(self.vectors[0]) if self.vectors else 0

    def matrix(self) -> Vector:
        """All vectors one after the other, in one `array('f')`: ``numpy.frombuffer(…, "f4").reshape(len, -1)``."""
        whole: Vector = array("f")
        for vector in self.vectors:
            whole.extend(vector)
        return whole


async def embed(
    runtime: Runtime, texts: Sequence[str], model: str | Sequence[str] | None, options: EmbeddingOptions
) -> EmbeddingResult:
    """See `Engine.embed`."""
    texts = (texts,) if isinstance(texts, str) else tuple(texts)
    plan = same_space(expand(runtime.registry, model, options.fallback))
    await runtime.host.start()
    if not texts:
        nothing = Cost(0, CostSource.COMPUTED)
        return EmbeddingResult(vectors=(), model=plan.named[0].model, usage=TokenUsage(), cost=nothing)
    await runtime.host.admit()
    runtime.pricing.notice()
    work = _Embedding(runtime, plan, texts, options)
    try:
        with runtime.in_flight.call():
            return await work.run()
    finally:
        work.adapters.end()


def same_space(plan: Plan) -> Plan:
    """The plan, if its models embed alike. Raises ConfigurationError, which says what to write, if they don't."""
    first = plan.named[0]
    for named in plan.named[1:]:
        if space_of(named.entry) != space_of(first.entry):
            raise ConfigurationError(
                f"{named.model} can't stand in for {first.model}: the vectors of different models can't be "
                "compared. If both are the same model, give both the same embedding_space in models.yaml"
            )
    return plan


def space_of(entry: ModelEntry) -> str:
    """What a model's vectors are comparable within: what models.yaml says, or else the model's name.

    Of the name counts what all providers have alike: no organisation before it, no ``:latest`` behind it.
    """
    if entry.embedding_space is not None:
        return entry.embedding_space
    return entry.wire_name.rpartition("/")[2].removesuffix(":latest").lower()


class _Embedding:
    """One `embed`, over all its batches."""

    def __init__(self, runtime: Runtime, plan: Plan, texts: tuple[str, ...], options: EmbeddingOptions) -> None:
        self.adapters = BorrowedAdapters(runtime)
        self._runtime = runtime
        self._registry: ModelRegistry = runtime.registry
        self._plan = plan
        self._texts = texts
        self._options = options
        self._order = arrival()
        self._examine = examiner(runtime, self._abilities)
        self._estimates: list[int] = []
        self._costs: list[Cost] = []

    async def run(self) -> EmbeddingResult:
        first, limits = self._first_and_limits()
        adapter = _that_embeds(self._consult(first), first)
        model = first.entry.wire_name
        self._estimates = [adapter.estimate_text_tokens(text, model=model) for text in self._texts]
        batches = plan_batches(self._estimates, limits)
        gathered = await run_batches(batches, self._run, texts=len(self._texts), at_once=self._options.at_once)
        vectors = gathered.complete()
        return EmbeddingResult(
            vectors=vectors,
            model=gathered.responses[0].model,
            usage=gathered.usage,
            cost=reduce(add, self._costs),
            calls=tuple(response.request_id for response in gathered.responses),
            warnings=gathered.warnings,
        )

    async def _run(self, batch: range) -> EmbeddingResponse:
        """One batch, by the first way to the model that works."""

        async def call(route: Route, request_id: str, caused_by: str | None) -> EmbeddingResponse:
            response, cost = await self._call(batch, route, request_id, caused_by)
            self._costs.append(cost)
            return response

        try:
            return await first_that_works(self._runtime, "embeddings", self._plan, self._examine, call)
        except AdapterError:
            raise
        except CallboardError as refusal:  # as a spent budget is
            if not self._costs:
                raise
            raise AdapterError(str(refusal), retryable=False) from refusal  # so that the other batches are kept

    # -- what is known of a model before a call

    def _consult(self, named: Named) -> ProviderAdapter:
        """The adapter of a model, for what needs no network. Raises ConfigurationError."""
        return self._runtime.adapters.consult(self._registry.adapter_of(named.entry))

    def _abilities(self, adapter: ProviderAdapter, named: Named) -> EmbeddingCapabilities:
        """What a model can do. Raises CapabilityError if that isn't all that is asked."""
        can = _that_embeds(adapter, named).get_embedding_capabilities(named.entry.wire_name)
        asked = self._options.dimensions
        if asked is not None and (refusal := can.refusal(asked)) is not None:
            raise CapabilityError(f"{named.model} has no vectors of {asked} dimensions: {refusal}")
        return can

    def _first_and_limits(self) -> tuple[Named, EmbeddingCapabilities]:
        """The first model that can serve, and limits that all keep which can. Raises what `choose` raises."""
        able: list[tuple[Named, EmbeddingCapabilities]] = []
        for named in self._plan.named:
            with contextlib.suppress(ConfigurationError, CapabilityError):
                able.append((named, self._abilities(self._consult(named), named)))
        if not able:
            choose(self._plan, [self._examine(named) for named in self._plan.named])  # which says why
        return able[0][0], _tightest([can for _, can in able])

    # -- one call

    async def _call(
        self, batch: range, route: Route, request_id: str, caused_by: str | None
    ) -> tuple[EmbeddingResponse, Cost]:
        options, entry = self._options, route.option.named.entry
        running = await self.adapters.ready(route.decision, request_id)
        request = EmbeddingRequest(
            request_id=request_id,
            model=route.decision.model,
            inputs=self._texts[batch.start : batch.stop],
            dimensions=options.dimensions,
            input_type=options.input_type,
            truncate=options.truncate,
            provider_options=options.provider_options,
            max_retries=entry.max_retries if options.max_retries is None else options.max_retries,
            retry=options.retry or entry.retry,
            timeout_seconds=options.timeout_seconds,
        )
        estimate = sum(self._estimates[batch.start : batch.stop])
        scene = scene_of(self._runtime, route, running, caused_by, options.tags, estimated_input_tokens=estimate)

        async def work(adapter: ProviderAdapter, on_attempt: AttemptObserver) -> EmbeddingResponse:
            assert isinstance(adapter, EmbeddingAdapter)
            return await adapter.embed(request, on_attempt=on_attempt)

        return await PlainCall("embeddings", request_id, scene).run(running.ref, running.slots, self._order, work)


def _that_embeds(adapter: ProviderAdapter, named: Named) -> EmbeddingAdapter:
    if not isinstance(adapter, EmbeddingAdapter):
        raise CapabilityError(f"{named.model} can't embed: its adapter has conversations only")
    return adapter


def _tightest(capabilities: Sequence[EmbeddingCapabilities]) -> EmbeddingCapabilities:
    """Limits that all of them keep."""
    sums = [each.max_request_tokens for each in capabilities if each.max_request_tokens is not None]
    return EmbeddingCapabilities(
        max_inputs=min(each.max_inputs for each in capabilities), max_request_tokens=min(sums, default=None)
    )
