"""Tools of a real MCP server: a process that uses the official library's server side."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from callboard.adapters import ImageBlock, TextBlock, ToolAnnotations
from callboard.bus import CallboardError, ConfigurationError, ToolProgress
from callboard.engine import Tool, mcp_tools
from tests.engine.tools.rounds import Told, call, result_of, run
from tests.support.engines import talking
from tests.support.logs import captured_logs
from tests.support.present import present
from tests.support.programs import started
from tests.support.scripted import Say
from tests.support.virtual_time import runs_on

pytest.importorskip("mcp", reason="needs callboard[mcp]")

from callboard.engine.mcp.values import legal_names

COMMAND = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]

anyio_backend = runs_on("asyncio", scope="module")


@pytest.fixture(scope="module")
async def tools() -> AsyncIterator[tuple[Tool, ...]]:
    """The tools of one server. Its start takes two seconds of CPU time, so tests share it."""
    async with mcp_tools(COMMAND) as found:
        yield found


def named(tools: tuple[Tool, ...], name: str) -> Tool:
    return next(tool for tool in tools if tool.name == name)


async def test_a_servers_tools_are_tools(tools: tuple[Tool, ...]) -> None:
    """A tool has a description, a schema and annotations. A call goes to the server and returns its text."""
    find = named(tools, "find")
    assert find.definition.description == "Find a book."
    assert find.definition.annotations == ToolAnnotations(read_only=True, open_world=False, title="Look it up")
    result = await result_of(find, {"title": "Emma", "arguments": 2})
    assert (result.content, result.is_error) == ("Emma x2", False)
    async with talking(Say(calls=[("find", {"title": "Emma"})]), Say("found"), tools=tools) as (session, _):
        assert (await session.send("go")).text == "found"
        assert "Emma x1" in str(session.messages[2].content)


@pytest.mark.deep("another start of a server")
async def test_a_name_that_models_do_not_accept_is_replaced() -> None:
    """The call uses the original name, and the warning has both names."""
    connection = mcp_tools(COMMAND)
    with captured_logs() as logged:
        tools = await connection.__aenter__()
    try:
        assert [(line["original"], line["name"]) for line in logged if "original" in line] == [
            ("admin.delete/book", "admin_delete_book")
        ]
        delete = named(tools, "admin_delete_book")
        assert delete.original_name == "admin.delete/book"  # type: ignore[attr-defined]
        assert (await result_of(delete, {"title": "Emma"})).text == "deleted Emma"
    finally:
        await connection.__aexit__(None, None, None)


async def test_images_structures_and_errors_keep_their_kind(tools: tuple[Tool, ...]) -> None:
    picture = await result_of(named(tools, "cover"))
    assert isinstance(picture.content, tuple)
    assert picture.content[0] == TextBlock("the cover:")
    assert isinstance(picture.content[1], ImageBlock)
    assert picture.content[1].media_type == "image/png"
    assert '"sum": 6' in (await result_of(named(tools, "count"), {"numbers": [1, 2, 3]})).text
    failed = await result_of(named(tools, "fail"))
    assert failed.is_error
    assert "out of paper" in failed.text


async def test_arguments_are_checked_before_the_call(tools: tuple[Tool, ...]) -> None:
    result = await result_of(named(tools, "count"), {"numbers": ["x"]})
    assert result.is_error
    assert "$.numbers[0]" in result.text


async def test_progress_and_cancellation_are_passed_on(tools: tuple[Tool, ...], tmp_path: Path) -> None:
    """An event has the server's progress. The server cancels its call when the caller cancels."""
    marks = tmp_path / "marks"
    begun = anyio.Event()
    events: Told = []

    class Hearing(list[object]):
        def append(self, event: object) -> None:
            events.append(event)  # type: ignore[arg-type]
            if isinstance(event, ToolProgress):
                begun.set()

    async with anyio.create_task_group() as group:
        slow = call("slow", {"marks": str(marks)})
        group.start_soon(run, [slow], [named(tools, "slow")], Hearing())
        await begun.wait()
        group.cancel_scope.cancel()
    assert [event for event in events if isinstance(event, ToolProgress)] == [
        ToolProgress(tool_use_id="tu_1", tool_name="slow", message="started", fraction=0.25)
    ]
    with anyio.fail_after(30):
        while not (marks.exists() and marks.read_text()):  # The server cancels the call some time later.
            await result_of(named(tools, "find"), {"title": "Emma"})
    assert marks.read_text() == "cancelled"


async def test_a_server_that_dies_is_an_error_for_the_model() -> None:
    """Later calls are errors too. Leaving the context raises nothing."""
    async with mcp_tools([sys.executable, str(Path(__file__).with_name("old_server.py")), "lib"]) as tools:
        died = await result_of(named(tools, "die_in_call"))
        assert died.is_error
        assert "stopped during this call" in died.text
        after = await result_of(named(tools, "echo"), {"text": "hi"})
        assert after.is_error
        assert "the server has stopped" in after.text
    assert "is closed" in (await result_of(named(tools, "echo"), {"text": "hi"})).text


@pytest.fixture
def url() -> Iterator[str]:
    with started("from tests.engine.mcp.mcp_server import main; main()", "http") as process:
        try:
            yield f"http://127.0.0.1:{int(present(process.stdout).readline())}/mcp"
        finally:
            process.kill()


async def test_a_server_behind_a_url_works_the_same(url: str) -> None:
    async with mcp_tools(
        url, headers={"Authorization": "Bearer x"}, prefix="lib_", include={"find"}.__contains__
    ) as tools:
        assert [tool.name for tool in tools] == ["lib_find"]
        assert (await result_of(tools[0], {"title": "Emma"})).text == "Emma x1"


@pytest.mark.parametrize(
    "server",
    [["/nowhere/at/all"], [sys.executable, "-c", "pass"], "http://user:secret@127.0.0.1:9/mcp?key=secret"],
    ids=["no command", "exits immediately", "no server"],
)
async def test_a_server_that_cannot_be_reached_is_an_error(server: object) -> None:
    """Entering raises one error, and the error has no secrets."""
    with pytest.raises(CallboardError, match="can't be reached") as caught:
        async with mcp_tools(server):
            pass
    assert "secret" not in str(caught.value)


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    with pytest.raises(CallboardError, match=r"no answer within 0\.01 s"):
        async with mcp_tools([sys.executable, "-c", "import sys; sys.stdin.read()"], connect_seconds=0.01):
            pass


async def test_a_command_in_one_string_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"as a list of its parts: \['npx', \.\.\.\]"):
        mcp_tools("npx server")


async def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.client", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'callboard\[mcp\]'"):
        mcp_tools(COMMAND)


def test_names_are_legal_and_different() -> None:
    """A legal name does not change. Names that would be equal get different names, in any order of the tools."""
    names = ["a.b", "a/b", "a_b", "ok-name", "1st", "x" * 80, "日本"]
    found = legal_names(names)
    assert found["ok-name"] == "ok-name"
    assert found["a_b"] == "a_b"
    assert found["1st"] == "t_1st"
    assert len(set(found.values())) == len(names)
    assert all(len(name) <= 64 for name in found.values())
    assert legal_names(reversed(names)) == {name: found[name] for name in reversed(names)}
