"""Text Generation Inference's own protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from callboard.adapters import TGIAdapter
from callboard.adapters.conformance import NotShown, halves
from callboard.adapters.contract import AdapterCapabilities
from callboard.adapters.providers.tgi.adapter import GenerateWire
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.usage import TokenUsage

from .. import fake_http
from .wire import Event, Wire


class TGIWire(Wire):
    name = "tgi"
    adapter = TGIAdapter
    base_url = "http://localhost:8080"
    has_response_ids = False
    history = "inputs"
    reasons = False
    calls_tools = False
    names_model = False
    usage = TokenUsage(12, 7)
    knows = {"/info": {"max_total_tokens": 8192}}  # noqa: RUF012
    _stops = {"end": "eos_token", "tools": "eos_token", "length": "length"}  # noqa: RUF012

    def _details(self, stop: str) -> JsonObject:
        return {"finish_reason": self._word(stop), "generated_tokens": 7, "input_length": 12, "seed": None}

    def _token(self, text: str, *, special: bool = False) -> JsonObject:
        token: JsonObject = {"id": 1, "text": text, "logprob": -0.5, "special": special}
        return {"index": 1, "token": token, "generated_text": None, "details": None}

    def body(self, text: str, calls: int, stop: str, thought: str = "") -> JsonObject:
        if calls or thought:
            raise NotShown("the protocol has text, and nothing else")
        return {"generated_text": text, "details": self._details(stop)}

    def events(self, text: str, calls: int, stop: str, thought: str = "") -> Iterator[tuple[str, JsonObject]]:
        if calls or thought:
            raise NotShown("the protocol has text, and nothing else")
        for half in halves(text) if text else ():
            yield "", self._token(half)
        last = self._token("</s>", special=True)
        yield "", {**last, "generated_text": text, "details": self._details(stop)}

    def error_body(self, condition: str) -> tuple[int, Json]:
        status, message, kind = {
            "rate limit": (429, "Rate limit reached", None),
            "overload": (429, "Model is overloaded", "overloaded"),
            "quota": (402, "You have exceeded your monthly included credits", None),
            "bad key": (401, "Authorization header is invalid", None),
            "forbidden": (403, "This token may not call this endpoint", None),
            "no model": (404, "Model none does not exist", None),
            "overflow": (
                422,
                "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 4096",
                "validation",
            ),
            "bad request": (422, "Input validation error: `temperature` must be strictly positive", "validation"),
            "server": (424, "Request failed during generation: Server error", "generation"),
        }[condition]
        return status, {"error": message} if kind is None else {"error": message, "error_type": kind}

    def error_event(self) -> tuple[str, JsonObject]:
        return "", {"error": "Model is overloaded", "error_type": "overloaded"}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        raise NotShown("the protocol has no ids")

    def faults(self, body: bytes) -> list[str]:
        return [] if isinstance(msgspec.json.decode(body)["inputs"], str) else ["the prompt is no text"]


class _WordyWire(GenerateWire):
    """For hosts that do not use the emulated tools."""

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        return msgspec.structs.replace(super().get_capabilities(model), supports_tools=False)


class Wordy(TGIAdapter):
    """TGI's adapter with `_WordyWire`."""

    wire_type = _WordyWire


class WordyTGIWire(TGIWire):
    """The kit without tool calls. Emulated calls need other requests than plain ones, and are tested with the
    adapter.
    """

    adapter = Wordy


# -- the words of the protocol


def token(text: str, *, special: bool = False) -> JsonObject:
    """An event before the last."""
    said: JsonObject = {"id": 7, "text": text, "logprob": None, "special": special}
    return {"index": 1, "token": said, "generated_text": None, "details": None}


def details(reason: Json = "eos_token", **fields: Json) -> JsonObject:
    return {"finish_reason": reason, "generated_tokens": 4, "input_length": 9, "seed": None, **fields}


def end(text: str, found: Json, last: str = "</s>", *, special: bool = True) -> JsonObject:
    """The last event: its own token, the whole text, and the details."""
    return {**token(last, special=special), "generated_text": text, "details": found}


def body(*events: Event) -> bytes:
    """A streamed body of these events."""
    return TGIWire().stream(*events)


ask = partial(fake_http.ask, model="tgi:any", message_id="msg_1")
"""A request to a model of this wire."""
