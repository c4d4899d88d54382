"""A scripted reply as the body of an HTTP reply: one line of JSON for each step. There is no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import anyio
import anyio.lowlevel
import msgspec

from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.transport.transport import HttpReply, HttpRequest, TransportStatistics
from callboard.bus.errors import AdapterError, StreamError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import StopReason, TokenUsage

from .replies import ScriptedReply, pieces_of


class Used(msgspec.Struct, frozen=True, tag="used"):
    """The usage of the reply, known from its beginning."""

    usage: TokenUsage
    """The usage."""


class Thought(msgspec.Struct, frozen=True, tag="thought"):
    """A piece of reasoning."""

    piece: str
    """The piece."""


class Signed(msgspec.Struct, frozen=True, tag="signed"):
    """The reasoning is whole, and has its signature."""

    signature: str
    """The signature."""


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A piece of text."""

    piece: str
    """The piece."""


class Called(msgspec.Struct, frozen=True, tag="called"):
    """A tool call begins."""

    number: int
    """The number of the call, from 0."""
    name: str
    """The tool's name."""


class Argued(msgspec.Struct, frozen=True, tag="argued"):
    """A piece of a call's arguments."""

    number: int
    """The number of the call, from 0."""
    piece: str
    """The piece."""
    last: bool
    """Whether it is the last piece."""


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """The reply is whole."""

    reason: StopReason
    """The stop reason."""


Step: TypeAlias = Used | Thought | Signed | Said | Called | Argued | Stopped

_decoder: msgspec.json.Decoder[Step] = msgspec.json.Decoder(Step)


def steps_of(reply: ScriptedReply) -> Iterator[tuple[Step, bool]]:
    """A reply step by step, and whether its pace holds each of them up. Without its end if it fails."""
    if reply.usage is not None:
        yield Used(reply.usage), False
    for piece in pieces_of(reply.thinking):
        yield Thought(piece), True
    if reply.signature is not None:
        yield Signed(reply.signature), False
    for piece in pieces_of(reply.text):
        yield Said(piece), True
    for number, call in enumerate(reply.calls):
        yield Called(number, call.name), False
        pieces = call.pieces()
        for position, piece in enumerate(pieces):
            yield Argued(number, piece, position == len(pieces) - 1), True


def understand(step: Step, assembler: Assembler) -> bool:
    """Feed one step; True at the end."""
    match step:
        case Used():
            assembler.usage = step.usage
        case Thought():
            assembler.thinking("thinking", step.piece, implicit_end=True)
        case Signed():
            assembler.signature("thinking", step.signature)
            assembler.end("thinking")
        case Said():
            assembler.text("text", step.piece, implicit_end=True)
        case Called():
            assembler.tool_start(step.number, step.name, raw={"id": f"call_{step.number}"})
        case Argued():
            assembler.tool_arguments(step.number, step.piece)
            if step.last:
                assembler.end(step.number)
        case Stopped():
            assembler.finish(step.reason, str(step.reason))
            return True
    return False


def read_lines(body: bytes, assembler: Assembler) -> bool:
    """Feed the steps of a body, or of a piece of it; True at the end."""
    return any(understand(_decoder.decode(line), assembler) for line in body.splitlines())


class ScriptedNormaliser:
    """See `adapters.replies.normaliser.StreamNormaliser`. Every piece of a scripted body is whole lines."""

    def __init__(self, assembler: Assembler) -> None:
        self.assembler = assembler
        self.error: AdapterError | None = None
        self.finished = False

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        if self.assembler.raw is not None:
            for line in chunk.splitlines():
                self.assembler.raw.event(line)
        self.finished = self.finished or read_lines(chunk, self.assembler)
        return self.assembler.take()

    def close(self) -> list[StreamEvent]:
        if not self.finished:
            self.error = StreamError("the script ended before the reply was complete")
        return self.assembler.take()


class ScriptedTransport:
    """Answers each request with the reply that `choose` gives for the body of it, which is the request's id."""

    def __init__(self, choose: Callable[[str], ScriptedReply]) -> None:
        self._choose = choose
        self._open = 0

    def statistics(self) -> TransportStatistics:
        """The statistics. What is in use are the replies that are being played."""
        return TransportStatistics(clients=0, in_use=self._open)

    async def send(self, request: HttpRequest) -> HttpReply:
        await anyio.lowlevel.checkpoint()
        reply = self._choose(request.body.decode())
        await anyio.sleep(reply.delay)
        failure = reply.failure
        if failure is not None and not any(True for _ in steps_of(reply)):
            if reply.pause is not None:
                await reply.pause()
            await anyio.sleep(reply.pace)
            raise failure
        self._open += 1
        return _Playing(reply, failure, self)

    async def aclose(self) -> None:
        pass

    def closed(self) -> None:
        """A reply was closed."""
        self._open -= 1


class _Playing:
    """A reply under way."""

    status = 200
    headers: Mapping[str, str] = {"content-type": "application/x-ndjson"}

    def __init__(self, reply: ScriptedReply, failure: Exception | None, transport: ScriptedTransport) -> None:
        self._reply = reply
        self._failure = failure
        self._transport: ScriptedTransport | None = transport
        self._steps = steps_of(reply)
        self._ended = False

    async def chunk(self) -> bytes | None:
        await anyio.lowlevel.checkpoint()
        if self._ended:
            return None
        step, paced = next(self._steps, (Stopped(self._reply.stop_reason), True))
        if paced:
            if self._reply.pause is not None:
                await self._reply.pause()
            await anyio.sleep(self._reply.pace)
        if isinstance(step, Stopped):
            self._ended = True
            if self._failure is not None:
                raise self._failure
        return msgspec.json.encode(step) + b"\n"

    async def aclose(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.closed()
