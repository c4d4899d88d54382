"""Requests of popular programs, which `labs.clients` recorded, over each provider's wire.

Each is the third request of a conversation in which the program has read and edited a file. Each long text of the
programs is replaced by its length.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from callboard.adapters.conformance import FakeTransport
from callboard.adapters.http.adapter import HttpAdapter
from callboard.bus.values.content import ToolResultBlock
from callboard.bus.values.messages import Role
from callboard.engine.gateway.wire import ClientRequest, ClientWire
from tests.support.virtual_time import FakeClock
from tests.support.wires import AnthropicWire, ChatWire, ResponsesWire, Wire
from tests.support.wires.gemini import GeminiWire

FOLDER = Path(__file__).parent / "clients"


class Known(NamedTuple):
    """A program, its wire, and the facts of its request."""

    wire: str
    tools: int
    calls: tuple[str, str]


PROGRAMS = {
    "claude": Known("messages", 24, ("Read", "Edit")),
    "codex": Known("responses", 9, ("exec_command", "apply_patch")),
    "codex-code": Known("responses", 9, ("exec", "exec")),
    "gemini": Known("gemini", 16, ("read_file", "replace")),
    "opencode": Known("chat", 10, ("read", "edit")),
}
PROVIDERS: tuple[Wire, ...] = (AnthropicWire(), ResponsesWire(), ChatWire(), GeminiWire())

every_program = pytest.mark.parametrize("name", PROGRAMS)


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def read(name: str) -> tuple[ClientWire, ClientRequest]:
    sent, known = recorded(name), PROGRAMS[name]
    wire: ClientWire = import_module(f"callboard.engine.gateway.{known.wire}_replies").WIRE
    model = sent["path"].rpartition("/")[2].partition(":")[0] if known.wire == "gemini" else None
    return wire, wire.read_request(
        sent["body"], sent["headers"], model=model, stream="streamGenerateContent" in sent["path"]
    )


@every_program
def test_a_programs_request_is_read_with_all_its_tools_and_results(name: str) -> None:
    """In the conversation, the model's calls and their results alternate."""
    known = PROGRAMS[name]
    _, asked = read(name)
    request = asked.request
    assert asked.stream
    assert len(request.tools) == known.tools
    calls = [call for message in request.messages for call in message.tool_uses]
    assert tuple(call.name.rpartition("__")[2] for call in calls) == known.calls
    blocks = [block for message in request.messages if message.role is Role.TOOL for block in message.content]
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    assert [result.tool_use_id for result in results] == [call.id for call in calls]
    assert "This is the draft." in results[0].text
    assert bool(asked.session_hint) is (name != "gemini")  # its history identifies a conversation


@every_program
@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda wire: wire.name)
def test_a_programs_request_is_valid_for_every_provider(name: str, provider: Wire) -> None:
    """The request has all calls and results in pairs, in the forms of the vendor's types.

    To its own vendor, a program sends fields that the vendor's SDK has no types for.
    """
    wire, asked = read(name)
    adapter = provider.make(FakeTransport(), FakeClock())
    assert isinstance(adapter, HttpAdapter)
    request = msgspec.structs.replace(asked.request, request_id="r", model=f"{provider.name}:{provider.model}")
    body = adapter.write_request(request, stream=True).body
    assert provider.faults(body) == []
    if wire.protocol != provider.name:
        assert provider.judged(body) == []
    assert (body.count(b"This is the draft."), body.count(b"This is the final text.")) != (0, 0)
    if wire.protocol != provider.name:  # its own free-form calls have other ids
        assert len(provider.ids(msgspec.json.decode(body))[0]) == 2
