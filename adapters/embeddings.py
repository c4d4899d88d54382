"""Embeddings: the contract of adapters, and batches of texts.

A vector is an `array('f')`: four bytes for each dimension. Use `tolist()` for JSON, `tobytes()` for a database,
and `numpy.frombuffer(vector, "f4")` without a copy.

A batch contains as many consecutive texts as the limits on count and estimated tokens allow. If the provider
rejects a batch as too large, it is split in two, repeatedly if needed. After a failure that would affect all
batches (the key, the model, no credit), pending batches are not started.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, get_args, runtime_checkable

import anyio
import msgspec

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
from callboard.bus.values.messages import CallWarning
from callboard.bus.values.usage import TokenUsage

from .contract import AttemptObserver, CallRequest, CallResponse

__all__ = [
    "AT_ONCE",
    "INPUT_TYPES",
    "EmbeddingAdapter",
    "EmbeddingCapabilities",
    "EmbeddingInput",
    "EmbeddingRequest",
    "EmbeddingResponse",
    "Encoding",
    "InputType",
    "OnProgress",
    "PartialEmbeddingError",
    "Vector",
    "embed_all",
    "plan_batches",
    "run_batches",
]

Vector: TypeAlias = "array[float]"
"""The embedding of one text: float32, in an `array('f')`."""

EmbeddingInput: TypeAlias = str | tuple[int, ...]
"""A text, or its tokens: numbers in the vocabulary of one model."""

InputType: TypeAlias = Literal[
    "query",
    "document",
    "classification",
    "clustering",
    "similarity",
    "question_answering",
    "fact_verification",
    "code_query",
]
"""The purpose of a text. A search embeds its documents as ``document`` and its queries as ``query``."""

INPUT_TYPES: tuple[InputType, ...] = get_args(InputType)
"""All input types."""

Encoding: TypeAlias = Literal["base64", "float"]
"""The form of vectors on the wire: bytes of float32 values, or JSON numbers, which are longer."""


class EmbeddingCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a model through its adapter. None means unknown; an unknown limit is not enforced."""

    max_inputs: int = 2048
    """The largest number of texts in one request."""
    max_input_tokens: int | None = None
    """The largest number of tokens of one text."""
    max_request_tokens: int | None = None
    """The largest number of tokens of all texts in one request."""
    dimensions: int | None = None
    """The default number of dimensions of a vector."""
    supports_dimensions: bool = True
    """Whether other dimensions can be requested."""
    dimension_choices: tuple[int, ...] = ()
    """The dimensions that can be requested; empty for any number up to `dimensions`."""
    input_types: tuple[str, ...] = ()
    """The supported input types."""
    supports_truncation: bool = False
    """Whether a request can permit the provider to cut long texts."""
    cuts_silently: bool = False
    """Whether the provider cuts long texts by default."""
    encodings: tuple[Encoding, ...] = ("float",)
    """The supported encodings, the best first."""
    supports_tokens: bool = False
    """Whether an input can be tokens instead of a text."""

    def refusal(self, dimensions: int) -> str | None:
        """The reason why vectors can't have this number of dimensions; None if they can, or if unknown."""
        if dimensions < 1:
            return "dimensions must be at least 1"
        if dimensions == self.dimensions:
            return None
        if not self.supports_dimensions:
            fixed = f" (always {self.dimensions})" if self.dimensions is not None else ""
            return f"its dimensions can't be changed{fixed}"
        if self.dimension_choices and dimensions not in self.dimension_choices:
            return f"it offers {', '.join(map(str, self.dimension_choices))}"
        if not self.dimension_choices and self.dimensions is not None and dimensions > self.dimensions:
            return f"it has at most {self.dimensions}"
        return None


