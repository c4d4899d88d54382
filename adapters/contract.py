"""The adapter contract: protocol, requests, responses and reports of attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from operator import attrgetter
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import msgspec

from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject, ShortRepr
from callboard.bus.values.content import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import CallWarning, Message, RawReply, ToolChoice, ToolDefinition
from callboard.bus.values.usage import StopReason, TokenUsage

from .config import RetryPolicy

# --- Requests and responses ---


class CallRequest(ShortRepr, frozen=True, kw_only=True):
    """One request to one model."""

    request_id: str
    """The caller's id of the request, for `cancel()`."""
    model: str
    """The model, with or without its ``provider:`` prefix. A name with a colon of its own needs the prefix
    (``ollama:llama3:8b``)."""
    provider_options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    """Fields that are merged into the body, by the name of a protocol or an adapter; see `host_options`."""
    key: str | None = None
    """The name of a key in `AdapterConfig.keys`; None lets the adapter choose."""
    max_retries: int | None = None
    """The attempts after the first; None uses the configuration's number."""
    retry: RetryPolicy | None = None
    """The waits between attempts; None uses the configuration's policy."""
    timeout_seconds: float | None = None
    """The seconds for all attempts together; None uses the configuration's number."""

    @property
    def wire_model(self) -> str:
        """The model's name without a ``provider:`` prefix."""
        return self.model.partition(":")[2] or self.model


class RateLimitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The limits in the provider's headers; None for a limit that is not reported."""

    requests_limit: int | None = None
    """The requests in a period, usually a minute."""
    requests_remaining: int | None = None
    """The requests left in the period."""
    tokens_limit: int | None = None
    """The tokens in a period."""
    tokens_remaining: int | None = None
    """The tokens left in the period."""
    reset_at: str | None = None
    """The start of the next period, in the provider's format."""
    requests_reset: str | None = None
    """The time at which all requests are available again, in the provider's format."""
    tokens_reset: str | None = None
    """The time at which all tokens are available again, in the provider's format."""
    counts_output: bool = True
    """Whether the tokens of replies count, too."""
    fixed_window: bool = False
    """Whether the limit resets completely at the start of the next period, not gradually."""


class CallResponse(ShortRepr, frozen=True, kw_only=True):
    """The response to one request."""

    request_id: str
    """The id of the request."""
    model: str
    """The ``provider:name`` of the model that served the request."""
    provider: str
    """The adapter's name."""
    usage: TokenUsage
    """The tokens of the call."""
    latency_ms: int = 0
    """The milliseconds of the whole call, all attempts included."""
    response_id: str | None = None
    """The provider's id of the reply."""
    warnings: tuple[CallWarning, ...] = ()
    """Warnings about request fields and values that were dropped, changed or estimated."""
    rate_limit: RateLimitInfo | None = None
    """The limits in the reply's headers; None if there are none."""
    provider_request_id: str | None = None
    """The provider's id of the request, to report to its support."""


F = TypeVar("F", bound=Callable[..., Any])

AttemptReason: TypeAlias = Literal["first", "retry", "repair", "key", "taken_up", "continued"]
"""The reason for an attempt: the call's first attempt, a retry, a repaired request, another key, a resumed
background reply, or the continuation of a reply that broke off.
"""

_NAME = attrgetter("name")


class AdapterCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a model through its adapter. False means that the ability does not work.

    If a request needs an ability that is False, the request is refused before it is sent, or it is repaired. In
    some cases the unsupported part is left out with a warning.
    """

    supports_images: bool = False
    """Images in messages."""
    supports_audio: bool = False
    """Audio in messages."""
    supports_documents: bool = False
    """Documents in messages."""
    supports_thinking: bool = False
    """Whether the model reasons on request."""
    supports_tools: bool = False
    """Calls of tools."""
    supports_system_prompt: bool = True
    """A system prompt."""
    supports_structured_output: bool = False
    """Whether the provider enforces a JSON Schema."""
    supports_streaming: bool = True
    """Whether replies can be streamed."""
    supports_streaming_tool_calls: bool = False
    """Whether the arguments of tool calls can be streamed."""
    supports_parallel_tool_calls: bool = False
    """Several tool calls in one reply."""
    supports_tool_choice: bool = True
    """Requests that force or forbid tool calls."""
    supports_prompt_caching: bool = False
    """A prompt cache at the provider."""
    max_context_tokens: int = 128_000
    """Tokens of prompt and reply together."""
    max_output_tokens: int = 16_384
    """Tokens of a reply, including reasoning."""
    accepted_image_media_types: tuple[str, ...] | None = None
    """The media types of images; None means any."""
    accepted_audio_media_types: tuple[str, ...] | None = None
    """The media types of audio; None means any."""
    accepted_document_media_types: tuple[str, ...] | None = None
    """The media types of documents; None means any."""


class WireRequest(ShortRepr, frozen=True, kw_only=True):
    """A request as a client wrote it, for an adapter of the same protocol.

    The adapter sends `body` with its own name of the model and a few other changes, see `adapters.http.fidelity`.
    It ignores the canonical fields. Adapters of other protocols ignore this object and send the canonical request.
    Batches, and adapters that emulate the request's tools, also send the canonical request.

    If the provider rejects the body, its fields are repaired as usual. If the repair changes the canonical request
    instead, the canonical request is sent, and `on_event` is not called. A broken reply is never continued
    (`continue_broken`). A Responses body with ``background: true`` requests a background reply: the call ends when
    the provider has completed it.
    """

    protocol: str
    """The protocol of the body: ``anthropic``, ``openai``, ``openai_compatible`` or ``gemini``."""
    body: JsonObject
    """The body from the client, unchanged."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Headers that belong to the request, such as ``anthropic-beta``."""
    refers_to: str = ""
    """The name of a field that refers to data at the provider, such as ``conversation``. Adapters of other
    protocols can't serve such a request. Empty if there is no such field.
    """
    on_headers: Callable[[Mapping[str, str], RateLimitInfo | None], object] | None = None
    """Called when the first content of a reply has arrived, with the reply's headers and the limits in them. After
    a failed attempt, the headers are those of the failed reply, or empty if there was no reply. Adapters of all
    protocols call this function. It must not raise.
    """
    on_event: Callable[[str, bytes], object] | None = None
    """Called with the name and the data of each event of a streamed reply, as the provider sent them. For a reply
    that is not streamed, the name is ``""`` and the data is the body. The call is before the canonical events of
    the same data. The function must not raise.

    Only events of the attempt that delivers content are passed on. Events before the first content are held until
    the content arrives. A later error event is passed on, and then the call raises the error.

    Nothing is passed on if the reply does not have the requested form: a whole reply instead of a stream, or a
    stream instead of a whole reply. Nothing is passed on either if middleware changed the request or may change
    the reply. If `on_event` was not called before the first canonical event or the response, the caller must write
    the canonical reply itself. Nothing is passed on after a cancellation. Keys in the reply are masked.
    """


