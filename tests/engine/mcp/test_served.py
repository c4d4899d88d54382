"""Tools, resources and prompts of a program as an MCP server, for clients of the old and the new protocol."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from callboard import DocumentBlock, ImageBlock, McpServerSettings, Message, Role, TextBlock, mcp_servers, tool
from callboard.bus import ConfigurationError
from callboard.engine import McpService, mcp_service

pytest.importorskip("mcp", reason="needs callboard[mcp]")

from mcp import MCPError
from mcp.client import Client

pytestmark = pytest.mark.anyio
OLD_SERVER = Path(__file__).parent / "old_server.py"
PNG = b"\x89PNG\r\n\x1a\n"
OLD, NEW = "legacy", "auto"
ages = pytest.mark.parametrize("age", [OLD, NEW])


class Heard:
    """The notifications that a client has received."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self._came = anyio.Event()

    async def notification(self, message: Any) -> None:
        self.note(message.method)

    def note(self, method: str) -> None:
        self.methods.append(method)
        self._came.set()
        self._came = anyio.Event()

    async def at_least(self, count: int) -> list[str]:
        while len(self.methods) < count:
            await self._came.wait()
        return self.methods


EVENTS = {
    "ToolsListChanged": "notifications/tools/list_changed",
    "PromptsListChanged": "notifications/prompts/list_changed",
    "ResourcesListChanged": "notifications/resources/list_changed",
    "ResourceUpdated": "notifications/resources/updated",
}


@asynccontextmanager
async def client_of(service: McpService, age: str, heard: Heard | None = None) -> AsyncIterator[Client]:
    """A client. An old client receives all changes, and a new client subscribes to changes."""
    handler = None if heard is None or age == NEW else heard.notification
    async with Client(service._server, mode=age, message_handler=handler) as client:
        if heard is None or age == OLD:
            yield client
            return
        async with anyio.create_task_group() as group:
            listens = anyio.Event()

            async def listen() -> None:
                async with client.listen(
                    tools_list_changed=True,
                    prompts_list_changed=True,
                    resources_list_changed=True,
                    resource_subscriptions=["note:1"],
                ) as events:
                    listens.set()
                    async for event in events:
                        heard.note(EVENTS[type(event).__name__])

            group.start_soon(listen)
            await listens.wait()
            yield client
            group.cancel_scope.cancel()


def add(a: int) -> int:
    """Add one.

    Args:
        a: A number.
    """
    return a + 1


# -- Changes.


@ages
async def test_a_tool_that_changes_the_lists_announces_them(age: str) -> None:
    """Each changed list is announced once, and the unchanged lists are not announced."""
    notes: dict[str, object] = {}
    prompts: list[Any] = []

    def grow() -> str:
        """Grow."""
        notes["note:1"] = "A note."
        prompts.append(add)
        return "grown"

    heard = Heard()
    async with client_of(mcp_service([grow], resources=notes, prompts=prompts), age, heard) as client:
        await client.call_tool("grow", {})
        assert await heard.at_least(2) == [EVENTS["ResourcesListChanged"], EVENTS["PromptsListChanged"]]
        assert [each.uri for each in (await client.list_resources()).resources] == ["note:1"]


@pytest.mark.filterwarnings("ignore:resources/.*subscribe is removed")
@ages
async def test_a_change_at_another_time_is_announced_by_the_program(age: str) -> None:
    """The program announces a list, or a resource to the clients that have subscribed to it."""
    heard = Heard()
    service = mcp_service([add], resources={"note:1": "one", "note:2": "two"})
    async with client_of(service, age, heard) as client:
        if age == OLD:
            await client.subscribe_resource("note:1")
        await service.announce("resources", "note:2")
        await service.announce("resources", "note:1")
        await service.announce("tools")
        assert await heard.at_least(2) == [EVENTS["ResourceUpdated"], EVENTS["ToolsListChanged"]]
        if age == OLD:
            await client.unsubscribe_resource("note:1")
            await service.announce("resources", "note:1")
            await service.announce("tools")
            assert (await heard.at_least(3))[2] == EVENTS["ToolsListChanged"]


@ages
async def test_changed_tools_of_other_servers_are_announced(age: str) -> None:
    """The client gets the announcement even if no client calls a tool."""
    settings = McpServerSettings(command=sys.executable, args=[str(OLD_SERVER), "lib", "--tools", "add_tool"])
    heard = Heard()
    async with mcp_servers({"lib": settings}) as servers:
        async with client_of(mcp_service(servers), age, heard) as client:
            assert servers.tools[0].execute is not None
            await servers.tools[0].execute({"name": "fresh"}, context=None)
            assert (await heard.at_least(1))[0] == EVENTS["ToolsListChanged"]
            assert "fresh" in [each.name for each in (await client.list_tools()).tools]


# -- Resources.


