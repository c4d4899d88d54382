"""The resources and prompts that a program offers to other hosts, in addition to tools.

resources  by URI, or by a URI template with parts in braces: a text, bytes, a file, or a function
prompts    functions, whose parameters are the prompt's arguments
"""

from __future__ import annotations

import inspect
import mimetypes
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import mcp_types as types
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from callboard.adapters import DocumentBlock, ImageBlock, Message, Role, TextBlock
from callboard.bus import ConfigurationError
from callboard.bus.log import Log
from callboard.bus.values.content import ResultPart

from ..middleware.chain import is_async
from ..tools.context import ToolContext, as_content
from ..tools.definitions import Tool, ToolLike, as_tools
from ..tools.handler import Handler
from ..tools.running import run_in_thread
from .values import blocks_for, resource_contents

_log = Log("engine.mcp.serve")

Contents: TypeAlias = types.TextResourceContents | types.BlobResourceContents

_VARIABLE = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")


class Resources:
    """The resources of a program. The mapping may change, because it is read again for each request."""

    def __init__(self, resources: Mapping[str, object]) -> None:
        self._by_uri = resources
        for uri, value in resources.items():
            _require_fit(uri, value)

    @property
    def uris(self) -> tuple[str, ...]:
        return tuple(self._by_uri)

    def listed(self) -> list[types.Resource]:
        """The resources with a fixed URI."""
        return [
            types.Resource(uri=uri, name=_name(uri, value), description=_about(value), mime_type=_kind(uri, value))
            for uri, value in self._by_uri.items()
            if not _VARIABLE.search(uri)
        ]

    def templates(self) -> list[types.ResourceTemplate]:
        return [
            types.ResourceTemplate(uri_template=uri, name=_name(uri, value), description=_about(value))
            for uri, value in self._by_uri.items()
            if _VARIABLE.search(uri)
        ]

    async def read(self, uri: str) -> list[Contents]:
        """The content of a resource. Raises MCPError."""
        value, variables = self._found(uri)
        try:
            if callable(value):
                value = await _result_of(value, variables)
            kind = None
            if isinstance(value, Path):
                kind, value = mimetypes.guess_type(value.name)[0], await run_in_thread(value.read_bytes)
            return _contents(uri, value, kind)
        except Exception as error:
            raise _failed("resource", uri, error) from error

    def _found(self, uri: str) -> tuple[object, dict[str, str]]:
        if uri in self._by_uri:
            return self._by_uri[uri], {}
        for template, value in self._by_uri.items():
            if _VARIABLE.search(template) and (match := _pattern(template).fullmatch(uri)):
                return value, match.groupdict()
        raise MCPError(INVALID_PARAMS, f"there is no resource {uri}", {"uri": uri})


class Prompts:
    """The prompts of a program: functions or tools, whose results are the messages."""

    def __init__(self, prompts: Sequence[ToolLike]) -> None:
        self._prompts = prompts
        _ = self.tools  # raises the error for an invalid function now

    @property
    def tools(self) -> tuple[Tool, ...]:
        return as_tools(self._prompts)

    def listed(self) -> list[types.Prompt]:
        """The prompts with their arguments."""
        return [
            types.Prompt(
                name=each.name, description=each.definition.description, arguments=_arguments(each) or None
            )
            for each in self.tools
        ]

    def values_of(self, name: str, argument: str, start: str) -> list[str]:
        """The values of an argument that start with this text, if its type hint is a ``Literal`` or an enum."""
        prompt = next((each for each in self.tools if each.name == name), None)
        schema: Any = {} if prompt is None else prompt.definition.input_schema
        values = schema.get("properties", {}).get(argument, {}).get("enum", ())
        return [value for value in map(str, values) if value.startswith(start)]

    async def get(self, name: str, arguments: Mapping[str, str]) -> types.GetPromptResult:
        """The messages of a prompt. Raises MCPError."""
        prompt = next((each for each in self.tools if each.name == name), None)
        if prompt is None or prompt.handler is None:
            raise MCPError(INVALID_PARAMS, f"there is no prompt {name}", {"name": name})
        handler: Handler = prompt.handler
        try:
            ready = handler.read(dict(arguments))
        except ValueError as error:
            raise MCPError(INVALID_PARAMS, f"wrong arguments of the prompt {name}: {error}") from error
        context = ToolContext(tool_call_id=name, tool_name=name)
        try:
            if handler.is_async:
                value = handler.call(ready, context)
            else:
                value = await run_in_thread(lambda: handler.call(ready, context))
            if inspect.isawaitable(value):
                value = await value
            messages = [each for message in _messages(value) for each in _prompt_messages(message)]
        except Exception as error:
            raise _failed("prompt", name, error) from error
        return types.GetPromptResult(description=prompt.definition.description, messages=messages)


