"""The tool `ask` of an MCP server, for clients of the old and the new version of the protocol."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from callboard import Engine, Session, Tool, tool
from callboard.engine import mcp_service
from callboard.engine.mcp import ask as asking
from tests.support.scripted import ADD, CALLS_ADD, Say

from ...support.engines import running
from .test_served import NEW, ages

pytest.importorskip("mcp", reason="needs callboard[mcp]")

import mcp_types as types
from mcp.client import Client

pytestmark = pytest.mark.anyio
Progress = list[str | None]


@pytest.fixture(autouse=True)
def _every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "PROGRESS_SECONDS", 0.0)


@asynccontextmanager
async def asked(age: str, *replies: Say, tools: list[Tool] | None = None, **client: Any) -> AsyncIterator[Client]:
    """A client of a server. The server's conversations are sessions of a scripted model."""
    async with running(*replies) as (engine, _):
        service = mcp_service(session=conversations(engine, tools or []))
        async with Client(service._server, mode=age, **client) as found:
            yield found


def conversations(engine: Engine, tools: list[Tool]) -> Any:
    def opened(conversation: str | None) -> Session:
        if conversation is not None:
            raise asking.unknown_conversation(conversation)
        return engine.session("s:m", tools=tools)

    return opened


async def ask(client: Client, message: str, progress: Progress | None = None, **more: Any) -> dict[str, str]:
    async def note(done: float, total: float | None, said: str | None) -> None:
        if progress is not None:
            progress.append(said)

    result = await client.call_tool("ask", {"message": message, **more}, progress_callback=note)
    (part,) = result.content
    assert part.type == "text"
    found: dict[str, str] = json.loads(part.text)
    return found


@ages
async def test_the_text_and_the_tools_of_a_reply_are_progress(age: str) -> None:
    progress: Progress = []
    async with asked(age, CALLS_ADD, Say("It is ", "3."), tools=[ADD]) as client:
        answer = await ask(client, "1 + 2?", progress)
    assert answer["reply"] == "It is 3."
    assert progress[:2] == ["Let me see.", "Running add"]
    assert "".join(map(str, progress[2:])) == "It is 3."


async def test_a_conversation_continues_by_its_id_or_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_CONVERSATIONS", 2)
    async with asked(NEW, *(Say(str(number)) for number in range(4))) as client:
        first, second = [(await ask(client, "Hi"))["conversation"] for _ in range(2)]
        assert (await ask(client, "Go on", conversation=first))["conversation"] == first
        await ask(client, "Hi")
        result = await client.call_tool("ask", {"message": "Go on", "conversation": second})
        assert result.is_error
        assert f"there is no conversation {second!r}" in str(result.content)


@ages
async def test_a_client_that_cancels_its_call_cancels_the_turn(age: str) -> None:
    started, ended = anyio.Event(), anyio.Event()

    async def pause() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with asked(age, Say("never", pause=pause)) as client:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(ask, client, "Hi")
                await started.wait()
                group.cancel_scope.cancel()
            await ended.wait()


@ages
@pytest.mark.parametrize("action", ["accept", "decline"])
async def test_the_user_of_the_client_decides_about_the_sessions_tools(age: str, action: str) -> None:
    """The user answers two questions. A newer client calls again with each answer, and the turn continues."""
    ran, questions = list[int](), list[str]()

    @tool(needs_approval=True)
    def delete(number: int) -> str:
        """Delete a file.

        Args:
            number: Its number.
        """
        ran.append(number)
        return "deleted"

    async def answer(_: Any, params: Any) -> types.ElicitResult:
        questions.append(params.message)
        return types.ElicitResult(action=action, content={})

    replies = [Say(calls=[("delete", {"number": number})]) for number in range(2)]
    async with asked(age, *replies, Say("Done."), tools=[delete], elicitation_callback=answer) as client:
        assert (await ask(client, "Delete both."))["reply"] == "Done."
    assert questions == [f'May delete run with {{"number":{number}}}?' for number in range(2)]
    assert ran == ([0, 1] if action == "accept" else [])


@ages
async def test_without_elicitation_the_tool_call_is_refused(age: str) -> None:
    @tool(needs_approval=True)
    def delete() -> str:
        """Delete a file."""
        raise AssertionError

    async with asked(age, Say(calls=[("delete", {})]), Say("I can't."), tools=[delete]) as client:
        assert (await ask(client, "Delete it."))["reply"] == "I can't."


async def test_the_next_message_refuses_a_question_without_an_answer() -> None:
    """A newer client that never calls again leaves the tool call open."""

    @tool(needs_approval=True)
    def delete() -> str:
        """Delete a file."""
        raise AssertionError

    async def answer(*_: Any) -> types.ElicitResult:
        raise AssertionError

    script = [Say(calls=[("delete", {})]), Say("As you like."), Say("Hello.")]
    async with running(*script) as (engine, _):
        session = engine.session("s:m", tools=[delete])
        async with Client(
            mcp_service(session=session)._server, elicitation_callback=answer, input_required_max_rounds=0
        ) as client:
            with pytest.raises(RuntimeError, match="input"):
                await client.call_tool("ask", {"message": "Delete it."})
            assert session.pending_calls
            result = await client.call_tool("ask", {"message": "Hi"})
    assert [block.text for block in result.content if isinstance(block, types.TextContent)] == ["Hello."]
