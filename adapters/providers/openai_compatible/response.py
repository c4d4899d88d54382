"""Content from messages and deltas. One reader serves whole replies and streams.

A whole reply is a stream of one delta. `ReplyReader` accepts all forms of a reply and feeds the Assembler. Rules:

* If two fields have the reasoning, only one field is read. The last usage in the stream is used.
* A reply with tool calls that ends regularly has the stop reason of tool calls, even if the server reports
another.
* The protocol has no end marks for blocks, so text, reasoning and calls may close each other (`implicit_end`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from callboard.bus.errors import AdapterError, ContextOverflowError, StreamError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason, unusual_tier

from ...http.errors import is_error
from ...replies.assembler import Assembler
from ...replies.server_sent_events import SseNormaliser
from ...requests.content import image_at
from .fragments import Searches, ThinkTags, ToolCalls
from .messages import REASONING_FIELD
from .quirks import Quirks
from .wire import (
    ERROR_CODES,
    TextChunk,
    WireChoice,
    WireMessage,
    WireReply,
    decode_reply,
    decode_text_chunk,
    error_in_body,
    error_in_reply,
    groq_usage,
    read_details,
    read_usage,
)

STOP_REASONS: Mapping[str, StopReason] = {
    "stop": StopReason.END_TURN,
    "end_turn": StopReason.END_TURN,
    "eos": StopReason.END_TURN,
    "eos_token": StopReason.END_TURN,
    "end": StopReason.END_TURN,
    "done": StopReason.END_TURN,
    "complete": StopReason.END_TURN,
    "completed": StopReason.END_TURN,
    "finished": StopReason.END_TURN,
    "tool_calls": StopReason.END_TURN,  # without any call; otherwise the calls decide
    "function_call": StopReason.END_TURN,
    "tool_call": StopReason.END_TURN,  # mlx_lm.server
    "tool_use": StopReason.END_TURN,  # gateways in front of Claude
    "function_calls": StopReason.END_TURN,
    "pause_turn": StopReason.PAUSE_TURN,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "length": StopReason.MAX_TOKENS,
    "max_tokens": StopReason.MAX_TOKENS,
    "max_output_tokens": StopReason.MAX_TOKENS,
    "model_length": StopReason.MAX_TOKENS,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
    "content_filter": StopReason.CONTENT_FILTER,
    "content_filtered": StopReason.CONTENT_FILTER,
    "guardrail_intervened": StopReason.CONTENT_FILTER,
    "safety": StopReason.CONTENT_FILTER,
    "recitation": StopReason.CONTENT_FILTER,
    "prohibited_content": StopReason.CONTENT_FILTER,
    "blocklist": StopReason.CONTENT_FILTER,
    "spii": StopReason.CONTENT_FILTER,
    "sensitive": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
}
"""Finish reasons in lower case. Others are ``provider_specific``, except the failures in `FAILED_ENDS`."""

_TEXT = "text"
_THINKING = "thinking"


class ReplyReader:
    """Reads one reply into an assembler. Call `chunk()` for each piece, and `complete()` at the end."""

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        self.assembler = assembler
        self.finish_reason: str | None = None
        self.saw_choice = False
        self._quirks = quirks
        self._model_known = False
        self._refused = False
        self._choice_index: Json = None
        self._data = b""  # the current chunk
        self._tags = ThinkTags(opened=quirks.think_tags == "open") if quirks.think_tags != "off" else None
        self._calls = ToolCalls(assembler)
        self._thinking = 0  # the number of the current block of opaque reasoning
        self._details: list[Json] | None = None  # the details of the current block
        self._wholes = 0
        self._text_started = False
        self._tier: str | None = None
        self._searches = Searches()
        self._message_so_far: WireMessage | None = None  # a whole message next to an empty delta
        self._of_text: JsonObject = {}  # the server's data about the text, growing

    def chunk(self, reply: WireReply, data: bytes) -> None:
        """Read a whole reply or a chunk of one.

        Other data is read only from the chunk with the finish reason and from chunks without a choice.
        """
        assembler = self.assembler
        self._data = data
        if reply.id and isinstance(reply.id, str):
            assembler.response_id = reply.id
        if not self._model_known and isinstance(reply.model, str) and reply.model:
            self._model_known = True
            assembler.model = reply.model
        self._tier = unusual_tier(reply.service_tier) or self._tier
        if reply.usage:
            self._usage(reply.usage)
        if reply.x_groq:
            self._usage(groq_usage(reply.x_groq))
        if not reply.choices:
            if not reply.error and not reply.usage and is_error(msgspec.json.decode(data)):
                raise error_in_body(data, assembler.provider)
            self._note_details()
        for choice in reply.choices or ():
            if choice is not None:
                self._choice(choice)
        if reply.error:
            raise self._error(reply.error)

    @property
    def in_text(self) -> bool:
        return self._text_started and self._tags is None and not self._of_text and self._choice_index == 0

    def text_chunk(self, chunk: TextChunk) -> None:
        """Like `chunk`, while `in_text` is true."""
        if chunk.id:
            self.assembler.response_id = chunk.id
        if chunk.service_tier is not None:
            self._tier = unusual_tier(chunk.service_tier) or self._tier
        text = chunk.choices[0].delta.content
        if text:
            self.assembler.text(_TEXT, text, implicit_end=True)

    def complete(self) -> None:
        assembler = self.assembler
        if self._tags is not None:
            self._tagged(self._tags.flush())
        if self._message_so_far is not None and not assembler.has_content:
            self._message(self._message_so_far)
            if self._tags is not None:
                self._tagged(self._tags.flush())
        self._calls.complete()
        assembler.usage = self._searches.added_to(assembler.usage)
        assembler.finish(self._stop_reason(), self.finish_reason)

    def _usage(self, raw: msgspec.Raw) -> None:
        usage = read_usage(raw, self._tier)
        if usage is not None:
            self.assembler.usage = usage

    def _choice(self, choice: WireChoice) -> None:
        if not self.saw_choice:
            self._choice_index = choice.index
        elif choice.index != self._choice_index and None not in (choice.index, self._choice_index):
            return  # another choice (n > 1)
        message = choice.delta if choice.delta is not None else choice.message
        self.saw_choice = True
        if choice.delta is not None and choice.message is not None:
            self._message_so_far = choice.message  # next to each delta, Perplexity sends the text up to that delta
        if message is not None:
            self._message(message)
        if choice.logprobs:
            self._note_logprobs(choice.logprobs)
        if choice.usage:
            self._usage(choice.usage)
        if choice.finish_reason is not None and not self.finish_reason:
            reason = choice.finish_reason
            self.finish_reason = reason if isinstance(reason, str) else str(reason)
            self.assembler.raw_stop_reason = self.finish_reason
            self._note_details()
        if choice.error:
            raise self._error(choice.error)

    def _error(self, value: Json) -> AdapterError:
        """The error in a reply. MiniMax uses the same error for a long prompt and a long reply."""
        error = error_in_reply({"error": value}, self.assembler.provider)
        if not self.assembler.started and "token limit reached" in error.provider_message.lower():
            return ContextOverflowError(
                str(error),
                provider=error.provider,
                provider_status=error.provider_status,
                provider_code=error.provider_code,
                provider_message=error.provider_message,
                request_id=error.request_id,
                provider_request_id=error.provider_request_id,
            )
        return error

    def _stop_reason(self) -> StopReason:
        reason = self._stated_reason()
        if reason is not StopReason.END_TURN:
            return reason
        if self.assembler.has_tool_use:
            return StopReason.TOOL_USE
        if self._refused:
            return StopReason.REFUSAL
        return StopReason.STOP_SEQUENCE if self._met_a_stop() else reason

    def _met_a_stop(self) -> bool:
        """Whether the server reports that a requested stop sequence ended the reply."""
        request, details = self.assembler.request, self.assembler.details
        if request is None or not request.stop_sequences:
            return False
        return any(details.get(name) in request.stop_sequences for name in ("stop_reason", "matched_stop"))

    def _stated_reason(self) -> StopReason:
        if self.finish_reason:
            return STOP_REASONS.get(self.finish_reason.lower(), StopReason.PROVIDER_SPECIFIC)
        if self._quirks.finish_reasons:
            self.assembler.warn_no_stop_reason()
            return StopReason.PROVIDER_SPECIFIC
        request, usage = self.assembler.request, self.assembler.usage
        if request is not None and usage is not None and usage.output_tokens >= request.max_output_tokens:
            return StopReason.MAX_TOKENS
        return StopReason.END_TURN

    # --- Messages and deltas ---

    def _message(self, message: WireMessage) -> None:
        if message.reasoning_content or message.reasoning or message.reasoning_details:
            self._reasoning(message)
        if message.extra_content:
            self._extra(message.extra_content)
        content = message.content
        if isinstance(content, str):
            if content:
                self._text(content)
        elif content:
            self._parts(content)
        if message.refusal and isinstance(message.refusal, str):
            self._refused = True
            self._text(message.refusal)
        if message.tool_calls or message.function_call is not None:
            self._details = None
            self._calls.read(message)
        if message.images or message.audio:
            self._media(message)
        if message.annotations or message.executed_tools:
            self._searches.note(message)
            if isinstance(message.annotations, list):
                self._note("annotations", message.annotations)

    def _note_details(self) -> None:
        self.assembler.details |= read_details(self._data, self._choice_index)

    def _note_logprobs(self, logprobs: Json) -> None:
        for name in ("content", "refusal"):
            found = logprobs.get(name) if isinstance(logprobs, dict) else None
            if isinstance(found, list):
                self._note("logprobs", found)

    def _note(self, name: str, entries: list[Json]) -> None:
        """Add the server's data about the text to the text's block."""
        notes = self._of_text.setdefault(name, [])
        assert isinstance(notes, list)
        notes += entries
        self.assembler.block_raw(_TEXT, self._of_text)

    def _text(self, text: str) -> None:
        if self._tags is None:
            self._plain(text)
        else:
            self._tagged(self._tags.feed(text))

    def _plain(self, text: str) -> None:
        self._details = None
        self._text_started = self._model_known
        if self._of_text and self.assembler.is_closed(_TEXT):
            self._of_text = {}
        self.assembler.text(_TEXT, text, implicit_end=True)
        if self._of_text:
            self.assembler.block_raw(_TEXT, self._of_text)

    def _tagged(self, pieces: list[tuple[bool, str]]) -> None:
        for is_thinking, piece in pieces:
            if is_thinking:
                self.assembler.thinking(_THINKING, piece, implicit_end=True)
            else:
                self._plain(piece)

    def _parts(self, parts: list[Json]) -> None:
        for part in parts:
            match part:
                case str():
                    self._text(part)
                case {"type": "thinking", "thinking": thinking}:
                    self.assembler.thinking(_THINKING, flatten(thinking), implicit_end=True)
                case {"type": "text" | "output_text", "text": str(text)}:
                    self._text(text)
                case {"type": "refusal", "refusal": str(text)}:
                    self._refused = True
                    self._text(text)
                case dict() if isinstance(kind := part.get("type"), str):
                    self._add_opaque(kind, part)
                case _:
                    pass

    def _add_opaque(self, kind: str, raw: JsonObject) -> None:
        self._details = None
        self._wholes += 1
        key = ("whole", self._wholes)
        address = raw.get("image_url")
        about: JsonObject = dict(address) if isinstance(address, dict) else {"url": address}
        image = image_at(about.pop("url", None)) if kind == "image_url" else None
        if image is None:
            self.assembler.whole(key, kind, raw)
        else:
            self.assembler.image(key, kind, raw, image, {**raw, "image_url": about})

    def _media(self, message: WireMessage) -> None:
        for image in message.images if isinstance(message.images, list) else ():
            if isinstance(image, dict):
                self._add_opaque("image_url", image)
        audio = message.audio
        if isinstance(audio, dict) and (audio.get("data") or audio.get("transcript")):
            self._add_opaque("audio", audio)

    # --- Reasoning ---

    def _reasoning(self, message: WireMessage) -> None:
        text = flatten(message.reasoning_content) or flatten(message.reasoning)
        details = message.reasoning_details
        if not isinstance(details, list) or not details:
            if text:
                key = _THINKING if self._details is None else (_THINKING, self._thinking)
                raw: JsonObject | None = None
                if self._quirks.replays == "as_sent" and not message.reasoning_content:
                    raw = {REASONING_FIELD: "reasoning"}
                self.assembler.thinking(key, text, implicit_end=True, raw=raw)
            return
        self._opaque(text or "".join(_detail_text(detail) for detail in details), details)

    def _opaque(self, text: str, details: list[Json]) -> None:
        """Add reasoning with opaque parts. The opaque parts are sent back joined and otherwise unchanged."""
        if self._details is None:
            self._thinking += 1
            self._details = []
        key = (_THINKING, self._thinking)
        self.assembler.thinking(key, text, implicit_end=True, raw={"reasoning_details": self._details})
        for detail in details:
            if isinstance(detail, dict):
                _merge_detail(self._details, detail)
                signature = detail.get("signature")
                if isinstance(signature, str) and signature:
                    self.assembler.signature(key, signature)

    def _extra(self, extra: Json) -> None:
        """Add Gemini's signature of a whole message."""
        raw: JsonObject = {"extra_content": extra}
        match extra:
            case {"google": {"thought_signature": str(signature)}} if signature:
                self._thinking += 1
                key = (_THINKING, self._thinking)
                self.assembler.thinking(key, "", implicit_end=True, raw=raw)
                self.assembler.signature(key, signature)
            case _:
                pass


