"""Many texts as requests of the size that a provider takes: side by side, in order, each retried by itself.

A batch is as many texts in a row as fit by count and by estimated tokens. One that the provider finds too large
all the same is cut in two, and again, until what fits is embedded and what doesn't stands alone: limits that
nobody publishes, and estimates that are off, cost a few requests and no result. A failure that any further batch
would share (the key, the model, spent credit) keeps those from being sent that have not begun.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio
import msgspec

from callboard.adapters.contract import AttemptObserver, CallWarning
from callboard.bus.errors import (
    AdapterError,
    AuthError,
    CancelledError,
    CapabilityError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    QuotaExceededError,
)
from callboard.bus.values.usage import TokenUsage

from .contract import (
    EmbeddingAdapter,
    EmbeddingCapabilities,
    EmbeddingRequest,
    EmbeddingResponse,
    PartialEmbeddingError,
    Vector,
)

AT_ONCE = 4
"""Batches under way at the same time, if nobody says otherwise."""

SHARE_OF_TOKENS = 0.8
"""Of a request's token limit is filled, by estimate: so many percent of a guess are its error."""

_TOO_MANY = re.compile(
    r"batch|array too long|length of the list|tokens per request|too many (?:inputs|items|texts)|"
    r"at most \d+ (?:inputs|requests|texts)|number of texts",
    re.IGNORECASE,
)
"""How a request with too many texts is refused, in the words of those who have no code for it."""

Batch: TypeAlias = range
"""Indices of texts that go into one request."""

OnProgress: TypeAlias = Callable[[int, int], object]
"""Gets the number of texts that are embedded or have failed for good, and the number of all."""

RunBatch: TypeAlias = Callable[[Batch], Awaitable[EmbeddingResponse]]


def plan_batches(estimates: Sequence[int], can: EmbeddingCapabilities) -> list[Batch]:
    """The batches of texts: together they are all texts, in order. Pure.

    A text that is larger than a whole request stands alone. Of a request's tokens 80 % are filled, since estimates
    err.

    Args:
        estimates: The estimated tokens of each text.
        can: The model's limits.
    """
    limit = can.max_request_tokens
    most = None if limit is None else limit * SHARE_OF_TOKENS
    batches: list[Batch] = []
    start = 0
    tokens = 0
    for at, size in enumerate(estimates):
        full = at - start >= can.max_inputs or (most is not None and tokens + size > most)
        if full and at > start:
            batches.append(range(start, at))
            start, tokens = at, 0
        tokens += size
    if len(estimates) > start:
        batches.append(range(start, len(estimates)))
    return batches


@dataclass
class Gathered:
    """What came of all batches."""

    vectors: list[Vector | None]
    """The vectors by text; None for each text that has none so far."""
    failures: dict[int, AdapterError] = field(default_factory=dict)
    """The failures by the index of the text."""
    responses: list[EmbeddingResponse] = field(default_factory=list)
    """The responses of the batches, in the order in which they ended."""

    @property
    def usage(self) -> TokenUsage:
        return sum((response.usage for response in self.responses[1:]), self._first_usage)

    @property
    def _first_usage(self) -> TokenUsage:
        return self.responses[0].usage if self.responses else TokenUsage()

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """The warnings of all batches, each once."""
        return tuple(dict.fromkeys(warning for response in self.responses for warning in response.warnings))

    def complete(self) -> tuple[Vector, ...]:
        """All vectors.

        Raises:
            PartialEmbeddingError: Some are missing.
            AdapterError: All are missing; it is the first failure.
        """
        if not self.failures:
            return tuple(vector for vector in self.vectors if vector is not None)
        first = self.failures[min(self.failures)]
        if not self.responses:
            raise first
        raise PartialEmbeddingError(tuple(self.vectors), self.failures, self.usage) from first


