"""The sync twins of objects: the same results, from a thread without an event loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from callboard.bus import CallboardError
from callboard.engine import (
    Engine,
    NoObjectGeneratedError,
    generate_object,
    generate_object_sync,
    run_sync,
    set_default_engine,
    stream_object,
    stream_object_sync,
)
from tests.support.engines import registry
from tests.support.scripted import Say
from callboard.tracestore import PriceTable

from .object_engines import ADA, Person


@contextmanager
def default(*replies: Say) -> Iterator[Engine]:
    """An engine with these replies, for whoever names none."""
    engine = Engine(models=registry(*replies), trace=False, prices=PriceTable.default())
    set_default_engine(engine)
    try:
        yield engine
    finally:
        set_default_engine(None)
        run_sync(engine.aclose())


def test_an_object_comes_without_a_loop() -> None:
    with default(Say(ADA), Say("no")):
        assert generate_object_sync("s:m", "Who?", schema=Person).output == Person("Ada", 36)
        with pytest.raises(NoObjectGeneratedError):
            generate_object_sync("s:m", "Who?", schema=Person)


def test_an_object_grows_without_a_loop() -> None:
    with default(Say('{"name": "Ada", ', '"age": 36}')):
        with stream_object_sync("s:m", "Who?", schema=Person) as stream:
            partials = list(stream)
            assert stream.object() == Person("Ada", 36)
            assert "".join(stream.text_stream) == stream.result().text
            assert not stream.cancel()
        assert partials[-1] == json.loads(ADA)


def test_leaving_a_stream_early_cancels_its_call_without_a_loop() -> None:
    with default(Say(ADA), Say(ADA)) as engine:
        with stream_object_sync("s:m", "Who?", schema=Person) as stream:
            next(iter(stream))
        assert [provider.in_flight for provider in engine.statistics().providers] == [0]


async def ask() -> None:
    assert (await generate_object("s:m", "Who?", schema=Person)).output == Person("Ada", 36)
    async with stream_object("s:m", "Who?", schema={"type": "object"}) as stream:
        assert await stream.object() == json.loads(ADA)


def test_the_functions_use_the_default_engine() -> None:
    with default(Say(ADA), Say(ADA)):
        run_sync(ask())


@pytest.mark.anyio
async def test_another_engine_may_be_named() -> None:
    async with Engine(models=registry(Say(ADA)), trace=False, prices=PriceTable.default()) as engine:
        assert (await generate_object("s:m", "Who?", schema=Person, engine=engine)).output.age == 36
        with pytest.raises(CallboardError, match="prompt"):
            await generate_object("s:m", schema=Person, engine=engine)
