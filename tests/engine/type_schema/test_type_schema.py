"""JSON Schemas of types, checks of values by schemas, and their conversion to the types."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import functools
import sys
import types
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field

from callboard.adapters.providers.anthropic.settings import fit_schema as fit_for_anthropic
from callboard.adapters.providers.gemini.request import fit_schema
from callboard.adapters.requests.schemas import normalise_schema
from callboard.adapters.requests.strict_schemas import NotStrict, to_strict
from callboard.bus.values.base import Json, JsonObject
from callboard.engine.generation.objects import ObjectSchema
from callboard.engine.schema_checks import check, convert
from callboard.engine.tools import tool
from callboard.engine.type_schema import SchemaError, json_schema

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Person(msgspec.Struct):
    """A person whom the text names."""

    name: Annotated[str, msgspec.Meta(description="as it is written", min_length=1)]
    age: int | None = None


@dataclasses.dataclass
class Tree:
    """A node of a tree, with its children."""

    label: str
    children: list[Tree] = dataclasses.field(default_factory=list)


class Place(TypedDict):
    """The place of an event."""

    city: str
    street: NotRequired[str]


class Point(NamedTuple):
    x: float
    y: float


class Address(BaseModel):
    """The address of a person."""

    city: str = Field(description="without the country")
    zip_code: int = Field(gt=0)


class Household(BaseModel):
    address: Address
    members: list[Address] = []


class Folder(BaseModel):
    name: str
    folders: list[Folder] = []


@dataclasses.dataclass
class Customer:
    """A dataclass with fields of all the other types."""

    person: Annotated[Person, msgspec.Meta(description="who buys")]
    address: Address
    favourite: Colour
    level: Literal["basic", "pro"]
    since: datetime.date
    places: dict[str, Place] = dataclasses.field(default_factory=dict)
    address_before: Address | None = None


@attrs.define
class Item:
    sku: str
    price: decimal.Decimal


class Box(msgspec.Struct, Generic[T]):
    content: T


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


CUSTOMER: JsonObject = {
    **{"person": {"name": "Ada"}, "address": {"city": "London", "zip_code": 3}, "favourite": "red"},
    **{"level": "pro", "since": "2020-02-29", "places": {"work": {"city": "Bath"}}, "address_before": None},
}
ADA = Customer(
    *(Person("Ada"), Address(city="London", zip_code=3), Colour.RED, "pro", datetime.date(2020, 2, 29)),
    {"work": {"city": "Bath"}},
)

SAMPLES: list[tuple[object, Json, object]] = [
    (Person, {"name": "Ada", "age": 36}, Person("Ada", 36)),
    (Tree, {"label": "a", "children": [{"label": "b"}]}, Tree("a", [Tree("b")])),
    (Place, {"city": "Bath"}, {"city": "Bath"}),
    (Point, [1.5, 2], Point(1.5, 2.0)),
    (Address, {"city": "Bath", "zip_code": 1}, Address(city="Bath", zip_code=1)),
    (Household, {"address": {"city": "Bath", "zip_code": 1}}, Household(address=Address(city="Bath", zip_code=1))),
    (Folder, {"name": "a", "folders": [{"name": "b"}]}, Folder(name="a", folders=[Folder(name="b")])),
    (Customer, CUSTOMER, ADA),
    (Cat | Dog, {"type": "Dog", "tricks": ["sit"]}, Dog(["sit"])),
    (Item, {"sku": "a", "price": "1.10"}, Item("a", decimal.Decimal("1.10"))),
    (Box[Person], {"content": {"name": "Ada"}}, Box(Person("Ada"))),
    (list[Person], [{"name": "Ada"}], [Person("Ada")]),
    (list[Address], [{"city": "Bath", "zip_code": 1}], [Address(city="Bath", zip_code=1)]),
    (Folder | None, None, None),
    (dict[str, list[Folder]], {"a": [{"name": "b"}]}, {"a": [Folder(name="b")]}),
    (Colour, "blue", Colour.BLUE),
    (int | str, "7", "7"),
    (tuple[int, str], [1, "a"], (1, "a")),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (dict[str, object], {"a": [1]}, {"a": [1]}),
    (bool, True, True),
    (object, None, None),
]


def name_of(value: object) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(("of", "value", "expected"), SAMPLES, ids=lambda value: name_of(value)[:30])
def test_a_value_that_follows_a_types_schema_becomes_that_type(of: object, value: Json, expected: object) -> None:
    schema = json_schema(of)
    check(value, schema)
    converted = convert(value, of)
    assert converted == expected
    assert type(converted) is type(expected)
    assert "$ref" not in schema
    assert normalise_schema(schema) == schema
    for fitted in (fit_schema(schema), fit_for_anthropic(schema)):
        if isinstance(fitted, str):
            continue  # the provider gets this schema as text in the prompt
        text = msgspec.json.encode(fitted).decode()
        names = set((fitted.get("$defs") or {}).keys())  # type: ignore[union-attr]
        assert all(f'"#/$defs/{name}"' not in text or name in names for name in ("Address", "Folder", "Tree"))


@pytest.mark.parametrize("of", [Person, Tree, Address, Household, Folder], ids=name_of)
def test_classes_without_free_keys_can_be_strict(of: object) -> None:
    try:
        to_strict(json_schema(of))
    except NotStrict as error:
        pytest.fail(str(error))


def test_a_schema_has_the_texts_of_docstrings_and_annotations() -> None:
    """The description has no indentation. Changes to a returned schema do not reach the next one."""
    schema = json_schema(Person)
    assert (schema["title"], schema["description"]) == ("Person", "A person whom the text names.")
    name = {"type": "string", "description": "as it is written", "minLength": 1}
    assert schema["properties"]["name"] == name  # type: ignore[call-overload, index]
    assert schema["required"] == ["name"]
    schema["title"] = "Changed"
    assert json_schema(Person)["title"] == "Person"

    class Long(msgspec.Struct):
        """A person.

        The person was there.
        """

    assert json_schema(Long)["description"] == "A person.\n\nThe person was there."


def test_a_hint_without_a_hash_has_a_schema() -> None:
    hint = Annotated[int, msgspec.Meta(extra_json_schema={"examples": [3]})]
    assert json_schema(hint) == {"type": "integer", "examples": [3]}


def test_titles_that_only_repeat_a_propertys_name_are_left_out() -> None:
    """Pydantic writes a title for each property. Such a title costs tokens and adds nothing."""
    assert json_schema(Address) == {
        "title": "Address",
        "description": "The address of a person.",
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "without the country"},
            "zip_code": {"type": "integer", "exclusiveMinimum": 0},
        },
        "required": ["city", "zip_code"],
    }


class Meeting(msgspec.Struct, tag=True):
    begins: datetime.datetime
    ends: datetime.datetime | None
    reminders: list[Annotated[datetime.time, msgspec.Meta(description="of that day")]]
    by_name: dict[str, tuple[datetime.datetime, int]]
    local: Annotated[datetime.datetime, msgspec.Meta(tz=False)]
    free: str | list[datetime.datetime] = ""


def test_dates_and_times_have_a_format() -> None:
    """The format is there in nested types too. Without it, models would write dates in any form."""
    schema = json_schema(list[Meeting])
    moment: JsonObject = {"type": "string", "format": "date-time"}
    properties = schema["$defs"]["Meeting"]["properties"]  # type: ignore[call-overload, index]
    time: JsonObject = {"type": "string", "format": "time", "description": "of that day"}
    pair = {"minItems": 2, "maxItems": 2, "prefixItems": [moment, {"type": "integer"}], "items": False}
    assert properties == {
        "type": {"enum": ["Meeting"]},
        "begins": moment,
        "ends": {"anyOf": [moment, {"type": "null"}]},
        "reminders": {"type": "array", "items": time},
        "by_name": {"type": "object", "additionalProperties": {"type": "array", **pair}},
        "local": {"type": "string"},
        "free": {"anyOf": [{"type": "string"}, {"type": "array", "items": moment}], "default": ""},
    }
    assert json_schema(datetime.datetime) == moment
    assert json_schema(Stop)["prefixItems"] == [moment, {"type": "string"}]


class Stop(NamedTuple):
    at: datetime.datetime
    where: str


def test_properties_named_as_keywords_are_kept() -> None:
    names = ("discriminator", "title", "ref")
    schema = json_schema(msgspec.defstruct("Odd", [(name, str) for name in names]))
    assert schema["properties"] == {name: {"type": "string"} for name in names}


def test_a_recursive_type_keeps_one_definition() -> None:
    schema = json_schema(Tree)
    assert list(schema["$defs"]) == ["Tree"]  # type: ignore[arg-type]
    check({"label": "a", "children": [{"label": "b", "children": [{"label": "c"}]}]}, schema)
    with pytest.raises(ValueError, match=r"\$\.children\[0\]\.children\[0\]: 'label' is a required property"):
        check({"label": "a", "children": [{"label": "b", "children": [{}]}]}, schema)


def test_two_models_of_one_name_have_separate_definitions() -> None:
    def model(kind: type) -> type[BaseModel]:
        inner = type("Inner", (BaseModel,), {"__annotations__": {"value": kind}, "__module__": __name__})
        return type("Outer", (BaseModel,), {"__annotations__": {"inner": inner}, "__module__": __name__})

    schema = json_schema(msgspec.defstruct("Both", [("first", model(int)), ("second", model(str))]))
    check({"first": {"inner": {"value": 1}}, "second": {"inner": {"value": "x"}}}, schema)
    with pytest.raises(ValueError, match=r"\$\.second\.inner\.value"):
        check({"first": {"inner": {"value": 1}}, "second": {"inner": {"value": 1}}}, schema)


def test_a_json_schema_is_returned_unchanged() -> None:
    schema_: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}, "examples": [{"a": 1}]}
    assert json_schema(schema_) == schema_
    assert json_schema(types.MappingProxyType({"type": "object"})) == {"type": "object"}
    assert json_schema({}) == {}
    wrong: list[tuple[JsonObject, str]] = [
        ({"name": "string"}, 'Did you mean {"type": "object", "properties"'),
        ({"type": "str"}, "The types are array, boolean"),
        ({"type": {"type": "string"}}, "is not a type of JSON Schema"),
        ({"type": "object", "default": object()}, "JSON values only"),
    ]
    for schema, message in wrong:
        with pytest.raises(SchemaError) as refused:
            json_schema(schema)
        assert message in str(refused.value)


class _WithCallable(BaseModel):
    value: Callable[[], int]


@dataclasses.dataclass
class _Unknown:
    value: Missing  # type: ignore[name-defined]  # noqa: F821


def test_a_type_that_no_schema_expresses_is_refused_with_advice() -> None:
    """Converting a value to such a type raises the same error."""
    for of, message in (
        (complex, "complex has no JSON Schema: complex has no JSON form; use a dataclass"),
        (Callable[[], int], "has no JSON form"),
        (list[complex], "complex has no JSON form"),
        (_Unknown, "name 'Missing' is not defined"),
        ("Person", "pass a JSON Schema"),
        (_WithCallable, "Cannot generate a JsonSchema for core_schema.CallableSchema; use a dataclass"),
    ):
        with pytest.raises(SchemaError) as refused:
            json_schema(of)
        assert message in str(refused.value)
        assert "\n" not in str(refused.value)
    with pytest.raises(SchemaError, match="complex"):
        convert(1, complex)


@pytest.mark.parametrize(
    ("of", "value", "said"),
    [
        (Person, {"name": "Ada", "age": "x"}, "$.age: Expected int | null, got str"),
        (Person, 3, "$: Expected object, got int"),
        (list[Person], [{"name": "Ada"}, {}], "$[1]: Object missing required field name"),
        (Address, {"city": "Bath", "zip_code": 0}, "$.zip_code: Input should be greater than 0"),
        (
            Household,
            {"address": dict[str, Json](city=1, zip_code=0)},
            "$.address.city: Input should be a valid string; $.address.zip_code: Input should be greater than 0",
        ),
        (
            Customer,
            {**CUSTOMER, "address": dict[str, Json](city="Bath", zip_code=0)},
            "$.address.zip_code: Input should be greater than 0",
        ),
        (list[Address], [{"city": "Bath"}], "$[0].zip_code: Field required"),
    ],
    ids=lambda value: name_of(value)[:20],
)
def test_the_error_for_a_value_of_a_wrong_type_has_its_path(of: object, value: Json, said: str) -> None:
    with pytest.raises(ValueError) as refused:
        convert(value, of)
    assert str(refused.value) == said


@pytest.mark.parametrize(("of", "expected"), [(int, 3), (float, 3.0), (list[int | str], [3, "3"])], ids=name_of)
def test_a_whole_number_can_have_a_decimal_point(of: object, expected: object) -> None:
    value: Json = [3.0, "3"] if isinstance(expected, list) else 3.0
    assert convert(value, of) == expected


def test_a_strict_pydantic_model_accepts_dates_as_json_text() -> None:
    class Day(BaseModel):
        model_config = ConfigDict(strict=True)
        day: datetime.date

    assert convert({"day": "2020-02-29"}, Day).day == datetime.date(2020, 2, 29)


def test_the_error_lists_up_to_five_faults_with_their_paths() -> None:
    """A long wrong value is cut in the message."""
    schema: JsonObject = {"properties": {"ages": {"type": "array", "items": {"type": "integer"}}}}
    with pytest.raises(ValueError) as refused:
        check({"ages": [1, "x", 2.5]}, schema)
    assert str(refused.value) == "$.ages[1]: 'x' is not of type 'integer'; $.ages[2]: 2.5 is not of type 'integer'"
    with pytest.raises(ValueError) as refused:
        check({"ages": ["x"] * 1000}, schema)
    assert str(refused.value).count("is not of type") == 5
    with pytest.raises(ValueError) as refused:
        check("a" * 100_000, {"type": "integer"})
    assert len(str(refused.value)) < 400


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    deep: Json = {"label": "", "children": []}
    for _ in range(50_000):  # C code has its own recursion limit since Python 3.12
        deep = {"label": "", "children": [deep]}
    with pytest.raises(ValueError, match="nested too deeply"):
        check(deep, json_schema(Tree))
    with pytest.raises(ValueError, match="nested too deeply"):
        convert(deep, Tree)


def test_a_pattern_that_python_does_not_know_is_not_checked() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": r"^\p{L}+$"}, "code": {"pattern": "^[A-Z]$"}},
        "patternProperties": {r"^\p{L}": {}},
    }
    check({"name": "3"}, schema)
    with pytest.raises(ValueError, match=r"\$\.code"):
        check({"code": "a"}, schema)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "https://x.test/schema"}, "refers to 'https://x.test/schema', which it does not define"),
        ({"$ref": "#/$defs/None"}, "refers to '$defs/None', which it does not define"),
        ({"type": 3}, "not a JSON Schema: $.type"),
        ({"type": "object", "properties": []}, "not a JSON Schema: $.properties"),
        ({"default": object()}, "JSON values only"),
    ],
)
def test_a_wrong_schema_raises_another_error_than_a_wrong_value(schema: JsonObject, said: str) -> None:
    """A reference to another document is never fetched."""
    with pytest.raises(SchemaError) as refused:
        check(1, schema)
    assert said in str(refused.value)


# Unions and paths as parameters of tools, as objects and within other types.


class ModelCat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class ModelDog(pydantic.BaseModel):
    kind: Literal["dog"]
    barks: bool


@dataclasses.dataclass
class DataCat:
    kind: Literal["cat"]
    lives: int


@dataclasses.dataclass
class DataDog:
    kind: Literal["dog"]
    barks: bool


class StructCat(msgspec.Struct):
    kind: Literal["cat"]
    lives: int


class StructDog(msgspec.Struct):
    kind: Literal["dog"]
    barks: bool


class TaggedCat(msgspec.Struct, tag_field="kind", tag="cat"):
    lives: int


class TaggedDog(msgspec.Struct, tag_field="kind", tag="dog"):
    barks: bool


class DictCat(TypedDict):
    kind: Literal["cat"]
    lives: int


class PydanticHome(pydantic.BaseModel):
    pet: DataCat | DataDog


@dataclasses.dataclass
class DataHome:
    pet: DataCat | DataDog


@dataclasses.dataclass
class MixedHome:
    pet: ModelCat | ModelDog


DOG = {"kind": "dog", "barks": True}

PAIRS: list[tuple[Any, Any, Any]] = [
    (ModelCat, ModelDog, ModelDog(kind="dog", barks=True)),
    (DataCat, DataDog, DataDog("dog", True)),
    (StructCat, StructDog, StructDog("dog", True)),
    (TaggedCat, TaggedDog, TaggedDog(True)),
    (ModelCat, DataDog, DataDog("dog", True)),
    (DictCat, DataDog, DataDog("dog", True)),
]

TYPES: list[tuple[Any, Any, Any]] = []
"""Each hint with a JSON value and the result of its conversion."""

for cat, dog, made in PAIRS:
    union: Any = cat | dog
    TYPES += [
        (union, DOG, made),
        (Annotated[union, pydantic.Field(discriminator="kind")], DOG, made),
        (Annotated[union, "A pet."], DOG, made),
        (union | None, DOG, made),
        (union | None, None, None),
        (list[union], [DOG, DOG], [made, made]),
        (dict[str, union], {"rex": DOG}, {"rex": made}),
        (tuple[union, int], [DOG, 3], (made, 3)),
        (list[Annotated[union, pydantic.Field(discriminator="kind")]], [DOG], [made]),
    ]
TYPES += [
    (Path, "/a/b", Path("/a/b")),
    (PurePosixPath, "/a/b", PurePosixPath("/a/b")),
    (list[Path], ["/a"], [Path("/a")]),
    (Path | None, "/a", Path("/a")),
    (Path | int, 3, 3),
    (Path | int, "/a", Path("/a")),
    (PydanticHome, {"pet": DOG}, PydanticHome(pet=DataDog("dog", True))),
    (DataHome, {"pet": DOG}, DataHome(DataDog("dog", True))),
    (MixedHome, {"pet": DOG}, MixedHome(ModelDog(kind="dog", barks=True))),
    (list[DataHome], [{"pet": DOG}], [DataHome(DataDog("dog", True))]),
    (ModelDog | int, 3, 3),
    (list[ModelDog] | ModelDog, DOG, ModelDog(kind="dog", barks=True)),
]


@pytest.mark.parametrize(("hint", "value", "made"), TYPES, ids=[f"{hint!s:.60}" for hint, _, _ in TYPES])
def test_a_type_is_described_and_converted_in_every_place(hint: Any, value: Any, made: Any) -> None:
    """The three places are a hint, a parameter of a tool, and an object."""
    assert json_schema(hint)
    assert convert(value, hint) == made

    def take(what, more: int = 1):  # type: ignore[no-untyped-def]
        """Take it."""

    take.__annotations__ = {"what": hint, "more": int}
    made_of = tool(take)
    assert made_of.definition.input_schema["required"] == ["what"]
    assert made_of.handler.read({"what": value}).keywords == {"what": made}
    read: ObjectSchema[Any] = ObjectSchema(hint)
    wrapped = "value" in read.sent.get("properties", {})  # type: ignore[operator]
    assert read.read({"value": value} if wrapped else value) == made


def test_a_value_that_fits_no_member_is_refused_with_the_reason() -> None:
    for cat, dog, _ in PAIRS:
        with pytest.raises(ValueError, match=r"barks|Expected|bool"):
            convert({"kind": "dog", "barks": "loudly"}, cat | dog)


def test_a_value_becomes_the_member_that_has_its_field_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members may have only optional fields. A union of dataclasses works without pydantic."""
    monkeypatch.setitem(sys.modules, "pydantic", None)

    @dataclasses.dataclass
    class Town:
        town: str = ""

    @dataclasses.dataclass
    class Land:
        land: str = ""

    union: Any = Town | Land
    assert json_schema(union)
    assert convert({"land": "Peru"}, union) == Land("Peru")


def test_a_path_can_have_a_default() -> None:

    @tool
    def read(path: Path = Path("/etc")) -> str:
        """Read a file."""
        return str(path)

    assert read.definition.input_schema["properties"]["path"] == {"type": "string", "default": "/etc"}  # type: ignore[index,call-overload]


class Reader:
    """Read a file."""

    def __init__(self, **names: str) -> None:
        self.__dict__.update(names)

    def __call__(self, path: str) -> str:
        return path


def test_a_callable_object_can_have_a_name() -> None:
    """The name is `__name__`, or else `name`. The name of a partial takes precedence over that of its function."""
    assert (
        tool(Reader(__name__="read_it")).definition.name
        == tool(Reader(name="read_it")).definition.name
        == "read_it"
    )

    def read(path: str, mode: str) -> str:
        """Read a file."""
        return path + mode

    part = functools.partial(read, mode="r")
    assert tool(part).definition.name == "read"
    part.__name__ = "read_text"  # type: ignore[attr-defined]
    assert tool(part).definition.name == "read_text"
