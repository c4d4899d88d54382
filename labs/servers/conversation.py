"""A random conversation over a pair of servers, and what must hold of it.

    taken      no server refuses a request: what it demands and refuses is known
    said       each turn ends in the words of the plan, or in the error that the server's note expects
    healed     a fallback answers where the note says that it may, and the next turn works after every error
    at home    a server gets the history that it got before as the beginning of each later one, swaps or not

A seed decides everything. Seed N plays the N-th ordered pair of wires. A run of as many seeds as there are pairs
meets them all.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from callboard.adapters import AdapterConfig, ToolDefinition
from callboard.adapters.conformance import CALLS
from callboard.adapters.servers import Note
from callboard.bus import errors as bus_errors
from callboard.bus.errors import AdapterError, CallboardError
from callboard.bus.streams.events import TextDelta, ThinkingDelta
from callboard.bus.values.base import Json
from callboard.bus.values.content import ContentBlock, ImageBlock, TextBlock
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, Session, Tool
from callboard.engine.conversation.context import Truncate
from callboard.engine.conversation.options import TurnOptions

from .server import Says, TemperServer
from .tempers import TEMPERS, TYPES, Temper, notes_of

STEP_SECONDS = 30.0
"""The time limit of a turn."""

PAIRS: tuple[tuple[Temper, Temper], ...] = tuple(itertools.permutations(TEMPERS, 2))
"""All ordered pairs of wires, in an order that mixes the servers."""

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cfc0f01f0005000"
    "1ffa55a0c1d0000000049454e44ae426082"
)
"""An image of one pixel."""

_KINDS = {bool: "boolean", int: "integer", str: "string"}
TOOLS = tuple(
    Tool(
        ToolDefinition(
            name,
            f"Does {name}.",
            {
                "type": "object",
                "properties": {key: {"type": _KINDS[type(value)]} for key, value in arguments.items()},
            },
        ),
        lambda arguments: "done",
    )
    for name, arguments in CALLS
)


class Step(NamedTuple):
    """One turn."""

    temper: Temper
    content: tuple[ContentBlock, ...]
    says: tuple[Says, ...]
    streamed: bool
    ends: str
    """The end of the turn: `said`, `failed`, `healed` by a fallback, `shortened` after an overflow, `unrun`, or
    `cancelled`.
    """
    error: Note | None = None

    @property
    def rounds(self) -> int:
        """The number of tool rounds of the turn."""
        return len(self.says) - 2 if self.ends == "unrun" else 9

    @property
    def last(self) -> str:
        """The text of the turn's last reply."""
        return self.says[-2 if self.ends == "unrun" else -1].text


def plan_of(seed: int) -> list[Step]:
    """The turns of a seed."""
    chance = random.Random(seed)
    order = list(PAIRS)
    random.Random(0).shuffle(order)
    home, away = order[seed % len(order)]
    third = chance.choice(TEMPERS)
    stays = [home, away, home, *chance.choices((home, away, third), k=chance.randint(0, 3)), home]
    most = 8 if chance.random() < 0.1 else 3
    steps: list[Step] = []
    for temper in stays:
        for _ in range(chance.randint(1, most)):
            step = _step(temper, chance, len(steps))
            if step.ends == "shortened" and not any(before.ends == "said" for before in steps):
                step = step._replace(says=step.says[:1] * 3, ends="failed")  # no message can be left out
            steps.append(step)
    return steps


def _step(temper: Temper, chance: random.Random, number: int) -> Step:
    content: list[ContentBlock] = [TextBlock(f"Question {number}.")]
    if temper.images and chance.random() < 0.2:
        content.append(ImageBlock(data=PNG, media_type="image/png"))
    streamed = chance.random() < 0.5
    rounds = chance.choice((0, 0, 1, 2)) if temper.tools else 0
    looking = ("", f"Looking {number}. ")
    says = [Says(chance.choice(looking), chance.choice((1, 2)), _thought(chance)) for _ in range(rounds)]
    says.append(Says(text=f"Answer {number}.", thought=_thought(chance)))
    draw = chance.random()
    # the engine would wait for these
    notes = [note for note in notes_of(temper, "C") if not note.expect.get("seconds")]
    content_tuple = tuple(content)
    if draw < 0.15 and notes:
        return _with_error(temper, content_tuple, says, chance.choice(notes), chance)
    if draw < 0.25 and temper.wire != "tgi":
        stalling = Says(text=f"Never {number} to be read to its end.", stalls=True)
        return Step(temper, content_tuple, (*says[:-1], stalling), True, "cancelled")
    return Step(temper, content_tuple, tuple(says), streamed, "unrun" if rounds and draw < 0.35 else "said")


