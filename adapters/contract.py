"""The protocol that every adapter keeps, with its requests, its responses and its reports of attempts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from operator import attrgetter
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import msgspec

from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import Json, JsonObject, Shown
from callboard.bus.values.content import ContentBlock, TextBlock, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import CallWarning, Message, RawReply, ToolChoice, ToolDefinition
from callboard.bus.values.usage import StopReason, TokenUsage

from .config import RetryPolicy

# Requests and responses of every kind


class CallRequest(Shown, frozen=True, kw_only=True):
    """One request to one model."""

    request_id: str
    """The caller's id of the request, which is passed to `cancel()`."""
    model: str
    """The model, with or without its ``provider:`` prefix. A name with a colon of its own needs the prefix
    (``ollama:llama3:8b``)."""
    provider_options: Mapping[str, Json] = msgspec.field(default_factory=dict)
    """Fields that are merged into the body, by the name of a protocol or an adapter; see `host_options`."""
    key: str | None = None
    """The name of one of `AdapterConfig.keys`; None leaves it to the adapter."""
    max_retries: int | None = None
    """The attempts after the first; None is the configuration's number."""
    retry: RetryPolicy | None = None
    """The waits between attempts; None are the configuration's."""
    timeout_seconds: float | None = None
    """The seconds for all attempts together; None is the configuration's number."""

    @property
    def wire_model(self) -> str:
        """The model's name without a ``provider:`` prefix."""
        return self.model.partition(":")[2] or self.model


class RateLimitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that the provider's headers report; None for a limit that they don't report."""

    requests_limit: int | None = None
    """Requests in all, in the provider's own period, mostly a minute."""
    requests_remaining: int | None = None
    """Requests that are left in the period."""
    tokens_limit: int | None = None
    """Tokens in all, in the period."""
    tokens_remaining: int | None = None
    """Tokens that are left in the period."""
    reset_at: str | None = None
    """When the period begins anew, as the provider writes it."""
    requests_reset: str | None = None
    """When the requests are all there again, as the provider writes it."""
    tokens_reset: str | None = None
    """When the tokens are all there again, as the provider writes it."""
    counts_output: bool = True
    """Whether the tokens are those of requests and replies, not of requests alone."""
    fixed_window: bool = False
    """Whether everything comes back at once when the period begins anew, not little by little until then."""


class CallResponse(Shown, frozen=True, kw_only=True):
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
    """The milliseconds of the whole call, with all its attempts."""
    response_id: str | None = None
    """The provider's id of the reply."""
    warnings: tuple[CallWarning, ...] = ()
    """What was left out, changed or estimated."""
    rate_limit: RateLimitInfo | None = None
    """The provider's limits, as the reply's headers tell them; None if they tell none."""
    provider_request_id: str | None = None
    """The provider's id of the request, for its support."""


F = TypeVar("F", bound=Callable[..., Any])

AttemptReason: TypeAlias = Literal["first", "retry", "repair", "key", "taken_up", "continued"]
"""Why an attempt is made: it is the first, a failure passed, the request was mended, there is another key, a reply
that was being made in the background is taken up, or a reply that broke off is continued."""

_NAME = attrgetter("name")


class AdapterCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can do through its adapter. Declarations are honest: False where it would not work.

    A request that asks for something that is False here is refused before it is sent, or mended, or that part is
    left out with a warning.
    """

    supports_images: bool = False
    """Images in messages."""
    supports_audio: bool = False
    """Audio in messages."""
    supports_documents: bool = False
    """Documents in messages."""
    supports_thinking: bool = False
    """Reasoning that can be asked for."""
    supports_tools: bool = False
    """Calls of tools."""
    supports_system_prompt: bool = True
    """A system prompt."""
    supports_structured_output: bool = False
    """A JSON Schema that the provider enforces."""
    supports_streaming: bool = True
    """Replies that come in pieces."""
    supports_streaming_tool_calls: bool = False
    """Arguments of tool calls that come in pieces."""
    supports_parallel_tool_calls: bool = False
    """Several tool calls in one reply."""
    supports_tool_choice: bool = True
    """A tool call that can be demanded."""
    supports_prompt_caching: bool = False
    """A cache of prompts at the provider."""
    max_context_tokens: int = 128_000
    """Tokens of prompt and reply together."""
    max_output_tokens: int = 16_384
    """Tokens of a reply, reasoning included."""
    accepted_image_media_types: tuple[str, ...] | None = None
    """The media types of images; None means any."""
    accepted_audio_media_types: tuple[str, ...] | None = None
    """The media types of audio; None means any."""
    accepted_document_media_types: tuple[str, ...] | None = None
    """The media types of documents; None means any."""


class CanonicalRequest(CallRequest, frozen=True, kw_only=True):
    """One request to one model.

    A parameter that a model doesn't take is left out with a warning; None leaves it to the provider.

    Raises:
        ValueError: Two tools have one name.
    """

    messages: tuple[Message, ...]
    """The whole conversation, since adapters hold none."""
    max_output_tokens: int
    """The longest reply in tokens, reasoning included."""
    default_output_limit: bool = False
    """Whether nobody asked for that limit. Without knowledge of the model's limits, a wire that needs no limit
    leaves it out."""
    capabilities: AdapterCapabilities | None = None
    """The capabilities of the model, as the configuration corrects them; None takes the adapter's own. The current
    turn and the history are both checked against them."""
    tools: tuple[ToolDefinition, ...] = ()
    """The tools that the model may call."""
    system_prompt: str | None = None
    """The system text."""
    stop_sequences: tuple[str, ...] = ()
    """Texts at which the reply ends."""
    temperature: float | None = None
    """The temperature of sampling."""
    top_p: float | None = None
    """The share of likely tokens that are sampled from."""
    frequency_penalty: float | None = None
    """The penalty for tokens by how often they came before."""
    presence_penalty: float | None = None
    """The penalty for tokens that came before."""
    seed: int | None = None
    """The seed of sampling."""
    verbosity: str | None = None
    """``low``, ``medium`` or ``high``."""
    user: str | None = None
    """An opaque id of the end user."""
    output_schema: JsonObject | None = None
    """A JSON Schema that the reply's text must follow."""
    tool_choice: ToolChoice | None = None
    """Which tool must be called, if any."""
    parallel_tool_calls: bool | None = None
    """Whether one reply may call several tools."""
    reasoning_effort: str | None = None
    """One of `effort.EFFORTS`, ``none`` to ``max``. A model with fewer gets the nearest, with a warning."""
    message_id: str = ""
    """The id of the reply, for its stream events; made up if empty."""
    session_id: str = ""
    """The session, for logs and so that later calls find its prompt cached. Never sent as it is."""
    drain_for_usage: float | None = None
    """Replaces `AdapterConfig.drain_for_usage`."""
    stream: bool = False
    """Whether the request is made as a stream, for middleware to know. The field itself has no effect."""
    background: bool | None = None
    """Whether the provider goes on with the reply if the connection or the process is lost; see
    `adapters.background`."""
    response_id: str = ""
    """The provider's id of a reply that is being made in the background. It is taken up, and nothing is asked for
    anew."""
    continue_broken: bool | None = None
    """Whether a streamed reply that breaks off in its text is continued by another attempt, where the model takes
    a beginning; see `adapters.http.continuing`."""
    include_raw: bool | None = None
    """Whether the response has the reply as the provider sent it, too, in `CanonicalResponse.raw`."""
    has_beginning: bool = False
    """Whether the last message is the beginning of the reply, with which the model is to go on."""

    def __post_init__(self) -> None:
        for field in ("messages", "tools", "stop_sequences"):
            given = getattr(self, field)
            if type(given) is not tuple:
                msgspec.structs.force_setattr(self, field, tuple(given))
        names = list(map(_NAME, self.tools))
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two tools are named {twice!r}")


class CanonicalResponse(CallResponse, frozen=True, kw_only=True):
    """What a call returned."""

    content: tuple[ContentBlock, ...]
    """The reply's blocks, in their order."""
    stop_reason: StopReason
    """Why the reply ended."""
    raw_stop_reason: str | None = None
    """The provider's own word for `stop_reason`."""
    provider_details: JsonObject = msgspec.field(default_factory=dict)
    """What the reply says beside its content and its usage, by the provider's own names, such as the stop sequence
    that it met."""
    raw: RawReply | None = None
    """The reply as the provider sent it; None unless `CanonicalRequest.include_raw` asked for it."""

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
        """The calls of tools that the reply asks for, in their order."""
        return tuple(block for block in self.content if isinstance(block, ToolUseBlock))


