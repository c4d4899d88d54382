"""Content from an interaction's steps, whole or streamed.

model_output    text (with its annotations in `provider_raw`), images; other content is kept unchanged
thought         reasoning, with its signature; a summary with more than text is kept in `provider_raw`
function_call   a call of one of the request's tools
user_input      ignored: a stored interaction repeats its input
any other       kept unchanged: the provider's own tools, with their results

A stream has these events. A body without ``interaction.completed`` was cut off. A delta without an open step
starts a step.

    interaction.created          the reply's id and model
    interaction.status_update    the current status
    step.start, step.delta, step.stop       one step; the start may have content
    interaction.completed        the last status, and the usage
    error                        the interaction has failed
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from callboard.bus.errors import AdapterError, StreamError, WarningCode
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import StopReason, TokenUsage

from ...replies.assembler import Assembler
from ...replies.server_sent_events import SseNormaliser
from ...replies.usage import decode_usage, reported_count
from ...requests.content import image_at, image_of_base64
from .data import error_in_reply
from .wire import ABSENT, decode_json, disjoint_usage

# --- Fields of the API ---

REVISION = "2026-05-20"


class Interaction(msgspec.Struct, gc=False):
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


decode_interaction = msgspec.json.Decoder(Interaction).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_delta = msgspec.json.Decoder(_DeltaOf).decode

# --- Usage ---

_COUNTS = (
    *("total_input_tokens", "total_cached_tokens", "total_output_tokens"),
    *("total_thought_tokens", "total_tool_use_tokens"),
    *("input_tokens_by_modality", "cached_tokens_by_modality", "output_tokens_by_modality"),
)
"""The fields of a usage. The input includes cache reads; thoughts are not part of the output."""

_FEES = {"google_search": "web_search", "google_maps": "map_search"}
"""Tools that are billed by use, by rate name."""


def read_usage(raw: msgspec.Raw, service_tier: object = None) -> TokenUsage | None:
    found = decode_usage(raw)
    fees = dict.fromkeys(_FEES.values(), 0)
    uses = found.get("grounding_tool_count")
    for use in uses if isinstance(uses, list) else ():
        match use:
            case {"type": str(tool), "count": count} if tool in _FEES:
                fees[_FEES[tool]] += reported_count(count) or 0
            case _:
                pass
    return disjoint_usage(found, _COUNTS, fees, service_tier, raw, raw.copy())


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


def read_interaction(body: bytes, assembler: Assembler) -> None:
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
        if not isinstance(status, str) or not status:
            return
        self.status = self.assembler.raw_stop_reason = status
        if status == "failed":
            found = decode_json(errors)
            unsaid: Json = {"status": "INTERNAL", "message": "the interaction has failed"}
            error = found[0] if isinstance(found, list) and found else unsaid
            raise failure_of(error, self.assembler.provider)

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
        raw = summary_data(parts)
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


def summary_data(parts: list[Json]) -> JsonObject:
    """The data of a thought's block: its summary, if this has more than one text."""
    plain = len(parts) < 2 and all(isinstance(part, dict) and part.keys() <= {"type", "text"} for part in parts)
    return {} if plain else {"summary": parts}


def arguments_of(value: Json) -> str:
    return value if isinstance(value, str) else msgspec.json.encode({} if value is None else value).decode()


_STEP_OF = {
    "text": "model_output",
    "image": "model_output",
    "audio": "model_output",
    "document": "model_output",
    "video": "model_output",
    "text_annotation_delta": "model_output",
    "thought_summary": "thought",
    "thought_signature": "thought",
    "arguments_delta": "function_call",
}
"""The type of step for each type of delta. A delta type that is missing here has a step of the same name."""


@dataclass(slots=True)
class OpenStep:
    kind: str
    step: JsonObject
    """The collected fields of a step that is kept unchanged."""
    key: int = 0
    annotations: list[Json] = field(default_factory=list)
    summary: list[Json] = field(default_factory=list)
    fragments: bool = False


