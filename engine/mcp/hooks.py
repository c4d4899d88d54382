"""Types for the requests of servers to a host, the host's answers, and the servers' resources and prompts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import msgspec

from callboard.adapters import Message, ToolChoice, ToolDefinition
from callboard.bus.values.base import JsonObject

from ..tools.handler import is_async
from ..tools.running import run_in_thread

if TYPE_CHECKING:
    from ..conversation.results import GenerateResult

T = TypeVar("T")


class Elicitation(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a server to the user: a form to fill in, or a page to visit."""

    server: str
    """The server's name."""
    message: str
    """The question, in the server's words."""
    schema: JsonObject | None = None
    """The JSON Schema of the answer, an object whose fields are plain values; None if there is a `url`."""
    url: str | None = None
    """The page to visit. Show the whole address, and open it only if the user agrees."""
    tool_name: str | None = None
    """The name of the tool that is being called, if known."""
    session_id: str | None = None
    """The id of the session whose turn called the tool, if that is known."""

    @property
    def defaults(self) -> JsonObject:
        """The default values in the schema, for values that an answer omits."""
        properties = (self.schema or {}).get("properties")
        if not isinstance(properties, dict):
            return {}
        return {
            name: each["default"]
            for name, each in properties.items()
            if isinstance(each, dict) and "default" in each
        }


ElicitationAnswer: TypeAlias = Mapping[str, Any] | Literal["accept", "decline", "cancel"] | None
"""The values of an accepted form. Or ``accept``, which accepts a page, or a form with its defaults. Or
``decline`` or None; or ``cancel`` if the user dismissed the question without an answer.
"""

Elicit: TypeAlias = Callable[[Elicitation], ElicitationAnswer | Awaitable[ElicitationAnswer]]
"""A function that asks the user. A plain function runs in a thread."""


class SamplingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A server's request for a model's reply."""

    server: str
    """The server's name."""
    messages: tuple[Message, ...]
    """The messages for the model."""
    system_prompt: str | None = None
    """The system prompt requested by the server."""
    max_output_tokens: int
    """The maximum number of tokens of the reply."""
    temperature: float | None = None
    """The temperature requested by the server."""
    stop_sequences: tuple[str, ...] = ()
    """The texts that end the reply."""
    model_hints: tuple[str, ...] = ()
    """Names or parts of names of models that the server prefers, the best first."""
    tools: tuple[ToolDefinition, ...] = ()
    """The tools that the model may call. The server runs them."""
    tool_choice: ToolChoice | None = None
    """Whether the model may, must or must not call a tool."""
    tool_name: str | None = None
    """The name of the tool that is being called, if known."""
    session_id: str | None = None
    """The id of the session whose turn called the tool, if that is known."""


Sample: TypeAlias = Callable[
    [SamplingRequest], "str | GenerateResult | Awaitable[str | GenerateResult | None] | None"
]
"""A function that answers a `SamplingRequest` with a text or a result of `generate`. If it returns None, the
request is refused.

It runs in the context of the tool call, so calls of the engine inside it are children of that tool call.
"""


class McpLogMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A log message of a server."""

    server: str
    """The server's name."""
    level: str
    """``debug``, ``info``, ``notice``, ``warning``, ``error``, ``critical``, ``alert`` or ``emergency``."""
    data: Any
    """The message: a text or any JSON value."""
    logger: str | None = None
    """The name of the logger in the server."""


OnLog: TypeAlias = Callable[[McpLogMessage], object]
"""A function that receives a log message. It runs on the event loop and must not block."""


class McpResource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that a server offers, or a template of resources."""

    uri: str
    """The URI for `McpServer.read_resource`. A template's URI has parts in braces."""
    name: str
    """The server's name of the resource."""
    title: str | None = None
    """A name for people."""
    description: str | None = None
    """The server's description."""
    media_type: str | None = None
    """The media type, if it is known."""
    size: int | None = None
    """The size in bytes, if it is known."""


class McpPromptArgument(msgspec.Struct, frozen=True, kw_only=True):
    """An argument of a prompt. Its value is a text."""

    name: str
    """The argument's name."""
    description: str | None = None
    """The server's description."""
    required: bool = False
    """Whether the prompt needs it."""


class McpPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that a server offers; `McpServer.get_prompt` fills it in."""

    name: str
    """The server's name of the prompt."""
    title: str | None = None
    """A name for people."""
    description: str | None = None
    """The server's description."""
    arguments: tuple[McpPromptArgument, ...] = ()
    """The arguments."""


async def answer_of(hook: Callable[..., T | Awaitable[T]], request: object) -> T:
    """Call a host's function, and return its result. A plain function runs in a thread, because it may block."""
    answer = hook(request) if is_async(hook) else await run_in_thread(lambda: hook(request))
    return await answer if inspect.isawaitable(answer) else answer
