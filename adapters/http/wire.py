"""A provider's protocol as pure functions: writing, reading, errors and counting.

`HttpAdapter` sends and waits; a `ChatWire` never does. To add a provider over HTTP, write a wire, and optionally
the wires of its embeddings, images and videos.
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
from ..operations.media_wire import ImageWire, VideoWire
from ..operations.wires import BackgroundWire, BatchWire, EmbeddingWire
from ..replies.assembler import Assembler
from ..replies.normaliser import StreamNormaliser
from ..requests.estimate import TokenRates, estimate_request, rates_for
from ..requests.fitted import WireCall, get
from ..requests.settings import SharedOptions
from ..transport.transport import HttpReply
from .classify import ErrorType, build_error, read_error
from .repair import Repair, RepairRules, find_repair

LookUp: TypeAlias = Callable[[WireCall, float], Awaitable[Json]]
"""Sends the server a question outside of calls, with a limit in seconds. None if no JSON arrives; never raises."""


class Endpoint(msgspec.Struct, frozen=True):
    """A provider's server, as configured."""

    provider: str
    """The adapter's name, the prefix of its models' names."""
    base_url: str
    """The server's address, normalised."""
    config: AdapterConfig
    clock: Clock


class OtherWires(NamedTuple):
    """The wires of a provider's other operations; None if it lacks the operation."""

    embeddings: EmbeddingWire | None = None
    images: Callable[[str], ImageWire] | None = None
    """The wire of images for a model, by the model's name on the wire."""
    videos: VideoWire | None = None
    batches: BatchWire | None = None
    background: BackgroundWire | None = None


class ChatWire(ABC):
    """One provider's protocol for conversations. Implement four functions; the others have defaults.

    No function waits. A wire may remember the server's answers about its models.
    """

    default_name: str
    """The protocol's own name, and the adapter's name unless the configuration gives another."""
    default_base_url: str
    """The provider's own address."""
    capabilities: AdapterCapabilities
    """The capabilities of an unknown model."""
    error_codes: Mapping[str, ErrorType] = {}
    """The provider's error words, as exceptions."""
    repair_rules: RepairRules = RepairRules()
    """The repairs for refused requests."""
    options_type: type[SharedOptions] | None = None
    """The type of `AdapterConfig.options`; None for a wire that checks the options itself."""
    protocol_of_many: bool = False
    """Whether many vendors use the protocol, so that a key needs a `base_url`."""
    long_timeouts: bool = False
    """Whether the models usually run on slow machines; see `with_long_timeouts`."""
    echoes_beginning: bool = False
    """Whether a continued reply may repeat the given start first."""
    media_fields: frozenset[str] = frozenset()
    """The fields of media that the protocol supports: ``image.detail``, ``document.name``."""
    emulates_tools: bool = False
    """Whether tools are emulated by constrained output; `write_request` then gets requests without tools."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.name = endpoint.provider
        self.config = endpoint.config
        self.base_url = endpoint.base_url

    # --- Requests and replies ---

    @abstractmethod
    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        """The headers that carry a key; none if there is no key.

        Args:
            key: The key of the attempt. It may differ from the last attempt's.
        """

    @abstractmethod
    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        """Write a request in the provider's format.

        Raises:
            CapabilityError: The request needs an ability that the model lacks.
            InvalidRequestError: The request can't be expressed in this protocol.
        """

    @abstractmethod
    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        """Feed a whole reply to the assembler and finish it.

        Raises:
            AdapterError: The reply is an error.
            msgspec.MsgspecError: The reply does not follow the protocol.
        """

    @abstractmethod
    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        """A normaliser that reads a streamed reply into the assembler."""

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        return build_error(
            read_error(body),
            status=reply.status,
            headers=reply.headers,
            codes=self.error_codes,
            provider=self.name,
            now_us=self.endpoint.clock.now_us(),
        )

    def rate_limit(self, headers: Mapping[str, str]) -> RateLimitInfo | None:
        """The provider's limits in a reply's headers."""
        return None

    def repair(
        self, request: CanonicalRequest, call: WireCall, error: AdapterError, done: Collection[str]
    ) -> Repair | None:
        """The repair of a refused request; None if the error is final.

        Args:
            request: The request.
            call: The same request, as it was sent.
            error: The error of the refusal.
            done: The kinds of repair that were tried in this call.
        """
        return find_repair(
            request, call.body, call.tool_ids, error, self.repair_rules, provider=self.name, done=done
        )

    def health_request(self) -> WireCall | None:
        """A free GET that requires the key; None if the provider has none."""
        return get("/v1/models")

    def other_wires(self) -> OtherWires:
        """The wires of the other operations, on the same server and with the same key."""
        return OtherWires()

    # --- Models ---

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        return self.capabilities

    def can_stream(self, request: CanonicalRequest) -> bool:
        """Whether the server can stream the reply to this request."""
        return True

    def takes_beginning(self, request: CanonicalRequest) -> bool:
        """Whether the model can continue a reply that starts with the request's last message."""
        return False

    async def initialize(self, look_up: LookUp) -> None:  # noqa: B027 (most servers are asked nothing)
        """Request the data that writing requests depends on, when the adapter starts."""

    def is_unknown(self, model: str) -> bool:
        """Whether to await `learn_model` before a request to the model is written."""
        return False

    async def learn_model(self, model: str, look_up: LookUp) -> None:  # noqa: B027 (most servers need no requests)
        """Request the model's capabilities from the server."""

    def token_rates(self, model: str | None) -> TokenRates:
        return rates_for(self.default_name, self.base_url, model or "")

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        """Estimate the input tokens of a request, from the text alone."""
        return estimate_request(messages, tools, system_prompt, self.token_rates(model))
