"""ScriptedAdapter: a real adapter with a script in place of a network.

Attempts, retries, time limits, cancellation and usage work as in every HttpAdapter, so a host's tests cover
them.
"""

from __future__ import annotations

import math
import re
import zlib
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ConfigurationError,
    ContentFilterError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
    ServerError,
    StreamError,
)
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.base import JsonObject
from callboard.bus.values.usage import StopReason, TokenUsage

from ...config import AdapterConfig
from ...contract import AdapterCapabilities, AttemptFirstEvent, AttemptObserver, AttemptStarted, CanonicalRequest
from ...embeddings import (
    INPUT_TYPES,
    EmbeddingCapabilities,
    EmbeddingInput,
    EmbeddingRequest,
    EmbeddingResponse,
    Vector,
    count_tokens,
)
from ...health import AdapterHealth
from ...http.adapter import HttpAdapter
from ...http.call import HttpCall
from ...http.wire import ChatWire
from ...replies.assembler import Assembler
from ...requests.history_target import WireCall
from ...requests.settings import check_demands, read_options
from ...transport.transport import HttpReply, HttpRequest, TransportStatistics

# The replies of a script, as values in Python or as data in models.yaml.

FailureKind: TypeAlias = Literal[
    "access_denied",
    "auth",
    "content_filter",
    "context_overflow",
    "invalid_request",
    "network",
    "not_found",
    "overloaded",
    "quota",
    "rate_limit",
    "server",
    "timeout",
]

_EXCEPTIONS: Mapping[str, type[AdapterError]] = {
    "access_denied": AccessDeniedError,
    "auth": AuthError,
    "content_filter": ContentFilterError,
    "context_overflow": ContextOverflowError,
    "invalid_request": InvalidRequestError,
    "network": NetworkError,
    "not_found": NotFoundError,
    "overloaded": OverloadedError,
    "quota": QuotaExceededError,
    "rate_limit": RateLimitError,
    "server": ServerError,
    "timeout": RequestTimeoutError,
}


class ScriptedFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A failure of the provider. The adapter retries it like any other failure of its kind."""

    kind: FailureKind = "server"
    """The kind of the failure."""
    message: str = "the script fails here"
    """The provider's message."""
    retry_after: float | None = None
    """The wait that the provider asks for, in seconds."""

    def error(self) -> AdapterError:
        """A new exception of that kind."""
        return _EXCEPTIONS[self.kind](self.message, retry_after_seconds=self.retry_after)


class ScriptedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call."""

    name: str
    """The tool's name."""
    input: JsonObject = {}
    """The arguments."""
    fragments: tuple[str, ...] = ()
    """The text of the arguments as streamed; defaults to `input` in one piece."""

    def pieces(self) -> tuple[str, ...]:
        """The text of the arguments."""
        return self.fragments or (msgspec.json.encode(self.input).decode(),)


class ScriptedReply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reply: thinking, then text, then calls, and then a regular end or a failure."""

    text: str | tuple[str, ...] = ()
    """The text, in one piece or in several."""
    thinking: str | tuple[str, ...] = ()
    """The reasoning, in one piece or in several."""
    signature: str | None = None
    """The signature of the reasoning."""
    calls: tuple[ScriptedCall, ...] = ()
    """The tool calls."""
    stop: StopReason | None = None
    """The stop reason; defaults to ``tool_use`` after calls, and otherwise ``end_turn``."""
    usage: TokenUsage | None = None
    """The reported usage; None makes the adapter estimate the usage."""
    delay: float = 0.0
    """The time before the first piece, in seconds."""
    pace: float = 0.0
    """The time before each piece and before the end, in seconds."""
    fails: ScriptedFailure | None = None
    """The failure in place of the end. If the reply has no content, it is only this failure."""
    raises: Exception | None = None
    """For Python only: an exception to raise, even one that adapters should not raise."""
    pause: Callable[[], Awaitable[object]] | None = None
    """For Python only: awaited before each piece and before the end."""

    @property
    def stop_reason(self) -> StopReason:
        """The stop reason, given or default."""
        return self.stop or (StopReason.TOOL_USE if self.calls else StopReason.END_TURN)

    @property
    def failure(self) -> Exception | None:
        """The failure at the end of the reply; None if it ends regularly."""
        return self.raises or (self.fails.error() if self.fails is not None else None)


def pieces_of(text: str | tuple[str, ...]) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


class ScriptedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `AdapterConfig.options` of type ``scripted``."""

    replies: tuple[str | ScriptedReply, ...] = ()
    """The replies in order. A reply that is only text may be a string."""
    repeat: bool = False
    """Whether the script starts again after its end. Otherwise a call after the end fails."""


# --- A reply as a body ---


class UsageStep(msgspec.Struct, frozen=True, tag="used"):
    """The usage of the reply, known from the start of the reply."""

    usage: TokenUsage


