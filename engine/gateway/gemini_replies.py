"""Writes replies to Gemini clients: whole, streamed and failed replies, and lists of models. Pure.

A stream is server-sent events with ``alt=sse``, and one JSON array otherwise. Each chunk is a
GenerateContentResponse, and a failure after the first byte is a chunk with `error`.

Function calls are sent whole. From the first call on, content is held until the end of the reply, because a call's
part contains its signature, which may arrive late.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from callboard.adapters.contract import CanonicalResponse
from callboard.adapters.providers.gemini.contents import REPLY_KINDS
from callboard.adapters.requests.content import encode_json
from callboard.bus.errors import WarningCode
from callboard.bus.streams.events import (
    MessageStart,
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseStart,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    OpaqueBlock,
    ProviderRaw,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)

from .failures import WORDS, Failure, FailureKind
from .gemini_contents import GEMINI
from .gemini_parts import PartWriter, about_reply, signed_pieces, write_usage
from .gemini_requests import VALUE, read_request
from .wire import STOP_WORDS, ClientRequest, ClientWire, ListedModel, ReplyInfo

# --- The end of a reply ---

_OWN_REASONS = frozenset(
    {"STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "LANGUAGE", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"}
    | {"MALFORMED_FUNCTION_CALL", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_OTHER", "NO_IMAGE"}
    | {"IMAGE_RECITATION", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE"}
    | {"MALFORMED_RESPONSE", "ESCALATION", "PUP_LIMITED_DISABLED", "CONTINUATION", "MODEL_ARMOR"}
)
"""Gemini's finish reasons (google-genai, types.FinishReason)."""

_MALFORMED = "MALFORMED_FUNCTION_CALL"

_OF_CANDIDATES = ("safetyRatings", "avgLogprobs", "tokenCount")
_OF_REPLIES = ("promptFeedback", "modelStatus", "createTime")
"""Other data of Gemini. `CanonicalResponse.provider_details` has the same names."""


def _runs(block: ContentBlock) -> bool:
    return not (isinstance(block, ToolUseBlock) and block.incomplete)


def _shown(content: Sequence[ContentBlock], raw_reason: str | None) -> Iterator[tuple[int, ContentBlock]]:
    """The blocks to write, with their indexes. Incomplete calls are left out, because a client would run them.

    Calls that Gemini itself refused are sent with Gemini's finish reason.
    """
    for place, block in enumerate(content):
        refused = isinstance(block, ToolUseBlock) and block.raw_arguments is None and raw_reason in _OWN_REASONS
        if _runs(block) or refused:
            yield place, block


def _end(response: CanonicalResponse) -> JsonObject:
    """The finish reason of a reply, and its explanation."""
    raw = response.raw_stop_reason
    own_reason = raw if raw in _OWN_REASONS else None
    reason = own_reason or STOP_WORDS[response.stop_reason].google
    broken = [block for block in response.content if isinstance(block, ToolUseBlock) and not _runs(block)]
    if broken and reason == "STOP":
        names = ", ".join(block.name for block in broken)
        return {"finishReason": _MALFORMED, "finishMessage": f"Malformed function call: {names}"}
    end: JsonObject = {"finishReason": reason}
    message = next((one.message for one in response.warnings if one.code in _EXPLAINED), None)
    if message is not None:
        end["finishMessage"] = message.removeprefix(f"{raw}: ")
    elif own_reason is None and raw and reason in ("SAFETY", "OTHER"):
        end["finishMessage"] = f"The provider stopped with {raw!r}."
    return end


_EXPLAINED = (WarningCode.FINISH_MESSAGE, WarningCode.REFUSAL)


def _is_blocked(response: CanonicalResponse) -> bool:
    """Whether Gemini blocked the prompt. Such a reply has feedback and no candidate."""
    feedback = response.provider_details.get("promptFeedback")
    return isinstance(feedback, dict) and bool(feedback.get("blockReason")) and not response.content


