"""The programs of docs/tools.md and examples/tools.py run as they stand."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from callboard import Approved, SessionMessageAppended, ToolContext, ToolResultBlock
from examples.tools import Folder, assist
from tests.book.snippets import DOCS, definitions
from tests.support.engines import keeping, registry, running
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

pytestmark = pytest.mark.anyio

SERVER = Path(__file__).parent / "engine" / "tools" / "mcp_server.py"

anyio_backend = runs_on("asyncio")


@pytest.fixture
def programs() -> dict[str, Any]:
    """Everything that the page's blocks define."""
    return definitions(DOCS / "tools.md")


def results(events: list[Any]) -> list[str]:
    """What tools answered, of everything published."""
    messages = [e.data.message for e in events if isinstance(e.data, SessionMessageAppended)]
    return [block.text for message in messages for block in message.content if isinstance(block, ToolResultBlock)]


async def test_the_first_program_asks_its_tool(programs: dict[str, Any]) -> None:
    """The model calls it, and gets JSON."""
    async with running(Say(calls=[("get_weather", {"city": "Rome"})]), Say("Yes.")) as (engine, events):
        assert await programs["ask"](engine, "s:m") == "Yes."
        assert results(events.take()) == ['{"city":"Rome","degrees":21,"unit":"celsius"}']


async def test_the_tool_with_a_context_tells_its_progress(programs: dict[str, Any]) -> None:
    """Its function runs alone, too."""
    copy = cast("Callable[..., str]", programs["copy_files"])
    assert copy(["a", "b"], ToolContext(tool_call_id="tu_1", tool_name="copy_files")) == "2 copied"


async def test_the_approving_program_denies_one_and_approves_the_other(programs: dict[str, Any]) -> None:
    """The hook decides about one, the program about the other."""
    calls = [("delete_file", {"path": "notes.txt"}), ("delete_file", {"path": "/etc/passwd"})]
    async with running(Say(calls=calls), Say("Done.")) as (engine, events):
        assert await programs["clean_up"](engine, "s:m") == "Done."
        assert results(events.take()) == ["The call was not approved: not there", "notes.txt is deleted"]


async def test_the_refund_is_made_once_whoever_runs_the_call(programs: dict[str, Any], tmp_path: Path) -> None:
    """Its process is gone when the refund is made; the one that resumes the session asks with the same key."""
    refunds: dict[str, str] = {}
    asked: list[str] = []

    def pay_back(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["idempotency-key"])
        return httpx.Response(200, json={"id": refunds.setdefault(asked[-1], f"re_{len(refunds) + 1}")})

    programs["payments"]._transport = httpx.MockTransport(pay_back)
    refund = programs["refund"]
    models = registry(Say(calls=[("refund", {"charge": "ch_1", "cents": 500})]), Say("Done."))
    async with keeping(tmp_path / "trace.db", models=models) as engine:
        session = engine.session("s:m", tools=[refund])
        await session.send("Refund ch_1.")
        (call,) = session.pending_calls
        lost = ToolContext(
            tool_call_id=call.id, tool_name="refund", session_id=session.id, messages=session.messages
        )
        await refund("ch_1", 500, lost)
    async with keeping(tmp_path / "trace.db", models=models) as engine:
        session = await engine.resume(session.id, tools=[refund])
        await session.submit({call.id: Approved()})
        assert session.messages[2].content == (ToolResultBlock(call.id, "re_1"),)
    assert len(asked) == 2
    assert list(refunds.values()) == ["re_1"]


async def test_the_program_with_a_server_calls_it(programs: dict[str, Any]) -> None:
    """Over a real server's process."""
    pytest.importorskip("mcp", reason="needs callboard[mcp]")
    program = cast("Callable[..., Awaitable[str]]", programs["with_server"])
    async with running(Say(calls=[("lib_find", {"title": "Emma"})]), Say("Found.")) as (engine, events):
        assert await program(engine, "s:m", [sys.executable, str(SERVER)]) == "Found."
        assert results(events.take()) == ["Emma x1"]


@pytest.mark.parametrize("may_write", [True, False])
async def test_the_example_reads_and_writes_only_with_leave(
    may_write: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tools work on their folder, a path outside is an error, and writing waits for an answer."""
    (tmp_path / "a.txt").write_text("alpha")
    script = [
        Say(calls=[("list_files", {}), ("read_file", {"path": "a.txt"}), ("read_file", {"path": "../x"})]),
        Say(calls=[("write_file", {"path": "b.txt", "text": "beta"})]),
        Say("That ", "was all."),
    ]
    async with running(*script) as (engine, events):
        await assist(engine, "s:m", Folder(tmp_path), "Copy a to b.", may_write=may_write)
        told = results(events.take())
    assert told[:3] == ['["a.txt"]', "alpha", "That path is outside the folder."]
    assert told[3] == ("written" if may_write else "The call was not approved: the user said no")
    assert (tmp_path / "b.txt").exists() is may_write
    printed = capsys.readouterr().out
    assert "[reading a.txt]" in printed
    assert printed.endswith("That was all.\n")