class EmbeddingRequest(CallRequest, frozen=True, kw_only=True):
    """One request to one model.

    Raises:
        TypeError: `inputs` is a single input.
        ValueError: The input type is unknown, or an input is not a list of tokens.
    """

    inputs: tuple[EmbeddingInput, ...]
    """The texts, or their tokens. Few providers accept tokens, see `EmbeddingCapabilities.supports_tokens`."""
    dimensions: int | None = None
    """The dimensions of the vectors; None uses the model's default."""
    input_type: InputType | None = None
    """The purpose of the texts. Dropped with a warning if the model has no such option."""
    truncate: bool = False
    """Whether the provider may cut long texts. If False, a long text is an error at providers that offer the
    choice.
    """
    encoding: Encoding | None = None
    """The form of vectors on the wire; None uses the best one."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "inputs", read_inputs(self.inputs))
        if self.input_type is not None and self.input_type not in INPUT_TYPES:
            raise ValueError(f"input_type {self.input_type!r} must be one of {', '.join(INPUT_TYPES)}")

    @property
    def texts(self) -> tuple[str, ...]:
        """The inputs that are texts, for providers that accept only texts."""
        return tuple(each for each in self.inputs if isinstance(each, str))


def read_inputs(value: Sequence[str | Sequence[int]] | str) -> tuple[EmbeddingInput, ...]:
    """The inputs in their canonical form. Raises TypeError or ValueError."""
    if isinstance(value, str):
        raise TypeError("inputs must be a list of texts. Put a single text into a list")
    inputs: list[EmbeddingInput] = []
    for each in value:
        if not isinstance(each, Sequence):
            raise TypeError(f"an input must be a text or a list of tokens, not {type(each).__name__}")
        inputs.append(each if isinstance(each, str) else _read_tokens(each))
    return tuple(inputs)


def _read_tokens(tokens: Sequence[int]) -> tuple[int, ...]:
    if not tokens:
        raise ValueError("an input has no tokens")
    if not all(type(token) is int and token >= 0 for token in tokens):
        raise ValueError("tokens must be integers of at least 0")
    return tuple(tokens)


def count_tokens(text_or_tokens: EmbeddingInput, estimate: Callable[[str], int]) -> int:
    """The number of an input's tokens: exact if the input is tokens, an estimate for a text."""
    return estimate(text_or_tokens) if isinstance(text_or_tokens, str) else len(text_or_tokens)


class EmbeddingResponse(CallResponse, frozen=True, kw_only=True):
    """The vectors of one request. If the request was split into batches, the latency is the latency of the slowest
    batch.
    """

    vectors: tuple[Vector, ...]
    """The vectors, in the order of the inputs."""
    usage: TokenUsage
    """The input tokens, estimated if the provider counts none."""

    @property
    def dimensions(self) -> int:
        """The dimensions of each vector; 0 if there is no vector."""
        return len(self.vectors[0]) if self.vectors else 0


@runtime_checkable
class EmbeddingAdapter(Protocol):
    """One provider's embeddings.

    The adapter works alone: construct it, call it, close it. Calls may run concurrently on one event loop. A call
    raises only AdapterError and the loop's cancellation exception.
    """

    name: str
    """The adapter's name, which is the prefix of its models' names."""

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        """Embed one request within the model's limits. `embed_all` splits larger requests.

        Args:
            request: The texts and the options.
            on_attempt: Called with each report about an attempt, as in `ProviderAdapter.complete`.

        Raises:
            CapabilityError: The model can't do this. Nothing was sent.
            ContextOverflowError: A text is too long.
            AdapterError: The request failed for another reason.
        """
        ...

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        """The capabilities of a model, without the network."""
        ...

    def estimate_text_tokens(self, text: str, *, model: str | None = None) -> int:
        """Estimate the tokens of a text for a model, without the network."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a request. Returns False if it had ended or is unknown. Idempotent."""
        ...

    async def close(self) -> None:
        """Cancel all calls and release all connections. Idempotent."""
        ...


class PartialEmbeddingError(AdapterError):
    """Some texts could not be embedded after all retries.

    The error's cause is the first failure. The error is `retryable` if all failures are temporary.
    """

    def __init__(
        self, vectors: tuple[Vector | None, ...], failures: Mapping[int, AdapterError], usage: TokenUsage
    ) -> None:
        indices = sorted(failures)
        first = failures[indices[0]]
        shown = ", ".join(map(str, indices[:10])) + (", …" if len(indices) > 10 else "")
        super().__init__(
            f"{len(indices)} of {len(vectors)} texts were not embedded (number {shown}): {first}",
            provider=first.provider,
            provider_status=first.provider_status,
            provider_code=first.provider_code,
            provider_message=first.provider_message,
            retryable=all(failure.retryable for failure in failures.values()),
            retry_after_seconds=first.retry_after_seconds,
            request_id=first.request_id,
            provider_request_id=first.provider_request_id,
        )
        self.vectors = vectors
        """The vectors in the order of the inputs; None for each text that was not embedded."""
        self.failures = dict(failures)
        """The failures by the index of the text."""
        self.usage = usage
        """The usage of the embedded texts, which are billed."""


