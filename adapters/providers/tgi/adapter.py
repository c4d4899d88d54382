"""The wire and the adapter of TGI's own protocol, with the limits of its server."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from callboard.bus.errors import (
    AdapterError,
    CapabilityError,
    ConfigurationError,
    InvalidRequestError,
    OverloadedError,
    ServerError,
    StreamError,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock
from callboard.bus.values.messages import CallWarning, Role
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ...contract import AdapterCapabilities, CanonicalRequest
from ...http.adapter import HttpAdapter
from ...http.errors import ErrorBody, ErrorType, build_error, error_type, read_error, read_error_value
from ...http.wire import ChatWire, Endpoint, LookUp
from ...replies.assembler import Assembler
from ...replies.block import overlap
from ...replies.server_sent_events import SseNormaliser, fill_usage
from ...replies.usage import reported_count
from ...requests.content import current_turn, encode_json, join_text
from ...requests.estimate import TokenRates, at_most
from ...requests.history import fit_history
from ...requests.history_target import FittedHistory, Target, WireCall, bearer, get
from ...requests.settings import (
    SharedOptions,
    changed,
    check_demands,
    dropped,
    merge_own_options,
    read_options,
    write_settings,
)
from ...transport.transport import HttpReply

# --- History as one prompt ---


class PromptTemplate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The template of a prompt. ``{text}`` is replaced by the text of a message."""

    start: str = ""
    """The text at the start of the prompt."""
    system: str = "{text}\n\n"
    user: str = "User: {text}\n"
    assistant: str = "Assistant: {text}\n"
    reply: str = "Assistant:"
    """The text at the end of the prompt, which the model continues."""
    stop: tuple[str, ...] = ("\nUser:",)
    """The texts that end the reply. They are included in the server's limit of stop sequences."""
    strip: bool = True
    """Whether white space before the reply is dropped."""


TEMPLATES: Mapping[str, PromptTemplate] = {
    "plain": PromptTemplate(),
    "chatml": PromptTemplate(
        system="<|im_start|>system\n{text}<|im_end|>\n",
        user="<|im_start|>user\n{text}<|im_end|>\n",
        assistant="<|im_start|>assistant\n{text}<|im_end|>\n",
        reply="<|im_start|>assistant\n",
        stop=("<|im_end|>",),
        strip=False,
    ),
    "llama3": PromptTemplate(
        start="<|begin_of_text|>",
        system="<|start_header_id|>system<|end_header_id|>\n\n{text}<|eot_id|>",
        user="<|start_header_id|>user<|end_header_id|>\n\n{text}<|eot_id|>",
        assistant="<|start_header_id|>assistant<|end_header_id|>\n\n{text}<|eot_id|>",
        reply="<|start_header_id|>assistant<|end_header_id|>\n\n",
        stop=("<|eot_id|>",),
        strip=False,
    ),
}
"""Templates by the name in ``options: {template: NAME}``."""


def choose_template(option: Json) -> PromptTemplate:
    """The template of a configuration: a name, or an object of fields that differ from its ``base``."""
    changes: dict[str, Json] = dict(option) if isinstance(option, dict) else {}
    name = changes.pop("base", "plain") if isinstance(option, dict) else option
    if not isinstance(name, str) or name not in TEMPLATES:
        names = ", ".join(sorted(TEMPLATES))
        raise ConfigurationError(
            f"options.template: {name!r} must be one of {names}, or an object with such a base"
        )
    try:
        return msgspec.convert({**msgspec.to_builtins(TEMPLATES[name]), **changes}, PromptTemplate)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"options.template: {error}") from error


def write_prompt(history: FittedHistory, template: PromptTemplate) -> str:
    """The whole prompt. The history has only text, because tools are emulated and images are removed."""
    parts = [template.start]
    if history.system is not None:
        parts.append(template.system.replace("{text}", history.system))
    for message in history.messages:
        text = join_text(message.content)
        if text:
            pattern = template.assistant if message.role is Role.ASSISTANT else template.user
            parts.append(pattern.replace("{text}", text))
    return "".join(parts) + template.reply


# --- Fields of a reply ---


class WireToken(msgspec.Struct, gc=False):
    text: str | None = None
    special: bool | None = None
    """Whether the token is a mark without text, such as the end of the sequence."""


class WireDetails(msgspec.Struct, gc=False):
    finish_reason: Json = None
    generated_tokens: Json = None
    input_length: Json = None
    """The number of the prompt's tokens, in streams of newer servers only."""
    prefill: list[Json] | None = None
    """The prompt's tokens, if requested."""