# --- Replies that are not objects ---

_BEFORE = re.compile(rf'\s*{{\s*"{VALUE}"\s*:\s*')
_BARE_BEFORE = f'{{"{VALUE}":'


def _unwrapped(text: str, *, as_text: bool) -> str:
    """The value in the text of a wrapped reply. Any other text is returned unchanged. `as_text` returns a string
    without quotes, for ``text/x.enum``.
    """
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text
    if members.keys() != {VALUE}:
        return text
    if as_text:
        value: Json = msgspec.json.decode(members[VALUE])
        if isinstance(value, str):
            return value
    return bytes(members[VALUE]).decode()


class Unwrapping:
    """Unwraps the value from a text that arrives in pieces. `feed` and `end` return the new text for the
    client.
    """

    def __init__(self, *, as_text: bool) -> None:
        self._as_text = as_text
        self._wrapper_text = ""  # the text that may belong to the wrapper
        self._started = False  # whether the wrapper's start has arrived
        self._bare = False  # whether the model left the wrapper out

    def feed(self, text: str) -> str:
        if self._bare:
            return text
        self._wrapper_text += text
        if self._as_text:
            return ""  # one short word; it is held until its end
        if not self._started:
            found = _BEFORE.match(self._wrapper_text)
            if found is None or found.end() == len(self._wrapper_text):
                so_far = "".join(self._wrapper_text.split())
                if _BARE_BEFORE.startswith(so_far):
                    return ""
                self._bare, so_far, self._wrapper_text = True, self._wrapper_text, ""
                return so_far
            self._started, self._wrapper_text = True, self._wrapper_text[found.end() :]
        last = self._wrapper_text.rfind("}")
        certain = self._wrapper_text if last < 0 else self._wrapper_text[:last]
        self._wrapper_text = self._wrapper_text[len(certain) :]
        return certain

    def end(self) -> str:
        rest, self._wrapper_text = self._wrapper_text, ""
        if self._as_text and not self._bare:
            return _unwrapped(rest, as_text=True)
        return "" if self._started and rest.strip() == "}" else rest


# --- Whole replies ---


def write_reply(client_request: ClientRequest, info: ReplyInfo, response: CanonicalResponse) -> JsonObject:
    return _Reply(client_request, info).last(response, 0, (), empty={"role": "model"})


class _Reply:
    """The common fields of all chunks of a reply."""

    def __init__(self, client_request: ClientRequest, info: ReplyInfo) -> None:
        form = client_request.options.get("unwraps")
        self.unwrapping = None if form is None else Unwrapping(as_text=form == "text")
        self.parts = PartWriter(client_request)
        self.identity: JsonObject = {"modelVersion": info.model, "responseId": info.id}

    def last(
        self, response: CanonicalResponse, since: int, behind: Sequence[JsonObject], *, empty: JsonObject
    ) -> JsonObject:
        """The last chunk: parts that were held, the content from an index on, and fields that are only known at
        the end.
        """
        details = response.provider_details
        about: JsonObject = {name: details[name] for name in _OF_REPLIES if name in details}
        usage: JsonObject = {"usageMetadata": write_usage(response.usage)}
        if _is_blocked(response):
            return {**about, **usage, **self.identity}
        parts: list[Json] = list(behind)
        for place, block in _shown(response.content, response.raw_stop_reason):
            if place < since:
                continue
            if self.unwrapping is not None and isinstance(block, TextBlock):
                parts += self.text_parts(self.unwrapping.feed(block.text))
            else:
                parts += self.parts.parts(block)
        if self.unwrapping is not None:
            parts += self.text_parts(self.unwrapping.end())
        candidate: JsonObject = {
            "content": {"parts": parts, "role": "model"} if parts else empty,
            **_end(response),
            "index": 0,
            **{name: details[name] for name in _OF_CANDIDATES if name in details},
            **about_reply(response.content),
        }
        return {"candidates": [candidate], **usage, **about, **self.identity}

    @staticmethod
    def text_parts(text: str) -> list[JsonObject]:
        return [{"text": text}] if text else []


