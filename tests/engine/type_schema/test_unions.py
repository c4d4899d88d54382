"""Unions and paths: as parameters of tools, as objects and as parts of other types."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from callboard.engine.objects.generate import ObjectSchema
from callboard.engine.tools import tool
from callboard.engine.type_schema import convert, json_schema


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
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


class DictDog(TypedDict):
    kind: Literal["dog"]
    barks: bool


class PydanticHome(pydantic.BaseModel):
    pet: DataCat | DataDog


@dataclasses.dataclass
class DataHome:
    pet: DataCat | DataDog


@dataclasses.dataclass
class MixedHome:
    pet: Cat | Dog


DOG = {"kind": "dog", "barks": True}

PAIRS: list[tuple[Any, Any, Any]] = [
    (Cat, Dog, Dog(kind="dog", barks=True)),
    (DataCat, DataDog, DataDog("dog", True)),
    (StructCat, StructDog, StructDog("dog", True)),
    (TaggedCat, TaggedDog, TaggedDog(True)),
    (Cat, DataDog, DataDog("dog", True)),
    (StructCat, Dog, Dog(kind="dog", barks=True)),
    (DataCat, StructDog, StructDog("dog", True)),
    (DictCat, DataDog, DataDog("dog", True)),
]

TYPES: list[tuple[Any, Any, Any]] = []
"""Each hint with a JSON value and what it is converted to."""

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
    (MixedHome, {"pet": DOG}, MixedHome(Dog(kind="dog", barks=True))),
    (list[DataHome], [{"pet": DOG}], [DataHome(DataDog("dog", True))]),
    (Dog | int, 3, 3),
    (list[Dog] | Dog, DOG, Dog(kind="dog", barks=True)),
]


@pytest.mark.parametrize(("hint", "value", "made"), TYPES, ids=[f"{hint!s:.60}" for hint, _, _ in TYPES])
def test_a_type_is_described_and_converted_in_every_place(hint: Any, value: Any, made: Any) -> None:
    """As a hint, as a tool's parameter, and as an object."""
    assert json_schema(hint)
    assert convert(value, hint) == made

    def take(what, more: int = 1):  # type: ignore[no-untyped-def]
        """Take it."""

    take.__annotations__ = {"what": hint, "more": int}
    made_of = tool(take)
    schema = made_of.definition.input_schema
    assert schema["required"] == ["what"]
    assert made_of.handler is not None
    assert made_of.handler.read({"what": value}).keywords == {"what": made}

    read: ObjectSchema[Any] = ObjectSchema(hint)
    wrapped = "value" in read.sent.get("properties", {})  # type: ignore[operator]
    assert read.read({"value": value} if wrapped else value) == made


@pytest.mark.parametrize(("cat", "dog", "made"), PAIRS)
def test_a_value_that_fits_no_member_is_refused_with_its_reason(cat: Any, dog: Any, made: Any) -> None:
    """The error says what is wrong with the value."""
    with pytest.raises(ValueError, match=r"barks|Expected|bool"):
        convert({"kind": "dog", "barks": "loudly"}, cat | dog)


def test_of_several_members_that_fit_the_one_that_knows_the_names_is_meant() -> None:
    """Members may have only optional fields."""

    @dataclasses.dataclass
    class Town:
        town: str = ""

    @dataclasses.dataclass
    class Land:
        land: str = ""

    union: Any = Town | Land
    assert convert({"land": "Peru"}, union) == Land("Peru")


def test_dataclasses_need_no_pydantic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A union of dataclasses or Structs works where pydantic is not installed."""
    monkeypatch.setitem(sys.modules, "pydantic", None)

    @dataclasses.dataclass
    class Sun:
        sun: int

    @dataclasses.dataclass
    class Moon:
        moon: int

    union: Any = Sun | Moon
    assert json_schema(union)
    assert convert({"moon": 1}, union) == Moon(1)


def test_a_path_may_have_a_default() -> None:
    """The default is a string in the schema."""

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


@pytest.mark.parametrize("names", [{"__name__": "read_it"}, {"name": "read_it"}])
def test_a_callable_object_may_have_a_name_of_its_own(names: dict[str, str]) -> None:
    """Its name is `__name__`, or else `name`."""
    assert tool(Reader(**names)).definition.name == "read_it"


def test_a_partial_may_have_a_name_of_its_own() -> None:
    """It stands over the name of the function behind it."""

    def read(path: str, mode: str) -> str:
        """Read a file."""
        return path + mode

    part = functools.partial(read, mode="r")
    assert tool(part).definition.name == "read"
    part.__name__ = "read_text"  # type: ignore[attr-defined]
    assert tool(part).definition.name == "read_text"


@pytest.mark.parametrize(
    ("hint", "value"),
    [(list[int], [1, 2]), (int, 3), (float, 2.5), (str, "Rome"), (Literal["a", "b"], "a"), (Cat | Dog, DOG)],
)
def test_a_value_is_taken_without_the_wrapper(hint: Any, value: Any) -> None:
    """The schema was wrapped, and the model left the wrapper out."""
    schema: ObjectSchema[Any] = ObjectSchema(hint)
    assert schema.read(value) == schema.read({"value": value})
    assert schema.read(json.loads(json.dumps(value))) is not None