class AttemptStarted(msgspec.Struct, frozen=True):
    """An attempt is about to be sent."""

    attempt: int
    """The attempt's number, from 1."""
    reason: AttemptReason = "first"
    """Why it is made."""
    key: str | None = None
    """The name of the key that is sent; None for the adapter's own key, which has no name."""


class AttemptResent(msgspec.Struct, frozen=True):
    """An attempt's request was sent once more, within the attempt and over another connection.

    The server had closed a connection that was kept alive, before the first byte of a reply. It may have read the
    request.
    """

    attempt: int
    """The attempt's number, from 1."""


class AttemptAccepted(msgspec.Struct, frozen=True):
    """The provider makes the reply in the background from here on, and knows it by an id."""

    attempt: int
    """The attempt's number, from 1."""
    response_id: str
    """The provider's id of the reply."""


class AttemptFirstEvent(msgspec.Struct, frozen=True):
    """The first content of an attempt's reply has arrived."""

    attempt: int
    """The attempt's number, from 1."""
    rate_limit: RateLimitInfo | None = None
    """The provider's limits; None if the reply's headers say nothing of them."""


class AttemptFailed(msgspec.Struct, frozen=True):
    """An attempt failed, and another follows after `delay_seconds`. The last attempt's failure is not reported."""

    attempt: int
    """The attempt's number, from 1."""
    error: AdapterError
    """The error."""
    delay_seconds: float
    """The wait until the next attempt, in seconds."""


AttemptReport: TypeAlias = AttemptStarted | AttemptResent | AttemptAccepted | AttemptFirstEvent | AttemptFailed
"""What an adapter tells of each attempt."""
NextAttempt: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until the next attempt may be sent."""
AttemptObserver: TypeAlias = Callable[[AttemptReport], NextAttempt | None]
"""Who is told; must return at once. What it returns for an `AttemptFailed` is awaited before the next attempt,
after its delay."""


class AdapterStream(Protocol):
    """A streamed reply: an async iterator of events, and an async context manager that closes it.

    The stream ends normally after `MessageComplete`, also when the call is cancelled. When the call fails, the
    stream yields `MessageComplete` with stop reason ``error`` (if any event was delivered) and then raises
    AdapterError. Leaving the context early, or `aclose()`, closes the socket. The stream never hangs. It has one
    reader.
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
        """The whole response, once the stream has ended well; None before, and after a failure."""
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
        """The usage of the current attempt of a call under way, as if the call ended here. None if nothing is
        known of it.

        The usage is counted only when it is asked for. A call that ends early is billed with it.
        """
        ...


def ends_when_cancelled(method: F) -> F:
    """Mark `complete` or `stream` of an adapter whose call ends at once when the task that waits is cancelled.

    The engine then runs the call in the turn's own task. A subclass that overrides the method loses the mark.
    """
    method.__dict__["ends_when_cancelled"] = True
    return method


@runtime_checkable
class ProviderAdapter(Protocol):
    """One provider. An adapter can be used alone: construct it, call it, close it. Nothing else of Callboard is
    needed.

    Every method except `estimate_input_tokens` and `get_capabilities` does I/O. Calls may run side by side, on one
    event loop. A call only ever raises AdapterError (with its subclasses), besides the loop's cancellation.

    These methods are optional: `initialize()`, awaited before the first call, `health_check()` and `statistics()`,
    see `health`, and `usage_so_far()`, see `MeteredAdapter`. An adapter that calls `on_attempt` sets
    `reports_attempts = True`. Without it, the engine records the start of each call before it asks the adapter.
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
        """Make a call, and wait for the whole response.

        Args:
            request: The request.
            on_attempt: Called at once and in order when an attempt starts, has its first content, or failed and is
                followed by another. It must not raise.

        Raises:
            AdapterError: The call failed. It is a CancelledError if the call was cancelled.
        """
        ...

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> AdapterStream:
        """The events of the reply as they come; see `AdapterStream`. The request is sent when the first event is
        asked for.

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
        """An estimate of the input tokens of a request, from the text alone and without the network."""
        ...

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        """The capabilities of a model. For an unknown model they are `capabilities`."""
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop a call. True if it was running, False if it had ended or is unknown. Idempotent."""
        ...

    async def close(self) -> None:
        """Cancel what runs and release all connections. Idempotent."""
        ...
