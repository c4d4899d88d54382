"""What the demo says to the model. The committed cassettes are recordings of exactly this: after a change here,
record them again (`callboard demo --record`)."""

from __future__ import annotations

from typing import Any

import msgspec

from callboard.adapters import ToolDefinition
from callboard.bus.values.json import Json, JsonObject
from callboard.engine.tools import Tool

SYSTEM_PROMPT = "You are a helpful assistant. Answer in one short sentence."
OPTIONS: dict[str, Any] = {"temperature": 0.0, "max_output_tokens": 48}


class Asked(msgspec.Struct, frozen=True):
    """One turn of the conversation."""

    model: str
    """The alias of the model."""
    text: str
    """The user's words."""


CONVERSATION = (
    Asked("local-chat", "What is the capital of France?"),
    Asked("local-messages", "Name one famous thing to see there."),
    Asked("local-responses", "Which city are we talking about?"),
)


class Person(msgspec.Struct, frozen=True):
    """What is extracted in the step about structured output."""

    name: str
    age: int
    city: str


PERSON_MODEL = "local-chat"
PERSON_TEXT = "Mara Lindqvist is 34 years old and lives in Oslo. Give me her name, age and city as JSON."
PERSON_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}

TOOL_MODEL = "local-tools"
TOOL_TEXT = "What is the weather in Oslo?"


def look_outside(arguments: JsonObject) -> Json:
    """The demo's tool. It does not look outside."""
    return f"{arguments.get('city', 'There')}: 4 degrees, light rain."


WEATHER = Tool(
    ToolDefinition(
        "get_weather",
        "The weather in a city, now.",
        {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    ),
    execute=look_outside,
)