class ThinkingStep(msgspec.Struct, frozen=True, tag="thought"):
    piece: str


class SignatureStep(msgspec.Struct, frozen=True, tag="signed"):
    signature: str


class TextStep(msgspec.Struct, frozen=True, tag="said"):
    piece: str


class CallStep(msgspec.Struct, frozen=True, tag="called"):
    number: int
    name: str


class ArgumentsStep(msgspec.Struct, frozen=True, tag="argued"):
    number: int
    piece: str
    last: bool


class StopStep(msgspec.Struct, frozen=True, tag="stopped"):
    reason: StopReason


Step: TypeAlias = UsageStep | ThinkingStep | SignatureStep | TextStep | CallStep | ArgumentsStep | StopStep

_decoder: msgspec.json.Decoder[Step] = msgspec.json.Decoder(Step)


def steps_of(reply: ScriptedReply) -> Iterator[tuple[Step, bool]]:
    """Yield the steps of a reply, each with whether `pace` delays it. A failing reply has no end step."""
    if reply.usage is not None:
        yield UsageStep(reply.usage), False
    for piece in pieces_of(reply.thinking):
        yield ThinkingStep(piece), True
    if reply.signature is not None:
        yield SignatureStep(reply.signature), False
    for piece in pieces_of(reply.text):
        yield TextStep(piece), True
    for number, call in enumerate(reply.calls):
        yield CallStep(number, call.name), False
        pieces = call.pieces()
        for position, piece in enumerate(pieces):
            yield ArgumentsStep(number, piece, position == len(pieces) - 1), True


def understand(step: Step, assembler: Assembler) -> bool:
    """Feed one step to the assembler. Return True at the end."""
    match step:
        case UsageStep():
            assembler.usage = step.usage
        case ThinkingStep():
            assembler.thinking("thinking", step.piece, implicit_end=True)
        case SignatureStep():
            assembler.signature("thinking", step.signature)
            assembler.end("thinking")
        case TextStep():
            assembler.text("text", step.piece, implicit_end=True)
        case CallStep():
            assembler.tool_start(step.number, step.name, raw={"id": f"call_{step.number}"})
        case ArgumentsStep():
            assembler.tool_arguments(step.number, step.piece)
            if step.last:
                assembler.end(step.number)
        case StopStep():
            assembler.finish(step.reason, str(step.reason))
            return True
    return False


def read_lines(body: bytes, assembler: Assembler) -> bool:
    """Feed the steps in a piece of a body. Return True at the end."""
    return any(understand(_decoder.decode(line), assembler) for line in body.splitlines())


class ScriptedNormaliser:
    """Reads a scripted body, see `StreamNormaliser`. Each piece must consist of whole lines."""

    def __init__(self, assembler: Assembler) -> None:
        self.assembler = assembler
        self.error: AdapterError | None = None
        self.finished = False

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        if self.assembler.raw is not None:
            for line in chunk.splitlines():
                self.assembler.raw.event(line)
        self.finished = self.finished or read_lines(chunk, self.assembler)
        return self.assembler.take()

    def close(self) -> list[StreamEvent]:
        if not self.finished:
            self.error = StreamError("the script ended before the reply was complete")
        return self.assembler.take()


class ScriptedTransport:
    """Answers each request with a reply from `choose`, which gets the request's body. The body is the request's
    id.
    """

    def __init__(self, choose: Callable[[str], ScriptedReply]) -> None:
        self._choose = choose
        self._open = 0

    def statistics(self) -> TransportStatistics:
        """The statistics. Replies in progress are counted as in use."""
        return TransportStatistics(clients=0, in_use=self._open)

    async def send(self, request: HttpRequest) -> HttpReply:
        await anyio.lowlevel.checkpoint()
        reply = self._choose(request.body.decode())
        await anyio.sleep(reply.delay)
        failure = reply.failure
        if failure is not None and not any(True for _ in steps_of(reply)):
            if reply.pause is not None:
                await reply.pause()
            await anyio.sleep(reply.pace)
            raise failure
        self._open += 1
        return _Playing(reply, failure, self)

    async def aclose(self) -> None:
        pass

    def closed(self) -> None:
        self._open -= 1


