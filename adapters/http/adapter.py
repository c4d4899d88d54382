"""The base adapter of every provider over HTTP.

A provider's adapter combines this class with a wire. The wire contains everything that is specific to the
provider. Attempts, time limits and cancellation are in `attempts` and `call`, the reader's iterator is in
`stream`. Embeddings, images, videos, batches and background replies are in `operations`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import AdapterError, CapabilityError
from callboard.bus.values.messages import Message, ToolDefinition
from callboard.bus.values.usage import TokenUsage

from ..batches import BatchItem, BatchJob, BatchLimits, BatchOutcome, BatchRequest
from ..config import AdapterConfig
from ..contract import (
    AdapterCapabilities,
    AdapterStream,
    AttemptObserver,
    CanonicalRequest,
    CanonicalResponse,
    ends_when_cancelled,
)
from ..embeddings import EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse
from ..health import AdapterHealth, AdapterStatistics
from ..images import ImageCapabilities, ImageRequest, ImageResponse
from ..keys import Keyring
from ..operations.answers import HttpEmbeddings, HttpImages
from ..operations.batches import HttpBatches
from ..operations.videos import HttpVideos
from ..replies.whole import WholeStream
from ..requests.emulation import read_response
from ..requests.estimate import estimate_tokens
from ..requests.history_target import WireCall
from ..requests.settings import read_options
from ..transport.addresses import check_key_goes_home, checked_base_url, normalise_base_url
from ..transport.connection_pool import new_transport
from ..transport.transport import Transport, secrets, with_clean_headers
from ..videos import (
    UNKNOWN_TERMS,
    VideoCapabilities,
    VideoContent,
    VideoJob,
    VideoRequest,
    VideoTerms,
    VideoVariant,
)
from .call import HttpCall
from .stream import HttpStream, with_long_timeouts
from .wire import ChatWire, Endpoint, HttpClient

T = TypeVar("T")


class HttpAdapter:
    """A provider over HTTP, with the interfaces of conversations, embeddings, images, videos and batches.

    Operations that the provider lacks raise CapabilityError. A provider's adapter only sets its `wire_type`.
    ``config.options["repair"]: false`` disables the repair of rejected requests; see `repair`.

    Args:
        config: How to reach the provider.
        name: The provider's name before the colon of a model's name; defaults to the wire's own. Providers that
            share a protocol need different names.
        transport: Replaces the network, for recordings and tests.
        clock: The clock of times and of randomness.

    Raises:
        ConfigurationError: The options or the address are invalid, or the key may be another vendor's.
    """

    wire_type: type[ChatWire]
    """The provider's protocol."""
    reports_attempts = True

    def __init__(
        self,
        config: AdapterConfig,
        *,
        name: str | None = None,
        transport: Transport | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        kind = self.wire_type
        self.name = name or kind.default_name
        self.config = with_clean_headers(with_long_timeouts(config) if kind.long_timeouts else config, self.name)
        self.clock = clock
        self.wire = kind(Endpoint(self.name, _base_url(config, self.name, kind), self.config, clock))
        self.client = HttpClient(self.wire, transport or new_transport(config.http_client))
        others = self.wire.other_wires()
        self._embeddings = HttpEmbeddings(self.client, others.embeddings) if others.embeddings else None
        self._images = HttpImages(self.client, others.images) if others.images else None
        self._videos = HttpVideos(self.client, others.videos) if others.videos else None
        self._batches = HttpBatches(self.client, others.batches) if others.batches else None
        self._background = others.background

    @property
    def base_url(self) -> str:
        """The server's address, normalised."""
        return self.wire.base_url

    @property
    def keys(self) -> Keyring:
        """The keys by name, with their pauses after errors."""
        return self.client.keys

    # --- Conversations ---

    @property
    def capabilities(self) -> AdapterCapabilities:
        """The capabilities of an unknown model."""
        return self.wire.capabilities

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        """The capabilities of a model; for an unknown model, `capabilities`."""
        return self.wire.get_capabilities(model)

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        """Estimate the input tokens of a request, from the text alone."""
        return self.wire.estimate_input_tokens(messages, tools, system_prompt, model=model)

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        """The request as it would be sent. Raises the errors of `ChatWire.write_request`."""
        return self.wire.write(request, stream=stream)

    @ends_when_cancelled
    def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> Coroutine[Any, Any, CanonicalResponse]:
        """See `ProviderAdapter.complete`."""
        background = self._background
        if background is not None and background.wanted(request):
            from ..operations.background import BackgroundCall

            return BackgroundCall(self.client, background, request, on_attempt, stream=False).complete()
        call = HttpCall(self.client, request, on_attempt, stream=False)
        return self._emulated(call) if self.wire.emulates_tools else call.run(call.complete_once)

    async def _emulated(self, call: HttpCall) -> CanonicalResponse:
        """The response of a wire without tool calls. Those of the model are read from its text."""
        constrained = self.wire.is_constrained(call.request)
        response = await call.run(call.complete_once)
        return read_response(response, self.clock) if constrained else response

    @ends_when_cancelled
    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> AdapterStream:
        """See `ProviderAdapter.stream`."""
        background = self._background
        if background is not None and background.wanted(request):
            from ..operations.background import BackgroundCall, BackgroundStream

            return BackgroundStream(BackgroundCall(self.client, background, request, on_attempt, stream=True))
        if self.can_stream(request):
            return HttpStream(HttpCall(self.client, request, on_attempt, stream=True))
        if request.wire is not None:  # the client expects events
            request = msgspec.structs.replace(request, wire=msgspec.structs.replace(request.wire, on_event=None))
        return WholeStream(self, request, request.message_id or self.clock.new_id("msg"), on_attempt)

    def sends_client_request(self, request: CanonicalRequest) -> bool:
        """See `adapters.contract.SendsClientRequests`."""
        return self.wire.client_request(request) is not None

    def can_stream(self, request: CanonicalRequest) -> bool:
        """Whether the reply to a request can be streamed. If not, `stream` yields whole blocks."""
        wire, can = self.wire, request.capabilities
        if not wire.can_stream(request) or (can is not None and not can.supports_streaming):
            return False
        try:
            return not wire.is_constrained(request)
        except AdapterError:
            return True  # the same error is raised later, when the request is written

    # --- Life of the adapter ---

    def speak_as(self, other: HttpAdapter) -> None:
        """Switch to the protocol of another adapter of the same server. No call may be in progress."""
        self.wire, self.client = other.wire, other.client
        self._embeddings, self._images = other._embeddings, other._images
        self._videos, self._batches = other._videos, other._batches
        self._background = other._background

    async def initialize(self) -> None:
        """Request the data that is needed to write requests. Most servers need none."""
        await self.wire.initialize(self.client.look_up)

    async def health_check(self) -> AdapterHealth:
        """Check that the provider answers and accepts the key; see `HttpClient.health_check`."""
        return await self.client.health_check()

    async def cancel(self, request_id: str) -> bool:
        """Stop a call; see `ProviderAdapter.cancel`."""
        return await self.client.cancel(request_id)

    def usage_so_far(self, request_id: str) -> TokenUsage | None:
        """See `adapters.contract.MeteredAdapter`."""
        return self.client.usage_so_far(request_id)

    def statistics(self) -> AdapterStatistics:
        """A snapshot of the calls and connections."""
        return self.client.statistics()

    async def close(self) -> None:
        """Cancel all calls and release all connections. Idempotent."""
        await self.client.close()

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        """See `EmbeddingAdapter.embed`."""
        return await self._that_has(self._embeddings, "embed").embed(request, on_attempt)

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        """See `EmbeddingAdapter.get_embedding_capabilities`."""
        return self._that_has(self._embeddings, "embed").capabilities(self._wire_name(model))

    def estimate_text_tokens(self, text: str, *, model: str | None = None) -> int:
        """Estimate the tokens of a text for a model."""
        return estimate_tokens(text, self.wire.token_rates(model))

    async def make_images(
        self, request: ImageRequest, *, on_attempt: AttemptObserver | None = None
    ) -> ImageResponse:
        """See `ImageAdapter.make_images`."""
        return await self._that_has(self._images, "make images").make(request, on_attempt)

    def get_image_capabilities(self, model: str) -> ImageCapabilities:
        """See `ImageAdapter.get_image_capabilities`."""
        return self._that_has(self._images, "make images").capabilities(self._wire_name(model))

    # --- Videos ---

    async def create_video(self, request: VideoRequest, *, on_attempt: AttemptObserver | None = None) -> VideoJob:
        """See `VideoAdapter.create_video`."""
        return await self._that_has(self._videos, "make videos").create(request, on_attempt)

    async def retrieve_video(self, job_id: str, *, model: str, terms: VideoTerms = UNKNOWN_TERMS) -> VideoJob:
        """See `VideoAdapter.retrieve_video`."""
        return await self._that_has(self._videos, "make videos").retrieve(job_id, self._wire_name(model), terms)

    async def open_video(
        self, job: VideoJob, variant: VideoVariant = "video", *, start: int = 0, etag: str = ""
    ) -> VideoContent:
        """Download a video from the byte `start`; see `VideoAdapter.open_video`."""
        return await self._that_has(self._videos, "make videos").open(job, variant, start, etag)

    async def delete_video(self, job_id: str, *, model: str) -> bool:
        """See `VideoAdapter.delete_video`."""
        return await self._that_has(self._videos, "make videos").delete(job_id, self._wire_name(model))

    def get_video_capabilities(self, model: str) -> VideoCapabilities:
        """See `VideoAdapter.get_video_capabilities`."""
        return self._that_has(self._videos, "make videos").capabilities(self._wire_name(model))

    # --- Batches ---

    def get_batch_limits(self, model: str) -> BatchLimits:
        """See `BatchAdapter.get_batch_limits`."""
        return self._that_has(self._batches, "take batches").limits

    def split_batch(self, items: Sequence[BatchItem]) -> tuple[int, ...]:
        """See `BatchAdapter.split_batch`."""
        return self._that_has(self._batches, "take batches").split(items)

    async def create_batch(self, request: BatchRequest, *, on_attempt: AttemptObserver | None = None) -> BatchJob:
        """See `BatchAdapter.create_batch`."""
        return await self._that_has(self._batches, "take batches").create(request, on_attempt)

    async def find_batch(
        self, model: str, mark: str, count: int, since: int, *, key: str | None = None, known: Sequence[str] = ()
    ) -> BatchJob | None:
        """Find a job by its mark, its number of requests (`count`), and a creation time after `since`, in seconds
        since the epoch; see `BatchAdapter.find_batch`.
        """
        batches = self._that_has(self._batches, "take batches")
        return await batches.find(self._wire_name(model), mark, count, since, key, known)

    async def retrieve_batch(self, job_id: str, *, model: str, key: str | None = None) -> BatchJob:
        """See `BatchAdapter.retrieve_batch`."""
        return await self._that_has(self._batches, "take batches").retrieve(job_id, self._wire_name(model), key)

    async def read_batch(self, job: BatchJob, items: Sequence[BatchItem]) -> Sequence[BatchOutcome]:
        """See `BatchAdapter.read_batch`."""
        return await self._that_has(self._batches, "take batches").read(job, items)

    async def cancel_batch(self, job: BatchJob, *, model: str) -> bool:
        """See `BatchAdapter.cancel_batch`."""
        return await self._that_has(self._batches, "take batches").cancel(job, self._wire_name(model))

    def _that_has(self, part: T | None, what: str) -> T:
        if part is None:
            raise CapabilityError(
                f"{self.name} can't {what}: its adapter does not support that", provider=self.name
            )
        return part

    def _wire_name(self, model: str) -> str:
        return model.removeprefix(f"{self.name}:")


def _base_url(config: AdapterConfig, name: str, kind: type[ChatWire]) -> str:
    """The normalised address. Raises ConfigurationError for a wrong address, wrong options or another vendor's
    key.
    """
    if not config.base_url and (secrets(config) or config.api_key or config.api_key_env or config.keys):
        check_key_goes_home(name, config.api_key_env, kind.default_base_url, of_many=kind.protocol_of_many)
    if kind.options_type is not None:
        read_options(config.options, kind.options_type, name=name, type_name=kind.default_name)
    if config.base_url:
        return checked_base_url(config.base_url, name)
    return normalise_base_url(kind.default_base_url)
