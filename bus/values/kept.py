"""Properties that are worked out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Self, TypeVar, overload

T = TypeVar("T")
S = TypeVar("S")


class kept(Generic[S, T]):
    """A property that is kept with its object.

    So does functools' `cached_property`, which before Python 3.12 takes a lock each time. Here two threads that
    ask at once may both work it out.

    Args:
        work: The method.
    """

    def __init__(self, work: Callable[[S], T]) -> None:
        self._work = work
        self._name = work.__name__
        self.__doc__ = work.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: S, owner: type) -> T: ...

    def __get__(self, instance: S | None, owner: type) -> T | Self:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._work(instance)
        return value
