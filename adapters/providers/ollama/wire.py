"""The fields of Ollama's `/api/chat` that are read here: as few as possible, and any of them may be missing.

A streamed reply has one such object on every line, and the last one has `done`. A whole reply is one such object.
The server leaves out every zero (Go's `omitempty`), so a missing count may mean zero.
"""

from __future__ import annotations

import msgspec

from callboard.bus.values.json import Json

CHAT_PATH = "/api/chat"
TAGS_PATH = "/api/tags"
SHOW_PATH = "/api/show"

NDJSON = "application/x-ndjson"

ABSENT = msgspec.Raw(b"null")
"""Stands for a raw field that was not sent; the same as one that was sent as null."""


class WireFunction(msgspec.Struct, gc=False):
    """The function that a tool call names."""

    name: str | None = None
    arguments: msgspec.Raw = ABSENT
    """An object. From some implementations it is a text that holds one."""


class WireToolCall(msgspec.Struct, gc=False):
    """A tool call."""

    id: Json = None
    """The call's id. Only newer servers send it."""
    function: WireFunction | None = None


class WireMessage(msgspec.Struct, gc=False):
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[WireToolCall | None] | None = None


class WireReply(msgspec.Struct, gc=False):
    """A whole reply, or a line of a streamed one. Durations are in nanoseconds."""

    model: Json = None
    message: WireMessage | None = None
    done: bool | None = None
    done_reason: Json = None
    error: Json = None
    """An error, which stands alone."""
    total_duration: Json = None
    load_duration: Json = None
    prompt_eval_count: Json = None
    prompt_eval_duration: Json = None
    eval_count: Json = None
    eval_duration: Json = None


METRICS = (
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)
"""The fields that say what a reply took."""

decode_reply = msgspec.json.Decoder(WireReply).decode
