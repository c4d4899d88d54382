"""`@tool`: the definition of a function for the model."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from callboard.adapters import Message, ToolAnnotations, ToolDefinition, ToolUseBlock
from callboard.bus.values.base import JsonObject
from callboard.engine import (
    AbortSignal,
    FunctionTool,
    InvalidToolCallError,
    SchemaError,
    Tool,
    ToolContext,
    ToolDefinitionError,
    tool,
)
from callboard.engine.tools.handler import read_docstring

from ...definition_of_done.rows import row
from .rounds import call, result_of, run

NO_JSON: Any = object()


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


def schema_of(function: Any) -> JsonObject:
    made: FunctionTool[..., object] = tool(function)
    return made.definition.input_schema


def properties_of(function: Any) -> dict[str, Any]:
    return schema_of(function)["properties"]


def test_a_tool_has_the_functions_name_description_and_parameters() -> None:
    """The name, the docstring and the hints become the definition."""

    @tool
    def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
        """Tell the weather.

        Args:
            city: As people call it.
        """
        return f"{city}: 20 {unit}"

    assert (get_weather.name, get_weather.definition.description) == ("get_weather", "Tell the weather.")
    assert get_weather.definition.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "As people call it."},
            "unit": {"enum": ["celsius", "fahrenheit"], "default": "celsius"},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    assert get_weather("Rome") == "Rome: 20 celsius"
    assert get_weather.__doc__ is not None
    assert get_weather.__name__ == "get_weather"


async def test_the_decorator_s_keywords_replace_the_name_and_docstring() -> None:
    """The decorator also sets the timeout, the annotations and `strict`. An async function stays async."""
    hints = ToolAnnotations(read_only=True)

    @tool(name="look-up", description="Looks up.", timeout=3, annotations=hints, strict=True)
    async def look_up(word: str) -> str:
        """Not this."""
        return word

    definition = look_up.definition
    assert (definition.name, definition.description) == ("look-up", "Looks up.")
    assert (definition.annotations, definition.strict, look_up.timeout) == (hints, True, 3)
    assert await look_up("x") == "x"


def test_descriptions_and_constraints_come_from_annotated() -> None:
    """Strings, msgspec's Meta and pydantic's Field give descriptions. They take precedence over the docstring."""

    def book(
        seats: Annotated[int, msgspec.Meta(ge=1, description="How many.")],
        row: Annotated[str, "Which row."],
        price: Annotated[float, pydantic.Field(gt=0, description="In euros.")],
        note: str = "",
    ) -> None:
        """Book.

        Args:
            row: not this
            note: But this.
        """

    properties = properties_of(book)
    assert properties["seats"] == {"type": "integer", "minimum": 1, "description": "How many."}
    assert properties["row"] == {"type": "string", "description": "Which row."}
    assert properties["price"] == {"type": "number", "exclusiveMinimum": 0, "description": "In euros."}
    assert properties["note"] == {"type": "string", "default": "", "description": "But this."}


def test_a_default_that_json_lacks_is_left_out() -> None:
    """The parameter is still optional."""

    def run(mode: Any = NO_JSON, where: Unit = Unit.CELSIUS, items: Sequence[int] = ()) -> None: ...

    properties = properties_of(run)
    assert "default" not in properties["mode"]
    assert (properties["where"]["default"], properties["items"]["default"]) == ("celsius", [])
    assert "required" not in schema_of(run)


def test_parameters_that_the_engine_fills_in_are_not_shown() -> None:
    """A context is found by its type. Three other names are reserved."""

    def run(
        query: str,
        where: ToolContext,
        messages: tuple[Message, ...],
        abort_signal: AbortSignal,
        tool_call_id: str,
        perhaps: ToolContext | None = None,
    ) -> None: ...

    assert list(properties_of(run)) == ["query"]


class Library:
    def __init__(self, books: list[str]) -> None:
        self.books = books

    @tool
    def find(self, title: str) -> bool:
        """Find a book."""
        return title in self.books

    def count(self) -> int:
        return len(self.books)


def test_a_method_is_a_tool_of_its_object() -> None:
    first, second = Library(["A"]), Library(["B"])
    assert list(first.find.definition.input_schema["properties"]) == ["title"]  # type: ignore[arg-type]
    assert first.find("A")
    assert not second.find("A")
    assert tool(first.count).name == "count"


def test_a_partial_shows_only_its_open_parameters() -> None:
    """The name and the description are those of the function."""

    def move(what: str, where: str, speed: int = 1) -> str:
        """Move it."""
        return f"{what} {where} {speed}"

    made = tool(functools.partial(move, where="home", speed=2))
    assert (made.name, made.definition.description) == ("move", "Move it.")
    assert list(properties_of(functools.partial(move, where="home", speed=2))) == ["what"]
    assert made("cat") == "cat home 2"


def test_a_callable_object_needs_a_name() -> None:
    """The parameters come from the `__call__` of its class."""

    class Adder:
        def __call__(self, a: int, b: int) -> int:
            return a + b

    with pytest.raises(ToolDefinitionError, match=r"name='\.\.\.'"):
        tool(Adder())
    made = tool(Adder(), name="add")
    assert list(made.definition.input_schema["properties"]) == ["a", "b"]  # type: ignore[arg-type]
    assert made(1, 2) == 3


def test_local_types_of_a_tool_are_found() -> None:
    """Hints are strings in this module, and the class is local to the test."""

    @dataclass
    class Local:
        x: int

    @tool
    def use(local: Local) -> int:
        return local.x

    assert "$defs" in use.definition.input_schema


def test_hints_are_resolved_in_the_module_of_the_function() -> None:
    """The hint keeps its meaning even if the calling module uses the same name for another type."""
    elsewhere: dict[str, Any] = {}
    exec("def use(kind: 'Kind') -> None: ...\nKind = int", elsewhere)
    Kind = list[str]  # noqa: F841
    assert tool(elsewhere["use"]).definition.input_schema["properties"] == {"kind": {"type": "integer"}}


# -- misuse


def no_hints(city) -> str:  # type: ignore[no-untyped-def]
    return str(city)


def variadic(**anything: str) -> None: ...


def taken(messages: list[str]) -> None: ...


def nothing_in_json(path: Library) -> None: ...


def unresolvable(x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (no_hints, "parameter 'city' has no type hint.*Write city: str"),
        (variadic, "Name each parameter, or use Tool"),
        (taken, "'messages' is reserved.*Rename it"),
        (unresolvable, "Nowhere.*import its name at the top of the module"),
        (lambda: None, r"has no name.*name='\.\.\.'"),
    ],
    ids=["no hints", "variadic", "reserved", "unresolvable", "lambda"],
)
def test_a_function_without_the_needed_hints_or_name_is_refused_with_advice(function: Any, advice: str) -> None:
    """The error names the tool or the parameter, and says how to correct the function."""
    with pytest.raises(ToolDefinitionError, match=advice):
        tool(function)


def test_a_type_that_json_cannot_express_is_refused() -> None:
    """The error names the tool and the type to use instead. A path is text in JSON."""

    def read(path: Path) -> str:
        return str(path)

    def turn(by: complex) -> str:
        return str(by)

    assert tool(read).definition.input_schema["properties"] == {"path": {"type": "string"}}
    with pytest.raises(SchemaError, match=r"tool 'nothing_in_json'.*use a dataclass"):
        tool(nothing_in_json)
    with pytest.raises(SchemaError, match="complex"):
        tool(turn)
    with pytest.raises(ToolDefinitionError, match="below @classmethod"):
        tool(classmethod(lambda cls: None))  # type: ignore[arg-type]


# Docstrings: the description of a function and of its parameters.

GOOGLE = """Find a book
    in the catalogue.

    By title, or by author.

    Args:
        title (str): What it is called,
            in any language.
        *limit: At most so many.
        undocumented:

    Returns:
        limit: not a parameter.
    """

NUMPY = """Find a book
    in the catalogue.

    By title, or by author.

    Parameters
    ----------
    title : str
        What it is called,
        in any language.
    limit, undocumented : int, optional
        At most so many.

    Returns
    -------
    limit : int
        Not a parameter.
    """

SPHINX = """Find a book
    in the catalogue.

    By title, or by author.

    :param str title: What it is called,
        in any language.
    :param limit: At most so many.
    :type limit: int
    :returns: limit: not a parameter.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_docstring_style_gives_the_description_and_the_parameters(text: str) -> None:
    found = read_docstring(text)
    assert found.description == "Find a book in the catalogue.\n\nBy title, or by author."
    assert found.parameters["title"] == "What it is called, in any language."
    assert found.parameters["limit"] == "At most so many."


