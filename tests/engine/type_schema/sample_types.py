"""Types of each kind that has a JSON Schema."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
from typing import Annotated, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import attrs
import msgspec
from pydantic import BaseModel, Field

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
