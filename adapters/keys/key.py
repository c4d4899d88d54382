"""One key of an adapter: its value, and the function that gives a new value.

    unknown    nobody has asked the function yet
    known      there is a value, which every attempt sends
    refused    the provider refused the value; the function is asked once, for all calls that sent it

A refused key is known again if the function gives a value. Only a refusal ends a value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

import anyio

from callboard.bus.errors import AuthError

from ..transport.header_values import fault_of
from .source import KeySource


class KnownKey(NamedTuple):
    """The value of a key, as a request is sent with it."""

    value: str | None
    """The value; None for a server that needs no key."""
    version: int
    """The number of values that were asked for until then."""


class Key:
    """A key, which is given or is asked for at its first use.

    Args:
        adapter: The adapter's name.
        name: The name of the key's entry; None for the adapter's own key.
        given: The value, or the function that gives it; None for a server that needs no key.
        on_value: Told of each value that the function gives, before anything is sent with it.
    """

    def __init__(
        self, adapter: str, name: str | None, given: str | KeySource | None, on_value: Callable[[str], object]
    ) -> None:
        self.name = name
        """The name of the key's entry; None for the adapter's own key."""
        self.source: KeySource | None = None if isinstance(given, str) else given
        """The function that gives the value; None for a value that never changes."""
        self.known = KnownKey(given, 0) if isinstance(given, str) or given is None else None
        """The value; None until it is asked for."""
        self._adapter = adapter
        self._on_value = on_value
        self._asking = anyio.Lock()

    async def get(self) -> KnownKey:
        """The value, which is asked for at its first use.

        Raises:
            AuthError: There is no value that could be sent. The text names the adapter and never the value.
        """
        return self.known or await self._ask(None)

    async def replaced(self, refused: KnownKey) -> bool:
        """Whether there is another value in place of one that was refused.

        It is asked for, once for all calls that were refused with the same value.

        Raises:
            AuthError: As in `get`.
        """
        if self.source is None:
            return False
        return (await self._ask(refused)).value != refused.value

    async def _ask(self, refused: KnownKey | None) -> KnownKey:
        async with self._asking:
            known = self.known
            if self.source is None or (known is not None and known != refused):  # somebody else has asked
                assert known is not None
                return known
            value, fault = await _answer(self.source)
            self._on_value(value)  # also a value that can't be sent is a secret
            if fault is not None:
                key = "api_key" if self.name is None else f"keys[{self.name!r}]"
                raise AuthError(
                    f"{self._adapter}: no key could be had from {key}: {fault}; see that the function or the file "
                    "behind it gives the key",
                    provider=self._adapter,
                )
            self.known = KnownKey(value, 1 if known is None else known.version + 1)
            return self.known


async def _answer(source: KeySource) -> tuple[str, str | None]:
    """A function's answer, and why it can't be sent. Nothing of an exception's text is told: it may hold a key."""
    try:
        answer = source()
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:
        return "", f"it raised {type(error).__name__}"
    if not isinstance(answer, str):
        return "", f"it gave no text, but {type(answer).__name__}"
    value = answer.strip()
    fault = fault_of(value)
    return value, f"it holds {fault}" if fault else None if value else "it is empty"