class CanonicalRequest(CallRequest, frozen=True, kw_only=True):
    """One request to one model.

    A parameter that the model doesn't support is dropped with a warning. None uses the provider's default.

    Raises:
        ValueError: Two tools have one name.
    """

    messages: tuple[Message, ...]
    """The whole conversation. Adapters store no history."""
    max_output_tokens: int
    """The largest number of tokens in the reply, including reasoning."""
    default_output_limit: bool = False
    """Whether `max_output_tokens` is only a default. The adapter omits a default if the model's limits are unknown
    and the protocol allows it.
    """
    capabilities: AdapterCapabilities | None = None
    """The capabilities of the model with the configuration's corrections; None uses the capabilities from the
    adapter. The current turn and the history are checked against them.
    """
    tools: tuple[ToolDefinition, ...] = ()
    """The tools that the model may call."""
    system_prompt: str | None = None
    """The system text."""
    stop_sequences: tuple[str, ...] = ()
    """Texts at which the reply ends."""
    temperature: float | None = None
    """The temperature of sampling."""
    top_p: float | None = None
    """The share of the most likely tokens to sample from."""
    frequency_penalty: float | None = None
    """The penalty for a token. It grows with the number of earlier occurrences of the token."""
    presence_penalty: float | None = None
    """The penalty for a token that has occurred before."""
    seed: int | None = None
    """The seed of sampling."""
    verbosity: str | None = None
    """``low``, ``medium`` or ``high``."""
    user: str | None = None
    """An opaque id of the end user."""
    output_schema: JsonObject | None = None
    """A JSON Schema that the reply's text must follow."""
    tool_choice: ToolChoice | None = None
    """The choice of tools."""
    parallel_tool_calls: bool | None = None
    """Whether one reply may call several tools."""
    reasoning_effort: str | None = None
    """One of `settings.EFFORTS`, ``none`` to ``max``. A model without this effort uses its nearest effort, with a
    warning.
    """
    message_id: str = ""
    """The id of the reply, for its stream events; generated if empty."""
    session_id: str = ""
    """The session's id, for logs and for the provider's prompt cache. Only a digest of the id is sent."""
    drain_for_usage: float | None = None
    """Replaces `AdapterConfig.drain_for_usage`."""
    stream: bool = False
    """Whether the request is streamed. Middleware may read it; setting it has no effect."""
    background: bool | None = None
    """Whether the provider continues the reply if the connection or the process is lost; see
    `adapters.operations.background`.
    """
    response_id: str = ""
    """The provider's id of a background reply to resume. No new reply is requested."""
    continue_broken: bool | None = None
    """Whether to continue a streamed reply that breaks off in its text, with another attempt. The model must
    support this.
    """
    include_raw: bool | None = None
    """Whether the response includes the provider's raw reply in `CanonicalResponse.raw`."""
    has_beginning: bool = False
    """Whether the last message is the start of the reply, which the model continues."""
    wire: WireRequest | None = None
    """The request as a client wrote it; see `WireRequest`."""

    def __post_init__(self) -> None:
        for field in ("messages", "tools", "stop_sequences"):
            value = getattr(self, field)
            if type(value) is not tuple:
                msgspec.structs.force_setattr(self, field, tuple(value))
        names = list(map(_NAME, self.tools))
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two tools are named {twice!r}")


class CanonicalResponse(CallResponse, frozen=True, kw_only=True):
    """The response to a conversation request."""

    content: tuple[ContentBlock, ...]
    """The reply's blocks, in their order."""
    stop_reason: StopReason
    """How the reply ended."""
    raw_stop_reason: str | None = None
    """The provider's own word for `stop_reason`."""
    provider_details: JsonObject = msgspec.field(default_factory=dict)
    """Other data of the reply besides content and usage, by the provider's names, such as the matched stop
    sequence.
    """
    raw: RawReply | None = None
    """The provider's raw reply; None unless `CanonicalRequest.include_raw` is set."""

    @property
    def text(self) -> str:
        """All text of the reply, in its order."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def thinking(self) -> str:
        """All visible reasoning of the reply; empty if there is none."""
        return "".join(block.text for block in self.content if isinstance(block, ThinkingBlock))

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls of the reply, in their order."""
        return tuple(block for block in self.content if isinstance(block, ToolUseBlock))


class AttemptStarted(msgspec.Struct, frozen=True):
    """An attempt is about to be sent."""

    attempt: int
    """The attempt's number, from 1."""
    reason: AttemptReason = "first"
    """The reason for the attempt."""
    key: str | None = None
    """The name of the key in use; None for the adapter's own key, which has no name."""


class AttemptResent(msgspec.Struct, frozen=True):
    """An attempt's request was sent again over another connection, within the same attempt.

    The server had closed a kept-alive connection before the first byte of a reply. The server may have read the
    request.
    """

    attempt: int
    """The attempt's number, from 1."""


class AttemptAccepted(msgspec.Struct, frozen=True):
    """The provider has accepted the request and generates the reply in the background, under an id."""

    attempt: int
    """The attempt's number, from 1."""
    response_id: str
    """The provider's id of the reply."""


class AttemptFirstEvent(msgspec.Struct, frozen=True):
    """The first content of an attempt's reply has arrived."""

    attempt: int
    """The attempt's number, from 1."""
    rate_limit: RateLimitInfo | None = None
    """The limits in the reply's headers; None if there are none."""


class AttemptFailed(msgspec.Struct, frozen=True):
    """An attempt failed, and another follows after `delay_seconds`. The last failure is not reported."""

    attempt: int
    """The attempt's number, from 1."""
    error: AdapterError
    """The error."""
    delay_seconds: float
    """The wait until the next attempt, in seconds."""


