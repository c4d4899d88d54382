"""A provider's protocol as pure functions: what is sent, how it is read, what an error means, what is counted.

`HttpAdapter` sends and waits; a `ChatWire` never does. Whoever adds a provider over HTTP writes a wire, and
perhaps the wires of embeddings, images and videos beside it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec

from callboard.bus.clock import Clock
from callboard.bus.errors import AdapterError
from callboard.bus.values.base import Json
from callboard.bus.values.messages import Message, ToolDefinition

from ..config import AdapterConfig
from ..contract import AdapterCapabilities, CanonicalRequest, RateLimitInfo
from ..operations.embedding_wire import EmbeddingWire
from ..operations.jobs_wire import BackgroundWire, BatchWire
from ..operations.media_wire import ImageWire, VideoWire
from ..refusals.classify import ErrorType, build_error, read_error
from ..refusals.repair import Repair, RepairRules, find_repair
from ..replies.assembler import Assembler
from ..replies.normaliser import StreamNormaliser
from ..requests.settings import SharedOptions
from ..transport.transport import HttpReply
from ..usage.estimate import TokenRates, estimate_request, rates_for
from .wire_call import WireCall, get

LookUp: TypeAlias = Callable[[WireCall, float], Awaitable[Json]]
"""Asks the server something beside the calls, within so many seconds. None if no JSON comes; never raises."""


class Endpoint(msgspec.Struct, frozen=True):
    """A provider's server, as an adapter is configured to use it."""

    provider: str
    """The adapter's name, which stands before the colon of its models' names."""
    base_url: str
    """The server's address, normalised."""
    config: AdapterConfig
    """The adapter's configuration."""
    clock: Clock
    """The clock of times and of randomness."""


class OtherWires(NamedTuple):
    """The wires of what a provider does besides conversations; None for what it doesn't do."""

    embeddings: EmbeddingWire | None = None
    """The wire of embeddings."""
    images: Callable[[str], ImageWire] | None = None
    """The wire of images for a model, by the model's name on the wire."""
    videos: VideoWire | None = None
    """The wire of videos."""
    batches: BatchWire | None = None
    """The wire of batches of conversations."""
    background: BackgroundWire | None = None
    """The wire of replies that are made in the background."""


class ChatWire(ABC):
    """One provider's protocol for conversations. Four functions must be written; the others have defaults.

    No function waits. A wire may remember what the server has told about its models.
    """

    default_name: str
    """The protocol's own name, and the adapter's name unless the configuration gives another."""
    default_base_url: str
    """The provider's own address."""
    capabilities: AdapterCapabilities
    """What a model can do of which nothing is known."""
    error_codes: Mapping[str, ErrorType] = {}
    """The provider's words for its failures, as exceptions."""
    repair_rules: RepairRules = RepairRules()
    """Which refusals of a request can be mended."""
    options_type: type[SharedOptions] | None = None
    """What `AdapterConfig.options` may hold; None for a wire that checks the options itself."""
    protocol_of_many: bool = False
    """Whether many vendors speak the protocol, so that a key needs a `base_url`."""
    long_timeouts: bool = False
    """Whether the models mostly run on slow machines; see `timeouts.with_long_timeouts`."""
    echoes_beginning: bool = False
    """Whether a reply that goes on with a given beginning may repeat it first."""
    media_fields: frozenset[str] = frozenset()
    """The fields of media that the protocol has a place for: ``image.detail``, ``document.name``."""
    emulates_tools: bool = False
    """Whether tools are emulated by constrained output; `write_request` then gets requests without tools."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.name = endpoint.provider
        self.config = endpoint.config
        self.base_url = endpoint.base_url

    # -- what goes over the wire

    @abstractmethod
    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        """The headers that carry a key; none if there is no key.

        Args:
            key: The key of the attempt, which may be another than the last attempt's.
        """

    @abstractmethod
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        """Write a request in the provider's format.

        Raises:
            CapabilityError: The request needs what the model lacks.
            InvalidRequestError: The request can't be said in this protocol.
        """

    @abstractmethod
    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        """Feed a whole reply to the assembler, and finish it.

        Raises:
            AdapterError: The reply is an error.
            msgspec.MsgspecError: The reply is none of the protocol.
        """

    @abstractmethod
    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        """What reads a streamed reply into the assembler."""

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        """The exception that an error reply means."""
        return build_error(
            read_error(body),
            status=reply.status,
            headers=reply.headers,
            codes=self.error_codes,
            provider=self.name,
            now_us=self.endpoint.clock.now_us(),
        )

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        """What a reply's headers say about the provider's limits."""
        return None

    def repair(
        self, request: CanonicalRequest, call: WireCall, error: AdapterError, done: Collection[str]
    ) -> Repair | None:
        """How to mend a request that was refused; None if the error is final.

        Args:
            request: The request.
            call: The same request, as it was sent.
            error: What the refusal means.
            done: The kinds of repair that were tried in this call.
        """
        return find_repair(
            request, call.body, call.tool_ids, error, self.repair_rules, provider=self.name, done=done
        )

    def health_request(self) -> WireCall | None:
        """A GET that costs nothing and wants the key; None if the provider has none."""
        return get("/v1/models")

    def other_wires(self) -> OtherWires:
        """The wires of embeddings, images, videos and batches, on the same server and with the same key."""
        return OtherWires()

    # -- what the models can do

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        """What a model can do, by its name on the wire."""
        return self.capabilities

    def can_stream(self, request: CanonicalRequest) -> bool:
        """Whether the server can stream the reply to this request."""
        return True

    def takes_beginning(self, request: CanonicalRequest) -> bool:
        """Whether the model goes on with a reply whose beginning is the request's last message."""
        return False

    async def initialize(self, look_up: LookUp) -> None:  # noqa: B027 (most servers are asked nothing)
        """Ask the server, when the adapter starts, what requests to it can't be written well without."""

    def is_unknown(self, model: str) -> bool:
        """Whether `learn_model` is to be awaited before a request to the model is written."""
        return False

    async def learn_model(self, model: str, look_up: LookUp) -> None:  # noqa: B027 (most servers are asked nothing)
        """Ask the server what the model can do."""

    # -- what is counted

    def token_rates(self, model: str | None) -> TokenRates:
        """How a model's tokens are estimated."""
        return rates_for(self.default_name, self.base_url, model or "")

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        """About how many input tokens a request has, from the text alone."""
        return estimate_request(messages, tools, system_prompt, self.token_rates(model))
