"""How a call's arguments come to the function, and what happens to wrong ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Any, TypedDict

import pydantic
import pytest

from callboard.adapters import ToolDefinition, ToolUseBlock
from callboard.bus.values.base import JsonObject
from callboard.engine import InvalidToolCallError, Tool, ToolDefinitionError, tool

from ...definition_of_done.rows import row
from .rounds import call, result_of, run

pytestmark = pytest.mark.anyio

CITY: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class Unit(Enum):
    C = "c"


@dataclass
class Window:
    day: date
    hours: int = 24


class Person(pydantic.BaseModel):
    name: str


@row("8.7.10")
async def test_arguments_become_what_the_hints_say() -> None:
    """Enums, dates, dataclasses and models arrive as such, and what was left out has its default."""
    seen: list[object] = []

    @tool
    def book(unit: Unit, windows: list[Window], who: Person, note: str = "none") -> None:
        seen.extend([unit, windows, who, note])

    arguments: JsonObject = {"unit": "c", "windows": [{"day": "2026-01-02"}], "who": {"name": "Ada"}}
    assert not (await result_of(book, arguments)).is_error
    assert seen == [Unit.C, [Window(date(2026, 1, 2))], Person(name="Ada"), "none"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"city": 3}, r"\$\.city.*str"),
        ({}, "city"),
        ({"city": "Rome", "country": "it"}, "country"),
    ],
)
@row("8.7.10")
async def test_wrong_arguments_are_told_to_the_model_and_nothing_runs(arguments: JsonObject, told: str) -> None:
    """8.7: wrong type, missing, unknown: the result says where, and to call again."""
    ran: list[str] = []

    @tool
    def weather(city: str) -> str:
        ran.append(city)
        return city

    result = await result_of(weather, arguments)
    assert result.is_error
    assert ran == []
    with pytest.raises(AssertionError, match=told + ".*call the tool again"):
        raise AssertionError(result.text)


async def test_a_schema_of_ones_own_is_checked_as_well() -> None:
    """JSON Schema says more than hints can."""
    schema: JsonObject = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}}
    made = Tool(ToolDefinition("count", input_schema=schema), lambda n: n)
    assert (await result_of(made, {"n": 3})).text == "3"
    assert "$.n" in (await result_of(made, {"n": 4})).text


class Asked(TypedDict):
    city: str


def takes_keyword(city: str) -> object:
    return city


def takes_mapping(arguments: dict[str, str]) -> object:
    return arguments["city"]


def takes_typed_mapping(asked: Asked) -> object:
    return asked["city"]


def takes_anything(**keywords: Any) -> object:
    return keywords["city"]


def takes_positional(arguments, /):  # type: ignore[no-untyped-def]
    return arguments["city"]


async def takes_keyword_async(city):  # type: ignore[no-untyped-def]
    return city


class Callable_:
    async def __call__(self, arguments: JsonObject) -> object:
        return arguments["city"]


@pytest.mark.parametrize(
    "handler",
    [
        takes_keyword,
        takes_mapping,
        takes_typed_mapping,
        takes_anything,
        takes_positional,
        takes_keyword_async,
        Callable_(),
        functools.partial(lambda other, city: city, "x"),
        lambda city, extra=1: city,
    ],
)
async def test_a_handler_takes_keywords_or_one_mapping(handler: Any) -> None:
    """It is a mapping if the one parameter is no property of the schema."""
    assert (
        await result_of(Tool(ToolDefinition("w", input_schema=CITY), handler), {"city": "Rome"})
    ).text == "Rome"


@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        (lambda town, country: "", "needs town, country.*add it to the schema's properties.*one mapping"),
        (lambda: "", "doesn't take city.*add the parameter"),
    ],
)
def test_a_handler_that_does_not_go_with_its_schema_is_refused(handler: Any, advice: str) -> None:
    """At definition, not when the model calls."""
    with pytest.raises(ToolDefinitionError, match=advice):
        Tool(ToolDefinition("w", input_schema=CITY), handler)


async def test_a_schema_may_use_a_reserved_name() -> None:
    """A tool with a schema of its own that has `messages` gets the model's."""
    schema: JsonObject = {"type": "object", "properties": {"messages": {"type": "array"}}}

    def count(messages: list[str]) -> int:
        return len(messages)

    assert (
        await result_of(Tool(ToolDefinition("count", input_schema=schema), count), {"messages": ["a"]})
    ).text == "1"


# -- repair


@tool
def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


async def test_a_hook_may_repair_arguments() -> None:
    """It gets the call, what is wrong and the tool; what it gives back is checked and run."""
    asked: list[object] = []

    def repair(call: ToolUseBlock, error: InvalidToolCallError, made: Tool) -> JsonObject:
        asked.extend([call.input, str(error), made])
        return {"n": 4}

    result = await result_of(double, {"n": "four"}, repair=repair)
    assert (result.text, result.is_error) == ("8", False)
    assert asked[0] == {"n": "four"}
    assert "$.n" in str(asked[1])
    assert asked[2] is double


async def test_arguments_that_are_no_json_go_to_the_hook_too() -> None:
    """The text is in the call's `raw_arguments`; the call that is no JSON is never run as {}."""

    async def repair(call: ToolUseBlock, error: InvalidToolCallError, made: Tool) -> JsonObject | None:
        assert "no JSON object" in str(error)
        return {"n": 5} if call.raw_arguments == "{n: 5" else None

    broken = call("double", raw_arguments="{n: 5", incomplete=True)
    assert (await run([broken], [double], repair=repair)).results[0].text == "10"
    assert (await run([broken], [double])).results[0].is_error


async def test_a_call_that_was_cut_off_is_neither_repaired_nor_run() -> None:
    """What the provider truncated may mean anything."""
    broken = call("double", raw_arguments='{"n": 5', incomplete=True)
    made = await run([broken], [double], repair=lambda *_: {"n": 5}, cut_off=True)
    assert made.results[0].is_error
    assert "incomplete; it was not executed" in made.results[0].text


@pytest.mark.parametrize("answer", [None, {"n": "still wrong"}])
async def test_what_a_hook_cannot_repair_goes_to_the_model(answer: JsonObject | None) -> None:
    """It is asked once."""
    times: list[int] = []

    def repair(*_: object) -> JsonObject | None:
        times.append(1)
        return answer

    assert (await result_of(double, {"n": "x"}, repair=repair)).is_error
    assert times == [1]


async def test_a_hook_that_fails_is_no_failure_of_the_turn() -> None:
    """The model hears of the wrong arguments."""

    def repair(*_: object) -> JsonObject | None:
        raise RuntimeError("no idea")

    assert "$.n" in (await result_of(double, {"n": "x"}, repair=repair)).text
