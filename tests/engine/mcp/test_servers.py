"""Several MCP servers of a host, as real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard.adapters import Role, TextBlock
from callboard.bus import CallboardError, RestartPolicy
from callboard.bus.events.operation import ActorStopped as ActorStoppedEvent
from callboard.engine import (
    Elicitation,
    McpServers,
    McpServerSettings,
    SamplingRequest,
    Tool,
    ToolContext,
    mcp_servers,
)
from tests.engine.tools.rounds import result_of
from tests.support.engines import running, talking
from tests.support.logs import captured_logs
from tests.support.scripted import Say

pytest.importorskip("mcp", reason="needs callboard[mcp]")

pytestmark = pytest.mark.anyio
OLD = str(Path(__file__).with_name("old_server.py"))
QUICK = RestartPolicy(max_failures=3, backoff_base=0.001, backoff_cap=0.001)


def old(name: str, *options: str, **settings: Any) -> McpServerSettings:
    return McpServerSettings(command=sys.executable, args=[OLD, name, *options], **settings)


@asynccontextmanager
async def one(*options: str, settings: dict[str, Any] | None = None, **more: Any) -> AsyncIterator[McpServers]:
    """A server with the name "lib"."""
    more.setdefault("restarts", QUICK)
    async with mcp_servers({"lib": old("lib", *options, **(settings or {}))}, **more) as servers:
        yield servers


def named(servers: McpServers, name: str) -> Tool:
    return next(tool for tool in servers.tools if tool.name == name)


async def text_of(servers: McpServers, name: str, arguments: dict[str, Any] | None = None) -> str:
    return (await result_of(named(servers, name), arguments)).text


# -- The tools of several servers.


async def test_a_name_of_two_servers_gets_the_servers_name_as_a_prefix() -> None:
    settings = {"one": old("one", "--tools", "echo,left"), "two": old("two", "--tools", "echo,right")}
    async with mcp_servers(settings) as servers:
        assert [tool.name for tool in servers] == ["one_echo", "left", "two_echo", "right"]
        assert await text_of(servers, "two_echo", {"text": "hi"}) == "two: hi"
        assert [status.tools for status in servers.status()] == [("one_echo", "left"), ("two_echo", "right")]
    async with mcp_servers({"one": settings["one"]}, prefix="always") as servers:
        assert [tool.name for tool in servers] == ["one_echo", "one_left"]


async def test_allowed_tools_are_offered_unless_they_are_denied() -> None:
    async with one(settings={"allow": ["die_*", "echo"], "deny": ["*_in_call"]}) as servers:
        assert [tool.name for tool in servers] == ["echo", "die_after_call"]


async def test_a_tool_of_the_host_takes_precedence() -> None:
    def echo(text: str) -> str:
        """The host's tool."""
        return f"mine: {text}"

    async with one("--tools", "echo,left") as servers:
        with captured_logs() as logged:
            replies = Say(calls=[("echo", {"text": "hi"})]), Say("done")
            async with talking(*replies, tools=[servers, echo]) as (session, _):
                await session.send("go")
        assert session.messages[2].content[0].text == "mine: hi"  # type: ignore[union-attr]
        assert [line["tool"] for line in logged if line["event"] == "tool_left_out"] == ["echo"]


@pytest.mark.parametrize("fork", [False, True], ids=["session", "fork"])
async def test_a_changed_list_of_tools_is_followed_between_the_steps_of_a_turn(fork: bool) -> None:
    """A tool that a call adds can be called in the next step of the same turn."""
    replies = Say(calls=[("add_tool", {"name": "fresh"})]), Say(calls=[("fresh", {"text": "x"})]), Say("done")
    async with one() as servers, talking(*replies, tools=servers) as (session, _):
        if fork:
            session = session.fork()
        assert (await session.send("go", max_tool_rounds=2)).text == "done"
        assert session.messages[4].content[0].text == "lib ran fresh"  # type: ignore[union-attr]
        assert "fresh" in [tool.name for tool in session.tools]


# -- Servers that die.


async def test_a_server_that_dies_in_a_call_is_an_error_for_the_model_and_restarts() -> None:
    """The next call waits for the restart, and runs in another process."""
    async with one() as servers:
        first = await text_of(servers, "pid")
        died = await result_of(named(servers, "die_in_call"))
        assert died.is_error
        assert died.text == (
            "The MCP server lib stopped during this call, which may have been carried out in part or in full."
        )
        assert await text_of(servers, "pid") != first


