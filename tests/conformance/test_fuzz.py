"""Randomly damaged real replies: an adapter reads them or soon raises AdapterError, and works afterwards.

What it did understand goes into a history, and the next request with that is well-formed again.

Every adapter gets replies of all protocols, most of them of its own: those that the suite makes, cassettes, and
recorded traffic where its folder is known (see test_recorded_agreement). A run is the same each time. To go on for
longer, with other cases each time:

    CALLBOARD_FUZZ_SECONDS=180 pytest tests/conformance/test_fuzz.py
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from callboard.adapters.cassettes import load_cassette
from callboard.adapters.conformance import TOOLS
from callboard.adapters.contract import CanonicalRequest
from callboard.bus.errors import AdapterError
from callboard.bus.streams.events import MessageComplete, StreamEvent
from callboard.bus.values.base import Json
from callboard.bus.values.content import ContentBlock
from callboard.bus.values.messages import Message, Role

from ..support import fake_http
from ..support.depth import is_quick
from ..support.fake_http import FakeReply, FakeTransport, pieces
from ..support.invariants import check_stream
from ..support.recordings import FOLDER
from ..support.virtual_time import FakeClock, run_virtual
from ..support.wires import CALLING_WIRES, WIRES, Wire

SECONDS = float(os.environ.get("CALLBOARD_FUZZ_SECONDS", "0"))
QUICK_CASES, CASES = 50, 300
"""For each wire in a quick and in a deep run, where no time is given."""
AT_ONCE = 50
SLOWEST = 5.0
"""Seconds of CPU for one case; a good one takes a few milliseconds."""
CASSETTES = Path(__file__).parent.parent.parent / "cassettes" / "local"
LARGEST = 40_000
QUICK_SAMPLE, SAMPLE = 30, 200
"""Of the recorded replies, so many of each protocol, none of them with more bytes than LARGEST."""
ASKED = CanonicalRequest(
    request_id="req_1", messages=(Message.user("Hi"),), model="x:some-model", max_output_tokens=64, max_retries=0
)


class Body(NamedTuple):
    """A reply's body."""

    data: bytes
    streamed: bool


class Case(NamedTuple):
    """A reply, in the pieces in which it arrives."""

    chunks: list[bytes]
    streamed: bool


def corpus(wire: Wire) -> tuple[list[Body], list[Body]]:
    """Undamaged replies: those of the wire's own protocol, and all others."""
    own = [
        Body(b"".join(wire.chunks("Hello, ☃!", *wire.most)), True),
        Body(msgspec.json.encode(wire.reasoned("Hm ☃", "Hello", *wire.most)), False),
    ]
    others: list[Body] = []
    for body in _found():
        transport = FakeTransport(reply(Case([body.data], body.streamed)))
        _, failure = run_virtual(functools.partial(ask, wire, transport, streamed=body.streamed))
        (own if failure is None else others).append(body)
    return own, others


@functools.cache
def _found() -> list[Body]:
    """The replies of cassettes and, where there are any, recorded ones."""
    bodies: list[Body] = []
    for path in sorted(CASSETTES.glob("*.json")):
        for exchange in load_cassette(path).exchanges:
            chunks = [
                chunk.encode() if isinstance(chunk, str) else base64.b64decode(chunk.base64)
                for chunk in exchange.reply.chunks
            ]
            bodies.append(Body(b"".join(chunks), "event-stream" in exchange.reply.headers.get("content-type", "")))
    for path in sorted(FOLDER.glob("*.jsonl")) if FOLDER.is_dir() else ():
        with path.open() as lines:
            recorded = [json.loads(line) for line in lines]
        found = [
            Body(body.encode() if isinstance(body, str) else msgspec.json.encode(body), exchange["streamed"])
            for exchange in recorded
            if exchange["response_status"] == 200
            for body in [exchange["response_body"]]
        ]
        small = [body for body in found if len(body.data) <= LARGEST]
        bodies += random.Random(7).sample(small, min(QUICK_SAMPLE if is_quick() else SAMPLE, len(small)))
    return bodies


# -- damage


def damage(rng: random.Random, body: Body, other: Body) -> Body:
    """The body after one to three mishaps."""
    data = body.data
    for _ in range(rng.randint(1, 3)):
        data = rng.choice(MISHAPS)(rng, data, other.data)
    return Body(data, body.streamed if rng.random() < 0.95 else not body.streamed)


