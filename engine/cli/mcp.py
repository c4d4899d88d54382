"""The MCP servers of ``--mcp FILE``: their start, their questions to the user, their logins.

Questions of a server are shown to the user at the terminal. Logins are stored in a private file next to the
trace.
"""

from __future__ import annotations

import logging
import webbrowser
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TextIO

import anyio

from callboard.bus.log import ROOT
from callboard.tracestore.home import home_folder

from .. import GenerateResult
from ..mcp import Elicitation, ElicitationAnswer, McpOAuth, McpServers, McpTokenFile, SamplingRequest, mcp_servers
from ..mcp.servers import ACTOR
from .sanitize import note, one_line

Generate = Callable[[SamplingRequest], Awaitable[GenerateResult]]


async def opened(path: str, life: AsyncExitStack, generate: Generate | None = None) -> McpServers:
    """The servers of a file, open until the conversation ends. Servers that are down are reported."""
    servers = mcp_servers(
        path,
        auth=McpOAuth(McpTokenFile(home_folder() / "mcp-logins.json"), open_url=_open_page),
        elicit=ask_user,
        sampling=None if generate is None else lambda request: _sampled(request, generate),
        roots=[Path.cwd()],
    )
    logging.getLogger("callboard.bus.actor").addFilter(_is_no_server)
    logging.getLogger("callboard.engine.mcp").setLevel(logging.ERROR)
    await life.enter_async_context(servers)
    for status in servers.status():
        if status.state != "up":
            note(f"(MCP server {status.name}: {one_line(status.error or status.state)})")
    return servers


def _is_no_server(record: logging.LogRecord) -> bool:
    """A log filter that hides lines about the end of a server, which are reported in another way."""
    return not str(getattr(record, ROOT, {}).get("actor", "")).startswith(ACTOR)


def _open_page(url: str) -> None:
    note(f"(log in at {url})")
    webbrowser.open(url)


# --- Questions to the user ---


def ask_user(question: Elicitation) -> ElicitationAnswer:
    """Ask the user at the terminal. Without a terminal, the question is declined."""
    try:
        with open("/dev/tty", "r+", encoding="utf-8", buffering=1) as terminal:
            return answer_at(terminal, question)
    except OSError:
        note(f"(MCP server {question.server} asks: {one_line(question.message)}; there is no terminal to answer)")
        return "decline"


def answer_at(terminal: TextIO, question: Elicitation) -> ElicitationAnswer:
    """The user's answer: a value for each field, or whether the user agrees to open a page."""
    terminal.write(f"MCP server {one_line(question.server)} asks: {one_line(question.message)}\n")
    if question.url is not None:
        terminal.write(f"It wants you to visit {one_line(question.url)}. Open it? [y/N] ")
        if terminal.readline().strip().lower() not in ("y", "yes"):
            return "decline"
        webbrowser.open(question.url)
        return "accept"
    terminal.write("Answer? [y/N] ")
    if terminal.readline().strip().lower() not in ("y", "yes"):
        return "decline"
    properties: Any = (question.schema or {}).get("properties") or {}
    needed: Any = (question.schema or {}).get("required") or ()
    found: dict[str, Any] = {}
    for name, schema in properties.items():
        while True:
            terminal.write(f"  {_prompt(name, schema)}: ")
            line = terminal.readline()
            if not line:
                return "cancel"
            word = line.strip()
            if not word and (name not in needed or "default" in schema):
                break
            try:
                found[name] = value_of(word, schema)
                break
            except ValueError as error:
                terminal.write(f"  {error}\n")
    return found


def _prompt(name: str, schema: dict[str, Any]) -> str:
    words = [one_line(str(schema.get("title") or name))]
    if choices := _choices(schema):
        words.append(f"({', '.join(map(one_line, choices))})")
    elif schema.get("description"):
        words.append(f"({one_line(str(schema['description']))})")
    if "default" in schema:
        words.append(f"[{one_line(str(schema['default']))}]")
    return " ".join(words)


def _choices(schema: dict[str, Any]) -> list[str]:
    items = schema.get("items") if schema.get("type") == "array" else schema
    item_schema = items if isinstance(items, dict) else {}
    titled = item_schema.get("oneOf") or item_schema.get("anyOf") or ()
    return [str(each) for each in item_schema.get("enum") or [each.get("const") for each in titled]]


def value_of(word: str, schema: dict[str, Any]) -> object:
    """Convert a typed word to the value of a field. Raises ValueError with a text for the user."""
    choices = _choices(schema)
    match schema.get("type"):
        case "boolean":
            if word.lower() not in ("y", "yes", "true", "n", "no", "false"):
                raise ValueError("yes or no?")
            return word.lower() in ("y", "yes", "true")
        case "integer" | "number" as kind:
            try:
                return int(word) if kind == "integer" else float(word)
            except ValueError:
                raise ValueError(f"this is not a {kind}") from None
        case "array":
            words = [part.strip() for part in word.split(",") if part.strip()]
            if choices and (wrong := [part for part in words if part not in choices]):
                raise ValueError(f"{wrong[0]!r} is none of them; separate several with commas")
            return words
        case _:
            if choices and word not in choices:
                raise ValueError("this is none of them")
            return word


async def _sampled(request: SamplingRequest, generate: Generate) -> GenerateResult | None:
    """Generate a reply for a server, if the user agrees."""

    def agreed() -> bool:
        text = one_line(request.messages[-1].text if request.messages else "")
        try:
            with open("/dev/tty", "r+", encoding="utf-8", buffering=1) as terminal:
                terminal.write(f"MCP server {one_line(request.server)} asks the model: {text}\nSend it? [y/N] ")
                return terminal.readline().strip().lower() in ("y", "yes")
        except OSError:
            return False

    return await generate(request) if await anyio.to_thread.run_sync(agreed) else None