# --- Streams ---


def streams_events(client_request: ClientRequest) -> bool:
    """Whether a stream is server-sent events. The application sets the option `alt` from the query."""
    return client_request.options.get("alt") in (None, "sse")


class GeminiWriter:
    """Writes one streamed reply; see `wire.ReplyWriter`."""

    def __init__(self, client_request: ClientRequest, info: ReplyInfo) -> None:
        self._reply = _Reply(client_request, info)
        self._in_events = streams_events(client_request)
        self._separator = b"["
        self._provider = ""
        self._next = 0  # the index of the first block that may have unwritten content
        self._text = -1  # the index of the last written block, if it is a text
        self._waits = False  # whether content is held until the end of the reply
        self._written: set[int] = set()  # the indexes of written blocks of Gemini's own kinds
        usage: JsonObject = {}
        if info.input_tokens:
            usage = {"promptTokenCount": info.input_tokens, "totalTokenCount": info.input_tokens}
        common: JsonObject = {**({"usageMetadata": usage} if usage else {}), **self._reply.identity}
        # encoded in advance, so that only the text of a delta is encoded
        self._before = b'{"candidates":[{"content":{"parts":['
        self._after = b'],"role":"model"},"index":0}],' + encode_json(common)[1:]

    def start(self) -> bytes:
        return b""

    def write(self, event: StreamEvent) -> bytes:
        if type(event) is TextDelta:
            if not event.text or self._waits:
                return b""
            self._text = event.content_block_index
            self._next = self._text + 1
            text = event.text
            if self._reply.unwrapping is not None and not (text := self._reply.unwrapping.feed(text)):
                return b""
            return self._frame(self._before + b'{"text":' + encode_json(text) + b"}" + self._after)
        match event:
            case MessageStart():
                self._provider = event.provider
            case ToolUseStart():
                self._waits = True
            case ThinkingDelta() if not self._waits:
                self._next, self._text = event.content_block_index + 1, -1
                return self._chunks(self._reply.parts.thought(event.text, event.signature, self._provider))
            case ProviderBlock() if not self._waits:
                return self._block(event)
            case _:
                pass
        return b""

    def finish(self, response: CanonicalResponse) -> bytes:
        behind = self._left_behind(response.content)
        last = self._reply.last(response, self._next, behind, empty={"parts": [{"text": ""}], "role": "model"})
        return self._frame(encode_json(last)) + self._close

    def fail(self, failure: Failure) -> bytes:
        _, body = write_failure(failure)
        return self._frame(encode_json(body)) + self._close

    def ping(self) -> bytes:
        """A chunk with an empty text, as Gemini itself also sends. The SDKs fail on an SSE comment."""
        return self._frame(self._before + b'{"text":""}' + self._after)

    def _block(self, event: ProviderBlock) -> bytes:
        """A provider's own block. Gemini's blocks are parts; other blocks are written at the end of the reply."""
        self._next = event.content_block_index + 1
        if event.kind in REPLY_KINDS:
            return b""
        self._text = -1
        if self._provider != GEMINI or not isinstance(event.raw, dict):
            return b""
        self._written.add(event.content_block_index)
        block = OpaqueBlock(event.kind, ProviderRaw(GEMINI, event.raw))
        return self._chunks(self._reply.parts.parts(block))

    def _left_behind(self, content: Sequence[ContentBlock]) -> list[JsonObject]:
        """The parts of earlier blocks that only arrive with the whole reply: images, and the signature of the last
        text.
        """
        parts: list[JsonObject] = []
        for place, block in enumerate(content[: self._next]):
            if not isinstance(block, TextBlock | ThinkingBlock) and place not in self._written:
                parts += self._reply.parts.parts(block)
        last = content[self._text] if 0 <= self._text < len(content) else None
        signed = list(signed_pieces(last)) if isinstance(last, TextBlock) else []
        return [{"text": "", "thoughtSignature": signed[-1][2]}, *parts] if signed else parts

    def _chunks(self, parts: Iterator[JsonObject]) -> bytes:
        chunk = b",".join(map(encode_json, parts))
        return self._frame(self._before + chunk + self._after) if chunk else b""

    def _frame(self, chunk: bytes) -> bytes:
        if self._in_events:
            return b"data: " + chunk + b"\r\n\r\n"
        separator, self._separator = self._separator, b"\n,\r\n"
        return separator + chunk

    @property
    def _close(self) -> bytes:
        return b"" if self._in_events else b"\n]"


