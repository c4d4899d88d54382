"""Google's Interactions API."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from callboard.adapters import AdapterConfig, GeminiAdapter
from callboard.adapters.conformance import CALLS, halves
from callboard.adapters.conformance.kit import KEY
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.transport.transport import Transport
from callboard.bus.clock import Clock
from callboard.bus.values.base import Json, JsonObject

from ..judges import interaction_faults
from .gemini import GeminiWire
from .wire import Event


class InteractionsWire(GeminiWire):
    name = "interactions"
    adapter = GeminiAdapter
    history = "input"
    secrets = ("c3RlcC1zaWduZWQ=",)
    names_events = True
    options = {"api": "interactions"}  # noqa: RUF012
    _stops = {"end": "completed", "tools": "requires_action", "length": "incomplete"}  # noqa: RUF012
    _usage = {  # noqa: RUF012
        "total_input_tokens": 10,
        "total_cached_tokens": 4,
        "total_tool_use_tokens": 2,
        "total_output_tokens": 5,
        "total_thought_tokens": 2,
        "total_tokens": 19,
    }

    @property
    def type_name(self) -> str:
        return "gemini"

    def make(self, transport: Transport, clock: Clock, **config: object) -> ProviderAdapter:
        fields = {"api_key": KEY, "base_url": self.base_url, "options": self.options, **config}
        return GeminiAdapter(AdapterConfig(**fields), name=self.name, transport=transport, clock=clock)  # type: ignore[arg-type]

    def _steps(self, text: str, calls: int, thought: str) -> list[JsonObject]:
        steps: list[JsonObject] = []
        if thought:
            summary: list[Json] = [{"type": "text", "text": thought}]
            steps.append({"type": "thought", "signature": self.secrets[0], "summary": summary})
        if text:
            steps.append({"type": "model_output", "content": [{"type": "text", "text": text}]})
        return steps + [
            {"type": "function_call", "id": f"call_{number}", "name": name, "arguments": given}
            for number, (name, given) in enumerate(CALLS[:calls])
        ]

    def body(self, text: str, calls: int, stop: str, thought: str = "") -> JsonObject:
        steps: list[Json] = [*self._steps(text, calls, thought)]
        return {**self._about(self._word(stop)), "steps": steps, "usage": self._usage}

    def _about(self, status: str) -> JsonObject:
        return {"id": "reply-1", "model": "gemini-served", "status": status, "object": "interaction"}

    def unknown_event(self) -> tuple[str, JsonObject]:
        return "mood.change", {"event_type": "mood.change", "mood": {"kind": "cheerful"}}

    def events(self, text: str, calls: int, stop: str, thought: str = "") -> Iterator[tuple[str, JsonObject]]:
        yield _named(event("interaction.created", interaction=self._about("in_progress")))
        for index, step in enumerate(self._steps(text, calls, thought)):
            yield from map(_named, streamed(index, step))
        done: JsonObject = {**self._about(self._word(stop)), "usage": self._usage}
        yield _named(event("interaction.completed", interaction=done))

    def error_event(self) -> tuple[str, JsonObject]:
        return _named(event("error", error={"code": "503", "message": "The model is overloaded."}))

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        steps = body["input"]
        calls = [step["id"] for step in steps if step["type"] == "function_call"]  # type: ignore[index, union-attr, call-overload]
        return calls, [step["call_id"] for step in steps if step["type"] == "function_result"]  # type: ignore[index, union-attr, call-overload]

    def faults(self, body: bytes) -> list[str]:
        steps = msgspec.json.decode(body)["input"]
        calls = [step["id"] for step in steps if step["type"] == "function_call"]
        answers = [step["call_id"] for step in steps if step["type"] == "function_result"]
        return [] if calls == answers else [f"calls {calls} have the results {answers}"]

    def judged(self, body: bytes) -> list[str]:
        return interaction_faults(body)


def _named(data: JsonObject) -> tuple[str, JsonObject]:
    return str(data["event_type"]), data


# -- the words of the protocol

USAGE: JsonObject = {"total_input_tokens": 20, "total_output_tokens": 10, "total_tokens": 30}


def event(kind: str, **fields: Json) -> JsonObject:
    return {"event_type": kind, **fields}


def interaction(*steps: Json, status: Json = "completed", **fields: Json) -> JsonObject:
    """A complete reply."""
    about: JsonObject = {"id": "reply-1", "model": "gemini-3-flash", "status": status, "usage": USAGE}
    return {**about, "steps": list(steps), **fields}


def completed(status: str = "completed", **fields: Json) -> JsonObject:
    """The last event."""
    about: JsonObject = {"id": "reply-1", "model": "gemini-3-flash", "status": status, "usage": USAGE}
    return event("interaction.completed", interaction={**about, **fields})


def delta(index: int, kind: str, **fields: Json) -> JsonObject:
    return event("step.delta", index=index, delta={"type": kind, **fields})


def start(index: int, **step: Json) -> JsonObject:
    return event("step.start", index=index, step=step)


def stop(index: int) -> JsonObject:
    return event("step.stop", index=index)


def streamed(index: int, step: JsonObject) -> Iterator[JsonObject]:
    """The events of a step of one of the three kinds that are streamed in pieces."""
    match step:
        case {"type": "thought", "summary": [{"text": str(text)}], "signature": signature}:
            yield start(index, type="thought")
            for half in halves(text):
                yield delta(index, "thought_summary", content={"type": "text", "text": half})
            yield delta(index, "thought_signature", signature=signature)
        case {"type": "model_output", "content": [{"text": str(text)}]}:
            yield start(index, type="model_output")
            for half in halves(text):
                yield delta(index, "text", text=half)
        case _:
            yield start(index, **{**step, "arguments": {}})
            for half in halves(msgspec.json.encode(step["arguments"]).decode()):
                yield delta(index, "arguments_delta", arguments=half)
    yield stop(index)


def body(events: Iterable[Event]) -> bytes:
    """A streamed body of these events."""
    return InteractionsWire().stream(*events)