def read_whole(reply: WireReply, data: bytes, assembler: Assembler, quirks: Quirks) -> None:
    reader = ReplyReader(assembler, quirks)
    reader.chunk(reply, data)
    if not any(_says_something(choice) for choice in reply.choices or ()):
        raise StreamError(f"{assembler.provider}: the reply is not a chat completion: it has no message")
    reader.complete()


def _says_something(choice: WireChoice | None) -> bool:
    if choice is None:
        return False
    return choice.message is not None or choice.delta is not None or choice.finish_reason is not None


def flatten(value: Json) -> str:
    match value:
        case str():
            return value
        case list():
            return "".join(flatten(part) for part in value)
        case {"text": text} | {"content": text}:
            return text if isinstance(text, str) else ""
        case _:
            return ""


def _detail_text(detail: Json) -> str:
    match detail:
        case {"text": str(text)} | {"summary": str(text)}:
            return text
        case _:
            return ""


def _merge_detail(details: list[Json], fragment: JsonObject) -> None:
    """Join a fragment to the last detail, if both have the same type and index and the fragment adds text."""
    last = details[-1] if details else None
    same = isinstance(last, dict) and all(last.get(name) == fragment.get(name) for name in ("type", "index"))
    if not same or not isinstance(last, dict) or "data" in fragment:
        details.append(dict(fragment))
        return
    for name, value in fragment.items():
        old = last.get(name)
        if name in ("text", "summary") and isinstance(value, str) and isinstance(old, str):
            last[name] = old + value
        elif value is not None and value != "":
            last[name] = value


