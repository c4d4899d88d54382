"""MCP servers on the command line: `--mcp FILE` of ask and chat, and `callboard serve-mcp`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callboard.engine import Elicitation

from .running import CHECKOUT, call, start

pytest.importorskip("mcp", reason="needs callboard[mcp]")

from callboard.engine.cli.conversation_setup import answer_at, value_of

OLD_SERVER = CHECKOUT / "tests/engine/mcp/old_server.py"

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "default": 30},
        "kind": {"type": "string", "enum": ["cat", "dog"]},
        "tame": {"type": "boolean"},
    },
    "required": ["name", "kind"],
}


@pytest.fixture
def servers(tmp_path: Path) -> str:
    """A file with a working server and a server that does not start."""
    path = tmp_path / "mcp.json"
    lib = {"command": sys.executable, "args": [str(OLD_SERVER), "${LIB_NAME:-lib}"]}
    path.write_text(json.dumps({"mcpServers": {"lib": lib, "gone": {"command": "/nowhere/at/all"}}}))
    return str(path)


def test_a_question_can_use_the_servers_of_a_file(talkative: Path, servers: str) -> None:
    """One line names the server that does not start. `ask -c` uses the same servers."""
    prompt = 'call echo {"text": "hi"}'
    done = call("ask", "-m", "obedient:m", "--mcp", servers, prompt, home=talkative, exits=0)
    assert "lib: hi" in done.stdout
    assert "(MCP server gone: FileNotFoundError: " in done.stderr
    assert "lib: hi" in call("ask", "-c", prompt, home=talkative, exits=0).stdout


def test_a_wrong_file_of_servers_is_named(talkative: Path, tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x", "args": "y"}}}')
    (line,) = call("ask", "--mcp", str(path), "hi", home=talkative, exits=2).stderr.splitlines()
    assert f"{path}: MCP server 'a': Expected `array`, got `str` - at `$.args`" in line


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("y\nEmma\n\ncow\ncat\nyes\n", {"name": "Emma", "kind": "cat", "tame": True}),
        ("y\nEmma\nx\n7\ndog\n\n", {"name": "Emma", "age": 7, "kind": "dog"}),
        ("n\n", "decline"),
        ("y\nEmma\n", "cancel"),
    ],
    ids=["filled in", "corrected", "declined", "ended"],
)
def test_a_form_is_filled_in_field_by_field(typed: str, answer: object) -> None:
    """A wrong value is requested again. An empty line leaves out an optional field."""

    class Terminal(io.StringIO):
        def write(self, text: str) -> int:
            return len(text)

    assert answer_at(Terminal(typed), Elicitation(server="s", message="m", schema=SCHEMA)) == answer


@pytest.mark.parametrize(
    ("word", "schema", "value"),
    [
        ("1.5", {"type": "number"}, 1.5),
        ("a, b", {"type": "array", "items": {"enum": ["a", "b"]}}, ["a", "b"]),
        ("a", {"type": "string", "oneOf": [{"const": "a", "title": "A"}]}, "a"),
        ("maybe", {"type": "boolean"}, None),
        ("a, c", {"type": "array", "items": {"anyOf": [{"const": "a"}]}}, None),
    ],
    ids=["number", "several", "titled", "no boolean", "not one of them"],
)
def test_a_typed_word_is_a_value(word: str, schema: dict[str, Any], value: object) -> None:
    if value is None:
        with pytest.raises(ValueError, match=r"yes or no|is none of them"):
            value_of(word, schema)
    else:
        assert value_of(word, schema) == value


TOOLS = '''
from callboard import tool

@tool
def add(a: int, b: int) -> int:
    """Add."""
    print("noise")
    return a + b

@tool(needs_approval=True)
def wipe(disk: str) -> str:
    """Wipe a disk."""
    return f"wiped {disk}"
'''


class Client:
    """A client with the protocol of 2025, in JSON lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._process.stdin.flush()

    def read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        message: dict[str, Any] = json.loads(self._process.stdout.readline())
        return message

    def begin(self) -> None:
        info = {"clientInfo": {"name": "t", "version": "1"}, "capabilities": {"elicitation": {}}}
        self.send(id=1, method="initialize", params={"protocolVersion": "2025-06-18", **info})
        assert self.read()["result"]["serverInfo"]["name"] == "callboard"
        self.send(method="notifications/initialized")

    def call(self, name: str, **arguments: Any) -> None:
        self.send(id=3, method="tools/call", params={"name": name, "arguments": arguments})


def serving(home: Path, *words: str) -> subprocess.Popen[str]:
    return start("serve-mcp", *words, home=home, text=True, stderr=subprocess.DEVNULL)


def test_tools_are_served_over_stdin_and_stdout(talkative: Path, tmp_path: Path) -> None:
    """Output that a tool prints does not disturb the protocol."""
    file = tmp_path / "mine.py"
    file.write_text(TOOLS)
    with serving(talkative, "-T", str(file)) as process:
        client = Client(process)
        client.begin()
        client.send(id=2, method="tools/list")
        assert [each["name"] for each in client.read()["result"]["tools"]] == ["add", "wipe"]
        client.call("add", a=1, b=2)
        assert client.read()["result"]["content"] == [{"type": "text", "text": "3"}]
        client.call("add", a="x", b=2)
        assert client.read()["result"]["isError"] is True
        client.call("wipe", disk="c")
        question = client.read()
        assert question["params"]["message"] == 'May wipe run with {"disk":"c"}?'
        client.send(id=question["id"], result={"action": "accept", "content": {}})
        assert client.read()["result"]["content"][0]["text"] == "wiped c"
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_a_model_is_served_by_the_tool_ask(talkative: Path) -> None:
    """Each conversation is a session. The session's id continues the conversation."""
    with serving(talkative, "-m", "first") as process:
        client = Client(process)
        client.begin()
        client.call("ask", message="one")
        first = json.loads(client.read()["result"]["content"][0]["text"])
        assert first["reply"] == "one heard 1 messages, last: one"
        client.call("ask", message="two", conversation=first["conversation"])
        assert "heard 3 messages" in client.read()["result"]["content"][0]["text"]
        client.call("ask", message="new")
        assert "heard 1 messages" in client.read()["result"]["content"][0]["text"]
        client.call("ask", message="two", conversation="other")
        result = client.read()["result"]
        assert result["isError"]
        assert "there is no conversation 'other'" in result["content"][0]["text"]
        process.communicate(timeout=20)


def test_serve_mcp_needs_something_to_serve_and_a_token_for_the_network(talkative: Path) -> None:
    for words, message in (
        ((), "needs tools"),
        (("-m", "first", "--http", "--bind", "0.0.0.0"), "would allow other machines to connect"),
        (("-m", "first", "--http", "--bind", "0.0.0.0", "--allow-network"), "CALLBOARD_MCP_TOKEN"),
        (("-m", "nothing:at-all"), "nothing"),
    ):
        (line,) = call("serve-mcp", *words, home=talkative, exits=2).stderr.splitlines()
        assert message in line
