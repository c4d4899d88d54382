"""Renamed public names. An old name works, with a DeprecationWarning at the caller's line."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

TIME_LIMITS = {"timeout_seconds": "timeout", "timeout_s": "timeout", "call_timeout_seconds": "call_timeout"}
"""The old names of time limits, in seconds, with the new ones."""


def with_new_names(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The arguments with their new names."""
    found = {name: value for name, value in given.items() if name not in names}
    for old in given.keys() & names.keys():
        new = names[old]
        if new in given:
            raise TypeError(f"{old}= and {new}= are the same argument: pass {new}= only")
        warn_of_old_name(f"{old}= is deprecated: use {new}=")
        found[new] = given[old]
    return found


OLD_CLASSES: Final = {"UnderWay": "ActiveWork", "WorkUnderWay": "WorkInProgress"}
"""The new names of renamed classes of `callboard.engine`."""


def old_class(name: str) -> object:
    """A renamed class by its old name, with a warning. Raises KeyError for other names."""
    new = OLD_CLASSES[name]
    warn_of_old_name(f"{name} is deprecated: use {new}")
    return getattr(sys.modules[__package__], new)


def warn_of_old_name(text: str) -> None:
    """Warn at the line of the program that calls this library."""
    own = (__package__ or "engine").partition(".")[0]
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == own:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, DeprecationWarning, stacklevel=level)


def takes_old_names(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take keywords by their old names, too."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def renaming(*args: P.args, **kwargs: P.kwargs) -> R:
            if names.keys() & kwargs.keys():
                return function(*args, **with_new_names(kwargs, names))
            return function(*args, **kwargs)

        return renaming

    return decorate
