"""Whoever watches a call badly: none of it may slow or break another stream. Times are virtual, so exact."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import anyio
import pytest

from callboard import DropOldest, Engine, Event, Lossless
from tests.support.engines import running
from tests.support.present import present
from tests.support.scripted import Say

from .toy_engines import check_ends

pytestmark = pytest.mark.anyio

CAPACITY = 100


class Noise(Event, frozen=True, kw_only=True, tag="test.noise"):
    """What a chatty subscriber publishes."""


Watcher: TypeAlias = Callable[[Engine], Awaitable[object]]


async def publishes_ten_times_its_capacity(engine: Engine) -> None:
    with engine.bus.subscribe("session.*", policy=DropOldest(CAPACITY)) as events:
        async for _ in events:
            for _ in range(10 * CAPACITY):
                engine.bus.publish(Noise())


async def never_reads_the_bus(engine: Engine) -> None:
    with engine.bus.subscribe(">", policy=Lossless()), engine.bus.subscribe(">", policy=DropOldest(1)):
        await anyio.sleep_forever()


async def sleeps_on_each_event(engine: Engine) -> None:
    with engine.bus.subscribe(">") as events:
        async for _ in events:
            await anyio.sleep(60)


async def crashes_on_each_event(engine: Engine) -> None:
    for _ in range(100):
        with contextlib.suppress(ZeroDivisionError), engine.bus.subscribe("llm.*") as events:
            async for _ in events:
                raise ZeroDivisionError


async def never_reads_a_stream(engine: Engine) -> None:
    readers = []
    with engine.bus.subscribe("session.turn_started") as events:
        async for envelope in events:
            assert envelope.turn_id is not None
            readers.append(engine.attach(envelope.turn_id))


async def sleeps_in_a_stream(engine: Engine) -> None:
    async def read(stream_id: str) -> None:
        async with engine.attach(stream_id) as reader:
            async for _ in reader:
                await anyio.sleep(60)

    async with anyio.create_task_group() as group:
        with engine.bus.subscribe("session.turn_started") as events:
            async for envelope in events:
                assert envelope.turn_id is not None
                group.start_soon(read, envelope.turn_id)


@asynccontextmanager
async def watched(engine: Engine, watcher: Watcher) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(watcher, engine)
        await anyio.wait_all_tasks_blocked()
        yield
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    "watcher",
    [
        publishes_ten_times_its_capacity,
        never_reads_the_bus,
        sleeps_on_each_event,
        crashes_on_each_event,
        never_reads_a_stream,
        sleeps_in_a_stream,
    ],
)
async def test_a_bad_observer_costs_no_stream_anything(watcher: Watcher) -> None:
    """Streams take exactly the time that their provider takes, and the stop is clean."""

    def says() -> Iterator[Say]:
        for _ in range(3):
            yield Say("a", "b", "c", pause=lambda: anyio.sleep(1))

    async with running(a=list(says()), b=list(says())) as (engine, events), watched(engine, watcher):
        arrivals: dict[str, list[float]] = {}

        async def talk(name: str) -> None:
            session = engine.session(f"{name}:m")
            for _ in range(3):
                async with session.stream("Hi") as turn:
                    async for _ in turn.text_stream:
                        arrivals.setdefault(name, []).append(anyio.current_time() - started)

        started = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(talk, "a")
            group.start_soon(talk, "b")
        expected = [4 * turn + piece for turn in range(3) for piece in (1, 2, 3)]
        assert {name: [round(at, 6) for at in times] for name, times in arrivals.items()} == dict.fromkeys(
            "ab", expected
        )
        assert check_ends(events.take()) == 6
        report = await engine.aclose()
        assert present(report).clean
        assert anyio.current_time() - started <= 13, "the stop waits for no observer"
