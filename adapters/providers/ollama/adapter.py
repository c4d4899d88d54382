"""The replies, errors, embeddings, wire and adapter of Ollama's own protocol.

A streamed reply consists of lines. A whole reply is a stream of one line.

* Reasoning has its own field. Text and reasoning may close each other.
* A tool call is whole. A reply with tool calls has the stop reason ``tool_use``, although the server reports
  ``stop``.
* Older servers give no stop reason. If the allowed number of tokens was generated, it is ``max_tokens``.
* Zero counts are omitted. If a fully cached prompt's count is missing, as on older servers, it is estimated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import anyio
import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CapabilityError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
    StreamError,
    WarningCode,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason, TokenUsage

from ...contract import AdapterCapabilities, CanonicalRequest
from ...embeddings import EmbeddingCapabilities, EmbeddingRequest
from ...http.adapter import HttpAdapter
from ...http.errors import ErrorBody, ErrorType, build_error, read_error, read_error_value
from ...http.wire import ChatWire, Endpoint, LookUp, OtherWires
from ...operations.wires import EmbeddingReply, from_numbers
from ...replies.assembler import Assembler
from ...replies.block import is_whole, may_become_json
from ...replies.server_sent_events import NdjsonDecoder, NdjsonNormaliser, fill_usage
from ...replies.usage import reported_count
from ...requests.content import encode_json
from ...requests.estimate import TokenRates, at_most
from ...requests.history_target import WireCall, bearer, get
from ...requests.settings import SharedOptions, merge_own_options, read_options
from ...transport.transport import HttpReply
from .request import UNKNOWN, Catalogue, ModelFacts, Windows, read_show, read_tags, write_request

# --- Fields of `/api/chat` ---

ABSENT = msgspec.Raw(b"null")
"""The value of a raw field that was not sent, equal to null."""


class WireFunction(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: msgspec.Raw = ABSENT
    """The arguments as an object. Some implementations send JSON text."""


class WireToolCall(msgspec.Struct, gc=False):
    id: Json = None
    """The call's id, from newer servers only."""
    function: WireFunction | None = None


