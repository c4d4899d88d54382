"""A host's use of objects. Type checkers must infer the types in this file. Never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import msgspec
from pydantic import BaseModel

from callboard import (
    Engine,
    Json,
    NoObjectGeneratedError,
    ObjectResult,
    ObjectStream,
    SyncObjectStream,
    generate_object,
    generate_object_sync,
    stream_object,
    stream_object_sync,
)


@dataclass
class Person:
    name: str


class Place(BaseModel):
    city: str


class Row(TypedDict):
    number: int


class Point(msgspec.Struct):
    x: int


async def generating(engine: Engine) -> None:
    assert_type(await generate_object("sonnet", "Who?", schema=Person), ObjectResult[Person])
    assert_type((await engine.generate_object("sonnet", "Where?", schema=Place)).output, Place)
    assert_type((await generate_object("sonnet", schema=Row, messages=[], max_reasks=1)).output, Row)
    assert_type((await generate_object("sonnet", "Where?", schema=list[Point], engine=engine)).output, list[Point])
    assert_type((await generate_object("sonnet", "?", schema={"type": "object"}, repair=True)).output, Json)
    assert_type((await generate_object("sonnet", "?", schema=Person | None, temperature=0.0)).output, Any)


async def streaming(engine: Engine) -> str:
    async with stream_object("sonnet", "Who?", schema=Person) as stream:
        assert_type(stream, ObjectStream[Person])
        async for partial in stream:
            assert_type(partial, Json)
        assert_type(await stream.object(), Person)
    assert_type(engine.stream_object("sonnet", "Where?", schema=Place), ObjectStream[Place])
    try:
        return (await stream.result()).output.name
    except NoObjectGeneratedError as error:
        return error.text


def without_a_loop() -> None:
    assert_type(generate_object_sync("sonnet", "Who?", schema=Person).output, Person)
    assert_type(stream_object_sync("sonnet", "Where?", schema=Place), SyncObjectStream[Place])
