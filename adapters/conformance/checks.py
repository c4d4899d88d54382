"""Checks, their results, and the table and checklist of results."""

from __future__ import annotations

import textwrap
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import anyio

from .kit import Kit, NotShown, run_virtual

LIMIT_SECONDS = 3600.0
"""The virtual seconds after which a check is reported as hanging."""

REAL_LIMIT_SECONDS = 60.0
"""The real seconds after which a check is reported as hanging, if the kit runs in real time."""

Body: TypeAlias = Callable[[Kit], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """A check of one required behaviour."""

    name: str
    sentence: str
    """The behaviour, as one sentence."""
    section: str
    """The section of the contract."""
    proves: str
    """The point of the new-provider checklist that the check proves."""
    body: Body = field(repr=False)
    """The function that checks a kit."""


@dataclass(frozen=True)
class Outcome:
    """The result of a check."""

    check: Check
    result: Literal["passed", "failed", "skipped"]
    reason: str = ""
    """The reason why the check was skipped or failed; empty if it passed."""
    error: BaseException | None = field(default=None, repr=False)
    """The exception of a check that failed."""


CHECKS: list[Check] = []
"""All checks in the order of running."""


def check(section: str, proves: str = "") -> Callable[[Body], Body]:
    """Register a function as a check. The first line of the function's docstring is the check's sentence."""

    def add(body: Body) -> Body:
        doc = body.__doc__ or ""
        name = getattr(body, "__name__", "")
        CHECKS.append(Check(name, doc.strip().splitlines()[0].rstrip("."), section, proves, body))
        return body

    return add


def run_check(one: Check, kit: Kit, backend: str = "virtual-asyncio") -> Outcome:
    """Run one check, on virtual time unless the kit needs real time. Exceptions of the adapter are not raised."""
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
                return Outcome(one, "failed", "it hangs", cause)
            case _:
                return Outcome(one, "failed", f"raised {type(cause).__name__}: {cause}", cause)
    return Outcome(one, "passed")


def run_checks(kit: Kit, backend: str = "virtual-asyncio") -> list[Outcome]:
    """Run all checks."""
    return [run_check(one, kit, backend) for one in CHECKS]


def _only(error: BaseException) -> BaseException:
    """Return the exception inside an exception group. If there are several, prefer a failed assertion."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [_only(each) for each in error.exceptions]
    return next((each for each in inner if isinstance(each, AssertionError)), inner[0])


# --- Results for people ---

SECTIONS = {
    "3.1": "methods",
    "3.2": "request",
    "3.4": "capabilities",
    "4": "reply",
    "4.1": "translation",
    "4.4": "history",
    "5.2": "streaming",
    "5.3": "invariants",
    "5.4": "cancelling",
    "5.5": "fragments",
    "6.1": "errors",
    "6.2": "errors",
    "6.3": "errors",
    "6.4": "retries",
    "6.5": "late errors",
    "7": "usage",
    "8": "keys",
    "10": "agreement",
}
"""The subject of each section of the contract; docs/adding-a-provider.md explains them."""

CHECKLIST = (
    "Model mapping defined",
    "Tool definition format implemented and tested",
    "Message conversion (both directions) implemented and tested",
    "System prompt format handled",
    "Tool choice mapping implemented",
    "Streaming adapter implemented and tested",
    "Error normalisation implemented",
    "Strict schema transformation (if applicable)",
    "Retry configuration tuned",
    "Full integration test suite passing",
)
"""Points of the new-provider checklist that checks can prove."""

BY_HAND = (
    "Behaviour compensations identified and implemented",
    "Provider-specific prompt addendum written",
    "Tool count threshold determined",
)
"""Points of the checklist that need the real provider."""

WIDTH = 110


def table(outcomes: Sequence[Outcome]) -> str:
    """One line for each check, failures below it, and the totals."""
    lines: list[str] = []
    for outcome in outcomes:
        check = outcome.check
        about = SECTIONS.get(check.section, "")
        head = f"{outcome.result:<8}{check.section:<5}{about:<14}"
        wrapped = textwrap.wrap(check.sentence, WIDTH - len(head))
        lines.append(head + wrapped[0])
        lines += [" " * len(head) + line for line in wrapped[1:]]
        if outcome.reason:
            reason = f"{check.name}: {_short(outcome.reason)}" if outcome.result == "failed" else outcome.reason
            lines += [" " * len(head) + f"  {line}" for line in textwrap.wrap(reason, WIDTH - len(head) - 2)]
    counts = {result: sum(outcome.result == result for outcome in outcomes) for result in _RESULTS}
    lines.append(", ".join(f"{count} {result}" for result, count in counts.items()))
    return "\n".join(lines)


_RESULTS = ("passed", "failed", "skipped")


def _short(reason: str) -> str:
    return reason if len(reason) <= 600 else reason[:600] + "..."


def checklist(outcomes: Iterable[Outcome]) -> str:
    """The new-provider checklist: proved, not proved (with the checks), or to be decided by hand."""
    outcomes = list(outcomes)
    lines = []
    for point in CHECKLIST:
        all_points = point == CHECKLIST[-1]
        of_point = [outcome for outcome in outcomes if all_points or outcome.check.proves == point]
        failed = [outcome.check.name for outcome in of_point if outcome.result == "failed"]
        skipped = sorted({outcome.reason for outcome in of_point if outcome.result == "skipped"})
        if failed:
            lines.append(f"[ ] {point}: failed, {', '.join(failed[:4])}{' ...' if len(failed) > 4 else ''}")
        elif all(outcome.result == "skipped" for outcome in of_point):
            lines.append(f"[-] {point}: {'; '.join(skipped) or 'not checked'}")
        else:
            lines.append(f"[x] {point}")
    lines += [f"[?] {point}: check by hand" for point in BY_HAND]
    return "\n".join(lines)


def checks_of(kit: Kit, *, backends: Sequence[str] = ("virtual-asyncio",)) -> Callable[..., None]:
    """A test function with one test for each check. Assign it to a name that starts with ``test_``.

    Args:
        kit: The kit.
        backends: The event loops to run on; ``virtual-trio`` needs trio.
    """
    import pytest

    @pytest.mark.parametrize("backend", backends)
    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
    def test_conformance(check: Check, backend: str) -> None:
        outcome = run_check(check, kit, backend)
        if outcome.result == "skipped":
            pytest.skip(outcome.reason)
        if outcome.result == "failed":
            raise AssertionError(f"{check.sentence} ({check.section}): {outcome.reason}") from outcome.error

    return test_conformance