def test_a_list_in_the_description_keeps_its_lines_and_a_colon_starts_no_section() -> None:
    """A missing or empty docstring gives an empty description."""
    text = "Do one of:\n\n- this\n- that, which\n  is longer\n\nThen stop."
    assert read_docstring(text).description == text
    found = read_docstring("Say hello to: everybody\nNote that args: are fine.\n\nFormat:\n    x: y")
    assert "everybody" in found.description
    assert found.description.endswith("Format:\n    x: y")
    assert found.parameters == {}
    assert [read_docstring(text) for text in (None, "", "  \n")] == [("", {})] * 3


# How the arguments of a call reach the function, and how wrong ones are refused.

CITY: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


class DegreeUnit(Enum):
    C = "c"


@dataclass
class TimeWindow:
    day: date
    hours: int = 24


class Person(pydantic.BaseModel):
    name: str


@row("8.7.10")
async def test_arguments_become_the_types_of_the_hints() -> None:
    """Enums, dates, dataclasses and models arrive as objects. A missing argument gets its default."""
    seen: list[object] = []

    @tool
    def book(unit: DegreeUnit, windows: list[TimeWindow], who: Person, note: str = "none") -> None:
        seen.extend([unit, windows, who, note])

    arguments: JsonObject = {"unit": "c", "windows": [{"day": "2026-01-02"}], "who": {"name": "Ada"}}
    assert not (await result_of(book, arguments)).is_error
    assert seen == [DegreeUnit.C, [TimeWindow(date(2026, 1, 2))], Person(name="Ada"), "none"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [({"city": 3}, r"\$\.city.*str"), ({}, "city"), ({"city": "Rome", "country": "it"}, "country")],
)
@row("8.7.10")
async def test_wrong_arguments_are_an_error_and_nothing_runs(arguments: JsonObject, told: str) -> None:
    """8.7: for an argument of a wrong type, a missing or an unknown one, the error result names it and says to
    call again.
    """
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