class InteractionNormaliser(SseNormaliser):
    def __init__(self, assembler: Assembler) -> None:
        super().__init__(assembler)
        self._steps = Steps(assembler)
        self._open: dict[int | float, OpenStep] = {}
        self._index: int | float = 0  # the last started step, for events without an index
        self._warned = False

    def on_event(self, name: bytes, data: bytes) -> None:
        try:
            event = decode_event(data)
        except msgspec.DecodeError:
            if data.strip() == b"[DONE]":
                return
            raise
        kind = event.event_type or name.decode("utf-8", "replace")
        if kind == "step.delta":
            self._on_delta(event, data)
            return
        match kind:
            case "step.start":
                self._on_start(event)
            case "step.stop":
                self._stop(self._index if event.index is None else event.index)
                self._steps.note_usage(event.usage)
            case "interaction.created":
                self._steps.note(_interaction_of(event, data))
            case "interaction.status_update":
                self._steps.note_detail("continuation_token", event.continuation_token)
                self._steps.note_usage(event.usage)
                self._steps.note_status(event.status)
            case "interaction.completed":
                self._on_completed(_interaction_of(event, data))
            case _ if kind == "error" or event.error != ABSENT:
                error = data if event.error == ABSENT else event.error
                raise failure_of(decode_json(error), self.assembler.provider)
            case _:
                self._on_unknown(kind, data)

    def _on_completed(self, interaction: Interaction) -> None:
        for index in list(self._open):
            self._stop(index)
        if not self._steps.any_step:
            for step in interaction.steps or ():
                self._steps.whole(step)
        self._steps.note(interaction)
        self._steps.finish()
        self.finished = True

    def _on_unknown(self, kind: str, data: bytes) -> None:
        if not self._warned:
            self._warned = True
            what = f"the provider sent {kind[:100]}, which is unknown"
            self.assembler.warn(WarningCode.UNKNOWN_EVENT, what)
        if kind:
            self.assembler.provider_event(kind, decode_json(data))

    # --- Steps ---

    def _on_start(self, event: Event) -> None:
        step = decode_json(event.step)
        if not isinstance(step, dict):
            return
        index = event.index if event.index is not None else self._index + 1 if self._steps.any_step else 0
        self._stop(index)
        self._begin(index, step)

    def _begin(self, index: int | float, step: JsonObject) -> OpenStep:
        raw_type = step.get("type")
        kind = raw_type if isinstance(raw_type, str) else ""
        started = self._open[index] = OpenStep(kind, step)
        self._index, self._steps.any_step = index, True
        match kind:
            case "model_output":
                content = step.get("content")
                for item in content if isinstance(content, list) else ():
                    self._add_item(started, item)
            case "thought":
                summary = step.get("summary")
                for part in summary if isinstance(summary, list) else ():
                    self._add_thought(started, part)
                self._sign(started, step.get("signature"))
            case "function_call":
                started.key = self._steps.begin_call(step)
        return started

    def _stop(self, index: int | float) -> None:
        state = self._open.pop(index, None)
        if state is None:
            return
        match state.kind:
            case "function_call" if not state.fragments:
                self.assembler.tool_arguments(state.key, arguments_of(state.step.get("arguments")))
            case "function_call" | "model_output" | "thought" | "user_input":
                pass
            case _:
                self._steps.whole(state.step)
        if state.key:
            self.assembler.end(state.key)

    # --- Deltas ---

    def _on_delta(self, event: Event, data: bytes) -> None:
        delta = event.delta
        if delta is None:
            return
        index = self._index if event.index is None else event.index
        state = self._open.get(index)
        if state is None:
            kind = delta.type if isinstance(delta.type, str) else ""
            state = self._begin(index, {"type": _STEP_OF.get(kind, kind)})
        if delta.type == "text" and delta.text is not None and state.kind == "model_output":
            if not state.key:
                state.key = self._steps.next_key()
            self.assembler.text(state.key, delta.text)
            return
        self._on_rare_delta(state, delta, data)

    def _on_rare_delta(self, state: OpenStep, delta: Delta, data: bytes) -> None:
        match delta.type, state.kind:
            case "text_annotation_delta", "model_output":
                self._annotate(state, delta.annotations or [])
            case _, "model_output":
                self._add_item(state, decode_delta(data).delta)
            case "thought_summary", "thought":
                self._add_thought(state, delta.content)
            case "thought_signature", "thought":
                self._sign(state, delta.signature)
            case "arguments_delta", "function_call":
                state.fragments = True
                self.assembler.tool_arguments(state.key, arguments_of(delta.arguments or ""))
            case _:
                _complete(state.step, decode_delta(data).delta or {})

    def _add_item(self, state: OpenStep, item: Json) -> None:
        """Add a piece of the model's output. Only text arrives in pieces; other content is whole."""
        if not isinstance(item, dict):
            return
        if item.get("type") == "text":
            state.key = state.key or self._steps.next_key()
            text, annotations = item.get("text"), item.get("annotations")
            self.assembler.text(state.key, text if isinstance(text, str) else "")
            self._annotate(state, annotations if isinstance(annotations, list) else [])
            return
        if state.key:
            self.assembler.end(state.key)
        state.key, state.annotations = 0, []
        self._steps.item(item)

    def _annotate(self, state: OpenStep, annotations: list[Json]) -> None:
        if annotations and state.key:
            state.annotations += annotations
            self.assembler.block_raw(state.key, {"annotations": state.annotations})

    def _add_thought(self, state: OpenStep, part: Json) -> None:
        if not isinstance(part, dict):
            return
        state.key = state.key or self._steps.next_key()
        last = state.summary[-1] if state.summary else None
        plain = {"type", "text"}
        if isinstance(last, dict) and last.keys() <= plain and part.keys() <= plain:
            last["text"] = str(last.get("text") or "") + str(part.get("text") or "")
        else:
            state.summary.append(dict(part))
        raw = summary_data(state.summary)
        self.assembler.thinking(state.key, str(part.get("text") or ""), raw=raw or None)

    def _sign(self, state: OpenStep, signature: Json) -> None:
        if isinstance(signature, str) and signature:
            state.key = state.key or self._steps.next_key()
            self.assembler.signature(state.key, signature, raw=summary_data(state.summary))


def _complete(step: JsonObject, fields: JsonObject) -> None:
    """Add a delta to a step that is kept unchanged. Lists grow, objects are merged, other values are replaced."""
    for name, value in fields.items():
        match step.get(name), value:
            case _, None:
                pass
            case list(before), list(more):
                step[name] = [*before, *more]
            case dict(before), dict(more):
                step[name] = {**before, **more}
            case _ if name != "type":
                step[name] = value


def _interaction_of(event: Event, data: bytes) -> Interaction:
    """The interaction of an event. LiteLLM's proxy puts the interaction's fields into the event itself."""
    return decode_interaction(data if event.interaction == ABSENT else event.interaction)
