"""A server of the newest protocol version over each transport, and an engine's tools as such a server."""

from __future__ import annotations

import contextvars
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.bus import ConfigurationError, RestartPolicy
from callboard.engine import (
    McpServers,
    McpServerSettings,
    SamplingRequest,
    Tool,
    ToolContext,
    mcp_servers,
    mcp_service,
    mcp_tools,
)
from tests.engine.tools.rounds import Told, call, result_of, run
from tests.support.depth import first_is_quick
from tests.support.engines import talking
from tests.support.present import present
from tests.support.programs import started
from tests.support.scripted import Say

pytest.importorskip("mcp", reason="needs callboard[mcp]")

pytestmark = pytest.mark.anyio
FOLDER = Path(__file__).parent
QUICK = RestartPolicy(max_failures=100, backoff_base=0.01, backoff_cap=0.1)


def named(servers: McpServers, name: str) -> Tool:
    return next(tool for tool in servers.tools if tool.name == name)


@contextmanager
def serving(kind: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    with started("from tests.engine.mcp.mcp_server import main; main()", kind, port) as process:
        try:
            yield process, int(present(process.stdout).readline())
        finally:
            process.kill()


def settings_of(kind: str, port: int) -> McpServerSettings:
    path = {"http": "mcp", "sse": "sse"}[kind]
    return McpServerSettings(url=f"http://127.0.0.1:{port}/{path}", type=kind)


@pytest.mark.parametrize("kind", first_is_quick(["sse", "http"], "test_one_server has a server over HTTP"))
async def test_a_restarted_server_behind_a_url_can_be_used_again(kind: str) -> None:
    """While the server is down, calls are error results with its name."""
    with serving(kind) as (process, port):
        async with mcp_servers({"far": settings_of(kind, port)}, restarts=QUICK) as servers:
            find = named(servers, "find")
            assert (await result_of(find, {"title": "Emma"})).text == "Emma x1"
            process.kill()
            process.wait()
            gone = await result_of(find, {"title": "Emma"})
            assert gone.is_error
            assert "The MCP server far stopped during this call" in gone.text
            with serving(kind, port):
                assert (await result_of(find, {"title": "Emma"})).text == "Emma x1"


async def test_an_elicitation_and_a_new_tool_of_a_newer_server() -> None:
    """An elicitation is a result that requests input. Changes arrive through a subscription."""
    command = McpServerSettings(command=sys.executable, args=[str(FOLDER / "mcp_server.py")])
    async with mcp_servers({"lib": command}, elicit=lambda _: {"name": "Emma"}) as servers:
        assert (await result_of(named(servers, "lend"))).text == "Emma (30)"
        replies = Say(calls=[("grow", {})]), Say(calls=[("fresh", {})]), Say("done")
        async with talking(*replies, tools=servers) as (session, _):
            await session.send("go", max_tool_rounds=2)
        assert session.messages[4].content[0].text == "fresh"  # type: ignore[union-attr]


# -- The call of a server's request.

turn: contextvars.ContextVar[str] = contextvars.ContextVar("turn", default="none")


async def test_a_servers_request_runs_in_the_context_of_the_call(tmp_path: Path) -> None:
    """A hook runs in the context of the tool call. With calls of two turns, it runs in neither context."""
    old = McpServerSettings(command=sys.executable, args=[str(FOLDER / "old_server.py"), "lib"])
    seen: list[tuple[str, str | None]] = []

    async def sample(request: SamplingRequest) -> str:
        seen.append((turn.get(), request.tool_name))
        return "a bird"

    async with mcp_servers({"lib": old}, sampling=sample) as servers:
        turn.set("first")
        asking, hanging = named(servers, "sample"), named(servers, "hang")
        await result_of(asking, {"text": "x"}, turn_id="a")
        async with anyio.create_task_group() as group:
            waiting = call("hang", {"mark": str(tmp_path / "mark")})
            group.start_soon(lambda: run([waiting], [hanging], turn_id="b"))
            await anyio.wait_all_tasks_blocked()
            await result_of(asking, {"text": "x"}, turn_id="a")
            group.cancel_scope.cancel()
    assert seen == [("first", "sample"), ("none", None)]


# -- Tools as a server.


async def add(a: int, context: ToolContext) -> int:
    """Add one.

    Args:
        a: A number.
    """
    context.progress("half", 0.5)
    return a + 1


async def test_tools_are_served_with_their_schema_progress_and_errors() -> None:
    events: Told = []
    async with mcp_tools(mcp_service([add])._server) as (tool,):
        assert (tool.name, tool.definition.description) == ("add", "Add one.")
        assert tool.definition.input_schema["required"] == ["a"]
        made = await run([call("add", {"a": 1})], [tool], events)
        assert made.results[0].text == "2"
        assert [getattr(event, "message", None) for event in events] == [None, "half", None]


async def test_one_session_is_served_to_all_clients() -> None:
    async with talking(Say("hello"), Say("again")) as (session, _):
        async with mcp_tools(mcp_service(session=session, name="x")._server) as (ask,):
            assert (await result_of(ask, {"message": "hi"})).text == "hello"
            assert (await result_of(ask, {"message": "more"})).text == "again"
        assert len(session.messages) == 4


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer right", "host": "evil.example"}, 421),
        ({"authorization": "Bearer right"}, 200),
    ],
    ids=["no token", "wrong token", "wrong host", "right"],
)
async def test_a_server_over_http_checks_the_token_and_the_host(headers: dict[str, str], status: int) -> None:
    import httpx2

    app = mcp_service([add]).http_app(token="right")
    info = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}
    sent = {"accept": "application/json, text/event-stream", "host": "localhost:8374", **headers}
    async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as client:
        reply = await client.post("http://localhost:8374/mcp", json=body, headers=sent)
    assert reply.status_code == status


def test_a_server_needs_something_to_serve() -> None:
    with pytest.raises(ConfigurationError, match="needs tools or a session"):
        mcp_service()
