"""A network that is a script: replies that arrive, stall, break off and fail when they are told to."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import anyio
import anyio.lowlevel

from callboard.adapters.transport.transport import HttpReply, HttpRequest

HANG = float("inf")
"""A wait that never ends, as a step of a `FakeReply`."""

Step: TypeAlias = "bytes | float | Exception"
"""A step of a body: a piece of it, a wait in seconds (HANG: for ever), or an error to raise."""


class FakeReply:
    """A reply that follows its steps, and remembers whether it was closed.

    `read` is the number of steps that were taken.

    Args:
        steps: The steps of the body.
        status: The HTTP status.
        wait: The time before the head, in seconds.
    """

    def __init__(
        self, *steps: Step, status: int = 200, headers: Mapping[str, str] | None = None, wait: float = 0.0
    ) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {"content-type": "text/event-stream", **(headers or {})}
        self.wait = wait  # before the reply's head
        self.steps = list(steps)
        self.read = 0
        self.handed_over = False
        self.closed = False

    async def chunk(self) -> bytes | None:
        """The next piece; None at the end. A step that is an error is raised."""
        await anyio.lowlevel.checkpoint()
        while self.read < len(self.steps):
            step = self.steps[self.read]
            self.read += 1
            match step:
                case bytes():
                    return step
                case float():
                    await anyio.sleep(step)
                case _:
                    raise step
        return None

    async def aclose(self) -> None:
        self.closed = True


class FakeTransport:
    """A transport that answers the n-th request with the n-th of its replies. A further request raises
    AssertionError.

    `requests` are the requests in order. `closed` says whether `aclose` was called.
    """

    def __init__(self, *replies: FakeReply | Exception) -> None:
        self.replies = list(replies)
        self.requests: list[HttpRequest] = []
        self.closed = False

    async def send(self, request: HttpRequest) -> HttpReply:
        """The next reply. Raises what stands in its place, or AssertionError where there is none."""
        await anyio.lowlevel.checkpoint()
        self.requests.append(request)
        if len(self.requests) > len(self.replies):
            raise AssertionError(f"request number {len(self.requests)} is one more than there should be")
        reply = self.replies[len(self.requests) - 1]
        if isinstance(reply, Exception):
            raise reply
        await anyio.sleep(reply.wait)
        reply.handed_over = True
        return reply

    async def aclose(self) -> None:
        self.closed = True

    @property
    def all_closed(self) -> bool:
        """Whether every reply that the adapter got was closed by it."""
        return all(reply.closed for reply in self.replies if isinstance(reply, FakeReply) and reply.handed_over)


def failing(status: int, body: bytes = b"", **headers: str) -> FakeReply:
    """An error reply.

    Args:
        status: The HTTP status.
        body: The body.
        headers: The headers, with underscores in place of hyphens.
    """
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return FakeReply(body, status=status, headers={"content-type": "application/json", **named})


def pieces(body: bytes, cuts: Sequence[int]) -> list[bytes]:
    """A body cut at the given places."""
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(body)}), len(body)]
    return [body[start:end] for start, end in itertools.pairwise(edges)]
