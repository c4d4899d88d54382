"""Messages, and what is said beside them: roles, tools, and how an assistant message came about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum
from typing import Literal

import msgspec

from .content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    ResultPart,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from .json import Json, JsonObject
from .usage import Cost, StopReason, TokenUsage


class Role(StrEnum):
    """Who speaks. DEVELOPER is OpenAI's second kind of instruction, merged into the system text elsewhere."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_ALLOWED: dict[Role, tuple[type, ...]] = {
    Role.SYSTEM: (TextBlock,),
    Role.DEVELOPER: (TextBlock,),
    Role.USER: (TextBlock, ImageBlock, AudioBlock, DocumentBlock),
    Role.ASSISTANT: (
        TextBlock,
        ImageBlock,
        ToolUseBlock,
        ThinkingBlock,
        RedactedThinkingBlock,
        OpaqueBlock,
    ),
    Role.TOOL: (ToolResultBlock,),
}


class Candidate(msgspec.Struct, frozen=True):
    """A model that was considered for a call. rejected: why it was not taken; None for the one that was.

    fallback_of: the model whose configured chain it belongs to.
    """

    model: str
    rejected: str | None = None
    fallback_of: str | None = None


class RoutingDecision(msgspec.Struct, frozen=True):
    """How a call came to its model. requested: as the caller named it. model: ``provider:name``. provider: the
    adapter's name. resolved_by: which rule matched: id, alias, native_name, catalogue, passthrough or choice.

    candidates: all that were considered, in the order in which they would be tried.
    """

    requested: str
    model: str
    provider: str
    resolved_by: str
    candidates: tuple[Candidate, ...] = ()


class CallWarning(msgspec.Struct, frozen=True):
    """Something about a call that its caller should know. code: for programs; message: for people."""

    code: str
    message: str


class MessageMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """How an assistant message came about; assigned by the session manager.

    provider: the adapter's name. model: ``provider:name`` of the model that served the call. usage: of the call,
    all its tokens. cost: of the call, under the current prices. routing: how it came to its model. request_id: of
    the call, in the trace. latency_ms: milliseconds that the adapter's call took, with all its attempts.
    warnings: what its reader should know, such as what of the history was left out of the request.
    """

    provider: str
    model: str
    usage: TokenUsage
    cost: Cost
    stop_reason: StopReason
    raw_stop_reason: str | None = None
    routing: RoutingDecision | None = None
    request_id: str | None = None
    latency_ms: int | None = None
    warnings: tuple[CallWarning, ...] = ()

    @property
    def cost_usd(self) -> Decimal | None:
        """The cost in US dollars; None if unpriced."""
        return self.cost.usd

    @property
    def pricing_version(self) -> str | None:
        """The price table behind `cost`."""
        return self.cost.pricing_version