async def run_batches(
    batches: Sequence[Batch],
    run: RunBatch,
    *,
    texts: int,
    at_once: int = AT_ONCE,
    on_progress: OnProgress | None = None,
) -> Gathered:
    """Run all batches side by side. An AdapterError is not raised but kept, see `Gathered`.

    Args:
        batches: The batches.
        run: Embeds the texts of one batch. It may be asked again for a part of a batch.
        texts: How many texts there are.
        at_once: The most batches that are under way at the same time.
        on_progress: Is told after each batch how many texts are done. The last call has all of them.

    Raises:
        Exception: What `run` or `on_progress` raises besides AdapterError.
    """
    gathered = Gathered([None] * texts)
    waiting = list(reversed(batches))
    final: AdapterError | None = None
    done = 0
    workers = max(1, min(at_once, len(batches)))

    async def work() -> None:
        nonlocal final, workers
        while waiting:
            batch = waiting.pop()
            if final is not None:
                _end(batch, final)
                continue
            try:
                response = await run(batch)
                _check_space(response, gathered)
            except AdapterError as error:
                if len(batch) > 1 and _is_too_large(error):
                    half = len(batch) // 2
                    waiting.extend((batch[half:], batch[:half]))
                    if workers < at_once:
                        workers += 1
                        group.start_soon(work)
                    continue
                if _concerns_all(error):
                    final = error
                _end(batch, error)
            else:
                gathered.responses.append(response)
                for at, vector in zip(batch, response.vectors, strict=True):
                    gathered.vectors[at] = vector
                _end(batch)
        workers -= 1

    def _end(batch: Batch, error: AdapterError | None = None) -> None:
        nonlocal done
        if error is not None:
            gathered.failures.update(dict.fromkeys(batch, error))
        done += len(batch)
        if on_progress is not None:
            on_progress(done, texts)

    try:
        async with anyio.create_task_group() as group:
            for _ in range(workers):
                group.start_soon(work)
    except ExceptionGroup as error:
        raise _first(error) from None
    return gathered


def _first(error: Exception) -> Exception:
    """The first worker's fault of several workers that met the same one."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _check_space(response: EmbeddingResponse, gathered: Gathered) -> None:
    """Raise unless the vectors can be compared with those that came before: a mixture would be worthless."""
    if gathered.responses and response.dimensions != (known := gathered.responses[0].dimensions):
        raise CapabilityError(f"{response.model} gave {response.dimensions} dimensions where {known} came before")


def _is_too_large(error: AdapterError) -> bool:
    """Whether fewer texts could pass. Servers without a code for it speak of the batch."""
    if isinstance(error, ContextOverflowError) or error.provider_status == 413:
        return True
    return isinstance(error, InvalidRequestError) and _TOO_MANY.search(error.provider_message) is not None


def _concerns_all(error: AdapterError) -> bool:
    return isinstance(error, AuthError | NotFoundError | QuotaExceededError | CapabilityError | CancelledError)


async def embed_all(
    adapter: EmbeddingAdapter,
    request: EmbeddingRequest,
    *,
    at_once: int = AT_ONCE,
    on_attempt: AttemptObserver | None = None,
) -> EmbeddingResponse:
    """The vectors of any number of texts, in order. No engine is needed.

    Each batch is a request of its own, with the request's id and the places of its texts (``mine.0-100``), and is
    retried by itself. Cancelling loses the vectors that had come, and they are paid for.

    Args:
        adapter: The adapter of the model's provider.
        request: The texts and what to make of them.
        at_once: The most batches that are under way at the same time.
        on_attempt: Told of the attempts of all batches.

    Raises:
        PartialEmbeddingError: Some texts were not embedded; the error has the vectors of the others.
        AdapterError: Nothing was embedded, or there is nothing to embed.
    """
    can = adapter.get_embedding_capabilities(request.model)
    estimates = [adapter.estimate_text_tokens(text, model=request.model) for text in request.inputs]
    batches = plan_batches(estimates, can)
    if len(batches) <= 1:
        batches = [range(len(request.inputs))]

    async def run(batch: Batch) -> EmbeddingResponse:
        part = msgspec.structs.replace(
            request,
            request_id=f"{request.request_id}.{batch.start}-{batch.stop}",
            inputs=request.inputs[batch.start : batch.stop],
        )
        return await adapter.embed(part, on_attempt=on_attempt)

    gathered = await run_batches(batches, run, texts=len(request.inputs), at_once=at_once)
    vectors = gathered.complete()
    first = gathered.responses[0]
    return msgspec.structs.replace(
        first,
        request_id=request.request_id,
        vectors=vectors,
        usage=gathered.usage,
        latency_ms=max(response.latency_ms for response in gathered.responses),
        warnings=gathered.warnings,
    )