class WireMessage(msgspec.Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[WireToolCall | None] | None = None


class WireReply(msgspec.Struct, gc=False):
    """A whole reply, or a line of a streamed one. Durations are in nanoseconds."""

    model: Json = None
    message: WireMessage | None = None
    done: bool | None = None
    done_reason: Json = None
    error: Json = None
    """The error of a failed request. If it is set, all other fields are missing."""
    total_duration: Json = None
    load_duration: Json = None
    prompt_eval_count: Json = None
    prompt_eval_duration: Json = None
    eval_count: Json = None
    eval_duration: Json = None


METRICS = tuple(name for name in WireReply.__struct_fields__ if name.endswith(("_duration", "_count")))

decode_reply = msgspec.json.Decoder(WireReply).decode


# --- Errors of Ollama ---

ERROR_CODES: Mapping[str, ErrorType] = {
    "server_busy": OverloadedError,
    "unsupported": CapabilityError,
    "model_missing": NotFoundError,
    "out_of_memory": ServerError,
    "runner_failed": ServerError,
    "request_canceled": ServerError,
    "context_exceeded": ContextOverflowError,
    "usage_limit": QuotaExceededError,
    "too_many_requests": RateLimitError,
    "unauthorized": AuthError,
    "cloud_disabled": AccessDeniedError,
    "bad_value": InvalidRequestError,
}
"""The exception for each code that `classify` adds."""

_SENTENCES: tuple[tuple[str, str], ...] = (
    (r"server busy|maximum pending requests exceeded|server overloaded", "server_busy"),
    (r"does not support (?:chat|tools|thinking|insert|vision|images?|generate|completion)", "unsupported"),
    (r"think value .+ is not supported", "unsupported"),
    (r"model .+ not found|try pulling it first", "model_missing"),
    (r"requires more system memory|out of memory|cudamalloc failed", "out_of_memory"),
    (r"longer than the context length|exceeds the (?:model's maximum )?context length", "context_exceeded"),
    (r"runner process (?:has terminated|no longer running)|timed out waiting for llama runner", "runner_failed"),
    (r"request cancell?ed|context canceled", "request_canceled"),
    (r"reached your .*usage limit", "usage_limit"),
    (r"too many (?:concurrent )?requests", "too_many_requests"),
    (r"^unauthorized", "unauthorized"),
    (r"cloud .*disabled", "cloud_disabled"),
    (r"^invalid |cannot unmarshal|is required", "bad_value"),
)
_PATTERNS = tuple((re.compile(pattern, re.IGNORECASE), code) for pattern, code in _SENTENCES)

_LASTING = frozenset({"out_of_memory"})
"""Failures that would occur again if the request were repeated on the same machine."""


def classify(
    body: ErrorBody, status: int | None, headers: Mapping[str, str], *, provider: str, now_us: int
) -> AdapterError:
    """The AdapterError for an error reply, or for an error inside a stream (`status` is None)."""
    if not (body.code or body.type):
        code = next((code for pattern, code in _PATTERNS if pattern.search(body.message)), body.code)
        body = msgspec.structs.replace(body, code=code)
    error = build_error(body, status=status, headers=headers, codes=ERROR_CODES, provider=provider, now_us=now_us)
    if body.code in _LASTING:
        error.retryable = False
    return error


# --- Replies ---

STOP_REASONS: Mapping[str, StopReason] = {"stop": StopReason.END_TURN, "length": StopReason.MAX_TOKENS}
"""Any other reason is ``provider_specific``, such as ``load`` and ``unload`` after an empty request."""

_TEXT = "text"
_THINKING = "thinking"


class ReplyReader:
    def __init__(self, assembler: Assembler, rates: TokenRates) -> None:
        self.assembler = assembler
        self.rates = rates
        self._calls = 0
        self._growing: dict[Json, tuple[str, int]] = {}  # calls with partial arguments, by id or index

    def line(self, reply: WireReply) -> bool:
        """Read one line or a whole reply. Return True if it is the last line. Raises AdapterError for an error in
        it.
        """
        assembler = self.assembler
        if reply.error:
            body = read_error_value({"error": reply.error})
            raise classify(body, None, {}, provider=assembler.provider, now_us=0)
        if isinstance(reply.model, str) and reply.model:
            assembler.model = reply.model
        message = reply.message
        if message is not None:
            # done first, because it may raise
            calls = [(call, _arguments(call)) for call in message.tool_calls or ()]
            if message.thinking:
                assembler.thinking(_THINKING, message.thinking, implicit_end=True)
            if message.content:
                assembler.text(_TEXT, message.content, implicit_end=True)
            for place, (call, arguments) in enumerate(calls):
                self._call(call, arguments, place)
        if not reply.done:
            return False
        for _, number in self._growing.values():
            assembler.end(("call", number))
        reason = reply.done_reason if isinstance(reply.done_reason, str) and reply.done_reason else None
        assembler.finish(self._stop_reason(reason, reply), reason, self._usage(reply))
        return True

    def _call(self, call: WireToolCall | None, arguments: str, place: int) -> None:
        """Read one call of a line, or more arguments of a partial call."""
        if call is None:
            return
        function = call.function
        if function is None or not function.name:
            self.assembler.warn(WarningCode.NAMELESS_TOOL_CALL, "a tool call without a name was dropped")
            return
        raw: dict[str, Json] = {"id": call.id} if isinstance(call.id, str) and call.id else {}
        name, number = self._growing.get(raw.get("id", place), ("", 0))
        if name != function.name:
            self._calls += 1
            number = self._calls
            self.assembler.tool_start(("call", number), function.name, raw=raw)
        key = ("call", number)
        self.assembler.tool_arguments(key, arguments)
        text = self.assembler.block_text(key)
        if text and not is_whole(text) and may_become_json(text):
            self._growing[raw.get("id", place)] = function.name, number
        else:
            self._growing.pop(raw.get("id", place), None)
            self.assembler.end(key)

    def _stop_reason(self, reason: str | None, reply: WireReply) -> StopReason:
        if reason is None:
            request, generated = self.assembler.request, reported_count(reply.eval_count) or 0
            at_limit = request is not None and generated >= request.max_output_tokens
            stop = StopReason.MAX_TOKENS if at_limit else StopReason.END_TURN
        else:
            stop = STOP_REASONS.get(reason, StopReason.PROVIDER_SPECIFIC)
        return StopReason.TOOL_USE if stop is StopReason.END_TURN and self.assembler.has_tool_use else stop

    def _usage(self, reply: WireReply) -> TokenUsage | None:
        metrics = {name: value for name in METRICS if (value := getattr(reply, name)) is not None}
        return fill_usage(
            self.assembler,
            reported_count(reply.prompt_eval_count) or None,
            reported_count(reply.eval_count) or None,
            self.rates,
            msgspec.json.encode(metrics),
        )


def read_whole(body: bytes, assembler: Assembler, rates: TokenRates) -> None:
    """Feed a whole reply to the assembler and finish it. Some servers stream a reply although streaming was not
    requested.

    Raises AdapterError, or msgspec's decoding errors.
    """
    reader = ReplyReader(assembler, rates)
    try:
        lines = [decode_reply(body)]
    except msgspec.DecodeError:
        decoder = NdjsonDecoder()
        lines = [decode_reply(line) for _, line in decoder.feed(body) + decoder.close()]
    for line in lines:
        if reader.line(line):
            return
    raise StreamError(f"{assembler.provider}: the reply is not done")


def _arguments(call: WireToolCall | None) -> str:
    """A call's arguments as text.

    Raises UnicodeDecodeError, because decoding the line does not check the bytes.
    """
    if call is None or call.function is None:
        return ""
    text = bytes(call.function.arguments)
    if text == b"null":
        return ""
    return str(msgspec.json.decode(text)) if text.startswith(b'"') else text.decode()


class ChatNormaliser(NdjsonNormaliser):
    """Reads a body line by line. A body without a last line was cut off."""

    def __init__(self, assembler: Assembler, rates: TokenRates) -> None:
        super().__init__(assembler)
        self._reader = ReplyReader(assembler, rates)

    def on_event(self, name: bytes, data: bytes) -> None:
        self.finished = self._reader.line(decode_reply(data))

    def on_end(self) -> None:
        raise StreamError(f"{self.assembler.provider}: the stream ended before the reply was complete")


# --- Embeddings ---


class _EmbeddingReply(msgspec.Struct, gc=False):
    embeddings: list[list[float]]
    model: str | None = None
    prompt_eval_count: float | None = None


_decode_embeddings = msgspec.json.Decoder(_EmbeddingReply).decode


class OllamaEmbeddings(msgspec.Struct, frozen=True):
    defaults: Mapping[str, Json] = {}
    """More fields of the body, such as the time that the model stays loaded."""

    def capabilities(self, model: str) -> EmbeddingCapabilities:
        return EmbeddingCapabilities(max_inputs=128, supports_truncation=True)

    def write(self, request: EmbeddingRequest, provider: str) -> WireCall:
        body: JsonObject = {
            **self.defaults,
            "model": request.wire_model,
            "input": list(request.texts),
            "truncate": request.truncate,
        }
        if request.dimensions is not None:
            body["dimensions"] = request.dimensions
        merge_own_options(body, request, "ollama", provider)
        return WireCall("/api/embed", encode_json(body))

    def read(self, body: bytes, headers: Mapping[str, str]) -> EmbeddingReply:
        reply = _decode_embeddings(body)
        counted = reported_count(reply.prompt_eval_count)
        vectors = [from_numbers(numbers) for numbers in reply.embeddings]
        usage = msgspec.json.encode({"prompt_eval_count": counted}) if counted is not None else None
        return EmbeddingReply(vectors, counted, reply.model, usage=usage)


# --- The wire ---

TAGS_PATH = "/api/tags"
SHOW_PATH = "/api/show"

LOOK_UP_SECONDS = 5.0
"""Seconds for all requests about the server's models. A call that needs the answers waits no longer than this."""

ASKED_AT_START = 64
"""The number of the server's latest models to look up at the adapter's start. Other models are looked up at their
first use.
"""

QUESTIONS_AT_ONCE = 4


class OllamaOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``ollama``."""

    num_ctx: int | None = None
    """A fixed window for all calls, in tokens; None lets each call request its own."""
    keep_alive: str | float | None = None
    """The time that the server keeps the model loaded (``5m``, seconds, or -1 without end)."""
    options: dict[str, Json] = msgspec.field(default_factory=dict)
    """More options of the model (``top_k``, ``num_gpu``, …)."""
    tools: Literal["native", "emulate"] = "native"
    """``emulate`` for models that can't call tools; see `adapters.requests.emulation`."""
    discover: bool = True
    """Whether to look up the models' abilities. Otherwise every model is assumed to support everything."""


class OllamaWire(ChatWire):
    """Ollama's `/api/chat` and `/api/embed`. The wire caches the server's facts about each model."""

    default_name = "ollama"
    default_base_url = "http://localhost:11434"
    capabilities = UNKNOWN
    long_timeouts = True

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.base_url = self.base_url.removesuffix("/api")
        self.options = read_options(self.config.options, OllamaOptions, name=self.name, type_name="ollama")
        self.emulates_tools = self.options.tools == "emulate"
        self._catalogue = Catalogue()
        self._windows = Windows()

    # --- Models ---

    async def initialize(self, look_up: LookUp) -> None:
        """Look up the models and their abilities. If the server doesn't answer, the lookup is repeated later."""
        if not self.options.discover:
            return
        with anyio.move_on_after(LOOK_UP_SECONDS):
            names = read_tags(await look_up(get(TAGS_PATH), LOOK_UP_SECONDS))
            limiter = anyio.CapacityLimiter(QUESTIONS_AT_ONCE)

            async def learn(name: str) -> None:
                async with limiter:
                    await self.learn_model(name, look_up)

            async with anyio.create_task_group() as questions:
                for name in names[:ASKED_AT_START]:
                    questions.start_soon(learn, name)

    def is_unknown(self, model: str) -> bool:
        return self.options.discover and self._catalogue.wants(model, self._seconds())

    async def learn_model(self, model: str, look_up: LookUp) -> None:
        question = WireCall(SHOW_PATH, msgspec.json.encode({"model": model}))
        answer = await look_up(question, LOOK_UP_SECONDS)
        self._catalogue.learn(model, read_show(answer), self._seconds())

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        """The capabilities that the server reports; the adapter's `capabilities` until the model was looked up."""
        facts = self._catalogue.facts(model)
        capabilities = facts.capabilities() if facts is not None else self.capabilities
        if not self.emulates_tools:
            return capabilities
        return msgspec.structs.replace(
            capabilities, supports_tools=True, supports_tool_choice=True, supports_parallel_tool_calls=False
        )

    def _seconds(self) -> float:
        return self.endpoint.clock.monotonic_ns() / 1e9

    # --- Requests and replies ---

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return bearer(key)

    def health_request(self) -> WireCall:
        return get(TAGS_PATH)

    def other_wires(self) -> OtherWires:
        defaults = self._kept_loaded()
        if self.options.options:
            defaults["options"] = self.options.options
        return OtherWires(OllamaEmbeddings(defaults))

    def _kept_loaded(self) -> JsonObject:
        return {} if self.options.keep_alive is None else {"keep_alive": self.options.keep_alive}

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        facts = self._catalogue.facts(request.wire_model) or ModelFacts()
        estimated = self.estimate_input_tokens(
            request.messages, request.tools, request.system_prompt, model=request.wire_model
        )
        return write_request(
            request,
            provider=self.name,
            facts=facts,
            capabilities=request.capabilities or self.get_capabilities(request.wire_model),
            estimated_tokens=estimated,
            num_ctx=self.options.num_ctx
            or self._windows.choose(
                request.wire_model, at_most(estimated) + request.max_output_tokens, facts.context_tokens
            ),
            defaults={"options": self.options.options, **self._kept_loaded()},
            stream=stream,
        )

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        read_whole(body, assembler, self.token_rates(assembler.model))

    def normaliser(self, assembler: Assembler) -> ChatNormaliser:
        return ChatNormaliser(assembler, self.token_rates(assembler.model))

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        now_us = self.endpoint.clock.now_us()
        return classify(read_error(body), reply.status, reply.headers, provider=self.name, now_us=now_us)


class OllamaAdapter(HttpAdapter):
    """Ollama's `/api/chat` and `/api/embed`, on this machine or elsewhere; see `OllamaOptions` for its options.

    A request's ``provider_options["ollama"]`` (or under the adapter's own name) is merged into the body, its
    ``options`` one by one. Raises ConfigurationError for invalid options.
    """

    wire_type = OllamaWire

    async def list_models(self) -> tuple[str, ...]:
        """The names of the server's models, the latest first; none if it doesn't answer."""
        return read_tags(await self.client.look_up(get(TAGS_PATH), LOOK_UP_SECONDS))
