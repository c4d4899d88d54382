"""Content from an interaction's steps, whole or streamed.

model_output    text (with its annotations in `provider_raw`), images; other content is kept unchanged
thought         reasoning, with its signature; a summary with more than text is kept in `provider_raw`
function_call   a call of one of the request's tools
user_input      ignored: a stored interaction repeats its input
any other       kept unchanged: the provider's own tools, with their results
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from callboard.bus.errors import AdapterError, StreamError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason, TokenUsage, details_of, unusual_tier

from ...replies.assembler import Assembler
from ...replies.streamed import image_at, image_of_base64
from ...replies.usage import reported_count, source_of
from .data import error_in_reply

# --- Fields of the API ---

REVISION = "2026-05-20"
ABSENT = msgspec.Raw(b"null")
"""The value of a raw field that was not sent, equal to null."""


class Interaction(msgspec.Struct, gc=False):
    """A whole reply, or the part of a reply in an event."""

    id: object = None
    model: object = None
    status: object = None
    steps: list[Json] | None = None
    usage: msgspec.Raw = ABSENT
    service_tier: object = None
    error: msgspec.Raw = ABSENT
    errors: msgspec.Raw = ABSENT
    continuation_token: msgspec.Raw = ABSENT
    environment_id: msgspec.Raw = ABSENT
    created: msgspec.Raw = ABSENT
    updated: msgspec.Raw = ABSENT


class Delta(msgspec.Struct, gc=False):
    """A delta of a step. `content` is a piece of a thought's summary; `arguments` is a fragment of JSON text."""

    type: object = None
    text: str | None = None
    content: Json = None
    signature: str | None = None
    arguments: Json = None
    annotations: list[Json] | None = None


class Event(msgspec.Struct, gc=False):
    event_type: str | None = None
    index: int | float | None = None
    delta: Delta | None = None
    step: msgspec.Raw = ABSENT
    interaction: msgspec.Raw = ABSENT
    status: object = None
    usage: msgspec.Raw = ABSENT
    continuation_token: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


class _DeltaOf(msgspec.Struct, gc=False):
    delta: dict[str, Json] | None = None


class ModalityTokens(msgspec.Struct, gc=False):
    modality: object = None
    tokens: object = None


class GroundingCount(msgspec.Struct, gc=False):
    """The number of uses of a provider's tool that is billed by use."""

    type: object = None
    count: object = None


class Usage(msgspec.Struct, gc=False):
    """Token counts. The input includes cache reads; thoughts are not part of the output."""

    total_input_tokens: object = None
    total_cached_tokens: object = None
    total_output_tokens: object = None
    total_thought_tokens: object = None
    total_tool_use_tokens: object = None
    input_tokens_by_modality: list[ModalityTokens] | None = None
    cached_tokens_by_modality: list[ModalityTokens] | None = None
    output_tokens_by_modality: list[ModalityTokens] | None = None
    grounding_tool_count: list[GroundingCount] | None = None


decode_interaction = msgspec.json.Decoder(Interaction).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_delta = msgspec.json.Decoder(_DeltaOf).decode
decode_usage = msgspec.json.Decoder(Usage | None).decode
decode_json = msgspec.json.Decoder(Json).decode


# --- Usage ---

_FEES = {"google_search": "web_search", "google_maps": "map_search"}
"""Tools that are billed by use, by rate name."""


