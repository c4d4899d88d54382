"""A supervisor under test, with actors that fail on demand and a record of all events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from callboard.bus import (
    Actor,
    ActorContext,
    ActorCrashed,
    ActorEscalated,
    ActorRef,
    ActorRestarted,
    ActorStarted,
    ActorStoppedEvent,
    Bus,
    ChildSpec,
    Lossless,
    RestartPolicy,
    Strategy,
    Supervisor,
)
from tests.support.present import present
from tests.support.virtual_time import FakeClock


class Boom(Exception):
    """The exception with which the actors of these tests crash."""


class Obedient(Actor):
    """An actor that obeys its messages.

    The messages are ``crash``, ``exit``, ``("sleep", seconds)`` and a callable, which is awaited. Every other
    message is returned as the reply.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.context: ActorContext | None = None

    async def started(self, context: ActorContext) -> None:
        self.context = context
        self.world.log.append(f"start {self.name}")
        hook = self.world.on_start.get(self.name)
        if hook is not None:
            hook()

    async def receive(self, message: object) -> object:
        match message:
            case "crash":
                raise Boom(self.name)
            case "exit":
                present(self.context).stop()
            case ("sleep", float() as seconds):
                await anyio.sleep(seconds)
            case _ if callable(message):
                return await message()
            case _:
                return message
        return None

    async def stopping(self) -> None:
        self.world.log.append(f"stop {self.name}")


class World:
    """The clock, the bus, and the log of one test."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.bus = Bus(run_id="run_1", clock=self.clock)
        self.events = self.bus.subscribe("actor.>", policy=Lossless())
        self.log: list[str] = []
        self.on_start: dict[str, Callable[[], None]] = {}

    def spec(self, name: str, **options: object) -> ChildSpec:
        return ChildSpec(name, lambda: Obedient(self, name), **options)  # type: ignore[arg-type]

    @asynccontextmanager
    async def supervisor(
        self, strategy: Strategy = "one_for_one", policy: RestartPolicy | None = None
    ) -> AsyncIterator[Supervisor]:
        supervisor = Supervisor("root", bus=self.bus, clock=self.clock, strategy=strategy, policy=policy)
        async with anyio.create_task_group() as group:
            await group.start(supervisor.run)
            yield supervisor
            await supervisor.stop()

    @asynccontextmanager
    async def children(
        self, *names: str, strategy: Strategy = "one_for_one", policy: RestartPolicy | None = None
    ) -> AsyncIterator[tuple[Supervisor, list[ActorRef]]]:
        """A supervisor with these children, which it starts in this order."""
        async with self.supervisor(strategy, policy) as supervisor:
            yield supervisor, [await supervisor.start_child(self.spec(name)) for name in names]

    def taken(self) -> list[str]:
        """The lifecycle events since the last call of this method, in a short form."""
        return [short(envelope.data) for envelope in self.events.take()]

    def fresh_log(self) -> list[str]:
        log, self.log[:] = list(self.log), []
        return log


async def settle() -> None:
    """Sleep longer than one restart takes, but shorter than any limit."""
    await anyio.sleep(1)


def short(event: object) -> str:
    match event:
        case ActorStarted(actor=actor):
            return f"{actor} started"
        case ActorCrashed(actor=actor, failures=failures):
            return f"{actor} crashed {failures}"
        case ActorRestarted(actor=actor, restarts=restarts):
            return f"{actor} restarted {restarts}"
        case ActorStoppedEvent(actor=actor, reason=reason):
            return f"{actor} stopped: {reason}"
        case ActorEscalated(actor=actor):
            return f"{actor} escalated"
        case _:
            return repr(event)