class WireReply(msgspec.Struct, gc=False):
    token: WireToken | None = None
    generated_text: str | None = None
    details: WireDetails | None = None
    error: Json = None
    error_type: Json = None


decode_piece = msgspec.json.Decoder(WireReply).decode
decode_list = msgspec.json.Decoder(list[WireReply]).decode


# --- The request ---

_SETTINGS = {name: name for name in ("temperature", "top_p", "frequency_penalty", "seed")}
"""The places of the portable settings among the parameters."""

_PROTECTED = frozenset({"details", "return_full_text"})
"""Parameters that a host can't change. Without them, the reply has no usage, or includes the prompt."""

_OPTIONS = "tgi"
"""The key of more parameters in a request, such as ``repetition_penalty``. The adapter's own name is another
key.
"""


def write_request(
    request: CanonicalRequest,
    *,
    provider: str,
    template: PromptTemplate,
    max_stop: int,
    room: int | None = None,
    stream: bool,
) -> WireCall:
    """The request on the wire, without tools: they are emulated."""
    check_demands(request, request.capabilities, provider)
    for message in current_turn(request.messages):
        for block in message.content:
            if isinstance(block, ImageBlock | AudioBlock | DocumentBlock):
                raise CapabilityError(f"{provider}: the text endpoint accepts only text")
    history = fit_history(request, Target(provider=provider, accepts_images=False))
    if not history.messages:
        raise InvalidRequestError(f"{provider}: the request has no text")
    history.log()
    return _Writer(request, provider).write(history, template, max_stop, room, stream)


def stop_sequences(request: CanonicalRequest, template: PromptTemplate, max_stop: int) -> tuple[str, ...]:
    """The stop sequences to send: first the template's, which keep the model from writing the user's turn, then
    the caller's.
    """
    return tuple(dict.fromkeys(stop for stop in (*template.stop, *request.stop_sequences) if stop))[:max_stop]


class _Writer:
    def __init__(self, request: CanonicalRequest, provider: str) -> None:
        self.request = request
        self.provider = provider
        self.warnings: list[CallWarning] = []

    def write(
        self, history: FittedHistory, template: PromptTemplate, max_stop: int, room: int | None, stream: bool
    ) -> WireCall:
        request = self.request
        parameters: JsonObject = {
            "max_new_tokens": self._max_new_tokens(room),
            "details": True,
            "return_full_text": False,
            **self._sampling(),
        }
        stops = stop_sequences(request, template, max_stop)
        if stops:
            parameters["stop"] = list(stops)
        if any(stop and stop not in stops for stop in request.stop_sequences):
            self._left_out(
                "part of stop_sequences", f"the server accepts {max_stop}, including those of the template"
            )
        if request.output_schema is not None:
            parameters["grammar"] = {"type": "json", "value": request.output_schema}
        merge_own_options(parameters, request, _OPTIONS, self.provider, protected=_PROTECTED)
        body: Json = {"inputs": write_prompt(history, template), "parameters": parameters}
        warnings = history.warnings + tuple(self.warnings)
        path = "/generate_stream" if stream else "/generate"
        return WireCall(path, encode_json(body), warnings=warnings, losses=history.losses)

    def _max_new_tokens(self, room: int | None) -> int:
        """The requested limit, or the available room, because the server refuses a sum beyond its window."""
        limit = self.request.max_output_tokens
        if room is None or room < 1 or limit <= room:
            return limit  # nothing fits; the server's own error explains this best
        self.warnings.append(changed("max_output_tokens", limit, room, "the window is full"))
        return room

    def _sampling(self) -> JsonObject:
        request = self.request
        fields: JsonObject = {}
        if request.temperature is not None:
            fields["do_sample"] = request.temperature > 0
        possible = request.top_p is None or 0 < request.top_p <= 1
        refused = {} if possible else {"top_p": "it must be above 0 and below 1"}
        self.warnings += write_settings(fields, request, _SETTINGS, self.provider, refused=refused)
        if not fields.get("do_sample", True):
            del fields["temperature"]
        if request.top_p == 1:  # it has no effect and is refused
            del fields["top_p"]
        if request.reasoning_effort not in (None, "none"):
            self._left_out("reasoning_effort", "the server does not support it")
        return fields

    def _left_out(self, what: str, why: str) -> None:
        self.warnings.append(dropped(what, self.provider, why))


# --- The reply ---


