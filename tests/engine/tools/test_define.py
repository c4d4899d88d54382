"""`@tool`: what of a function the model is told."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from callboard.adapters import Message, ToolAnnotations
from callboard.bus import JsonObject
from callboard.engine import AbortSignal, FunctionTool, SchemaError, ToolContext, ToolDefinitionError, tool

NO_JSON: Any = object()


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Place(TypedDict):
    lat: float
    lon: float


@dataclass
class Window:
    start: str
    hours: int = 24


class Filter(msgspec.Struct):
    field: str


class Reader(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=1)


def schema_of(function: Any) -> JsonObject:
    made: FunctionTool[..., object] = tool(function)
    return made.definition.input_schema


def properties_of(function: Any) -> dict[str, Any]:
    properties = schema_of(function)["properties"]
    assert isinstance(properties, dict)
    return properties


def test_a_tool_has_the_functions_name_description_and_parameters() -> None:
    """Name, docstring and hints become the definition; the tool can still be called as the function."""

    @tool
    def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
        """Tell the weather.

        Args:
            city: As people call it.
        """
        return f"{city}: 20 {unit}"

    assert get_weather.name == "get_weather"
    assert get_weather.definition.description == "Tell the weather."
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


async def fetch(url: str) -> str:
    return url


@pytest.mark.anyio
async def test_an_async_function_stays_one() -> None:
    """Calling the tool gives what calling the function gives."""
    assert await tool(fetch)("x") == "x"


def test_everything_can_be_said_in_the_decorator_instead() -> None:
    """Keywords of the decorator win over what the function says."""
    hints = ToolAnnotations(read_only=True)

    @tool(name="look-up", description="Looks up.", timeout=3, annotations=hints, strict=True)
    def look_up(word: str) -> str:
        """Not this."""
        return word

    definition = look_up.definition
    assert (definition.name, definition.description) == ("look-up", "Looks up.")
    assert (definition.annotations, definition.strict, look_up.timeout) == (hints, True, 3)


def test_hints_of_every_kind_become_schemas() -> None:
    """Plain and nested types, of the standard library, msgspec and pydantic."""

    def search(
        text: str | None,
        units: list[Unit],
        place: Place,
        window: Window,
        filters: dict[str, Filter],
        reader: Reader,
        anything: Any,
    ) -> None: ...

    schema = schema_of(search)
    properties = properties_of(search)
    assert properties["text"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert properties["units"] == {"type": "array", "items": {"$ref": "#/$defs/Unit"}}
    assert properties["filters"]["additionalProperties"] == {"$ref": "#/$defs/Filter"}
    assert properties["anything"] == {}
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    assert {"Unit", "Place", "Window", "Filter"} <= definitions.keys()
    assert "minLength" in str(schema), "pydantic's own constraints"
    assert schema["required"] == [*properties]


def test_descriptions_and_constraints_come_from_annotated() -> None:
    """Strings, msgspec's Meta and pydantic's Field; they win over the docstring."""

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


def test_a_default_that_json_lacks_is_not_told() -> None:
    """The parameter is optional all the same."""

    def run(mode: Any = NO_JSON, where: Unit = Unit.CELSIUS, items: Sequence[int] = ()) -> None: ...

    properties = properties_of(run)
    assert "default" not in properties["mode"]
    assert properties["where"]["default"] == "celsius"
    assert properties["items"]["default"] == []
    assert "required" not in schema_of(run)


def test_what_the_engine_fills_in_is_not_shown() -> None:
    """A context by its type, and the three names that are reserved."""

    def run(
        query: str,
        where: ToolContext,
        messages: tuple[Message, ...],
        abort_signal: AbortSignal,
        tool_call_id: str,
        perhaps: ToolContext | None = None,
    ) -> None: ...

    assert list(properties_of(run)) == ["query"]


def test_a_function_without_parameters_needs_no_hints() -> None:
    """There is nothing to tell but its name."""
    assert schema_of(lambda_named("now")) == {"type": "object", "properties": {}, "additionalProperties": False}


def lambda_named(name: str) -> Any:
    def function() -> str:
        return ""

    function.__name__ = name
    return function


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
    """`self` isn't shown, and each object's tool works on that object."""
    first, second = Library(["A"]), Library(["B"])
    assert list(first.find.definition.input_schema["properties"]) == ["title"]  # type: ignore[arg-type]
    assert first.find("A")
    assert not second.find("A")
    assert tool(first.count).name == "count"


def test_a_partial_leaves_only_what_is_open() -> None:
    """What is fixed is not the model's; the name is the function's."""

    def move(what: str, where: str, speed: int = 1) -> str:
        """Move it."""
        return f"{what} {where} {speed}"

    made = tool(functools.partial(move, where="home", speed=2))
    assert (made.name, made.definition.description) == ("move", "Move it.")
    assert list(properties_of(functools.partial(move, where="home", speed=2))) == ["what"]
    assert made("cat") == "cat home 2"


def test_a_callable_object_needs_a_name() -> None:
    """Its class's `__call__` says the rest."""

    class Adder:
        def __call__(self, a: int, b: int) -> int:
            return a + b

    with pytest.raises(ToolDefinitionError, match=r"name='\.\.\.'"):
        tool(Adder())
    made = tool(Adder(), name="add")
    assert list(made.definition.input_schema["properties"]) == ["a", "b"]  # type: ignore[arg-type]
    assert made(1, 2) == 3


