"""The kit of the scripted adapter, which does not use HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from callboard.adapters.config import AdapterConfig
from callboard.adapters.conformance import (
    CALLS,
    KEY,
    Fails,
    FakeClock,
    Kit,
    Says,
    Scene,
    Silent,
    Stage,
    Unreachable,
    halves,
)
from callboard.adapters.conformance import arguments as arguments_of
from callboard.adapters.providers.scripted import ScriptedAdapter, ScriptedCall, ScriptedFailure, ScriptedReply
from callboard.adapters.providers.scripted.adapter import steps_of
from callboard.bus.errors import NetworkError, OverloadedError
from callboard.bus.values.usage import StopReason

KINDS = {
    "rate limit": "rate_limit", "overload": "overloaded", "quota": "quota", "bad key": "auth",
    "forbidden": "access_denied", "no model": "not_found", "overflow": "context_overflow",
    "bad request": "invalid_request", "server": "server",
}  # fmt: skip
STOPS = {"end": StopReason.END_TURN, "tools": StopReason.TOOL_USE, "length": StopReason.MAX_TOKENS}


class ScriptedKit(Kit):
    name = "scripted"

    @asynccontextmanager
    async def stage(self, *scenes: Scene, **config: object) -> AsyncIterator[Stage]:
        replies = [self.reply_of(scene) for scene in scenes]
        clock = FakeClock(randomness=0.0)
        settings = AdapterConfig(**{"api_key": KEY, **config})  # type: ignore[arg-type]
        adapter = ScriptedAdapter(settings, clock=clock, replies=replies or ["nobody asks for it"])
        try:
            yield Stage(
                adapter=adapter,
                clock=clock,
                model="scripted:some-model",
                asked=lambda: len(adapter.requests),
                released=lambda: adapter.statistics().transport.in_use == 0,  # type: ignore[union-attr]
            )
        finally:
            await adapter.close()

    def pieces(self, scene: Says) -> int:
        return sum(paced for _, paced in steps_of(self.reply_of(scene))) + 1  # and the end of the stream

    def reply_of(self, scene: Scene) -> ScriptedReply:
        match scene:
            case Says():
                return ScriptedReply(
                    text=halves(scene.text) if scene.text else (),
                    thinking=halves(scene.thought) if scene.thought else (),
                    calls=tuple(
                        ScriptedCall(CALLS[number][0], fragments=halves(arguments_of(number)))
                        for number in range(scene.calls)
                    ),
                    stop=STOPS[scene.stop],
                    usage=self.usage,
                    pause=_then(scene),
                )
            case Fails():
                message = f"{scene.condition} {scene.says}"
                return ScriptedReply(fails=ScriptedFailure(KINDS[scene.condition], message, scene.retry_after))  # type: ignore[arg-type]
            case Unreachable():
                return ScriptedReply(raises=NetworkError("there is no connection"))
            case Silent():
                return ScriptedReply(delay=float("inf"))


def _then(scene: Says) -> Callable[[], Awaitable[None]]:
    taken = 0

    async def pause() -> None:
        nonlocal taken
        if taken == scene.after:
            match scene.then:
                case "hang":
                    await anyio.sleep_forever()
                case "break":
                    raise NetworkError("the connection broke")
                case "error":
                    raise OverloadedError("Overloaded")
                case "end":
                    pass
        taken += 1
        await anyio.sleep(scene.pause)

    return pause


SCRIPTED = ScriptedKit()