def read_usage(raw: msgspec.Raw, service_tier: object = None) -> TokenUsage | None:
    """Token counts in disjoint buckets; None if nothing is reported."""
    found = decode_usage(raw)
    if found is None:
        return None
    prompt, cached = reported_count(found.total_input_tokens), reported_count(found.total_cached_tokens)
    output, thought = reported_count(found.total_output_tokens), reported_count(found.total_thought_tokens)
    tools = reported_count(found.total_tool_use_tokens)
    if prompt is None and output is None and thought is None:
        return None
    prompt_audio, cached_audio = (
        _of(found.input_tokens_by_modality, "audio"),
        _of(found.cached_tokens_by_modality, "audio"),
    )
    image_tokens, cached_images = (
        _of(found.input_tokens_by_modality, "image"),
        _of(found.cached_tokens_by_modality, "image"),
    )
    spoken, drawn = (_of(found.output_tokens_by_modality, kind) for kind in ("audio", "image"))
    fresh = max(0, (prompt or 0) - (cached or 0))
    audio = min(fresh, max(0, prompt_audio - cached_audio))
    spoken = min(output or 0, spoken)
    return TokenUsage(
        input_tokens=fresh + (tools or 0),
        output_tokens=(output or 0) + (thought or 0),
        cached_input_tokens=cached or 0,
        reasoning_tokens=thought,
        source=source_of(
            *((cached, prompt), (prompt_audio + image_tokens, prompt), (cached_audio + cached_images, cached)),
            (spoken + drawn, output),
            raw=raw,
            complete=prompt is not None,
        ),
        details=details_of(
            audio_input=audio,
            image_input=min(fresh - audio, max(0, image_tokens - cached_images)),
            audio_cache_read=min(cached or 0, cached_audio),
            image_cache_read=min(max(0, (cached or 0) - cached_audio), cached_images),
            audio_output=spoken,
            image_output=min((output or 0) - spoken, drawn),
            **_fees(found.grounding_tool_count),
        ),
        service_tier=unusual_tier(service_tier),
        raw=raw.copy(),
    )


def _of(parts: Sequence[ModalityTokens] | None, modality: str) -> int:
    return sum(reported_count(part.tokens) or 0 for part in parts or () if part.modality == modality)


def _fees(uses: Sequence[GroundingCount] | None) -> dict[str, int]:
    counts = dict.fromkeys(_FEES.values(), 0)
    for use in uses or ():
        if isinstance(use.type, str) and use.type in _FEES:
            counts[_FEES[use.type]] += reported_count(use.count) or 0
    return counts


STOP_REASONS: Mapping[str, StopReason] = {
    "completed": StopReason.END_TURN,
    "requires_action": StopReason.TOOL_USE,
    "incomplete": StopReason.MAX_TOKENS,
    "requires_continuation": StopReason.PAUSE_TURN,
}
"""The stop reasons by status. All other statuses (in_progress, queued, budget_exceeded, unknown) mean
``provider_specific``.

``failed`` and ``cancelled`` are errors.
"""

_STATUSES = {
    "400": "INVALID_ARGUMENT", "401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED", "404": "NOT_FOUND",
    "429": "RESOURCE_EXHAUSTED", "500": "INTERNAL", "503": "UNAVAILABLE", "504": "DEADLINE_EXCEEDED",
}  # fmt: skip

_DETAILS = ("continuation_token", "environment_id", "created", "updated")
"""The fields that are copied to `CanonicalResponse.provider_details` under the same names."""


def read_reply(body: bytes, assembler: Assembler) -> None:
    """Feed a whole reply and finish it."""
    interaction = decode_interaction(body)
    if interaction.error != ABSENT:
        raise failure_of(decode_json(interaction.error), assembler.provider)
    if not isinstance(interaction.status, str):
        raise StreamError(f"{assembler.provider}: the reply is not an interaction: it has no status")
    steps = Steps(assembler)
    steps.note(interaction)
    for step in interaction.steps or ():
        steps.whole(step)
    steps.finish()