@pytest.mark.parametrize("how", ["after a call", "between calls"])
async def test_a_server_that_dies_between_calls_is_not_noticed_by_the_model(how: str) -> None:
    async with one() as servers:
        if how == "after a call":
            assert await text_of(servers, "die_after_call") == "last words"
        else:
            os.kill(int(await text_of(servers, "pid")), signal.SIGKILL)
        result = await result_of(named(servers, "echo"), {"text": "hi"})
        if result.is_error:  # The call was sent before the death was detected.
            assert "stopped during this call" in result.text
            result = await result_of(named(servers, "echo"), {"text": "hi"})
        assert result.text == "lib: hi"


async def test_other_servers_work_when_one_has_failed() -> None:
    """The error has the last stderr text of the command. `restart` starts the server again."""
    settings = {"good": old("good", "--tools", "echo"), "bad": old("bad", "--crash")}
    async with running() as (engine, _), engine.bus.subscribe("actor.stopped") as stops:
        async with mcp_servers(settings, engine=engine, restarts=QUICK) as servers:
            async for stop in stops:
                assert isinstance(stop.data, ActorStoppedEvent)
                assert (stop.data.actor, stop.data.reason) == ("mcp bad", "restart limit")
                break
            bad = next(status for status in servers.status() if status.name == "bad")
            assert (bad.state, bad.tools) == ("failed", ())
            assert "no paper in the printer" in str(bad.error)
            assert await text_of(servers, "echo", {"text": "hi"}) == "good: hi"
            with pytest.raises(CallboardError, match=r"bad has failed and is not restarted: .*no paper"):
                await servers.server("bad").list_resources()
            await servers.restart("bad")
            assert servers.server("bad").state != "closed"


async def test_a_server_that_failed_at_its_first_start_offers_its_tools_later(tmp_path: Path) -> None:
    async with one("--crash-until", str(tmp_path / "mark")) as servers:
        assert await servers.server("lib").instructions() == "Use lib well."
        assert "echo" in [tool.name for tool in servers]


async def test_servers_are_part_of_the_engines_supervision() -> None:
    async with running() as (engine, _):
        async with one("--tools", "echo", engine=engine):
            tree = engine.statistics().supervisor
            assert tree is not None
            below = next(child.supervisor for child in tree.children if child.name == "mcp servers")
            assert below is not None
            assert [(child.name, child.phase) for child in below.children] == [("mcp lib", "running")]
        tree = engine.statistics().supervisor
        assert tree is not None
        assert "mcp servers" not in [child.name for child in tree.children]


async def test_an_engine_that_ends_first_ends_its_servers() -> None:
    """Closing the servers afterwards raises nothing, and calls of the tools fail."""
    async with running() as (engine, _):
        servers = await mcp_servers({"lib": old("lib")}, engine=engine).__aenter__()
        tool = named(servers, "echo")
        await engine.aclose()
        await servers.aclose()
        assert "is closed" in (await result_of(tool, {"text": "hi"})).text


async def test_a_servers_own_time_limit_ends_a_call(tmp_path: Path) -> None:
    async with one(settings={"timeout": 0.05}) as servers:
        late = await result_of(named(servers, "hang"), {"mark": str(tmp_path / "mark")})
        assert (late.is_error, late.text) == (True, "The tool took longer than 0.05 s.")
        assert await text_of(servers, "pid") != ""


async def test_servers_open_once() -> None:
    servers = mcp_servers({"lib": old("lib")})
    async with servers:
        with pytest.raises(CallboardError, match="already been opened"):
            await servers.__aenter__()
        assert await text_of(servers, "echo", {"text": "hi"}) == "lib: hi"
    with pytest.raises(CallboardError, match="already been opened"):
        await servers.__aenter__()


async def test_a_server_that_accepts_only_initialize_first_can_be_used() -> None:
    async with one("--strict") as servers:
        assert await text_of(servers, "echo", {"text": "hi"}) == "lib: hi"


# -- Long results.


async def test_a_long_result_is_cut_for_the_model_and_stored_completely(tmp_path: Path) -> None:
    async with one(settings={"max_result_chars": 40}, results_folder=tmp_path) as servers:
        cut = await text_of(servers, "big", {"size": 1000})
        path = tmp_path / "tu_1.txt"
        note = f"(... 960 characters are left out here. The whole is in the file {path}.)"
        assert cut == "a" * 30 + f"\n{note}\n" + "a" * 7 + "end"
        assert servers.whole_result("tu_1") == path.read_text() == "a" * 997 + "end"


# -- Requests of a server.