class Message(msgspec.Struct, frozen=True):
    """One entry of a conversation. Two messages say the same if role and content are equal.

    content: a sequence of blocks, kept as a tuple; a plain string becomes one TextBlock.
    id, metadata: assigned by the session manager when the message enters a history. name: of who speaks, for the
    host's own use; no adapter sends it.
    Raises ValueError, naming the block, if a block may not stand in a message of that role.
    """

    role: Role
    content: tuple[ContentBlock, ...]
    id: str | None = None
    name: str | None = None
    metadata: MessageMetadata | None = None

    def __post_init__(self) -> None:
        content: Sequence[ContentBlock] | str = self.content
        if type(content) is not tuple:
            content = (TextBlock(content),) if isinstance(content, str) else tuple(content)
            msgspec.structs.force_setattr(self, "content", content)
        if type(self.role) is not Role:
            msgspec.structs.force_setattr(self, "role", Role(self.role))
        allowed = _ALLOWED[self.role]
        for position, block in enumerate(self.content):
            if not isinstance(block, allowed):
                raise ValueError(
                    f"a {self.role} message can't carry {type(block).__name__} (content[{position}]); "
                    f"it takes {', '.join(kind.__name__ for kind in allowed)}"
                )

    @classmethod
    def system(cls, text: str) -> Message:
        """An instruction."""
        return Message(Role.SYSTEM, (TextBlock(text),))

    @classmethod
    def developer(cls, text: str) -> Message:
        """OpenAI's second kind of instruction."""
        return Message(Role.DEVELOPER, (TextBlock(text),))

    @classmethod
    def user(cls, content: str | Sequence[ContentBlock]) -> Message:
        """What the user says: text, or blocks."""
        return Message(Role.USER, as_blocks(content))

    @classmethod
    def assistant(cls, content: str | Sequence[ContentBlock]) -> Message:
        """What a model has said."""
        return Message(Role.ASSISTANT, as_blocks(content))

    @classmethod
    def tool_result(
        cls, tool_use_id: str, content: str | Sequence[ResultPart], *, is_error: bool = False
    ) -> Message:
        """The answer to one call of a tool."""
        body = content if isinstance(content, str) else tuple(content)
        return Message(Role.TOOL, (ToolResultBlock(tool_use_id, body, is_error),))

    @property
    def text(self) -> str:
        """All text blocks, joined."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def thinking(self) -> str:
        """All visible reasoning, joined."""
        return "".join(block.text for block in self.content if isinstance(block, ThinkingBlock))

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The calls of tools that it asks for, in their order."""
        return tuple(block for block in self.content if isinstance(block, ToolUseBlock))


def as_blocks(content: str | Sequence[ContentBlock]) -> tuple[ContentBlock, ...]:
    """A string as one text block; a sequence of blocks as a tuple."""
    return (TextBlock(content),) if isinstance(content, str) else tuple(content)


# The strictest rule among the providers, so that a tool works on all of them.
_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class ToolAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """Hints on what a tool does, for whoever approves its calls; None is unknown. Never sent to a model.

    read_only: it changes nothing. destructive: it may delete or overwrite. idempotent: doing it twice is doing it
    once. open_world: it reaches beyond this system, as a web search does. title: its name for people.
    """

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    title: str | None = None


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool that the model may call.

    name: a letter, then letters, digits, ``_`` and ``-``; at most 64 characters. description: for the model.
    input_schema: JSON Schema with an object at its root. strict: ask the provider to enforce the schema; None
    leaves it to the adapter. annotations: for who approves its calls. Raises ValueError if the name or the schema
    could not work on every provider.
    """

    name: str
    description: str = ""
    input_schema: JsonObject = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None
    annotations: ToolAnnotations | None = None

    def __post_init__(self) -> None:
        if not _TOOL_NAME.fullmatch(self.name):
            raise ValueError(
                f"tool name {self.name!r}: must start with a letter and have only letters, digits, '_' and '-', "
                "at most 64 in all"
            )
        if self.input_schema.get("type") != "object":
            raise ValueError(f"tool {self.name!r}: input_schema must have type 'object' at its root")
        properties = self.input_schema.get("properties")
        required = self.input_schema.get("required")
        if isinstance(required, list):
            known = properties if isinstance(properties, dict) else {}
            for name in required:
                if name not in known:
                    raise ValueError(f"tool {self.name!r}: required {name!r} is no property of its input_schema")


class SessionSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is made of besides its messages: content, like them.

    model: a name, several in order, or an object that says how to choose. tools: as models see them, without what
    runs them. fallback, requires: as the session was given them; None if it was not.
    """

    model: Json
    system_prompt: str | None = None
    tools: tuple[ToolDefinition, ...] = ()
    fallback: tuple[str, ...] | None = None
    requires: JsonObject | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether the model may, must or must not call tools. mode: ``auto``, it may; ``none``; ``required``, some
    tool; ``named``, that tool. tool_name: only, and always, with mode ``named``; otherwise ValueError is raised.
    """

    mode: Literal["auto", "none", "required", "named"] = "auto"
    tool_name: str | None = None

    def __post_init__(self) -> None:
        if (self.mode == "named") != (self.tool_name is not None):
            raise ValueError("ToolChoice takes tool_name= with mode 'named', and only then")
