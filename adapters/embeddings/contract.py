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

from callboard.bus.errors import AdapterError
from callboard.bus.values.usage import TokenUsage

from ..calls import CallRequest, CallResponse
from ..contract import AttemptObserver

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
    """The abilities of a model through its adapter. None is not known: nothing is refused or cut for it."""

    max_inputs: int = 2048
    """The most texts in one request."""
    max_input_tokens: int | None = None
    """The most tokens of one text."""
    max_request_tokens: int | None = None
    """The most tokens of all texts of a request together."""
    dimensions: int | None = None
    """The number of dimensions of a vector, unless another is asked for."""
    supports_dimensions: bool = True
    """Whether other dimensions may be asked for."""
    dimension_choices: tuple[int, ...] = ()
    """The dimensions that may be asked for; empty for any number up to `dimensions`."""
    input_types: tuple[str, ...] = ()
    """The input types that make a difference."""
    supports_truncation: bool = False
    """Whether a request may say that texts that are too long are cut."""
    cuts_silently: bool = False
    """Whether the provider cuts texts that are too long without being told to."""
    encodings: tuple[Encoding, ...] = ("float",)
    """How vectors can come over the wire, the best way first."""

    def refusal(self, dimensions: int) -> str | None:
        """The reason why vectors can't have so many dimensions; None if they can, or if it isn't known."""
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


class EmbeddingRequest(CallRequest, frozen=True, kw_only=True):
    """One request to one model: as many texts as it takes at once.

    Raises:
        TypeError: `inputs` is a single string.
        ValueError: The input type is unknown.
    """

    inputs: tuple[str, ...]
    """The texts."""
    dimensions: int | None = None
    """The dimensions of the vectors; None is the model's own number."""
    input_type: InputType | None = None
    """What the texts are embedded for. Where it makes no difference it is left out with a warning."""
    truncate: bool = False
    """Whether texts that are too long may be cut. Otherwise they are an error, if the provider can be told so."""
    encoding: Encoding | None = None
    """How the vectors come over the wire; None is the best way that the provider has."""

    def __post_init__(self) -> None:
        given: str | tuple[str, ...] = self.inputs
        if isinstance(given, str):
            raise TypeError("inputs are several texts; put a single one into a list")
        msgspec.structs.force_setattr(self, "inputs", tuple(given))
        if self.input_type is not None and self.input_type not in INPUT_TYPES:
            raise ValueError(f"input_type {self.input_type!r} is none of {', '.join(INPUT_TYPES)}")


class EmbeddingResponse(CallResponse, frozen=True, kw_only=True):
    """The vectors of one request. The latency of several batches is the slowest batch's."""

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

    The adapter is usable alone: construct it, call it, close it. Calls may run side by side on one event loop. A
    call raises nothing but AdapterError and the loop's cancellation.
    """

    name: str
    """The adapter's name, which stands before the colon of its models' names."""

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        """The vectors of one request, which must keep the model's limits. `embed_all` cuts up larger requests.

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
        """What a model can do. No network is used."""
        ...

    def estimate_text_tokens(self, text: str, *, model: str | None = None) -> int:
        """About how many tokens a text has for a model. No network is used."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a request. True if it was running, False if it had ended or is unknown. Idempotent."""
        ...

    async def close(self) -> None:
        """Cancel what runs and release all connections. Idempotent."""
        ...


class PartialEmbeddingError(AdapterError):
    """Some of the texts could not be embedded after all retries, and the others were.

    The error's cause is the first failure. The error is `retryable` if all failures are of a passing kind.
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
        """The usage of the texts that were embedded: they are paid for."""