class Steps:
    def __init__(self, assembler: Assembler) -> None:
        self.assembler = assembler
        self.any_step = False
        self.status: str | None = None
        self._tier: object = None
        self._warned = False
        self._key = 0

    def note(self, interaction: Interaction) -> None:
        """Read an interaction's own fields. Raises AdapterError if it has failed."""
        assembler = self.assembler
        if isinstance(interaction.id, str) and interaction.id:
            assembler.response_id = interaction.id
        if isinstance(interaction.model, str) and interaction.model:
            assembler.model = interaction.model.removeprefix("models/")
        self._tier = interaction.service_tier or self._tier
        for name in _DETAILS:
            self.note_detail(name, getattr(interaction, name))
        self.note_usage(interaction.usage)
        self.note_status(interaction.status, interaction.errors)

    def note_detail(self, name: str, detail: msgspec.Raw) -> None:
        if detail != ABSENT:
            self.assembler.details[name] = decode_json(detail)

    def note_usage(self, raw: msgspec.Raw) -> None:
        usage = None if raw == ABSENT else read_usage(raw, self._tier)
        if usage is not None:
            self.assembler.usage = usage

    def note_status(self, status: object, errors: msgspec.Raw = ABSENT) -> None:
        """Read a status. Raises AdapterError if the interaction has failed."""
        if not isinstance(status, str) or not status:
            return
        self.status = self.assembler.raw_stop_reason = status
        if status == "failed":
            raise self._failed(errors)

    def _failed(self, errors: msgspec.Raw) -> AdapterError:
        found = decode_json(errors)
        unsaid: Json = {"status": "INTERNAL", "message": "the interaction has failed"}
        return failure_of(found[0] if isinstance(found, list) and found else unsaid, self.assembler.provider)

    def finish(self) -> None:
        """Finish the reply. Raises AdapterError if its status is a failure."""
        assembler = self.assembler
        reason = STOP_REASONS.get(self.status or "", StopReason.PROVIDER_SPECIFIC)
        if reason is StopReason.END_TURN and assembler.has_tool_use:
            reason = StopReason.TOOL_USE
        if self.status is None:
            assembler.warn_no_stop_reason()
        assembler.finish(reason, self.status)

    def next_key(self) -> int:
        self._key += 1
        return self._key

    # --- Steps ---

    def whole(self, step: Json) -> None:
        if not isinstance(step, dict):
            return
        self.any_step = True
        match step.get("type"):
            case "model_output":
                content = step.get("content")
                for item in content if isinstance(content, list) else ():
                    self.item(item)
            case "thought":
                self.thought(step)
            case "function_call":
                self.call(step)
            case "user_input":
                pass
            case str(kind):
                self.assembler.whole(self.next_key(), kind, step)
            case _:
                self._unknown("a step without a type")

    def item(self, item: Json) -> None:
        """Read a piece of the model's output."""
        if not isinstance(item, dict):
            return
        key, assembler = self.next_key(), self.assembler
        match item:
            case {"type": "text", "text": str(text)}:
                annotations = item.get("annotations")
                assembler.text(key, text, raw={"annotations": annotations} if text and annotations else None)
                assembler.end(key)
            case {"type": "image"}:
                image = image_of_base64(item.get("data"), item.get("mime_type")) or image_at(item.get("uri"))
                if image is None:
                    assembler.whole(key, "image", item)
                    return
                source = "uri" if image.data is None else "data"
                rest = {name: value for name, value in item.items() if name != source}
                assembler.image(key, "image", item, image, rest)
            case {"type": str(kind)}:
                assembler.whole(key, kind, item)
            case _:
                self._unknown("content without a type")

    def _unknown(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self.assembler.warn(WarningCode.UNKNOWN_CONTENT, f"the provider sent {what}, which is unknown")

    def thought(self, step: JsonObject) -> None:
        key, assembler = self.next_key(), self.assembler
        summary = step.get("summary")
        parts = summary if isinstance(summary, list) else []
        text = "".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))
        signature = step.get("signature")
        raw: JsonObject = {"summary": parts} if has_more_than_text(parts) else {}
        if text or raw:
            assembler.thinking(key, text, raw=raw)
        if isinstance(signature, str) and signature:
            assembler.signature(key, signature, raw=raw)
        assembler.end(key)

    def call(self, step: JsonObject) -> None:
        key = self.begin_call(step)
        self.assembler.tool_arguments(key, arguments_of(step.get("arguments")))
        self.assembler.end(key)

    def begin_call(self, step: JsonObject) -> int:
        """Start a call. Returns the key of its block."""
        key, name = self.next_key(), step.get("name")
        fields = {field: value for field, value in step.items() if field not in ("type", "name", "arguments")}
        self.assembler.tool_start(key, name if isinstance(name, str) else "", raw=fields)
        return key


def failure_of(error: Json, provider: str) -> AdapterError:
    """The exception for an error with a canonical status in any case, or an HTTP status as text."""
    if not isinstance(error, dict):
        return error_in_reply({"error": error}, provider)
    code = error.get("code")
    if isinstance(code, str) and "status" not in error:
        error = {**error, "status": _STATUSES.get(code, code.upper())}
    return error_in_reply({"error": error}, provider)


def has_more_than_text(parts: list[Json]) -> bool:
    return len(parts) > 1 or any(not isinstance(part, dict) or part.keys() - {"type", "text"} for part in parts)


def arguments_of(value: Json) -> str:
    """A call's arguments as JSON text."""
    return value if isinstance(value, str) else msgspec.json.encode({} if value is None else value).decode()
