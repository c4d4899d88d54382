"""Parley's replies, for `python -m callboard.adapters.conformance examples.adding_a_provider.kit:PARLEY`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from callboard import Json, JsonObject
from callboard.adapters.conformance import CALLS, HttpKit, NotShown, arguments, halves

from .parley import ParleyAdapter

WHY = {"end": "done", "tools": "asks", "length": "limit"}
TOKENS: JsonObject = {"in": 12, "cached": 4, "out": 7}
ERRORS = {
    "rate limit": (429, "rate_limit_exceeded"),
    "overload": (503, "too_busy"),
    "quota": (402, "out_of_credit"),
    "bad key": (401, "bad_key"),
    "forbidden": (403, "not_yours"),
    "no model": (404, "no_such_model"),
    "overflow": (400, "context_length_exceeded"),
    "bad request": (400, "bad_request"),
    "server": (500, "broken"),
}


class ParleyKit(HttpKit):
    name = "parley"
    adapter = ParleyAdapter
    id_prefix = "ask-"

    def body(self, text: str, calls: int, stop: str) -> JsonObject:
        parts: list[Json] = [{"on": "text", "text": text}] if text else []
        for number in range(calls):
            ref, tool = f"ask-{number}", CALLS[number][0]
            parts.append({"on": "ask", "ref": ref, "tool": tool, "json": arguments(number)})
        return {"id": "r1", "model": "parley-2", "parts": parts, "why": WHY[stop], "tokens": TOKENS}

    def events(self, text: str, calls: int, stop: str) -> Iterator[tuple[str, JsonObject]]:
        yield "", {"on": "open", "id": "r1", "model": "parley-2"}
        for half in halves(text) if text else ():
            yield "", {"on": "text", "text": half}
        for number in range(calls):
            yield "", {"on": "ask", "ref": f"ask-{number}", "tool": CALLS[number][0]}
            for half in halves(arguments(number)):
                yield "", {"on": "with", "ref": f"ask-{number}", "json": half}
        yield "", {"on": "close", "why": WHY[stop], "tokens": TOKENS}

    def error_body(self, condition: str) -> tuple[int, Json]:
        if condition not in ERRORS:
            raise NotShown(f"Parley has no {condition!r}")
        status, code = ERRORS[condition]
        return status, {"error": {"code": code, "message": f"No: {condition}"}}

    def error_event(self) -> tuple[str, JsonObject]:
        return "", {"on": "fault", "fault": {"code": "too_busy", "message": "Too busy"}}

    def unknown_event(self) -> tuple[str, JsonObject]:
        return "", {"on": "mood", "text": "cheerful"}

    def ids(self, body: JsonObject) -> tuple[list[str], list[str]]:
        turns = cast("list[dict[str, list[dict[str, str]]]]", body["turns"])
        calls = [ask["ref"] for turn in turns for ask in turn.get("asks", ())]
        return calls, [answer["ref"] for turn in turns for answer in turn.get("answers", ())]


PARLEY = ParleyKit()
