"""What every adapter is: the protocol, its configuration, its requests and its responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias, runtime_checkable

import msgspec

from bus.errors import AdapterError
from bus.streams.events import CallWarning as CallWarning
from bus.streams.events import StreamEvent
from bus.values.content import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.messages import Message, ToolChoice, ToolDefinition
from bus.values.usage import StopReason, TokenUsage

OnRetry: TypeAlias = Callable[[AdapterError, int, float], object]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How an adapter waits between attempts. Times are in seconds.

    The n-th retry (n from 0) waits `base_delay` · `backoff_multiplier`ⁿ, times a random factor in [1, 1.5) if
    `jitter`, at most `max_delay`. A provider's own hint goes before, also at most `max_delay`, unless
    `raise_on_long_hint`: then a longer hint ends the call at once.

    on_retry: told of each attempt that failed and is followed by another one: its error, its number from 1, and
    the seconds until then. It must not block; what it raises is logged.
    """

    base_delay: float = 1.0
    backoff_multiplier: float = 2.0
    max_delay: float = 60.0
    jitter: bool = True
    raise_on_long_hint: bool = False
    on_retry: OnRetry | None = None


class AdapterConfig(msgspec.Struct, frozen=True):
    """How to reach a provider. Times are in seconds.

    api_key: None for servers that need none. base_url: with or without its version suffix; None for the
    provider's own address. timeout_seconds: for a whole call, with all its attempts. max_retries: attempts
    after the first. extra_headers: sent with every request. options: what only this adapter knows.
    retry: how to wait between attempts. connect_timeout: for a connection, of each attempt. first_event_timeout,
    stream_read_timeout: for how long a streamed reply may say nothing before its first event, and after it; five
    times as long if all that comes are signs of life.
    drain_for_usage: for how long at most a cancelled stream is read on, in silence, for the usage that comes at
    its end; 0 closes the connection at once, and the call's usage is then partial or an estimate.
    api_key_env: the name of the variable that the key came from. Without a base_url it tells whose key it is, and
    one that may be of another vendor is refused.
    """

    api_key: str | None = None
    base_url: str | None = None
    timeout_seconds: float = 600.0
    max_retries: int = 2
    extra_headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    retry: RetryPolicy = RetryPolicy()
    connect_timeout: float = 10.0
    first_event_timeout: float = 120.0
    stream_read_timeout: float = 120.0
    drain_for_usage: float = 0.0
    api_key_env: str | None = None

    def __repr__(self) -> str:
        key = None if self.api_key is None else "***"
        return f"AdapterConfig(api_key={key!r}, base_url={self.base_url!r})"


class AdapterCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can do through its adapter. Declarations are honest: False where it would not work.

    Where one is False, what a request asks of the kind is refused before it is sent, mended, or left out with a
    warning. supports_structured_output: a schema that the provider enforces. supports_streaming_tool_calls:
    arguments come in pieces. supports_tool_choice: a call can be demanded. max_context_tokens: prompt and reply
    together. max_output_tokens: of a reply, reasoning included. accepted_image_media_types,
    accepted_audio_media_types, accepted_document_media_types: None means any.
    """

    supports_images: bool = False
    supports_audio: bool = False
    supports_documents: bool = False
    supports_thinking: bool = False
    supports_tools: bool = False
    supports_system_prompt: bool = True
    supports_structured_output: bool = False
    supports_streaming: bool = True
    supports_streaming_tool_calls: bool = False
    supports_parallel_tool_calls: bool = False
    supports_tool_choice: bool = True
    supports_prompt_caching: bool = False
    max_context_tokens: int = 128_000
    max_output_tokens: int = 16_384
    accepted_image_media_types: tuple[str, ...] | None = None
    accepted_audio_media_types: tuple[str, ...] | None = None
    accepted_document_media_types: tuple[str, ...] | None = None


class CanonicalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to one model.

    request_id: the caller's, passed to `cancel()`. messages: the whole conversation, since adapters hold none.
    model: with or without its ``provider:`` prefix; a name with a colon of its own needs it
    (``ollama:llama3:8b``).
    max_output_tokens: includes reasoning. default_output_limit: nobody asked for it; a wire that can do without
    leaves it out where nothing is known of the model's limits. output_schema: a JSON Schema that the reply's text
    must follow.
    parallel_tool_calls: whether one reply may call several tools. reasoning_effort: one of `effort.EFFORTS`,
    ``none`` to ``max``; a model with fewer gets the nearest, with a warning. provider_options: merged into the
    body, by the name of a protocol or an adapter; see `host_options`.
    capabilities: of the model, as the configuration corrects them; None is what the adapter knows. The current
    turn and the history are both held against them.
    message_id: of the reply, for its stream events; made up if empty. session_id: for logs, and so that
    what follows in a session finds its prompt cached; never sent as it is.
    tool_choice: None is the provider's default. max_retries, retry, timeout_seconds, drain_for_usage: instead of
    the configuration's, see `AdapterConfig`. temperature, top_p, frequency_penalty, presence_penalty, seed: None
    leaves them to the provider; what a model doesn't take is left out with a warning, as are the next two.
    verbosity: ``low``, ``medium`` or ``high``. user: an opaque id of the end user. stream: for middleware, how the
    request is made; it decides nothing.
    Raises ValueError if two tools have one name.
    """

    request_id: str
    messages: tuple[Message, ...]
    model: str
    max_output_tokens: int
    default_output_limit: bool = False
    capabilities: AdapterCapabilities | None = None
    tools: tuple[ToolDefinition, ...] = ()
    system_prompt: str | None = None
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    verbosity: str | None = None
    user: str | None = None
    output_schema: JsonObject | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    provider_options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    message_id: str = ""
    session_id: str = ""
    max_retries: int | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    drain_for_usage: float | None = None
    stream: bool = False

    def __post_init__(self) -> None:
        for field in ("messages", "tools", "stop_sequences"):
            given = getattr(self, field)
            if type(given) is not tuple:
                msgspec.structs.force_setattr(self, field, tuple(given))
        names = [tool.name for tool in self.tools]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two tools are named {twice!r}")

    @property
    def wire_model(self) -> str:
        """The model's name without a ``provider:`` prefix."""
        return self.model.partition(":")[2] or self.model


class RateLimitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the provider's headers say about its limits; None is nothing.

    requests_limit, tokens_limit: in all, of the provider's own period, mostly a minute. requests_remaining,
    tokens_remaining: what is left of it. reset_at: when it begins anew, as the provider writes it.
    """

    requests_limit: int | None = None
    requests_remaining: int | None = None
    tokens_limit: int | None = None
    tokens_remaining: int | None = None
    reset_at: str | None = None


class CanonicalResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What a call returned.

    request_id: the request's. model: ``provider:name`` of the one that served it. content: the reply's blocks.
    usage: tokens of the call. latency_ms: milliseconds of the whole call, with all its attempts. response_id,
    provider_request_id: the provider's own, for its support. raw_stop_reason: its own word for `stop_reason`.
    warnings: what was left out, changed or estimated. rate_limit: None if the provider said nothing of it.
    """

    request_id: str
    model: str
    provider: str
    content: tuple[ContentBlock, ...]
    stop_reason: StopReason
    usage: TokenUsage
    latency_ms: int = 0
    response_id: str | None = None
    raw_stop_reason: str | None = None
    warnings: tuple[CallWarning, ...] = ()
    rate_limit: RateLimitInfo | None = None
    provider_request_id: str | None = None

    @property
    def text(self) -> str:
        """All text of the reply, in its order."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def thinking(self) -> str:
        """All reasoning of the reply that can be seen; empty if there is none."""
        return "".join(block.text for block in self.content if isinstance(block, ThinkingBlock))

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The calls of tools that it asks for, in their order."""
        return tuple(block for block in self.content if isinstance(block, ToolUseBlock))


