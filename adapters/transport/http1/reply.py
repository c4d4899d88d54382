"""A reply as its reader sees it: the head, then what comes of the body, then its end or what broke it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Protocol

from callboard.bus.errors import NetworkError

from ..transport import ClosableReply
from ..unpacking import Unpacker


class Line(Protocol):
    """What a reply asks of its connection."""

    def read_on(self) -> None:
        """All that came was read."""
        ...

    def abort(self) -> None:
        """Nobody wants the rest."""
        ...


class Reply(ClosableReply):
    """A reply. One task at a time reads it; another may close it.

    Args:
        line: The connection that it comes over.
        pieces: What came of the body, which the connection goes on filling until the reply is over.
        loop: The event loop.
    """

    def __init__(self, line: Line, pieces: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._line = line
        self._pieces = pieces
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._over = False
        self._error: NetworkError | None = None
        self._coding: str | None = None
        self._unpacker: Unpacker | None = None
        self._unpacked: Iterator[bytes] = iter(())

    # -- what its reader asks

    async def head(self) -> None:
        """Wait for the head. Raises NetworkError if the connection breaks before it."""
        while self.status == 0:
            if self._error is not None:
                raise self._error
            await self._wait()

    async def chunk(self) -> bytes | None:
        if self._coding is None:
            return await self._piece()
        if self._unpacker is None:
            self._unpacker = Unpacker(self._coding)
        piece = next(self._unpacked, None)
        if piece is not None:  # others have a turn, as little may unpack to much
            await asyncio.sleep(0)
        while piece is None and (data := await self._piece()) is not None:
            self._unpacked = self._unpacker.unpack(data)
            piece = next(self._unpacked, None)
        return piece

    async def aclose(self) -> None:
        if not self.closed:
            self.closed = True
            if not self._over:
                self._line.abort()

    async def _piece(self) -> bytes | None:
        """All that came since the last piece, as soon as there is something."""
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._over:
                self.closed = True
                return None
            await self._wait()
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if not self._over:
            self._line.read_on()
        return data

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # -- what its connection says

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """The head is there."""
        self.status, self.headers = status, headers
        self._coding = headers.get("content-encoding")

    def wake(self) -> None:
        """Something came."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def end(self, error: NetworkError | None) -> None:
        """The body is over, or the connection broke. From now on the connection is not this reply's any more."""
        self._pieces, pieces = self._pieces.copy(), self._pieces
        pieces.clear()
        self._over, self._error = True, error
        self.wake()
