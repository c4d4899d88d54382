"""The checks as a test function for pytest, which is imported only here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .checking import CHECKS, Check, run_check
from .kit import Kit


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