class _Playing:
    status = 200
    headers: Mapping[str, str] = {"content-type": "application/x-ndjson"}

    def __init__(self, reply: ScriptedReply, failure: Exception | None, transport: ScriptedTransport) -> None:
        self._reply = reply
        self._failure = failure
        self._transport: ScriptedTransport | None = transport
        self._steps = steps_of(reply)
        self._ended = False

    async def chunk(self) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        if self._ended:
            return None
        step, paced = next(self._steps, (StopStep(self._reply.stop_reason), True))
        if paced:
            if self._reply.pause is not None:
                await self._reply.pause()
            await anyio.sleep(self._reply.pace)
        if isinstance(step, StopStep):
            self._ended = True
            if self._failure is not None:
                raise self._failure
        return msgspec.json.encode(step) + b"\n"

    async def aclose(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.closed()


REQUESTS_KEPT = 1000

DIMENSIONS = 64

Script: TypeAlias = Sequence[str | ScriptedReply] | Callable[[CanonicalRequest], str | ScriptedReply]


class ScriptedWire(ChatWire):
    """The protocol of the scripted network: a request is its id, and a reply is one line of JSON for each step."""

    default_name = "scripted"
    default_base_url = "scripted://"
    capabilities = AdapterCapabilities(
        supports_images=True,
        supports_audio=True,
        supports_documents=True,
        supports_thinking=True,
        supports_tools=True,
        supports_structured_output=True,
        supports_streaming_tool_calls=True,
        supports_parallel_tool_calls=True,
    )

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        check_demands(request, self.capabilities, self.name)
        return WireCall("", request.request_id.encode())

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        read_lines(body, assembler)

    def normaliser(self, assembler: Assembler) -> ScriptedNormaliser:
        return ScriptedNormaliser(assembler)

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return {}


class ScriptedAdapter(HttpAdapter):
    """Plays one reply for each attempt. A retry plays the next reply.

    `requests` contains the last 1000 requests, one for each attempt.

    Args:
        replies: The replies in order, or a function of the request; None uses the replies in ``config.options``.
        repeat: Whether the list starts again after its end. Otherwise a call after the end raises
            InvalidRequestError.
        capabilities: The abilities of the model; defaults to all. A request for an ability that is declared false
            is refused.

    Raises:
        ConfigurationError: There is no reply at all.
    """

    wire_type = ScriptedWire

    def __init__(
        self,
        config: AdapterConfig = AdapterConfig(),  # noqa: B008  (it is frozen)
        *,
        name: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        replies: Script | None = None,
        repeat: bool = False,
        capabilities: AdapterCapabilities | None = None,
    ) -> None:
        super().__init__(config, name=name, transport=ScriptedTransport(self._choose), clock=clock)
        options = read_options(config.options, ScriptedOptions, name=self.name, type_name="scripted")
        self.requests: deque[CanonicalRequest] = deque(maxlen=REQUESTS_KEPT)
        self._repeat = repeat or options.repeat
        self._played = 0
        self._script: Script = options.replies if replies is None else replies
        if capabilities is not None:
            self.wire.capabilities = capabilities
        if not callable(self._script) and not self._script:
            raise ConfigurationError(f"adapters.{self.name}.options.replies: expected at least one reply")

    def next_reply(self, request: CanonicalRequest) -> str | ScriptedReply:
        """The answer to an attempt of a request. A subclass may override it.

        Raises:
            InvalidRequestError: The script has ended.
        """
        if callable(self._script):
            return self._script(request)
        if self._played == len(self._script):
            if not self._repeat:
                raise InvalidRequestError(f"the script has ended: all of its {self._played} replies were played")
            self._played = 0
        self._played += 1
        return self._script[self._played - 1]

    def _choose(self, request_id: str) -> ScriptedReply:
        call = self.client.running.get(request_id)
        assert isinstance(call, HttpCall)
        request = call.request
        self.requests.append(request)
        reply = self.next_reply(request)
        return ScriptedReply(reply) if isinstance(reply, str) else reply

    # --- Embeddings, without a script ---

    async def embed(
        self, request: EmbeddingRequest, *, on_attempt: AttemptObserver | None = None
    ) -> EmbeddingResponse:
        """Vectors of words, see `word_vector`; 64 dimensions by default."""
        report = on_attempt or (lambda _: None)
        report(AttemptStarted(1))
        await anyio.lowlevel.checkpoint()
        report(AttemptFirstEvent(1))
        return EmbeddingResponse(
            request_id=request.request_id,
            model=f"{self.name}:{request.wire_model}",
            provider=self.name,
            vectors=tuple(word_vector(each, request.dimensions or DIMENSIONS) for each in request.inputs),
            usage=TokenUsage(sum(count_tokens(each, self.estimate_text_tokens) for each in request.inputs)),
        )

    def get_embedding_capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(input_types=INPUT_TYPES, supports_truncation=True, supports_tokens=True)

    async def health_check(self) -> AdapterHealth:
        """Always healthy."""
        return AdapterHealth(True, "plays a script")


_WORDS = re.compile(r"\w+")


def word_vector(text_or_tokens: EmbeddingInput, dimensions: int) -> Vector:
    """Make a vector of length 1. Each word or token changes one number, which its checksum selects."""
    numbers = [0.0] * dimensions
    words = _WORDS.findall(text_or_tokens.lower()) if isinstance(text_or_tokens, str) else map(str, text_or_tokens)
    for word in words or [""]:
        checksum = zlib.crc32(word.encode("utf-8", "replace"))
        numbers[checksum % dimensions] += 1.0 if checksum & 0x80000000 else -1.0
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return array("f", (number / length for number in numbers))