# --- The normaliser ---


class ChatNormaliser(SseNormaliser):
    """Reads one streamed reply up to `[DONE]` or the end of the body, because usage may follow the finish reason.

    Without a finish reason the reply broke off, except at servers that never send a finish reason and end with
    `[DONE]`.
    """

    error_codes = ERROR_CODES

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        super().__init__(assembler)
        self._reader = ReplyReader(assembler, quirks)
        self._reasons = quirks.finish_reasons
        self._only_text = True  # whether all chunks since the first text were text chunks

    def on_event(self, name: bytes, data: bytes) -> None:
        if self._only_text and not name and self._reader.in_text:
            try:
                self._reader.text_chunk(decode_text_chunk(data))
                return
            except msgspec.DecodeError:
                self._only_text = False
        if data.startswith(b"[DONE]") or data.strip() == b"[DONE]":
            self._done()
            return
        if name == b"error":
            raise error_in_body(data, self.assembler.provider)
        reply = decode_reply(data)
        if reply.object == "error" and not reply.choices:
            raise error_in_body(data, self.assembler.provider)
        self._reader.chunk(reply, data)

    def on_end(self) -> None:
        if not self._reader.finish_reason:
            raise StreamError(f"{self.assembler.provider}: the stream ended before the reply was complete")
        self._finish()

    def _done(self) -> None:
        if not self._reader.saw_choice:
            raise StreamError(f"{self.assembler.provider}: the stream had no reply")
        if self._reasons and not self._reader.finish_reason:
            raise StreamError(f"{self.assembler.provider}: the stream ended without a stop reason")
        self._finish()

    def _finish(self) -> None:
        self._reader.complete()
        self.finished = True
