"""Content, finish reason and usage of a reply, whole or streamed.

A whole reply is read as a stream of one chunk. Consecutive text parts form one block. A thought signature is valid
only in its own part. A call has its signature in `provider_raw`. For text, `provider_raw` records the signed
piece. For reasoning, the signature is the block's own, and the block ends. A part with only a signature becomes an
opaque block. A text or thought with `partMetadata` becomes a separate block. Other kinds of parts are kept
unchanged. So are grounding and citations, which are the last blocks. Safety ratings and the like are in
`provider_details`. Only the first candidate is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from callboard.bus.errors import StreamError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason

from ...replies.assembler import Assembler
from ...replies.block import parse_object
from ...replies.server_sent_events import EventNormaliser, SseDecoder
from ...requests.content import image_of_base64, repair_body
from . import contents, wire
from .contents import NOTHING, OF_TEXT, SIBLINGS, SIGNATURE_KIND, has_others, metadata_of, raw_parts
from .data import CODES, error_in_reply
from .wire import PartialArguments, UsageCounts

_EACH_QUERY = re.compile(r"gemini-(?:[3-9]|\d\d)")
"""Models since Gemini 3 are billed for each search. Older models are billed for each grounded request."""


def grounding_fees(metadata: Json, model: str) -> dict[str, int]:
    """Counts by rate name: web searches, and requests that used the map."""
    if not isinstance(metadata, dict):
        return {}
    queries = sum(1 for query in _list(metadata.get("webSearchQueries")) if query)
    chunks = [chunk for chunk in _list(metadata.get("groundingChunks")) if isinstance(chunk, dict)]
    searches = max(queries, int(any("web" in chunk for chunk in chunks)))
    fees = {
        "web_search": searches if _EACH_QUERY.search(model) else min(searches, 1),
        "map_search": int(any("maps" in chunk for chunk in chunks)),
    }
    return {name: count for name, count in fees.items() if count}


def _list(value: Json) -> Iterable[Json]:
    return value if isinstance(value, list) else ()


STOP_REASONS: Mapping[str, StopReason] = {
    "STOP": StopReason.END_TURN,
    # From servers that imitate Gemini; like STOP, it becomes tool_use if there is a call.
    "FUNCTION_CALL": StopReason.END_TURN,
    "MAX_TOKENS": StopReason.MAX_TOKENS,
    "SAFETY": StopReason.CONTENT_FILTER,
    "RECITATION": StopReason.CONTENT_FILTER,
    "BLOCKLIST": StopReason.CONTENT_FILTER,
    "PROHIBITED_CONTENT": StopReason.CONTENT_FILTER,
    "SPII": StopReason.CONTENT_FILTER,
    "MODEL_ARMOR": StopReason.CONTENT_FILTER,
    "IMAGE_SAFETY": StopReason.CONTENT_FILTER,
    "IMAGE_PROHIBITED_CONTENT": StopReason.CONTENT_FILTER,
    "IMAGE_RECITATION": StopReason.CONTENT_FILTER,
    "IMAGE_OTHER": StopReason.CONTENT_FILTER,
}
"""The stop reasons by finish reason. All other reasons (LANGUAGE, OTHER, MALFORMED_FUNCTION_CALL,
UNEXPECTED_TOOL_CALL, unknown) are provider_specific.