class StopTrimmer:
    """Removes stop sequences from streamed text. Text that may be the start of a stop sequence is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._unsent = ""

    def feed(self, text: str) -> str:
        text = self._unsent + text
        cut = max((overlap(text, stop) for stop in self._stops), default=0)
        self._unsent = text[len(text) - cut :]
        return text[: len(text) - cut]

    def finish(self, *, stopped: bool) -> tuple[str, str | None]:
        unsent, self._unsent = self._unsent, ""
        if stopped:
            for stop in sorted(self._stops, key=len, reverse=True):
                if unsent.endswith(stop):
                    return unsent.removesuffix(stop), stop
        return unsent, None


ERROR_CODES: Mapping[str, ErrorType] = {
    "overloaded": OverloadedError,
    "generation": ServerError,
    "incomplete_generation": ServerError,
    "incomplete_generation_stream": ServerError,
    "unhealthy": ServerError,
    "template_error": InvalidRequestError,
    "tool_error": InvalidRequestError,
    "missing_template_vertices": InvalidRequestError,
}
"""``validation`` is missing, because a prompt that is too long has the same type."""

_VALIDATION = "validation"
_VALIDATION_STATUS = 422


def classify(
    body: ErrorBody, status: int | None, headers: Mapping[str, str], *, provider: str, now_us: int
) -> AdapterError:
    """The AdapterError for an error reply, or for an error inside a stream (`status` is None)."""
    codes = dict(ERROR_CODES)
    if body.type == _VALIDATION:
        codes[_VALIDATION] = error_type(msgspec.structs.replace(body, type=""), _VALIDATION_STATUS, {})
    return build_error(body, status=status, headers=headers, codes=codes, provider=provider, now_us=now_us)


STOP_REASONS: Mapping[str, StopReason] = {
    "eos_token": StopReason.END_TURN,
    "length": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
}
"""The stop reasons by `finish_reason`. Any other, or a missing one, is ``provider_specific``."""

_TEXT = "text"


class ReplyReader:
    def __init__(
        self, assembler: Assembler, template: PromptTemplate, stops: Sequence[str], rates: TokenRates
    ) -> None:
        self.assembler = assembler
        self.template = template
        self.rates = rates
        self._trimmer = StopTrimmer(stops)
        self._at_start = template.strip
        self._spoke = False

    def piece(self, reply: WireReply) -> bool:
        """Read one token or a whole reply. Return True if it is the last one. Raises AdapterError for an error in
        it.
        """
        if reply.error is not None:
            body = read_error_value({"error": reply.error, "error_type": reply.error_type})
            raise classify(body, None, {}, provider=self.assembler.provider, now_us=0)
        token = reply.token
        if token is not None and token.text and not token.special:
            self._say(token.text)
        if reply.generated_text is None and reply.details is None:
            return False
        if reply.generated_text and not self._spoke:
            self._say(reply.generated_text)
        self._finish(reply.details)
        return True

    def _say(self, text: str) -> None:
        self._spoke = True
        self._show(self._trimmer.feed(text))

    def _show(self, text: str) -> None:
        if self._at_start:
            text = text.lstrip()
            self._at_start = not text
        self.assembler.text(_TEXT, text, implicit_end=True)

    def _finish(self, details: WireDetails | None) -> None:
        found = details.finish_reason if details is not None else None
        reason = found if isinstance(found, str) and found else None
        rest, stop = self._trimmer.finish(stopped=reason in (None, "stop_sequence"))
        self._show(rest)
        stop_reason = STOP_REASONS.get(reason or "", StopReason.PROVIDER_SPECIFIC)
        if stop is not None:
            stop_reason = StopReason.END_TURN if stop in self.template.stop else StopReason.STOP_SEQUENCE
        elif reason is None:
            self.assembler.warn_no_stop_reason()
        self.assembler.finish(stop_reason, reason, self._usage(details))

    def _usage(self, details: WireDetails | None) -> TokenUsage | None:
        if details is None:
            details = WireDetails()
        earlier_count = self.assembler.usage.input_tokens if self.assembler.usage is not None else None
        prompt = reported_count(details.input_length) or len(details.prefill or ()) or earlier_count
        generated = reported_count(details.generated_tokens) or None
        raw = msgspec.json.encode({"input_length": prompt, "generated_tokens": generated})
        return fill_usage(self.assembler, prompt, generated, self.rates, raw)


def read_whole(body: bytes, reader: ReplyReader) -> None:
    """Feed a whole reply to the assembler and finish it. Raises AdapterError, or msgspec's decoding errors."""
    replies = decode_list(body) if body.lstrip().startswith(b"[") else [decode_piece(body)]
    for reply in replies:
        if reader.piece(reply):
            return
    raise StreamError(f"{reader.assembler.provider}: the reply has no generated text")