def _bytes(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A few bytes replaced, lost or added."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randint(0, 3)) + data[at + rng.randint(0, 3) :]


def _cut(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _lines(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Lines lost, repeated or swapped."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[at : at + rng.randint(1, 3)]
        case 1:
            lines[at:at] = lines[at : at + 3]
        case _:
            to = rng.randrange(len(lines))
            lines[at], lines[to] = lines[to], lines[at]
    return b"\n".join(lines)


def _splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The end of another reply, which may be of another protocol."""
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _field(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Some JSON in it with one value replaced, or without it."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    head, brace, rest = lines[at].partition(b"{")
    try:
        value: Json = json.loads(brace + rest)
    except ValueError:
        return _lines(rng, data, other)
    _spoil(rng, value)
    lines[at] = head + json.dumps(value).encode()
    return b"\n".join(lines)


def _spoil(rng: random.Random, value: Json) -> None:
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        inner = value[key]  # type: ignore[index]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
            value = inner
        elif rng.random() < 0.3:
            del value[key]  # type: ignore[arg-type]
            return
        else:
            value[key] = rng.choice(NONSENSE)  # type: ignore[index,call-overload]
            return


NONSENSE: list[Json] = [None, True, -1, 0.5, 2**70, "", "x", "\ud83d", "\u2028", [], {}, [None], {"type": "text"}]
MISHAPS: list[Callable[[random.Random, bytes, bytes], bytes]] = [_bytes, _cut, _lines, _splice, _field, _field]


# -- the run


def reply(case: Case) -> FakeReply:
    kind = "text/event-stream" if case.streamed else "application/json"
    return FakeReply(*case.chunks, headers={"content-type": kind})


async def ask(
    wire: Wire, transport: FakeTransport, *, streamed: bool
) -> tuple[tuple[ContentBlock, ...], AdapterError | None]:
    """What came of it, with every invariant checked."""
    adapter = wire.make(transport, FakeClock())
    events: list[StreamEvent] = []
    failure: AdapterError | None = None
    try:
        if not streamed:
            return (await adapter.complete(ASKED)).content, None
        async for event in adapter.stream(ASKED):
            events.append(event)  # noqa: PERF401  (what came before an error counts)
    except AdapterError as error:
        failure = error
    finally:
        assert transport.all_closed
    last: MessageComplete | None = check_stream(events) if events else None
    return last.final_content if last is not None else (), failure


async def try_case(wire: Wire, case: Case) -> None:
    content, _ = await ask(wire, FakeTransport(reply(case)), streamed=case.streamed)
    msgspec.json.encode(content)
    history = (Message.user("Hi"), Message(Role.ASSISTANT, content), Message.user("On"))
    for target in WIRES:
        adapter = target.make(FakeTransport(), FakeClock())
        again = msgspec.structs.replace(ASKED, messages=history)
        assert target.faults(adapter.write_request(again, stream=True).body) == []


def fuzz(wire: Wire, seed: int, cases: int, own: list[Body], others: list[Body]) -> None:
    """Raises what a case raises, with all that is needed to see it again."""
    rng = random.Random(seed)

    async def run() -> None:
        for number in range(cases):
            other = rng.choice(others or own)
            chosen = rng.choice(own) if rng.random() < 0.85 else other
            data, streamed = damage(rng, chosen, rng.choice(own) if rng.random() < 0.7 else other)
            cuts = [rng.randrange(len(data) + 1) for _ in range(rng.randint(0, 6))]
            case = Case(pieces(data, cuts), streamed)
            began = time.process_time()
            try:
                await try_case(wire, case)
            except Exception as error:
                raise AssertionError(f"{wire.name}, seed {seed}, case {number}: {case}") from error
            assert time.process_time() - began < SLOWEST, f"{wire.name}, seed {seed}, case {number}: {case}"

    run_virtual(run)


@pytest.mark.more("more damaged replies")
@pytest.mark.timeout(120 + 4 * SECONDS)
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_damaged_replies_are_understood_or_refused_and_never_spoil_a_history(wire: Wire) -> None:
    own, others = corpus(wire)
    if not SECONDS:
        fuzz(wire, 1, QUICK_CASES if is_quick() else CASES, own, others)
        return
    end = time.monotonic() + SECONDS / len(WIRES)
    seeds = random.Random()
    cases = 0
    while time.monotonic() < end:
        fuzz(wire, seeds.randrange(2**32), AT_ONCE, own, others)
        cases += AT_ONCE
    print(f"{wire.name}: {cases} cases over {len(own)} replies of its own and {len(others)} others")  # noqa: T201


# -- Any adapter can stand in for any other: one conversation, whoever the provider is.


REPLIES = [
    ("Hello, ☃!", 0, "end"),
    ("", 1, "tools"),
    ("Let me look.", 1, "tools"),
    ("Let me look.", 2, "tools"),
    ("Once upon a", 0, "length"),
    ("", 0, "end"),
]


def asked_of(wire: Wire) -> CanonicalRequest:
    tools = TOOLS if wire.calls_tools else ()
    return fake_http.ask(model=f"{wire.name}:some-model", tools=tools, message_id="msg_1")


async def read(wire: Wire, reply: FakeReply) -> tuple[list[StreamEvent], AdapterError | None]:
    adapter = wire.make(FakeTransport(reply), FakeClock(), max_retries=0)
    events: list[StreamEvent] = []
    try:
        async for event in adapter.stream(asked_of(wire)):
            events.append(event)  # noqa: PERF401  (what came before an error counts)
    except AdapterError as error:
        return events, error
    return events, None


@pytest.mark.anyio
@pytest.mark.parametrize(("text", "calls", "stop"), REPLIES)
async def test_the_same_reply_is_the_same_events(text: str, calls: int, stop: str) -> None:
    """Type by type and index by index, with the same text; only fragments of arguments may be fewer."""
    sequences = []
    for wire in WIRES if not calls else CALLING_WIRES:
        events, error = await read(wire, wire.streamed(text, calls, stop))
        assert error is None
        sequence = [
            (event.type, getattr(event, "content_block_index", None), getattr(event, "text", None))
            for event in events
        ]
        sequences.append([one for one, _ in itertools.groupby(sequence)])
    for one, other in itertools.pairwise(sequences):
        assert one == other