# --- Failures ---

_GOOGLE = "type.googleapis.com/google.rpc."
_REASONS: Mapping[FailureKind, str] = {"authentication": "API_KEY_INVALID", "content_filter": "content_filter"}
"""The reasons of an ErrorInfo."""

_TOO_LONG = "The input token count exceeds the maximum number of tokens allowed"
"""The text by which clients detect a prompt that is too long."""


def write_failure(failure: Failure) -> tuple[int, JsonObject]:
    words = WORDS[failure.kind]
    message = failure.message
    if failure.kind == "context_overflow" and "exceeds the maximum number of tokens" not in message:
        message = f"{_TOO_LONG}. {message}"
    error: JsonObject = {"code": words.status, "message": message, "status": words.google}
    if details := list(_details(failure)):
        error["details"] = details
    return words.status, {"error": error}


def _details(failure: Failure) -> Iterator[Json]:
    reason = _REASONS.get(failure.kind)
    if reason is not None:
        yield {"@type": f"{_GOOGLE}ErrorInfo", "reason": reason, "domain": "callboard"}
    if failure.param is not None:
        violation: JsonObject = {"field": failure.param, "description": failure.message}
        yield {"@type": f"{_GOOGLE}BadRequest", "fieldViolations": [violation]}
    if failure.kind == "budget":  # clients do not retry a daily quota automatically
        spent: JsonObject = {"quotaMetric": "callboard/budget", "quotaId": "BudgetPerDayPerClient"}
        yield {"@type": f"{_GOOGLE}QuotaFailure", "violations": [spent]}
    if failure.retry_after is not None:
        yield {"@type": f"{_GOOGLE}RetryInfo", "retryDelay": f"{max(0.0, failure.retry_after):.9g}s"}
    if failure.request_id is not None:
        yield {"@type": f"{_GOOGLE}RequestInfo", "requestId": failure.request_id}


# --- Models and tokens ---

_METHODS = ("generateContent", "streamGenerateContent", "countTokens", "embedContent", "batchEmbedContents")


def write_models(models: Sequence[ListedModel]) -> JsonObject:
    return {"models": [write_model(model) for model in models]}


def write_model(model: ListedModel) -> JsonObject:
    written: JsonObject = {
        "name": f"models/{model.id}",
        "version": "001",
        "displayName": model.id,
        "description": f"{model.id} by {model.owned_by}",
        "supportedGenerationMethods": list[Json](_METHODS),
    }
    if model.context_tokens is not None:
        written["inputTokenLimit"] = model.context_tokens
    if model.output_tokens is not None:
        written["outputTokenLimit"] = model.output_tokens
    return written


def write_token_count(tokens: int) -> JsonObject:
    return {"totalTokens": tokens, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]}


def _stream_type(client_request: ClientRequest) -> str:
    return "text/event-stream" if streams_events(client_request) else "application/json"


WIRE = ClientWire(
    name="gemini",
    protocol="gemini",
    read_request=read_request,
    stream_type=_stream_type,
    writer=GeminiWriter,
    write_reply=write_reply,
    write_failure=write_failure,
    write_models=write_models,
    write_model=write_model,
    write_token_count=write_token_count,
)
"""The wire of Gemini clients."""