class TokenNormaliser(SseNormaliser):
    """Reads a streamed body. A body without a last event was cut off, because there is no other end mark."""

    def __init__(self, reader: ReplyReader) -> None:
        super().__init__(reader.assembler)
        self._reader = reader

    def on_event(self, name: bytes, data: bytes) -> None:
        if name == b"error":
            raise classify(read_error(data), None, {}, provider=self.assembler.provider, now_us=0)
        self.finished = self._reader.piece(decode_piece(data))


# --- The wire ---

LOOK_UP_SECONDS = 5.0
"""Seconds for the request about the server's limits."""


class TGIOptions(SharedOptions, frozen=True, kw_only=True):
    """`AdapterConfig.options` of type ``tgi``."""

    template: str | dict[str, Json] = "plain"
    """The template of prompts: a name of `TEMPLATES`, or the fields of a PromptTemplate."""
    max_stop: int = 4
    """The largest number of stop sequences (the server's ``--max-stop-sequences``)."""


class GenerateWire(ChatWire):
    """Text Generation Inference's `/generate`. The wire caches the server's window."""

    default_name = "tgi"
    default_base_url = "http://localhost:8080"
    emulates_tools = True

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self.options = read_options(self.config.options, TGIOptions, name=self.name, type_name="tgi")
        self.template = choose_template(self.options.template)
        self._window: int | None = None  # for prompt and reply together; None until reported
        self.capabilities = AdapterCapabilities(
            supports_tools=True, supports_structured_output=True, max_context_tokens=4096, max_output_tokens=4096
        )

    async def initialize(self, look_up: LookUp) -> None:
        """Request the server's limits. If there is no answer, cautious defaults apply."""
        info = await look_up(get("/info"), LOOK_UP_SECONDS)
        total = reported_count(info.get("max_total_tokens")) or None if isinstance(info, dict) else None
        self._window = total
        if total is not None:
            self.capabilities = msgspec.structs.replace(
                self.capabilities, max_context_tokens=total, max_output_tokens=total
            )

    # --- Requests and replies ---

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return bearer(key)

    def health_request(self) -> WireCall:
        return get("/info")

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        room: int | None = None
        if self._window is not None:
            estimated = self.estimate_input_tokens(
                request.messages, (), request.system_prompt, model=request.wire_model
            )
            room = self._window - at_most(estimated)
        return write_request(
            request,
            provider=self.name,
            template=self.template,
            max_stop=self.options.max_stop,
            room=room,
            stream=stream,
        )

    def _reader(self, assembler: Assembler) -> ReplyReader:
        request = assembler.request
        stops = stop_sequences(request, self.template, self.options.max_stop) if request is not None else ()
        return ReplyReader(assembler, self.template, stops, self.token_rates(assembler.model))

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        prompt_tokens = headers.get("x-prompt-tokens", "")  # the details of a whole reply lack the prompt's tokens
        if prompt_tokens.isascii() and prompt_tokens.isdigit() and 0 < len(prompt_tokens) < 10:
            assembler.usage = TokenUsage(input_tokens=int(prompt_tokens), source=UsageSource.PARTIAL)
        read_whole(body, self._reader(assembler))

    def normaliser(self, assembler: Assembler) -> TokenNormaliser:
        return TokenNormaliser(self._reader(assembler))

    def error_of(self, body: bytes, reply: HttpReply) -> AdapterError:
        now_us = self.endpoint.clock.now_us()
        error = classify(read_error(body), reply.status, reply.headers, provider=self.name, now_us=now_us)
        if isinstance(error, ServerError) and error.retry_after_seconds is None:
            # Hosted inference reports with a 503 how long the model may take to load.
            with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
                match msgspec.json.decode(body):
                    case {"estimated_time": int() | float() as seconds} if seconds is not True and seconds > 0:
                        error.retry_after_seconds = float(seconds)
        return error


class TGIAdapter(HttpAdapter):
    """Text Generation Inference's `/generate`, with tools emulated by its grammars; see `TGIOptions`.

    A request's ``provider_options["tgi"]`` (or under the adapter's own name) is merged into `parameters`. The
    server has one model and answers to any name. Raises ConfigurationError for invalid options.
    """

    wire_type = GenerateWire