AT_ONCE = 4
"""The default number of batches in progress at the same time."""

SHARE_OF_TOKENS = 0.8
"""The share of a request's token limit that a batch may fill, because estimates are inexact."""

_TOO_MANY = re.compile(
    r"batch|array too long|length of the list|tokens per request|too many (?:inputs|items|texts)|"
    r"at most \d+ (?:inputs|requests|texts)|number of texts",
    re.IGNORECASE,
)
"""Error messages about too many texts in a request. They are from servers without an error code for this."""

_CONCERN_ALL = (AuthError, NotFoundError, QuotaExceededError, CapabilityError, CancelledError)
"""Errors after which no other batch can succeed."""

Batch: TypeAlias = range
"""Indices of the texts of one request."""

OnProgress: TypeAlias = Callable[[int, int], object]
"""A function that gets the number of finished texts, embedded or failed, and the total number."""

RunBatch: TypeAlias = Callable[[Batch], Awaitable[EmbeddingResponse]]


def plan_batches(estimates: Sequence[int], can: EmbeddingCapabilities) -> list[Batch]:
    """Divide texts into batches, in order. Pure.

    A text that is larger than a request gets its own batch. A batch fills 80 % of the token limit, because
    estimates are inexact.

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
    """The results of all batches."""

    vectors: list[Vector | None]
    """The vectors by text; None for a text without one."""
    failures: dict[int, AdapterError] = field(default_factory=dict)
    """The failures by the index of the text."""
    responses: list[EmbeddingResponse] = field(default_factory=list)
    """The responses of the batches, in the order in which the batches ended."""

    @property
    def usage(self) -> TokenUsage:
        first, *others = [response.usage for response in self.responses] or [TokenUsage()]
        return sum(others, first)

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """The warnings of all batches, without duplicates."""
        return tuple(dict.fromkeys(warning for response in self.responses for warning in response.warnings))

    def complete(self) -> tuple[Vector, ...]:
        """All vectors.

        Raises:
            PartialEmbeddingError: Some are missing.
            AdapterError: All are missing. The first failure is raised.
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
    """Run all batches concurrently. `Gathered` collects their AdapterErrors.

    Args:
        batches: The batches.
        run: Embeds the texts of one batch. It may be called again for a part of a batch.
        texts: The number of texts.
        at_once: The largest number of concurrent batches.
        on_progress: Called after each batch with the number of finished texts. The last call has all of them.

    Raises:
        Exception: Any other exception of `run` or `on_progress`.
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
                if isinstance(error, _CONCERN_ALL):
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
    """The first exception in a group, at any depth."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _check_space(response: EmbeddingResponse, gathered: Gathered) -> None:
    """Raise CapabilityError if the vectors differ from earlier vectors in their dimensions, because such vectors
    could not be compared.
    """
    if gathered.responses and response.dimensions != (expected := gathered.responses[0].dimensions):
        raise CapabilityError(
            f"{response.model} returned {response.dimensions} dimensions, but {expected} for the texts before"
        )


def _is_too_large(error: AdapterError) -> bool:
    """Whether the error means that the request was too large. Some servers only mention the batch in a message."""
    if isinstance(error, ContextOverflowError) or error.provider_status == 413:
        return True
    return isinstance(error, InvalidRequestError) and _TOO_MANY.search(error.provider_message) is not None


async def embed_all(
    adapter: EmbeddingAdapter,
    request: EmbeddingRequest,
    *,
    at_once: int = AT_ONCE,
    on_attempt: AttemptObserver | None = None,
) -> EmbeddingResponse:
    """Embed any number of texts, in order, without an engine.

    Each batch is a separate request with separate retries. The id of a batch is the request's id and the indexes
    of the texts (``mine.0-100``). If the call is cancelled, the vectors of finished batches are lost, although
    those batches are billed.

    Args:
        adapter: The adapter of the model's provider.
        request: The texts and the options.
        at_once: The largest number of concurrent batches.
        on_attempt: Called with the reports of all batches.

    Raises:
        PartialEmbeddingError: Some texts were not embedded; the error has the vectors of the others.
        AdapterError: Nothing was embedded, or there is nothing to embed.
    """
    can = adapter.get_embedding_capabilities(request.model)

    def estimate(text: str) -> int:
        return adapter.estimate_text_tokens(text, model=request.model)

    estimates = [count_tokens(each, estimate) for each in request.inputs]
    batches = plan_batches(estimates, can) or [range(0)]

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