class AttemptStarted(msgspec.Struct, frozen=True):
    """An attempt is about to be sent. attempt: from 1. reason: ``first``, ``retry`` or ``repair``."""

    attempt: int
    reason: Literal["first", "retry", "repair"] = "first"


class AttemptResent(msgspec.Struct, frozen=True):
    """An attempt's request was sent once more, within the attempt and over another connection.

    The server had let go of one that was kept alive, before a byte of a reply. It may have read the request.
    """

    attempt: int


class AttemptFirstEvent(msgspec.Struct, frozen=True):
    """The first content of an attempt's reply has arrived."""

    attempt: int


class AttemptFailed(msgspec.Struct, frozen=True):
    """An attempt failed and another one follows after `delay_seconds`; of the last failure nothing is reported."""

    attempt: int
    error: AdapterError
    delay_seconds: float


AttemptReport: TypeAlias = AttemptStarted | AttemptResent | AttemptFirstEvent | AttemptFailed
"""What an adapter tells of each attempt."""
AttemptObserver: TypeAlias = Callable[[AttemptReport], None]
"""Who is told; must return at once."""


class AdapterStream(Protocol):
    """A streamed reply: an async iterator of events, and an async context manager that closes it.

    It ends normally after `MessageComplete`, also when the call is cancelled; when the call fails it yields
    `MessageComplete` with stop reason ``error`` (if anything had been delivered) and then raises AdapterError.
    Leaving the context early, or `aclose()`, closes the socket. It never hangs. For one reader.
    """

    def __aiter__(self) -> AsyncIterator[StreamEvent]: ...
    async def __anext__(self) -> StreamEvent: ...
    async def aclose(self) -> None:
        """Cancel the call if it still runs, and close its connection. Idempotent."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def response(self) -> CanonicalResponse | None:
        """The whole response, once the stream has ended well; None before that, and if it failed."""
        ...


@runtime_checkable
class PumpedStream(Protocol):
    """An AdapterStream that can also drive itself, which costs less for each event than being iterated."""

    async def pump(self, sink: Callable[[Sequence[StreamEvent]], object]) -> None:
        """Read to the end, giving `sink` the same events, as many at a time as came together.

        Raises what iterating would raise.
        """
        ...


@runtime_checkable
class MeteredAdapter(Protocol):
    """A ProviderAdapter that knows at any moment what a call has used."""

    def usage_so_far(self, request_id: str) -> TokenUsage | None:
        """What the current attempt of a call under way has used, if it ended here; None if nothing is known of it.

        Costs nothing until it is asked. It is what is booked for a call that ends so.
        """
        ...


@runtime_checkable
class ProviderAdapter(Protocol):
    """One provider. Usable alone: construct, call, close; nothing else of Callboard is needed.

    Every method but `estimate_input_tokens` and `get_capabilities` is I/O. Calls may run side by side, on one
    event loop. Only AdapterError (with its subclasses) is ever raised by a call, besides the loop's cancellation.
    Optional: `initialize()`, awaited before the first call; `health_check()` and `statistics()`, see `health`;
    `usage_so_far()`, see `MeteredAdapter`.

    """

    name: str
    """The provider's name, which stands before the colon of its models' names."""

    @property
    def capabilities(self) -> AdapterCapabilities:
        """What a model can do of which nothing is known."""
        ...

    async def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> CanonicalResponse:
        """The whole response. Raises AdapterError; a cancelled call raises CancelledError.

        on_attempt: told, at once and in order, when an attempt starts, has its first content, or failed and is
        followed by another. It must not raise.
        """
        ...

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> AdapterStream:
        """The reply's events as they come; nothing is sent before the first is asked for. See `AdapterStream`."""
        ...

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        """About how many input tokens a request has, from the text alone; no network."""
        ...

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        """What that model can do; `capabilities` is the answer for one that isn't known."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a call. True if it was running, False if it had ended or is unknown. Idempotent."""
        ...

    async def close(self) -> None:
        """Cancel what runs and release all connections. Idempotent."""
        ...
