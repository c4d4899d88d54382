"""One message on its way to an actor, with the answer that an asker waits for."""

from __future__ import annotations

import anyio


class Letter:
    """A message on its way, and the asker who waits for the answer, if there is one."""

    __slots__ = ("_asked", "_done", "_error", "_value", "message")

    def __init__(self, message: object, *, asked: bool) -> None:
        self.message = message
        self._asked = asked
        self._done = anyio.Event() if asked else None
        self._value: object = None
        self._error: Exception | None = None

    @property
    def asked(self) -> bool:
        """Whether somebody waits for the answer."""
        return self._asked

    def answer(self, value: object) -> None:
        """Give the asker, if there is one, the answer. Only the first answer or failure counts."""
        if self._done is not None and not self._done.is_set():
            self._value = value
            self._done.set()

    def fail(self, error: Exception) -> None:
        """Give the asker, if there is one, the exception that `result` raises."""
        if self._done is not None and not self._done.is_set():
            self._error = error
            self._done.set()

    async def wait(self, timeout: float) -> bool:
        """Wait for the end of an ask, at most `timeout` seconds. Returns whether it came."""
        assert self._done is not None
        with anyio.move_on_after(timeout):
            await self._done.wait()
        return self._done.is_set()

    def result(self) -> object:
        """The answer. Raises the exception of a failure."""
        if self._error is not None:
            raise self._error
        return self._value