AttemptReport: TypeAlias = AttemptStarted | AttemptResent | AttemptAccepted | AttemptFirstEvent | AttemptFailed
"""A report of an attempt."""
NextAttempt: TypeAlias = Callable[[], Awaitable[None]]
"""Awaited before the next attempt is sent."""
AttemptObserver: TypeAlias = Callable[[AttemptReport], NextAttempt | None]
"""The function that gets the reports. It must return immediately.

If it returns a `NextAttempt` for an `AttemptFailed`, that is awaited before the next attempt, after the delay.
"""


class AdapterStream(Protocol):
    """A streamed reply: an async iterator of events, and an async context manager that closes it.

    The stream ends after `MessageComplete`, even if the call is cancelled. If the call fails, the stream yields
    `MessageComplete` with stop reason ``error`` (after any other event) and then raises AdapterError. `aclose()`,
    or leaving the context early, closes the socket. The stream never hangs. Only one reader may use it.
    """

    def __aiter__(self) -> AsyncIterator[StreamEvent]: ...
    async def __anext__(self) -> StreamEvent: ...
    async def aclose(self) -> None:
        """Cancel the call if it is in progress, and close its connection. Idempotent."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def response(self) -> CanonicalResponse | None:
        """The whole response after the stream has ended well; None before, and after a failure."""
        ...


@runtime_checkable
class PumpedStream(Protocol):
    """An AdapterStream that can push its events. Pushing costs less than iteration."""

    async def pump(self, sink: Callable[[Sequence[StreamEvent]], object]) -> None:
        """Read to the end, and pass the events to `sink` in batches. Raises the same errors as iterating."""
        ...


@runtime_checkable
class MeteredAdapter(Protocol):
    """A ProviderAdapter that can report the usage of a call in progress."""

    def usage_so_far(self, request_id: str) -> TokenUsage | None:
        """The usage of a call's current attempt, as if the attempt ended now; None if unknown.

        The usage is computed when this method is called. If the call ends early, this usage is charged.
        """
        ...


@runtime_checkable
class SendsClientRequests(Protocol):
    """A ProviderAdapter of a protocol that clients use as well."""

    def sends_client_request(self, request: CanonicalRequest) -> bool:
        """Whether `CanonicalRequest.wire` is sent in place of the canonical request."""
        ...


def ends_when_cancelled(method: F) -> F:
    """Mark `complete` or `stream` of an adapter: its call ends immediately if the waiting task is cancelled.

    The engine then runs the call in the turn's own task. A subclass that overrides the method must mark its own
    method, too.
    """
    method.__dict__["ends_when_cancelled"] = True
    return method


@runtime_checkable
class ProviderAdapter(Protocol):
    """One provider. An adapter works alone, without the rest of Callboard: construct it, call it, close it.

    Every method except `estimate_input_tokens` and `get_capabilities` does I/O. Calls may run concurrently on one
    event loop. A call raises only AdapterError with its subclasses, and the loop's cancellation.

    These methods are optional: `initialize()`, awaited before the first call, `health_check()` and `statistics()`,
    see `health`, and `usage_so_far()`, see `MeteredAdapter`. An adapter that calls `on_attempt` sets
    `reports_attempts = True`. Without it, the engine records the start of each call before it calls the adapter.
    """

    name: str
    """The provider's name, the prefix of its models' names."""

    @property
    def capabilities(self) -> AdapterCapabilities:
        """The capabilities of an unknown model."""
        ...

    # Written without `async`, so that a method may return the coroutine of another one.
    def complete(
        self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None
    ) -> Coroutine[Any, Any, CanonicalResponse]:
        """Make a call and wait for the whole response.

        Args:
            request: The request.
            on_attempt: Called immediately and in order when an attempt starts, has its first content, or failed
                and is followed by another. It must not raise.

        Raises:
            AdapterError: The call failed. It is a CancelledError if the call was cancelled.
        """
        ...

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> AdapterStream:
        """Stream the events of a reply; see `AdapterStream`. The first read sends the request.

        Args:
            request: The request.
            on_attempt: Called as in `complete`.
        """
        ...

    def estimate_input_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        system_prompt: str | None = None,
        *,
        model: str | None = None,
    ) -> int:
        """Estimate the input tokens of a request, from the text alone and without the network."""
        ...

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        """The capabilities of a model; for an unknown model, `capabilities`."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a call. Returns False if it had ended or is unknown. Idempotent."""
        ...

    async def close(self) -> None:
        """Cancel all calls and release all connections. Idempotent."""
        ...
