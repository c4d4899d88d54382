"""Engines with one scripted model for objects, and the requests to it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from pydantic import BaseModel

from callboard.adapters import AdapterCapabilities, CanonicalRequest, StopReason
from callboard.bus.values.base import JsonObject
from callboard.engine import Engine
from callboard.engine.middleware import MiddlewareLike
from callboard.tracestore import PriceTable
from tests.support.engines import serving
from tests.support.scripted import CAPABILITIES, Say, ScriptedAdapter, scripted_type

NO_SCHEMA = msgspec.structs.replace(CAPABILITIES, supports_structured_output=False)
ONLY_WORDS = msgspec.structs.replace(NO_SCHEMA, supports_tools=False)
THINKS = msgspec.structs.replace(NO_SCHEMA, supports_thinking=True)


@dataclasses.dataclass
class Person:
    """A person."""

    name: str
    age: int
    nickname: str = ""
    tags: list[str] = dataclasses.field(default_factory=list)


class Place(BaseModel):
    """A place."""

    city: str


PERSON: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
ADA = '{"name": "Ada", "age": 36}'


def ended(reply: Say, stop: StopReason) -> Say:
    """The reply, with another stop reason."""
    reply.reply = msgspec.structs.replace(reply.reply, stop=stop)
    return reply


@asynccontextmanager
async def running(
    *replies: Say,
    can: AdapterCapabilities = CAPABILITIES,
    and_then: AdapterCapabilities | None = None,
    middleware: Sequence[MiddlewareLike] = (),
) -> AsyncIterator[tuple[Engine, list[CanonicalRequest]]]:
    """An engine with the model `s:m`, and the requests that it receives.

    Args:
        replies: The replies, one for each request.
        can: The capabilities of `s:m`.
        and_then: The capabilities of a second model, `t:m`, which takes replies from the same list, or None for no
            second model.
        middleware: The engine's middleware.
    """
    asked: list[CanonicalRequest] = []
    script = list(replies)

    class Watched(ScriptedAdapter):
        def say(self, request: CanonicalRequest) -> Say:
            asked.append(request)
            return script.pop(0)

    of = {"s": can} if and_then is None else {"s": can, "t": and_then}
    types = {name: scripted_type(base=Watched, capabilities=capabilities) for name, capabilities in of.items()}
    async with Engine(
        models=serving(**types), trace=False, prices=PriceTable.default(), middleware=middleware
    ) as engine:
        yield engine, asked
