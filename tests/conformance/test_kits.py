"""Every adapter of our own passes the conformance kit."""

from __future__ import annotations

import pytest

from adapters.conformance import CHECKS, Check, Kit, run_check

from .scripted_kit import SCRIPTED
from .wires import QUIRKY, WIRES, ChatWire


def passes(kit: Kit, check: Check, backend: str) -> None:
    outcome = run_check(check, kit, backend)
    if outcome.result == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.result == "passed", outcome.reason


each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)


@pytest.mark.parametrize("backend", ["virtual-asyncio", "virtual-trio"])
@each_check
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_an_adapter_over_http_passes(wire: Kit, check: Check, backend: str) -> None:
    """On both event loops; what its provider can't show is skipped with the reason."""
    passes(wire, check, backend)


@each_check
@pytest.mark.parametrize("wire", QUIRKY, ids=lambda wire: wire.quirks)
def test_a_server_with_quirks_passes(wire: ChatWire, check: Check) -> None:
    """What differs in its requests changes nothing of what is promised."""
    passes(wire, check, "virtual-asyncio")


@pytest.mark.parametrize("backend", ["virtual-asyncio", "virtual-trio"])
@each_check
def test_the_scripted_adapter_passes(check: Check, backend: str) -> None:
    """Whose kit says scenes without HTTP."""
    passes(SCRIPTED, check, backend)
