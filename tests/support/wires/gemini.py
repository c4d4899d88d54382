"""Google's generateContent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from callboard.adapters import GeminiAdapter
from callboard.adapters.conformance import CALLS, halves
from callboard.bus.values.base import Json, JsonObject

from ..judges import contents_faults
from ..wire_history import history_faults
from .wire import Event, Wire


class GeminiWire(Wire):
    name = "gemini"
    adapter = GeminiAdapter
    base_url = "https://generativelanguage.googleapis.com"
    history = "contents"
    secrets = ("Z2VtaW5pLXNpZ25lZA==",)
    _stops = {"end": "STOP", "tools": "STOP", "length": "MAX_TOKENS"}  # noqa: RUF012
    _usage = {  # noqa: RUF012
        "promptTokenCount": 10,
        "cachedContentTokenCount": 4,
        "toolUsePromptTokenCount": 2,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 2,
        "totalTokenCount": 19,
    }

    def _chunk(self, *parts: JsonObject, stop: str | None = None, usage: Json = None) -> JsonObject:
        candidate: JsonObject = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
        if stop:
            candidate["finishReason"] = self._word(stop)
        counted = usage or {"promptTokenCount": 10, "totalTokenCount": 10}
        return {"candidates": [candidate], "usageMetadata": counted, **self._identity()}

    def _identity(self) -> JsonObject:
        return {"modelVersion": "gemini-served", "responseId": "reply-1"}

    def _calls(self, calls: int) -> list[JsonObject]:
        return [
            {"functionCall": {"id": f"call_{number}", "name": name, "args": given}}
            for number, (name, given) in enumerate(CALLS[:calls])
        ]

    def body(self, text: str, calls: int, stop: str, thought: str = "") -> JsonObject:
        said: list[JsonObject] = [{"text": text}] if text else []
        if thought:
            said.insert(0, {"text": thought, "thought": True, "thoughtSignature": self.secrets[0]})
        return self._chunk(*said, *self._calls(calls), stop=stop, usage=self._usage)

    def unknown_event(self) -> tuple[str, JsonObject]:
        return "", {"mood": {"kind": "cheerful"}}

    def events(self, text: str, calls: int, stop: str, thought: str = "") -> Iterator[tuple[str, JsonObject]]:
        for half in halves(thought) if thought else ():
            yield "", self._chunk({"text": half, "thought": True})
        if thought:
            yield "", self._chunk({"text": "", "thought": True, "thoughtSignature": self.secrets[0]})
        for half in halves(text) if text else ():
            yield "", self._chunk({"text": half})
        for call in self._calls(calls):
            yield "", self._chunk(call)
        yield "", self._chunk({"text": ""}, stop=stop)
        yield "", {"usageMetadata": self._usage, **self._identity()}

    def error_body(self, condition: str) -> tuple[int, Json]:
        google = "type.googleapis.com/google.rpc."
        per_day: Json = {"@type": google + "QuotaFailure", "violations": [{"quotaId": "RequestsPerDayPerProject"}]}
        bad_key: Json = {"@type": google + "ErrorInfo", "reason": "API_KEY_INVALID"}
        quota = "You exceeded your current quota, please check your plan and billing details."
        overflow = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
        cases: dict[str, tuple[int, str, str, list[Json]]] = {
            "rate limit": (429, "RESOURCE_EXHAUSTED", quota, []),
            "overload": (503, "UNAVAILABLE", "The model is overloaded. Please try again later.", []),
            "quota": (429, "RESOURCE_EXHAUSTED", quota, [per_day]),
            "bad key": (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", [bad_key]),
            "forbidden": (403, "PERMISSION_DENIED", "Your API key was reported as leaked.", []),
            "no model": (404, "NOT_FOUND", "models/gemini-none is not found for API version v1beta", []),
            "overflow": (400, "INVALID_ARGUMENT", overflow, []),
            "bad request": (400, "INVALID_ARGUMENT", "Request contains an invalid argument.", []),
            "server": (500, "INTERNAL", "An internal error has occurred.", []),
        }
        status, canonical, message, details = cases[condition]
        return status, {"error": {"code": status, "message": message, "status": canonical, "details": details}}

    def error_event(self) -> tuple[str, JsonObject]:
        return "", {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        parts = [part for content in body["contents"] for part in content["parts"]]
        calls = [part["functionCall"]["id"] for part in parts if "functionCall" in part]
        return calls, [part["functionResponse"]["id"] for part in parts if "functionResponse" in part]

    def faults(self, body: bytes) -> list[str]:
        return history_faults("/v1beta/models/served:generateContent", msgspec.json.decode(body))

    def judged(self, body: bytes) -> list[str]:
        return contents_faults(body)


# -- the words of the protocol

IDENTITY: JsonObject = {"modelVersion": "gemini-test-001", "responseId": "reply-1"}


USAGE: JsonObject = {"promptTokenCount": 20, "candidatesTokenCount": 10, "totalTokenCount": 30}


def chunk(*parts: Json, finish: Json = None, usage: Json = None, **fields: Json) -> JsonObject:
    """A chunk with one candidate."""
    candidate: JsonObject = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **fields}
    if finish is not None:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **({"usageMetadata": usage} if usage else {}), **IDENTITY}


def text(said: str, signature: str | None = None) -> JsonObject:
    return {"text": said, **({"thoughtSignature": signature} if signature else {})}


def thought(said: str, signature: str | None = None) -> JsonObject:
    return {"thought": True, **text(said, signature)}


def call(name: str, signature: str | None = None, **fields: Json) -> JsonObject:
    part: JsonObject = {"functionCall": {"name": name, **fields}}
    return {**part, "thoughtSignature": signature} if signature else part


END = chunk(text(""), finish="STOP", usage=USAGE)


def body(events: Iterable[Event]) -> bytes:
    """A streamed body of these events."""
    return GeminiWire().stream(*events)