def _with_error(
    temper: Temper, content: tuple[ContentBlock, ...], says: list[Says], note: Note, chance: random.Random
) -> Step:
    """A turn in which the server answers with the note's error."""
    in_stream = "events" in note.input
    streamed = in_stream or chance.random() < 0.5
    at = chance.randrange(len(says))
    overflow = note.expect["error"] == "ContextOverflowError"
    if overflow and chance.random() < 0.5:
        return Step(temper, content, (Says(error=note), *says), streamed, "shortened", note)
    if note.expect["fallback"] and not overflow and not in_stream:
        return Step(temper, content, (*says[:at], Says(error=note), *says[at:]), streamed, "healed", note)
    # the engine changes the request and sends it again, so the error is needed more than once
    errors = [Says(error=note)] * 3
    return Step(temper, content, (*says[:at], *errors), streamed, "failed", note)


def _thought(chance: random.Random) -> str:
    return chance.choice(("", "", "Let me think."))


class Report(msgspec.Struct):
    """The result of a conversation."""

    counts: Counter[str]
    failures: list[str]


async def play(seed: int, server: TemperServer) -> Report:
    """Play the conversation of a seed."""
    steps, report = plan_of(seed), Report(Counter(), [])
    server.reset()
    async with Engine(models=_registry(server.url), trace=False) as engine:
        session = engine.session(_model(steps[0]), tools=TOOLS, system_prompt="You are brief.")
        for number, step in enumerate(steps):
            where = f"turn {number} with {step.temper.name}, {step.ends}"
            server.plan(*step.says)
            session.model = _model(step)
            server.keeps = step.ends != "shortened"  # shortening leaves out the beginning of the history
            try:
                async with asyncio.timeout(STEP_SECONDS):
                    found = await _turn(session, step)
            except TimeoutError:
                found = f"it took longer than {STEP_SECONDS} s"
            except CallboardError as error:
                found = f"{type(error).__name__}: {error}"
            if found is not None:
                report.failures.append(f"{where}: {found}")
            report.failures += [f"{where}: {r.server} refuses by {r.rule}: {r.why}" for r in server.refusals]
            server.refusals.clear()
            report.counts[f"turns {step.ends}"] += 1
            report.counts["requests"] += server.requests
            server.requests = 0
            if report.failures:
                break
    for name, histories in server.histories.items():
        report.failures += _not_at_home(name, histories)
    report.counts["conversations"] += 1
    return report


async def _turn(session: Session, step: Step) -> str | None:
    """Run a turn. Returns what is wrong with its end, or None."""
    content = list(step.content)
    options: TurnOptions = {"max_tool_rounds": step.rounds}
    if step.ends == "shortened":
        options["context"] = Truncate()
    try:
        if step.ends == "cancelled":
            async with session.stream(content, **options) as turn:
                async for event in turn:
                    if isinstance(event, TextDelta | ThinkingDelta):
                        break
            return None
        if step.streamed:
            async with session.stream(content, **options) as turn:
                async for _ in turn:
                    pass
                text = (await turn.response()).text
        else:
            text = (await session.send(content, **options)).text
    except AdapterError as error:
        if step.ends != "failed":
            raise
        assert step.error is not None
        expected = getattr(bus_errors, step.error.expect["error"])
        return None if type(error) is expected else f"{step.error.id} became {type(error).__name__}: {error}"
    if step.ends == "failed":
        return "no error was raised"
    return None if text == step.last else f"the reply is {text!r} and not {step.last!r}"


def _model(step: Step) -> str:
    return f"{step.temper.name}:{'healed' if step.ends == 'healed' else 'alone'}"


def _registry(url: str) -> ModelRegistry:
    adapters, models = {}, {}
    for temper in TEMPERS:
        config = AdapterConfig(
            api_key="key-of-the-lab", base_url=f"{url}/{temper.name}", max_retries=0, options=temper.options
        )
        adapters[temper.name] = AdapterEntry(name=temper.name, type=TYPES[temper.wire], config=config)
        for kind, fallback in (("alone", ()), ("healed", ("steady:alone",))):
            name = f"{temper.name}:{kind}"
            models[name] = ModelEntry(id=name, adapter=temper.name, wire_name=temper.model, fallback=fallback)
    steady = AdapterConfig(api_key="key-of-the-lab", base_url=f"{url}/steady-chat", max_retries=0)
    adapters["steady"] = AdapterEntry(name="steady", type="openai_compatible", config=steady)
    # no error makes this model unavailable
    models["steady:alone"] = ModelEntry(id="steady:alone", adapter="steady", wire_name="m")
    return ModelRegistry(adapters, models)


def _not_at_home(name: str, histories: Sequence[list[Json]]) -> list[str]:
    """The places where a later history of a server does not begin with the history before it."""
    for before, after in itertools.pairwise(histories):
        for place, (one, other) in enumerate(zip(before, after, strict=False)):
            if one != other and not _last_of_the_user(before, place):
                return [f"{name}: entry {place} of the history was {_short(one)} and is {_short(other)}"]
        if len(after) < len(before):
            return [f"{name}: the history has {len(after)} entries after {len(before)}"]
    return []


def _last_of_the_user(history: Sequence[Json], place: int) -> bool:
    """Whether the next message is joined to the last entry, because no reply followed that entry."""
    return place == len(history) - 1


def _short(value: Json) -> str:
    return msgspec.json.encode(value).decode()[:400]