@ages
async def test_resources_are_texts_data_files_and_functions(age: str, tmp_path: Path) -> None:
    """A file's name decides its type. A function's docstring describes its resource."""
    file = tmp_path / "table.csv"
    file.write_text("a,b")

    async def note(name: str) -> dict[str, str]:
        """A note about a person.

        Made up.
        """
        return {"about": name}

    resources = {
        "app:text": "Hello.",
        "app:data": PNG,
        "app:image": lambda: ImageBlock(data=PNG),
        "app:file": file,
        "app:notes/{name}": note,
        "app:tree/{+path}": lambda path: path,
    }
    async with client_of(mcp_service(resources=resources), age) as client:
        listed = (await client.list_resources()).resources
        templates = (await client.list_resource_templates()).resource_templates

        async def read(uri: str) -> tuple[Any, ...]:
            (found,) = (await client.read_resource(uri)).contents
            return found.uri, found.mime_type, getattr(found, "text", None) or type(found).__name__

        assert [each.uri for each in listed] == ["app:text", "app:data", "app:image", "app:file"]
        assert [each.uri_template for each in templates] == ["app:notes/{name}", "app:tree/{+path}"]
        assert (templates[0].name, templates[0].description) == ("note", "A note about a person.")
        assert await read("app:text") == ("app:text", "text/plain", "Hello.")
        assert await read("app:data") == ("app:data", "application/octet-stream", "BlobResourceContents")
        assert await read("app:image") == ("app:image", "image/png", "BlobResourceContents")
        assert await read("app:file") == ("app:file", "text/csv", "a,b")
        assert await read("app:notes/Emma") == ("app:notes/Emma", "application/json", '{"about":"Emma"}')
        assert await read("app:tree/a/b") == ("app:tree/a/b", "text/plain", "a/b")
        with pytest.raises(MCPError, match="there is no resource app:notes/a/b") as raised:
            await read("app:notes/a/b")
        assert raised.value.error.data == {"uri": "app:notes/a/b"}


async def test_a_resource_that_fails_is_an_error_for_the_client() -> None:
    async with client_of(mcp_service(resources={"app:x": lambda: 1 / 0}), NEW) as client:
        with pytest.raises(MCPError, match="the resource app:x failed: ZeroDivisionError"):
            await client.read_resource("app:x")


@pytest.mark.parametrize("value", ["a text", lambda: "x", lambda name: "x"], ids=["text", "no variable", "other"])
def test_a_template_needs_a_function_of_its_variables(value: object) -> None:
    with pytest.raises(ConfigurationError, match="resource app:"):
        mcp_service(resources={"app:{id}": value})


# -- Prompts.


@ages
async def test_prompts_are_functions_whose_parameters_are_the_arguments(age: str) -> None:
    """A prompt's result is a text, blocks, or messages. Literal values complete an argument."""

    def review(book: str, tone: Literal["kind", "keen", "harsh"] = "kind") -> str:
        """Review a book.

        Args:
            book: The book.
            tone: The tone.
        """
        return f"Review {book}, {tone}."

    async def example() -> list[Message]:
        """An example."""
        document = DocumentBlock(data=b"Emma.", media_type="text/plain", name="book:emma")
        return [Message(Role.USER, (document,)), Message(Role.ASSISTANT, (TextBlock("Fine."),))]

    async with client_of(mcp_service([add], prompts=[review, example]), age) as client:
        first, _ = (await client.list_prompts()).prompts
        assert (first.name, first.description) == ("review", "Review a book.")
        assert [(each.name, each.required) for each in first.arguments or ()] == [("book", True), ("tone", False)]
        (message,) = (await client.get_prompt("review", {"book": "Emma"})).messages
        assert (message.role, message.content.text) == ("user", "Review Emma, kind.")
        made = (await client.get_prompt("example")).messages
        assert [(each.role, each.content.type) for each in made] == [("user", "resource"), ("assistant", "text")]
        for wrong in ({}, {"book": "x", "tone": "sour"}):
            with pytest.raises(MCPError, match="wrong arguments of the prompt review"):
                await client.get_prompt("review", wrong)
        with pytest.raises(MCPError, match="there is no prompt other"):
            await client.get_prompt("other")


# -- Tools.


@ages
async def test_an_unknown_tool_is_an_error_of_the_protocol(age: str) -> None:
    async with client_of(mcp_service([add]), age) as client:
        with pytest.raises(MCPError, match="there is no tool other"):
            await client.call_tool("other", {})


async def test_a_client_without_elicitation_is_refused() -> None:
    """An older client gets an error result. A newer client gets an error with the missing capability."""
    service = mcp_service([tool(add, needs_approval=True)])
    async with client_of(service, OLD) as client:
        result = await client.call_tool("add", {"a": 1})
        assert result.is_error
        assert "needs an approval" in result.content[0].text
    async with client_of(service, NEW) as client:
        with pytest.raises(MCPError, match="needs an approval") as raised:
            await client.call_tool("add", {"a": 1})
        assert raised.value.error.data == {"requiredCapabilities": {"elicitation": {}}}
