"""Every adapter of our own passes the conformance kit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.conformance import CHECKS, Check, Kit, ServedKit, run_check
from callboard.adapters.contract import AdapterCapabilities, AttemptObserver, CanonicalRequest
from callboard.adapters.replies.whole import WholeStream
from callboard.adapters.transport.transport import Transport
from callboard.bus.clock import Clock
from examples.adding_a_provider.kit import ParleyKit
from examples.adding_a_provider.parley import ParleyAdapter

from ..support.wires import KITS, QUIRKY, ChatWire
from .local_kits import LOCAL
from .scripted_kit import SCRIPTED


def passes(kit: Kit, check: Check, backend: str) -> None:
    outcome = run_check(check, kit, backend)
    if outcome.result == "skipped":
        pytest.skip(outcome.reason)
    assert outcome.result == "passed", outcome.reason


ROOT = Path(__file__).parents[2]

each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)


ON_TRIO = [check for check in CHECKS if "cancel" in check.name or check.name == "stream_and_complete_agree"]
"""What may differ between the event loops: a streamed and a whole call, and cancelling."""


@each_check
@pytest.mark.parametrize("wire", KITS, ids=lambda wire: wire.name)
def test_an_adapter_over_http_passes(wire: Kit, check: Check) -> None:
    """What its provider can't show is skipped with the reason."""
    passes(wire, check, "virtual-asyncio")


@pytest.mark.parametrize("check", ON_TRIO, ids=lambda check: check.name)
@pytest.mark.parametrize("wire", [*KITS, SCRIPTED], ids=lambda wire: wire.name)
def test_an_adapter_passes_on_trio(wire: Kit, check: Check) -> None:
    passes(wire, check, "virtual-trio")


@each_check
@pytest.mark.parametrize("wire", QUIRKY, ids=lambda wire: wire.quirks)
def test_a_server_with_quirks_passes(wire: ChatWire, check: Check) -> None:
    """What differs in its requests changes nothing of what is promised."""
    passes(wire, check, "virtual-asyncio")


@each_check
def test_the_scripted_adapter_passes(check: Check) -> None:
    """Whose kit says scenes without HTTP."""
    passes(SCRIPTED, check, "virtual-asyncio")


class ServedParley(ServedKit, ParleyKit):
    """Parley over real sockets."""


@each_check
def test_an_adapter_with_a_client_of_its_own_passes(check: Check) -> None:
    """Against a real server on this machine."""
    passes(ServedParley(), check, "asyncio")


def test_nobody_pays_for_the_kit_who_does_not_use_it() -> None:
    """The adapters and the engine don't import it; it loads no test framework and no other event loop."""
    code = "import sys, {}; print(*sys.modules)"
    found: dict[str, set[str]] = {}
    for package in ("callboard", "callboard.adapters.conformance"):
        run = subprocess.run(
            [sys.executable, "-c", code.format(package)], cwd=ROOT, capture_output=True, text=True, check=True
        )
        found[package] = set(run.stdout.split())
    assert not {name for name in found["callboard"] if "callboard.adapters.conformance" in name}
    assert not found["callboard.adapters.conformance"] & {"pytest", "trio", "httpx", "hypothesis"}


@each_check
@pytest.mark.parametrize("wire", LOCAL, ids=lambda wire: wire.name)
def test_the_local_model_passes(wire: Kit, check: Check) -> None:
    """By each of its protocols, over a server that is a script."""
    passes(wire, check, "virtual-asyncio")


class Bare:
    """Parley with the contract's methods and nothing else, and no streaming."""

    name = "parley"

    def __init__(self, config: AdapterConfig, *, transport: Transport, clock: Clock) -> None:
        self._inner = ParleyAdapter(config, transport=transport, clock=clock)
        self.capabilities = msgspec.structs.replace(
            self._inner.capabilities, supports_streaming=False, supports_streaming_tool_calls=False
        )
        self.complete = self._inner.complete
        self.cancel = self._inner.cancel
        self.close = self._inner.close
        self.estimate_input_tokens = self._inner.estimate_input_tokens

    def get_capabilities(self, model: str) -> AdapterCapabilities:
        return self.capabilities

    def stream(self, request: CanonicalRequest, *, on_attempt: AttemptObserver | None = None) -> WholeStream:
        return WholeStream(self, request, request.message_id or self._inner.clock.new_id("msg"), on_attempt)


class BareKit(ParleyKit):
    adapter = Bare
    streams = False


@each_check
def test_an_adapter_without_hooks_or_streaming_passes(check: Check) -> None:
    """What it can't show is skipped; what it promises all the same is checked."""
    passes(BareKit(), check, "virtual-asyncio")