These are irregular ends that only this provider has. They are not errors, because the reply is billed and a retry
may have the same result.
"""

_UNSPECIFIED = "FINISH_REASON_UNSPECIFIED"

_OF_CANDIDATES = ("safetyRatings", "avgLogprobs", "continuationToken", "tokenCount")
_OF_CHUNKS = ("promptFeedback", "modelStatus", "createTime")
"""The fields that are copied to `CanonicalResponse.provider_details` under the same names."""


def read_reply(body: bytes, assembler: Assembler) -> None:
    """Feed a whole reply and finish it; leave the assembler incomplete if the body is not a reply.

    A stream without ``alt=sse`` is a list of chunks. Raises AdapterError for an error with HTTP 200, and msgspec's
    decoding errors.
    """
    reader = ReplyReader(assembler)
    chunks = [bytes(chunk) for chunk in wire.decode_chunks(body)] if body.lstrip()[:1] == b"[" else [body]
    for chunk in chunks:
        reader.add(wire.decode_chunk(chunk), chunk)
    if reader.ended or (reader.saw_candidate and len(chunks) == 1):
        reader.finish()


class ReplyReader:
    def __init__(self, assembler: Assembler) -> None:
        self.assembler = assembler
        self.saw_candidate = False
        self._started = False
        self._finish_reason: str | None = None
        self._finish_message = ""
        self._block_reason: str | None = None
        self._key = 0  # the key of the block to which the next fragment of the same kind is added
        self._kind = ""  # the kind of that block: text, thinking, or anything else for none
        self._signed: list[Json] = []  # signed pieces of that block
        self._about_block = NOTHING  # extra fields of that block
        self._partial: PartialArguments | None = None  # a call with more arguments to come
        self._about: dict[str, Json] = {}
        self._usage = UsageCounts()
        self._warned: set[str] = set()

    @property
    def ended(self) -> bool:
        """Whether the reply has a finish reason. More chunks may follow, because older models send one in every
        chunk.
        """
        return self._finish_reason is not None or self._block_reason is not None

    @property
    def in_text(self) -> bool:
        return self._kind == "text" and not self._about_block

    def add_text(self, chunk: wire.TextChunk) -> None:
        """Like `add`, for the most common chunk: more text for an open text block. Raises msgspec's decoding
        errors.
        """
        if chunk.usageMetadata is not wire.ABSENT:
            self._usage.add(chunk.usageMetadata)
        text = chunk.candidates[0].content.parts[0].text
        if text:
            self.assembler.text(self._key, text, implicit_end=True)

    def add(self, chunk: wire.Chunk, data: bytes) -> None:
        if chunk.error != wire.ABSENT:
            raise error_in_reply(wire.decode_json(data), self.assembler.provider)
        candidate: wire.Candidate | None = None
        parts: list[wire.Part] | None = None
        others: Sequence[Json] = ()
        if chunk.candidates:
            candidate = chunk.candidates[0]
            if candidate.index or len(chunk.candidates) > 1:
                what = "the reply has several candidates. Only the first one is used"
                self._warn_once(WarningCode.EXTRA_CANDIDATES, what)
                candidate = next((one for one in chunk.candidates if one.index in (None, 0)), None)
            if candidate is not None and candidate.content is not None:
                parts = candidate.content.parts
                if parts and has_others(parts):
                    others = raw_parts(data)
        if not self._started:
            self._begin(chunk)
        if chunk.usageMetadata is not wire.ABSENT:
            self._usage.add(chunk.usageMetadata)
        if parts:
            for position, part in enumerate(parts):
                if part.functionCall is not None:
                    self._call(part, part.functionCall)
                elif part.text is not None:
                    self._text(part, part.text)
                else:
                    self._other(others[position] if position < len(others) else None)
        if candidate is not None:
            self.saw_candidate = True
            if candidate.finishReason is not None:
                self._end(candidate)
            self._note(candidate)
        if chunk.promptFeedback is not wire.ABSENT:
            self._block(wire.decode_feedback(chunk.promptFeedback))
        if not (chunk.promptFeedback is chunk.modelStatus is chunk.createTime is wire.ABSENT):
            self._note_details(chunk, _OF_CHUNKS)

    def finish(self) -> None:
        assembler = self.assembler
        self._end_partial()
        for kind, value in self._about.items():
            assembler.whole(kind, kind, {kind: value})
        raw = self._finish_reason or self._block_reason
        if self._finish_reason == contents.FINISH_REASON and assembler.details.get(contents.KIND):
            reason = StopReason.PAUSE_TURN
            token: JsonObject = {contents.KIND: assembler.details[contents.KIND]}
            assembler.whole(contents.KIND, contents.KIND, token)
        elif self._finish_reason is not None:
            reason = STOP_REASONS.get(self._finish_reason, StopReason.PROVIDER_SPECIFIC)
            if reason is StopReason.END_TURN and assembler.has_tool_use:
                reason = StopReason.TOOL_USE
        elif raw is not None:
            reason = StopReason.CONTENT_FILTER
        else:
            reason = StopReason.PROVIDER_SPECIFIC
            assembler.warn_no_stop_reason()
        if self._finish_message and reason in (StopReason.CONTENT_FILTER, StopReason.PROVIDER_SPECIFIC):
            assembler.warn(WarningCode.FINISH_MESSAGE, f"{raw}: {self._finish_message[:1000]}")
        assembler.finish(reason, raw, self._usage.total(final=True))

    # --- The reply ---

    def _begin(self, chunk: wire.Chunk) -> None:
        self._started = True
        self.assembler.usage_from(self._usage.total)
        if isinstance(chunk.modelVersion, str) and chunk.modelVersion:
            self.assembler.model = chunk.modelVersion
        if isinstance(chunk.responseId, str):
            self.assembler.response_id = chunk.responseId

    def _end(self, candidate: wire.Candidate) -> None:
        if isinstance(candidate.finishReason, str) and candidate.finishReason not in ("", _UNSPECIFIED):
            self._finish_reason = self.assembler.raw_stop_reason = candidate.finishReason
        if isinstance(candidate.finishMessage, str):
            self._finish_message = candidate.finishMessage

    def _note(self, candidate: wire.Candidate) -> None:
        if candidate.groundingMetadata is not wire.ABSENT:
            self._note_one("groundingMetadata", candidate.groundingMetadata)
        if candidate.citationMetadata is not wire.ABSENT:
            self._note_one("citationMetadata", candidate.citationMetadata)
        if candidate.urlContextMetadata is not wire.ABSENT:
            self._note_one("urlContextMetadata", candidate.urlContextMetadata)
        if candidate.logprobsResult is not wire.ABSENT:
            self._note_one("logprobsResult", candidate.logprobsResult)
        ratings, average = candidate.safetyRatings, candidate.avgLogprobs
        if not (ratings is average is candidate.continuationToken is candidate.tokenCount is wire.ABSENT):
            self._note_details(candidate, _OF_CANDIDATES)

    def _note_details(self, about: wire.Candidate | wire.Chunk, names: Sequence[str]) -> None:
        """Keep the latest value of each field of other data."""
        for name in names:
            raw = getattr(about, name)
            if raw is not wire.ABSENT and raw != wire.ABSENT:
                self.assembler.details[name] = wire.decode_json(raw)

    def _note_one(self, kind: str, raw: msgspec.Raw) -> None:
        value = wire.decode_json(raw)
        if not value:
            return
        before = self._about.get(kind)
        if kind == "logprobsResult" and isinstance(before, dict) and isinstance(value, dict):
            # logprobs are only those of the chunk; other fields are those of the reply up to here
            value = _extended(before, value)
        self._about[kind] = value
        if kind == "groundingMetadata":
            self._usage.fees = grounding_fees(value, self.assembler.model)

    def _block(self, feedback: wire.PromptFeedback | None) -> None:
        if feedback is None:
            return
        if isinstance(feedback.blockReason, str) and feedback.blockReason:
            self._block_reason = self.assembler.raw_stop_reason = feedback.blockReason
            if isinstance(feedback.blockReasonMessage, str):
                self._finish_message = feedback.blockReasonMessage

    # --- Parts ---

    def _next(self, kind: str) -> int:
        self._key += 1
        self._kind = kind
        return self._key

    def _text(self, part: wire.Part, text: str) -> None:
        plain = part.partMetadata is part.speechMetadata is wire.ABSENT
        about = NOTHING if plain else metadata_of(part)
        if part.thought:
            self._thinking(text, part.thoughtSignature, about)
        elif part.thoughtSignature:
            self._signed_text(text, part.thoughtSignature, about)
        elif text:
            if not self._joins("text", about):
                self._begin_text(about)
            self.assembler.text(self._key, text, implicit_end=True, raw=self._raw_of_text() if about else None)
        elif about:
            self._opaque(next(iter(about)), {"text": "", **about})

    def _joins(self, kind: str, about: JsonObject) -> bool:
        return self._kind == kind and self._about_block == about

    def _begin_text(self, about: JsonObject) -> None:
        self._next("text")
        self._signed, self._about_block = [], about

    def _raw_of_text(self) -> JsonObject:
        return {**self._about_block, **({"signatures": self._signed} if self._signed else {})}

    def _thinking(self, text: str, signature: str | None, about: JsonObject) -> None:
        if not (text or signature or about):
            return
        key = self._key if self._joins("thinking", about) else self._next("thinking")
        self._about_block = about
        if not signature:
            self.assembler.thinking(key, text, implicit_end=True, raw=about or None)
            return
        start = len(self.assembler.block_text(key))
        self.assembler.thinking(key, text, implicit_end=True)
        raw = {**about, "start": start} if start else about
        self.assembler.signature(key, signature, raw=raw or None)
        self._kind = ""

    def _signed_text(self, text: str, signature: str, about: JsonObject) -> None:
        if not self._joins("text", about):
            if not text:
                self._opaque(SIGNATURE_KIND, {"text": "", "thoughtSignature": signature, **about})
                return
            self._begin_text(about)
        start = len(self.assembler.block_text(self._key))
        self._signed.append({"start": start, "end": start + len(text), "signature": signature})
        self.assembler.text(self._key, text, implicit_end=True, raw=self._raw_of_text())

    def _other(self, raw: Json) -> None:
        if not isinstance(raw, dict):
            return
        kind = next((name for name in raw if name not in SIBLINGS), None)
        about = {name: raw[name] for name in OF_TEXT if raw.get(name) is not None}
        if kind is not None:
            self._opaque(kind, raw)
        elif isinstance(signature := raw.get("thoughtSignature"), str) and signature:
            self._signed_text("", signature, about)
        elif about:
            self._opaque(next(iter(about)), raw)
        else:
            self._warn_once(WarningCode.UNKNOWN_CONTENT, "a part of the reply is empty")

    def _opaque(self, kind: str, raw: JsonObject) -> None:
        inline = raw.get("inlineData")
        if isinstance(inline, dict) and not raw.get("thought"):
            media_type = inline.get("mimeType")
            shown = isinstance(media_type, str) and media_type.startswith("image/")
            image = image_of_base64(inline.get("data"), media_type) if shown else None
            if image is not None:
                about = {name: value for name, value in inline.items() if name != "data"}
                self.assembler.image(self._next("whole"), kind, raw, image, {**raw, "inlineData": about})
                return
        self.assembler.whole(self._next("whole"), kind, raw)

    # --- Calls ---

    def _call(self, part: wire.Part, call: wire.FunctionCall) -> None:
        name = call.name if isinstance(call.name, str) else ""
        if self._partial is not None and not name:
            self._continue(self._partial, call)
            return
        self._end_partial()
        if not name and call.args == wire.ABSENT and not call.partialArgs:
            return  # the call has ended already
        raw: JsonObject = {}
        if isinstance(call.id, str) and call.id:
            raw["id"] = call.id
        if part.thoughtSignature:
            raw["thoughtSignature"] = part.thoughtSignature
        if not (part.partMetadata is part.speechMetadata is wire.ABSENT):
            raw |= metadata_of(part)
        key = self._next("call")
        self.assembler.tool_start(key, name, raw=raw)
        if call.willContinue or call.partialArgs:
            self._partial = PartialArguments(key)
            self._continue(self._partial, call, started=True)
            return
        if call.args != wire.ABSENT:
            self.assembler.tool_arguments(key, self._text_of(call.args))
        self.assembler.end(key)

    def _continue(self, partial: PartialArguments, call: wire.FunctionCall, *, started: bool = False) -> None:
        for piece in call.partialArgs or ():
            partial.add(piece)
        if call.args != wire.ABSENT:
            partial.value.update(parse_object(self._text_of(call.args)) or {})
        if not call.willContinue and not (started and call.partialArgs):
            self._end_partial()

    def _text_of(self, raw: msgspec.Raw) -> str:
        """Decode raw JSON to text. The bytes were not validated when the chunk was decoded."""
        try:
            return bytes(raw).decode()
        except UnicodeDecodeError:
            repaired = repair_body(bytes(raw))
            assert repaired is not None
            self.assembler.replaced(repaired.replaced)
            return repaired.text.decode()

    def _end_partial(self) -> None:
        partial, self._partial = self._partial, None
        if partial is not None:
            self.assembler.tool_arguments(partial.key, msgspec.json.encode(partial.value).decode())
            self.assembler.end(partial.key, incomplete=partial.broken)

    def _warn_once(self, code: WarningCode, message: str) -> None:
        if code not in self._warned:
            self._warned.add(code)
            self.assembler.warn(code, message)


def _extended(before: JsonObject, more: JsonObject) -> JsonObject:
    joined = dict(before)
    for name, value in more.items():
        former = joined.get(name)
        joined[name] = [*former, *value] if isinstance(former, list) and isinstance(value, list) else value
    return joined


class GeminiNormaliser(EventNormaliser):
    error_codes = CODES

    def __init__(self, assembler: Assembler) -> None:
        super().__init__(assembler, SseDecoder())
        self._reader = ReplyReader(assembler)
        self._only_text = True  # whether all chunks since the first were text chunks

    def on_event(self, name: bytes, data: bytes) -> None:
        if self._only_text and self._reader.in_text:
            try:
                self._reader.add_text(wire.decode_text_chunk(data))
                return
            except msgspec.DecodeError:
                self._only_text = False
        try:
            chunk = wire.decode_chunk(data)
        except msgspec.DecodeError:
            if data.strip() == b"[DONE]":
                return  # of another protocol, sent by a proxy
            raise
        self._reader.add(chunk, data)

    def on_end(self) -> None:
        if not self._reader.ended:
            raise StreamError(f"{self.assembler.provider}: the stream ended before the reply was complete")
        self._reader.finish()
        self.finished = True
