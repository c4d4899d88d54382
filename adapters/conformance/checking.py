"""A check, and what running it comes to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import anyio

from .kit import Kit, NotShown
from .virtual_time import run_virtual

LIMIT_SECONDS = 3600.0
"""Virtual time after which a check that waits is said to hang."""

REAL_LIMIT_SECONDS = 60.0
"""The same for a kit on real time."""

Body: TypeAlias = Callable[[Kit], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """One sentence of behaviour."""

    name: str
    """The name of the check."""
    sentence: str
    """The sentence."""
    section: str
    """The section of the contract."""
    proves: str
    """The point of the checklist for new providers."""
    body: Body = field(repr=False)
    """The function that checks a kit."""


@dataclass(frozen=True)
class Outcome:
    """The result of a check."""

    check: Check
    """The check."""
    result: Literal["passed", "failed", "skipped"]
    """The result."""
    reason: str = ""
    """The reason why it was skipped, or the behaviour that was found instead."""
    error: BaseException | None = field(default=None, repr=False)
    """The exception of a check that failed."""


CHECKS: list[Check] = []
"""All checks, in the order in which they are run."""


def check(section: str, proves: str = "") -> Callable[[Body], Body]:
    """Make a check of a function, whose docstring's first line is its sentence."""

    def add(body: Body) -> Body:
        doc = body.__doc__ or ""
        name = getattr(body, "__name__", "")
        CHECKS.append(Check(name, doc.strip().splitlines()[0].rstrip("."), section, proves, body))
        return body

    return add


def run_check(one: Check, kit: Kit, backend: str = "virtual-asyncio") -> Outcome:
    """Run one check, on virtual time unless the kit needs the real one. Raises nothing that an adapter raises."""
    limit = REAL_LIMIT_SECONDS if kit.real_time else LIMIT_SECONDS

    async def body() -> None:
        with anyio.fail_after(limit):
            await one.body(kit)

    try:
        run_virtual(body, "asyncio" if kit.real_time else backend)
    except Exception as error:
        cause = _only(error)
        match cause:
            case NotShown():
                return Outcome(one, "skipped", str(cause))
            case AssertionError():
                return Outcome(one, "failed", str(cause) or "an assertion failed", cause)
            case TimeoutError():
                return Outcome(one, "failed", "it hangs: nothing more happens", cause)
            case _:
                return Outcome(one, "failed", f"raised {type(cause).__name__}: {cause}", cause)
    return Outcome(one, "passed")


def run_checks(kit: Kit, backend: str = "virtual-asyncio") -> list[Outcome]:
    """Run all checks."""
    return [run_check(one, kit, backend) for one in CHECKS]


def _only(error: BaseException) -> BaseException:
    """The exception inside a task group's. Of several, a failed assertion comes first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [_only(each) for each in error.exceptions]
    return next((each for each in inner if isinstance(each, AssertionError)), inner[0])