ANSWERS: list[tuple[Any, Any]] = [
    ({"name": "Emma"}, {"action": "accept", "content": {"name": "Emma", "age": 30}}),
    ("decline", {"action": "decline"}),
    (None, {"action": "decline"}),
    ("cancel", {"action": "cancel"}),
    ({"name": 5}, "does not follow the schema"),
]
"""Answers of a host to a form, and the texts that the server gets."""


async def test_an_elicitation_goes_to_the_hosts_hook() -> None:
    """Defaults fill in missing fields. An answer that does not follow the schema is an error. A page to open is an
    elicitation, too.
    """
    asked: list[Elicitation] = []
    answers = [answer for answer, _ in ANSWERS] + ["accept"]

    async def elicit(question: Elicitation) -> Any:
        asked.append(question)
        return answers.pop(0)

    async with one(elicit=elicit) as servers:
        for _, seen in ANSWERS:
            text = await text_of(servers, "ask", {"mode": "form"})
            assert seen in text if isinstance(seen, str) else json.loads(text) == seen
        assert json.loads(await text_of(servers, "ask", {"mode": "url"})) == {"action": "accept"}
    *forms, page = asked
    assert {(each.server, each.message, each.tool_name) for each in forms} == {("lib", "Who?", "ask")}
    assert (page.url, page.schema) == ("https://example.com/", None)


async def test_a_sampling_request_is_a_child_of_the_turn() -> None:
    """The cost of the request is in the cost of the tree, and not in the turn's own cost."""
    replies = Say(calls=[("sample", {"text": "What sings?"})]), Say("a bird"), Say("done")
    async with running(*replies) as (engine, _), one(engine=engine, sampling="s:m") as servers:
        result = await engine.generate("s:m", "go", tools=servers)
        sampled = json.loads(result.messages[2].content[0].text)  # type: ignore[union-attr]
        assert (sampled["content"], sampled["stopReason"]) == ({"type": "text", "text": "a bird"}, "endTurn")
        assert (result.cost_sum.calls, result.tree_cost.calls) == (2, 3)


async def test_a_host_can_refuse_a_sampling_request() -> None:
    seen: list[SamplingRequest] = []

    async with one(sampling=seen.append) as servers:  # type: ignore[arg-type]
        reply = json.loads(await text_of(servers, "sample", {"text": "What sings?"}))
    assert reply["code"] == -1
    assert seen[0].messages[0].role is Role.USER
    assert (seen[0].system_prompt, seen[0].max_output_tokens, seen[0].tool_name) == ("Be short.", 50, "sample")


async def test_roots_are_sent_and_changed(tmp_path: Path) -> None:
    async with one(roots=[tmp_path, "file:///srv/a"]) as servers:
        assert json.loads(await text_of(servers, "roots")) == [tmp_path.as_uri(), "file:///srv/a"]
        await servers.set_roots([])
        assert json.loads(await text_of(servers, "roots")) == []


async def test_log_messages_are_forwarded() -> None:
    heard: list[tuple[str, object]] = []
    with captured_logs() as logged:
        async with one(on_log=lambda message: heard.append((message.level, message.data))) as servers:
            await text_of(servers, "say", {"level": "warning", "text": "low on paper"})
            await text_of(servers, "echo", {"text": "hi"})
    assert heard == [("warning", "low on paper")]
    assert "low on paper" in [line.get("data") for line in logged]


async def test_resources_and_prompts_are_listed_and_read() -> None:
    async with one() as servers:
        server = servers.server("lib")
        assert [each.uri for each in await server.list_resources()] == ["note:1"]
        assert [each.uri for each in await server.list_resource_templates()] == ["note:{id}"]
        assert await server.read_resource("note:7") == (TextBlock("note note:7"),)
        (prompt,) = await server.list_prompts()
        assert [(each.name, each.required) for each in prompt.arguments] == [("book", True)]
        (message,) = await server.get_prompt("review", {"book": "Emma"})
        assert (message.role, message.text) == (Role.USER, "Review Emma")


# -- Other hosts.


def test_a_program_without_an_event_loop_uses_servers() -> None:
    with mcp_servers({"lib": old("lib")}) as servers:
        tool = named(servers, "echo")
        context = ToolContext(tool_call_id="tu_1", tool_name="echo")

        async def use() -> object:  # The call runs on another event loop than the servers'.
            assert tool.execute is not None
            return await tool.execute({"text": "hi"}, context=context)  # type: ignore[misc]

        assert anyio.run(use) == "lib: hi"
