"""A stream of the Interactions API: events of the steps of one reply.

    interaction.created          the reply's id and model
    interaction.status_update    the current status
    step.start, step.delta, step.stop       one step; the start may have content
    interaction.completed        the last status, and the usage
    error                        the interaction has failed

A body without ``interaction.completed`` was cut off. A delta without an open step starts a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from callboard.bus.errors import WarningCode
from callboard.bus.values.base import Json, JsonObject

from ...replies.assembler import Assembler
from ...replies.streamed import SseNormaliser
from . import interactions_response as wire
from .interactions_response import Steps, arguments_of, failure_of, has_more_than_text

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
    """Reads one streamed reply; see the module's text."""

    def __init__(self, assembler: Assembler) -> None:
        super().__init__(assembler)
        self._steps = Steps(assembler)
        self._open: dict[int | float, OpenStep] = {}
        self._index: int | float = 0  # the last started step, for events without an index
        self._warned = False

    def on_event(self, name: bytes, data: bytes) -> None:
        try:
            event = wire.decode_event(data)
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
            case _ if kind == "error" or event.error != wire.ABSENT:
                error = data if event.error == wire.ABSENT else event.error
                raise failure_of(wire.decode_json(error), self.assembler.provider)
            case _:
                self._on_unknown(kind, data)

    def _on_completed(self, interaction: wire.Interaction) -> None:
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
            self.assembler.provider_event(kind, wire.decode_json(data))

    # --- Steps ---

    def _on_start(self, event: wire.Event) -> None:
        step = wire.decode_json(event.step)
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

    def _on_delta(self, event: wire.Event, data: bytes) -> None:
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

    def _on_rare_delta(self, state: OpenStep, delta: wire.Delta, data: bytes) -> None:
        match delta.type, state.kind:
            case "text_annotation_delta", "model_output":
                self._annotate(state, delta.annotations or [])
            case _, "model_output":
                self._add_item(state, self._fields(data))
            case "thought_summary", "thought":
                self._add_thought(state, delta.content)
            case "thought_signature", "thought":
                self._sign(state, delta.signature)
            case "arguments_delta", "function_call":
                state.fragments = True
                self.assembler.tool_arguments(state.key, arguments_of(delta.arguments or ""))
            case _:
                self._complete(state.step, self._fields(data))

    def _fields(self, data: bytes) -> JsonObject:
        return wire.decode_delta(data).delta or {}

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
        raw: JsonObject = {"summary": state.summary} if has_more_than_text(state.summary) else {}
        self.assembler.thinking(state.key, str(part.get("text") or ""), raw=raw or None)

    def _sign(self, state: OpenStep, signature: Json) -> None:
        if isinstance(signature, str) and signature:
            state.key = state.key or self._steps.next_key()
            raw: JsonObject = {"summary": state.summary} if has_more_than_text(state.summary) else {}
            self.assembler.signature(state.key, signature, raw=raw)

    def _complete(self, step: JsonObject, fields: JsonObject) -> None:
        """Add a delta to a step that is kept unchanged: lists grow, objects are merged, and other values are
        replaced.
        """
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


def _interaction_of(event: wire.Event, data: bytes) -> wire.Interaction:
    """The interaction of an event. LiteLLM's proxy puts the interaction's fields into the event itself."""
    return wire.decode_interaction(data if event.interaction == wire.ABSENT else event.interaction)
