"""A model for the book's programs. Its reply depends only on the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from callboard import (
    SYSTEM_CLOCK,
    AdapterConfig,
    CanonicalRequest,
    Clock,
    Json,
    JsonObject,
    Role,
    ScriptedAdapter,
    TokenUsage,
    ToolResultBlock,
)
from callboard.adapters.providers.scripted import ScriptedCall, ScriptedReply

WORDS = ("Once ", "upon ", "a ", "time.")
ANSWERS: Mapping[str, tuple[str, ...]] = {
    "Which card do I have?": ("Your card is 4111 ", "1111 1111", " 1111, valid until ", "May."),
}
VALUES: Mapping[str, Json] = {
    "string": "Alice",
    "integer": 30,
    "number": 0.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


class Everybody(ScriptedAdapter):
    """A model that calls its first tool once, fills a schema, gives a known answer, or begins a story."""

    def __init__(self, config: AdapterConfig, *, name: str | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config, name=name, clock=clock, replies=answer)


def answer(request: CanonicalRequest) -> ScriptedReply:
    usage = TokenUsage(20 * len(request.messages), 10)
    last = [message for message in request.messages if not message.steers][-1]
    results = [block.text for block in last.content if isinstance(block, ToolResultBlock)]
    if results or last.role is Role.TOOL:
        return ScriptedReply((f"It says: {results[0]}",), usage=usage)
    if request.tools:
        tool = request.tools[0]
        return ScriptedReply(calls=(ScriptedCall(tool.name, instance(tool.input_schema)),), usage=usage)
    if request.output_schema is not None:
        import msgspec

        return ScriptedReply((msgspec.json.encode(instance(request.output_schema)).decode(),), usage=usage)
    return ScriptedReply(ANSWERS.get(last.text, WORDS), usage=usage)


def instance(schema: JsonObject) -> JsonObject:
    """An object that fits the schema, for the schemas of the book's pages."""
    properties = cast("dict[str, JsonObject]", schema.get("properties") or {})
    return {name: VALUES[str(one.get("type", "string"))] for name, one in properties.items()}
