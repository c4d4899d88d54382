"""What an adapter that embeds is: the protocol, its requests and its responses.

An interface of its own, beside that of conversations: many texts go in and as many vectors come out, nothing is
streamed and there are no tools. Configuration, errors, attempts and retries are those of every adapter.

A vector is an `array('f')`: four bytes for each dimension, what `json` needs by `tolist()`, what a database needs
by `tobytes()`, and `numpy.frombuffer(vector, "f4")` takes it as it is, without a copy.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias, get_args, runtime_checkable

import msgspec

from adapters.contract import AttemptObserver, CallWarning, RateLimitInfo, RetryPolicy
from bus.errors import AdapterError
from bus.values.json import Json
from bus.values.usage import TokenUsage

Vector: TypeAlias = "array[float]"
"""The embedding of one text: float32, in an `array('f')`."""

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
"""What a text is embedded for. A search embeds its documents as ``document`` and what is searched as ``query``."""

INPUT_TYPES: tuple[InputType, ...] = get_args(InputType)
"""All input types."""

Encoding: TypeAlias = Literal["base64", "float"]
"""How vectors come over the wire: the bytes of their float32 numbers, or JSON numbers, which take more."""


class EmbeddingCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can embed through its adapter. None: not known, so nothing is refused or cut for it.

    max_inputs: texts in one request. max_request_tokens: of one request, all its texts together. max_input_tokens:
    of one text. dimensions: of a vector where none are asked for. supports_dimensions: others may be asked for;
    dimension_choices: which, () for any fewer.
    input_types: those that make a difference. supports_truncation: the request may say whether a text that is too
    long is cut. cuts_silently: without being told, or unable to be told, the provider cuts it. encodings: how
    vectors can be had, the better one first.
    """

    max_inputs: int = 2048
    max_input_tokens: int | None = None
    max_request_tokens: int | None = None
    dimensions: int | None = None
    supports_dimensions: bool = True
    dimension_choices: tuple[int, ...] = ()
    input_types: tuple[str, ...] = ()
    supports_truncation: bool = False
    cuts_silently: bool = False
    encodings: tuple[Encoding, ...] = ("float",)

    def refusal(self, dimensions: int) -> str | None:
        """Why vectors of so many dimensions can't be had; None if they can, or may."""
        if dimensions < 1:
            return "dimensions are at least 1"
        if dimensions == self.dimensions:
            return None
        if not self.supports_dimensions:
            fixed = f": they are always {self.dimensions}" if self.dimensions is not None else ""
            return f"its dimensions can't be chosen{fixed}"
        if self.dimension_choices and dimensions not in self.dimension_choices:
            return f"it offers {', '.join(map(str, self.dimension_choices))}"
        if not self.dimension_choices and self.dimensions is not None and dimensions > self.dimensions:
            return f"it has at most {self.dimensions}"
        return None


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to one model: as many texts as it takes at once.

    request_id: the caller's, passed to `cancel()`. inputs: the texts. model: with or without its ``provider:``
    prefix; a name with a colon of its own needs it. dimensions: of the vectors; None is the model's own number.
    input_type: what the texts are embedded for; left out with a warning where that makes no difference. truncate:
    whether a text that is too long may be cut; otherwise it is an error, where the provider lets us say so.
    encoding: how the vectors come; None is the best that the provider has.
    provider_options: merged into the body, by protocol or provider, as in a conversation's request.
    max_retries, retry, timeout_seconds: instead of the configuration's, see `AdapterConfig`.
    Raises TypeError if `inputs` is a single string, ValueError for an unknown input type.
    """

    request_id: str
    model: str
    inputs: tuple[str, ...]
    dimensions: int | None = None
    input_type: InputType | None = None
    truncate: bool = False
    encoding: Encoding | None = None
    provider_options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        given: str | tuple[str, ...] = self.inputs
        if isinstance(given, str):
            raise TypeError("inputs are several texts; put a single one into a list")
        msgspec.structs.force_setattr(self, "inputs", tuple(given))
        if self.input_type is not None and self.input_type not in INPUT_TYPES:
            raise ValueError(f"input_type {self.input_type!r} is none of {', '.join(INPUT_TYPES)}")

    @property
    def wire_model(self) -> str:
        """The model's name without a ``provider:`` prefix."""
        return self.model.partition(":")[2] or self.model


class EmbeddingResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors of one request, in the order of its inputs. model: ``provider:name`` of the one that served it.

    usage: input tokens only; an estimate where the provider counts none. latency_ms: milliseconds, with all
    attempts; of several batches, the slowest's. response_id, provider_request_id: the provider's own, of the first
    batch. warnings: what was left out, changed or estimated.
    """

    request_id: str
    model: str
    provider: str
    vectors: tuple[Vector, ...]
    usage: TokenUsage
    latency_ms: int = 0
    response_id: str | None = None
    warnings: tuple[CallWarning, ...] = ()
    rate_limit: RateLimitInfo | None = None
    provider_request_id: str | None = None

    @property
    def dimensions(self) -> int:
        """Of each vector; 0 if there is none."""
        return len(self.vectors[0]) if self.vectors else 0


@runtime_checkable
class EmbeddingAdapter(Protocol):
    """One provider's embeddings. Usable alone: construct, call, close. Calls may run side by side, on one event
    loop.

    Only AdapterError is ever raised by a call, besides the loop's cancellation. name: stands before the colon of
    its models' names.
    """

    name: str

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        """The vectors of one request, which must keep the model's limits; `embed_all` cuts up what doesn't.

        Raises CapabilityError, before anything is sent, for what the model can't do; ContextOverflowError for a
        text that is too long; other AdapterErrors. on_attempt: as in `ProviderAdapter.complete`.
        """
        ...

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        """What that model can do; no network."""
        ...

    def estimate_text_tokens(self, text: str, *, model: str | None = None) -> int:
        """About how many tokens a text has for that model; no network."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a request. True if it was running, False if it had ended or is unknown. Idempotent."""
        ...

    async def close(self) -> None:
        """Cancel what runs and release all connections. Idempotent."""
        ...


class PartialEmbeddingError(AdapterError):
    """Some of the texts could not be embedded, after all retries; the others were.

    The cause is the first failure; `retryable` if all of them are of a passing kind.

    vectors: in the order of the inputs, None where there is none. failures: why, by the input's index. usage: of
    those that were embedded, which are paid for.
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
        self.failures = dict(failures)
        self.usage = usage