# --- Resources ---


def _require_fit(uri: str, value: object) -> None:
    names = [name for _, name in _VARIABLE.findall(uri)]
    if not callable(value):
        if names:
            raise ConfigurationError(f"the resource {uri} has variables, so it needs a function of them")
        return
    try:
        inspect.signature(value).bind(**dict.fromkeys(names, ""))
    except TypeError as error:
        raise ConfigurationError(
            f"the function of the resource {uri} does not accept its variables: {error}"
        ) from None


def _pattern(template: str) -> re.Pattern[str]:
    """A pattern that matches the URIs of a template. ``{name}`` matches one part of a path, and ``{+name}``
    several.
    """
    parts: list[str] = []
    place = 0
    for match in _VARIABLE.finditer(template):
        parts.append(re.escape(template[place : match.start()]))
        parts.append(f"(?P<{match[2]}>{'.+' if match[1] else '[^/]+'})")
        place = match.end()
    return re.compile("".join(parts) + re.escape(template[place:]))


def _name(uri: str, value: object) -> str:
    return getattr(value, "__name__", None) or uri.rstrip("/").rpartition("/")[2] or uri


def _about(value: object) -> str | None:
    """The first paragraph of a function's docstring."""
    about = inspect.getdoc(value) if callable(value) else None
    return None if about is None else " ".join(about.partition("\n\n")[0].split())


def _kind(uri: str, value: object) -> str | None:
    return mimetypes.guess_type(value.name if isinstance(value, Path) else uri)[0]


async def _result_of(function: Callable[..., object | Awaitable[object]], variables: dict[str, str]) -> object:
    value = function(**variables) if is_async(function) else await run_in_thread(lambda: function(**variables))
    return await value if inspect.isawaitable(value) else value


def _contents(uri: str, value: object, media_type: str | None) -> list[Contents]:
    kind = media_type or mimetypes.guess_type(uri)[0]
    if isinstance(value, bytes):
        return [resource_contents(uri, value, kind)]
    content = as_content(value)
    if isinstance(content, str):
        kind = kind or ("text/plain" if isinstance(value, str) else "application/json")
        return [types.TextResourceContents(uri=uri, mime_type=kind, text=content)]
    return [_part(uri, each) for each in content]


def _part(uri: str, part: ResultPart) -> Contents:
    match part:
        case TextBlock():
            return types.TextResourceContents(uri=uri, mime_type="text/plain", text=part.text)
        case ImageBlock(data=bytes(data)) | DocumentBlock(data=bytes(data)):
            return resource_contents(uri, data, part.media_type)
        case _:
            raise ValueError("the content of a resource is text or data, not an address")


# --- Prompts ---


def _arguments(prompt: Tool) -> list[types.PromptArgument]:
    schema: Any = prompt.definition.input_schema
    required = schema.get("required") or ()
    return [
        types.PromptArgument(name=name, description=each.get("description"), required=name in required)
        for name, each in (schema.get("properties") or {}).items()
    ]


def _messages(value: object) -> list[Message]:
    if isinstance(value, Message):
        return [value]
    if isinstance(value, list | tuple) and value and all(isinstance(each, Message) for each in value):
        return list(value)
    content = as_content(value)
    return [Message(Role.USER, (TextBlock(content),) if isinstance(content, str) else content)]


def _prompt_messages(message: Message) -> list[types.PromptMessage]:
    role: Any = "assistant" if message.role is Role.ASSISTANT else "user"
    return [types.PromptMessage(role=role, content=block) for block in blocks_for(message.content)]


def _failed(what: str, name: str, error: Exception) -> MCPError:
    _log.warning(f"{what}_failed", error, name=name, error=type(error).__name__)
    return MCPError(INTERNAL_ERROR, f"the {what} {name} failed: {type(error).__name__}: {error}")