async def test_a_schema_of_the_host_is_checked_too() -> None:
    """A JSON Schema can have limits that hints lack. In such a schema, `messages` is an ordinary argument."""
    schema: JsonObject = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 3}}}
    made = Tool(ToolDefinition("count", input_schema=schema), lambda n: n)
    assert (await result_of(made, {"n": 3})).text == "3"
    assert "$.n" in (await result_of(made, {"n": 4})).text
    schema = {"type": "object", "properties": {"messages": {"type": "array"}}}
    made = Tool(ToolDefinition("count", input_schema=schema), lambda messages: len(messages))
    assert (await result_of(made, {"messages": ["a"]})).text == "1"


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
    made = Tool(ToolDefinition("w", input_schema=CITY), handler)
    assert (await result_of(made, {"city": "Rome"})).text == "Rome"


@pytest.mark.parametrize(
    ("handler", "advice"),
    [
        (lambda town, country: "", "needs town, country.*Add it to the schema's properties.*one mapping"),
        (lambda: "", "does not accept city.*Add the parameter"),
    ],
)
def test_a_handler_that_does_not_fit_its_schema_is_refused(handler: Any, advice: str) -> None:
    """The error is raised at the definition, before any call."""
    with pytest.raises(ToolDefinitionError, match=advice):
        Tool(ToolDefinition("w", input_schema=CITY), handler)


# -- repair


@tool
def double(n: int) -> int:
    """Twice as much."""
    return 2 * n


async def test_a_hook_can_repair_arguments() -> None:
    """The hook gets the call, the error and the tool."""
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
    """The text is in `raw_arguments` of the call. A call without valid JSON is never run as {}."""

    async def repair(call: ToolUseBlock, error: InvalidToolCallError, made: Tool) -> JsonObject | None:
        assert "not a JSON object" in str(error)
        return {"n": 5} if call.raw_arguments == "{n: 5" else None

    broken = call("double", raw_arguments="{n: 5", incomplete=True)
    assert (await run([broken], [double], repair=repair)).results[0].text == "10"
    assert (await run([broken], [double])).results[0].is_error


async def test_a_call_that_was_cut_off_is_neither_repaired_nor_run() -> None:
    """The provider truncated the arguments, so their meaning is unknown."""
    broken = call("double", raw_arguments='{"n": 5', incomplete=True)
    made = await run([broken], [double], repair=lambda *_: {"n": 5}, cut_off=True)
    assert made.results[0].is_error
    assert "incomplete; the tool was not run" in made.results[0].text


@pytest.mark.parametrize("answer", [None, {"n": "still wrong"}, RuntimeError("no idea")], ids=str)
async def test_arguments_that_a_hook_cannot_repair_go_to_the_model_as_an_error(
    answer: JsonObject | Exception | None,
) -> None:
    """The hook is called once. An exception in the hook doesn't fail the turn."""
    times: list[int] = []

    def repair(*_: object) -> JsonObject | None:
        times.append(1)
        if isinstance(answer, Exception):
            raise answer
        return answer

    result = await result_of(double, {"n": "x"}, repair=repair)
    assert (result.is_error, "$.n" in result.text, times) == (True, True, [1])