def test_types_that_are_defined_where_the_tool_is_are_found() -> None:
    """Hints are strings in this module, and the class is local."""

    @dataclass
    class Local:
        x: int

    @tool
    def use(local: Local) -> int:
        return local.x

    assert "$defs" in use.definition.input_schema


def test_a_function_from_elsewhere_is_read_with_its_own_names() -> None:
    """What its user happens to call the same doesn't matter."""
    elsewhere: dict[str, Any] = {}
    exec("def use(kind: 'Kind') -> None: ...\nKind = int", elsewhere)
    Kind = list[str]  # noqa: F841
    properties = tool(elsewhere["use"]).definition.input_schema["properties"]
    assert properties == {"kind": {"type": "integer"}}


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
        (no_hints, "parameter 'city' has no type hint.*write city: str"),
        (variadic, "name each parameter, or write Tool"),
        (taken, "'messages' is reserved.*rename it"),
        (unresolvable, "Nowhere.*import its name at the top of the module"),
        (lambda: None, r"has no name.*name='\.\.\.'"),
    ],
    ids=["no hints", "variadic", "reserved", "unresolvable", "lambda"],
)
def test_a_function_that_says_too_little_is_refused_with_advice(function: Any, advice: str) -> None:
    """The error names the tool and the parameter, and says what to do."""
    with pytest.raises(ToolDefinitionError, match=advice):
        tool(function)


def test_a_type_that_json_cannot_express_is_refused_with_the_tools_name() -> None:
    """And with what to use instead."""
    with pytest.raises(SchemaError, match=r"tool 'nothing_in_json'.*use a dataclass"):
        tool(nothing_in_json)


def test_what_is_no_function_is_refused() -> None:
    """A classmethod object, for one: the order of decorators is the advice."""
    with pytest.raises(ToolDefinitionError, match="below @classmethod"):
        tool(classmethod(lambda cls: None))  # type: ignore[arg-type]


def test_a_path_is_a_string_and_a_number_without_a_form_in_json_is_refused() -> None:
    """A path has an obvious form in JSON. What has none is not guessed at."""

    def read(path: Path) -> str:
        return str(path)

    def turn(by: complex) -> str:
        return str(by)

    assert tool(read).definition.input_schema["properties"] == {"path": {"type": "string"}}
    with pytest.raises(SchemaError, match="complex"):
        tool(turn)
