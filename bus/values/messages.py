"""Messages, roles, tools, and settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import StrEnum
from itertools import cycle
from operator import attrgetter, is_
from typing import Literal, TypeVar, cast

import msgspec

from .base import Json, JsonObject, ShortRepr, cached_property, json_size
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
from .usage import Cost, StopReason, TokenUsage

T = TypeVar("T")


class RawReply(ShortRepr, frozen=True, kw_only=True, gc=False):
    """The raw data of one reply. Data that is not valid JSON is stored as a string."""

    body: Json = None
    """The body of a reply that was not streamed; None for a stream."""
    events: tuple[Json, ...] = ()
    """The data of the events of a streamed reply, in their order."""
    left_out: int = 0
    """The number of events or bodies that were dropped because the reply is too large."""


class Role(StrEnum):
    """The author of a message. DEVELOPER is OpenAI's second kind of instruction. For other providers it is part
    of the system text.
    """

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_ALLOWED: dict[Role, tuple[type, ...]] = {
    Role.SYSTEM: (TextBlock,),
    Role.DEVELOPER: (TextBlock,),
    Role.USER: (TextBlock, ImageBlock, AudioBlock, DocumentBlock, OpaqueBlock),
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


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A model that was considered for a call."""

    model: str
    """The model, ``provider:name``."""
    rejected: str | None = None
    """The reason why the model was rejected; None for the chosen model."""
    fallback_of: str | None = None
    """The model whose fallback chain contains `model`; None for a requested model."""


class RoutingDecision(ShortRepr, frozen=True, gc=False):
    """How a call was routed to its model."""

    requested: str
    """The model as the caller named it."""
    model: str
    """The chosen model, ``provider:name``."""
    provider: str
    """The adapter's name."""
    resolved_by: str
    """The rule that matched: id, alias, native_name, catalogue, passthrough or choice."""
    candidates: tuple[Candidate, ...] = ()
    """All models that were considered, in the order of trying."""


class CallWarning(msgspec.Struct, frozen=True, gc=False):
    """A problem that did not make the call fail."""

    code: str
    """A `WarningCode`, or a host's own code, for programs."""
    message: str
    """A text, for people."""


class MessageMetadata(ShortRepr, frozen=True, kw_only=True, gc=False):
    """The origin of an assistant message, set by the session manager."""

    provider: str
    """The adapter's name."""
    model: str
    """The model that served the call, ``provider:name``."""
    usage: TokenUsage
    """All tokens of the call."""
    cost: Cost
    """The cost of the call, at the prices of the call's time."""
    stop_reason: StopReason
    """How the reply ended."""
    raw_stop_reason: str | None = None
    """The provider's own word for the stop reason."""
    routing: RoutingDecision | None = None
    """How the call was routed to its model."""
    request_id: str | None = None
    """The id of the call in the trace."""
    latency_ms: int | None = None
    """Milliseconds of the adapter's call, all attempts included."""
    warnings: tuple[CallWarning, ...] = ()
    """Problems with the call, such as history that was left out of the request."""
    raw: RawReply | None = None
    """The reply as the provider sent it; None unless the request set `include_raw`."""
    provider_details: JsonObject | None = None
    """Other data of the reply besides content and usage, by the provider's names; None if there is none."""

    def __hash__(self) -> int:
        return hash((self.provider, self.model, self.stop_reason, self.request_id))

    @property
    def cost_usd(self) -> Decimal | None:
        """The cost in US dollars; None if unpriced."""
        return self.cost.usd

    @property
    def pricing_version(self) -> str | None:
        """The version of the price table for `cost`."""
        return self.cost.pricing_version


class Message(ShortRepr, frozen=True, dict=True):
    """One entry of a conversation. Two messages are equal if their roles and contents are equal.

    Raises:
        ValueError: The content has a block that is not allowed for the role. The text names the block.
    """

    role: Role
    """The author of the message."""
    content: tuple[ContentBlock, ...]
    """A sequence of blocks, kept as a tuple. A plain string becomes one TextBlock."""
    id: str | None = None
    """The message's id, assigned by the session manager when the message enters a history."""
    name: str | None = None
    """The author's name, for the host's own use; no adapter sends it."""
    metadata: MessageMetadata | None = None
    """The origin of the message, set by the session manager when the message enters a history."""
    steers: bool = False
    """Whether the user sent the message during a turn, to steer that turn."""

    def __post_init__(self) -> None:
        content: Sequence[ContentBlock] | str = self.content
        if type(content) is not tuple:
            content = as_blocks(content)
            msgspec.structs.force_setattr(self, "content", content)
        if type(self.role) is not Role:
            msgspec.structs.force_setattr(self, "role", Role(self.role))
        allowed = _ALLOWED[self.role]
        for block in content:
            if not isinstance(block, allowed):
                at = next(place for place, each in enumerate(content) if each is block)
                raise ValueError(
                    f"a {self.role} message can't have a {type(block).__name__} (content[{at}]). It "
                    f"accepts {', '.join(kind.__name__ for kind in allowed)}"
                )

    @classmethod
    def system(cls, text: str) -> Message:
        """A system message."""
        return Message(Role.SYSTEM, (TextBlock(text),))

    @classmethod
    def developer(cls, text: str) -> Message:
        """OpenAI's second kind of instruction."""
        return Message(Role.DEVELOPER, (TextBlock(text),))

    @classmethod
    def user(cls, content: str | Sequence[ContentBlock]) -> Message:
        """A message of the user: text, or blocks."""
        return Message(Role.USER, as_blocks(content))

    @classmethod
    def assistant(cls, content: str | Sequence[ContentBlock]) -> Message:
        """A message of a model: text, or blocks."""
        return Message(Role.ASSISTANT, as_blocks(content))

    @classmethod
    def tool_result(
        cls, tool_use_id: str, content: str | Sequence[ResultPart], *, is_error: bool = False
    ) -> Message:
        """The result of one tool call."""
        body = content if isinstance(content, str) else tuple(content)
        return Message(Role.TOOL, (ToolResultBlock(tool_use_id, body, is_error),))

    @cached_property
    def plain_text(self) -> str | None:
        """The text of a message with a single text block; None for any other.

        The result is also None for a blank text, a text that UTF-8 can't encode, and a block with provider data.
        The result is cached, because every send checks the whole history.
        """
        block = self.content[0] if len(self.content) == 1 else None
        if type(block) is not TextBlock or block.provider_raw is not None or not block.text.strip():
            return None
        return block.text if _is_utf8(block.text) else None

    @property
    def text(self) -> str:
        """The text of all text blocks, joined."""
        return "".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def thinking(self) -> str:
        """All visible reasoning, joined."""
        return "".join(block.text for block in self.content if isinstance(block, ThinkingBlock))

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls that the message asks for, in their order."""
        return tuple(block for block in self.content if isinstance(block, ToolUseBlock))


_PLAIN_TEXT = attrgetter("plain_text")
_ROLE = attrgetter("role")
_SPEAKERS = (Role.USER, Role.ASSISTANT)
_KEPT = "_beginning"
_GROWTH = 8
"""The number of new messages after which a `Beginning` is rebuilt."""


def plain_texts(messages: Iterable[Message]) -> list[str | None]:
    """The `plain_text` of each message."""
    return list(map(_PLAIN_TEXT, messages))


def plain_beginning(messages: Sequence[Message], beginning: Beginning | None) -> tuple[str, ...]:
    """The texts of the first messages, while they alternate between plain user and assistant text.

    Every call checks its whole history, which usually consists of such messages, so this function avoids a Python
    loop. `beginning` is the result of `beginning_of`.
    """
    if beginning is None:
        return _texts_in_turn(messages)
    return beginning.texts + _texts_in_turn(messages[len(beginning.texts) :])


def _texts_in_turn(messages: Sequence[Message]) -> tuple[str, ...]:
    in_turn = list(map(is_, map(_ROLE, messages), cycle(_SPEAKERS)))
    if False in in_turn:
        messages = messages[: in_turn.index(False)]
    texts = plain_texts(messages)
    return cast("tuple[str, ...]", tuple(texts[: texts.index(None)] if None in texts else texts))


class Beginning:
    """The first plain messages of a history, with values cached for them.

    Each turn sends these messages again. Their values are computed once, so a later turn only compares the
    messages by identity. The first message stores this object.
    """

    __slots__ = ("_forms", "_json", "after", "texts")

    def __init__(self, messages: Sequence[Message], texts: tuple[str, ...], before: Beginning | None) -> None:
        """`before` has the values of the same or of fewer messages."""
        self.after = tuple(messages[1 : len(texts)])
        """The messages after the first one."""
        self.texts = texts
        """The texts of all messages."""
        self._forms: dict[str, list[object]] = {}
        self._json: dict[str, tuple[int, msgspec.Raw]] = {}
        if before is not None:
            same = list(map(is_, before.after, self.after))
            count = 1 + (same.index(False) if False in same else len(same))
            self._forms = {name: made[:count] for name, made in before._forms.items()}
            self._json = {name: made for name, made in before._json.items() if made[0] <= count}

    def form(self, name: str, make: Callable[[str, int], T]) -> list[T]:
        """The cached values of a name, one for each message. Do not change the list.

        Args:
            name: A name that differs from all others.
            make: A function that returns the value of a message from its text and its index in the history.
        """
        made = self._forms.get(name, [])
        if len(made) < len(self.texts):
            more = enumerate(self.texts[len(made) :], len(made))
            made = self._forms[name] = made + [make(text, place) for place, text in more]
        return cast("list[T]", made)

    def json(self, name: str, most: int, make: Callable[[str, int], bytes]) -> tuple[msgspec.Raw, int]:
        """The cached JSON of at most the first `most` messages, with commas between them, and the number of
        messages.
        """
        count = min(most, len(self.texts)) // _GROWTH * _GROWTH
        done, made = self._json.get(name, (0, msgspec.Raw()))
        if done > count:  # the history was cut
            done = 0
        if done < count:
            more = [make(text, place) for place, text in enumerate(self.texts[done:count], done)]
            made = msgspec.Raw(b",".join([bytes(made), *more] if done else more))
            self._json[name] = count, made
        return made, count


def beginning_of(messages: Sequence[Message]) -> Beginning | None:
    """The plain beginning of a history, in multiples of `_GROWTH` messages; None if it is shorter than that."""
    if len(messages) < _GROWTH:
        return None
    cached: Beginning | None = messages[0].__dict__.get(_KEPT)
    if cached is not None and cached.after == tuple(messages[1 : len(cached.texts)]):
        more = messages[len(cached.texts) : len(cached.texts) + _GROWTH]
        if len(more) < _GROWTH or len(_texts_in_turn(more)) < _GROWTH:
            return cached
    texts = _texts_in_turn(messages)
    count = len(texts) - len(texts) % _GROWTH
    if not count:
        return None
    made = messages[0].__dict__[_KEPT] = Beginning(messages, texts[:count], cached)
    return made


def _is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode a text: it has no half of a surrogate pair."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def as_blocks(content: str | Sequence[ContentBlock]) -> tuple[ContentBlock, ...]:
    """Convert a string to one text block, and a sequence of blocks to a tuple."""
    return (TextBlock(content),) if isinstance(content, str) else tuple(content)


# The strictest rule of all providers, so that a tool works with every provider.
_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class ToolAnnotations(msgspec.Struct, frozen=True, kw_only=True):
    """Hints about a tool, for the person or code that approves its calls. Never sent to a model.

    None means unknown.
    """

    read_only: bool | None = None
    """Whether the tool changes nothing."""
    destructive: bool | None = None
    """Whether the tool may delete or overwrite something."""
    idempotent: bool | None = None
    """Whether a second run of the tool changes nothing more."""
    open_world: bool | None = None
    """Whether the tool accesses other systems, as a web search does."""
    title: str | None = None
    """The tool's name, for people."""


_COMBINED = frozenset({"anyOf", "oneOf", "allOf", "$ref"})


class ToolDefinition(ShortRepr, frozen=True, dict=True):
    """A tool that the model may call.

    Raises:
        ValueError: The name or the schema does not work with every provider.
    """

    name: str
    """A letter, then letters, digits, ``_`` and ``-``; at most 64 characters."""
    description: str = ""
    """The description for the model."""
    input_schema: JsonObject = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    """A JSON Schema with an object at its root, or with a union of objects or a reference to an object."""
    strict: bool | None = None
    """Whether to ask the provider to enforce the schema; None lets the adapter decide."""
    annotations: ToolAnnotations | None = None
    """Hints for the approval of the tool's calls."""
    provider_options: JsonObject = msgspec.field(default_factory=dict)
    """Fields that are merged into the tool on the wire, by the name of a protocol or an adapter.

    For example ``{"anthropic": {"defer_loading": True}}``. The fields are not sent to other providers.
    """

    def __post_init__(self) -> None:
        if not _TOOL_NAME.fullmatch(self.name):
            raise ValueError(
                f"tool name {self.name!r}: must start with a letter and have only letters, digits, '_' and '-', "
                "at most 64 in total"
            )
        if not _COMBINED.isdisjoint(self.input_schema):
            return  # a union's parts have the type and properties; adapters merge them for servers that need it
        if self.input_schema.get("type") != "object":
            raise ValueError(f"tool {self.name!r}: input_schema must have type 'object' at its root")
        properties = self.input_schema.get("properties")
        required = self.input_schema.get("required")
        if isinstance(required, list):
            declared = properties if isinstance(properties, dict) else {}
            for name in required:
                if name not in declared:
                    raise ValueError(
                        f"tool {self.name!r}: required {name!r} is not a property of its input_schema"
                    )

    @cached_property
    def size(self) -> int:
        """A rough number of bytes of the tool in a request. Cached, because the tool is part of every call."""
        return len(self.name) + len(self.description) + json_size(self.input_schema)


class SessionSetup(ShortRepr, frozen=True, kw_only=True):
    """The settings of a session. Like messages, the settings are content."""

    model: Json
    """A name, several names in order, or an object that describes how to choose."""
    system_prompt: str | None = None
    """The system prompt; None if there is none."""
    tools: tuple[ToolDefinition, ...] = ()
    """The tools as models see them, without the code that runs them."""
    fallback: tuple[str, ...] | None = None
    """The names of the fallback models given to the session; None if not given."""
    requires: JsonObject | None = None
    """The requirements given to the session; None if not given."""
    defaults: JsonObject | None = None
    """The options of the session's turns that are plain values, such as ``temperature``; None if not given."""
    asked_with: JsonObject | None = None
    """The options of the turn that waits for tool results, without keys and functions; None if there is no such
    turn.
    """


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether the model may, must or must not call tools.

    Raises:
        ValueError: `tool_name` is missing with mode ``named``, or is given with another mode.
    """

    mode: Literal["auto", "none", "required", "named"] = "auto"
    """``auto``: the model may call tools. ``none``: it must not. ``required``: it must call some tool. ``named``:
    it must call the tool `tool_name`."""
    tool_name: str | None = None
    """The name of the tool, for mode ``named`` only."""

    def __post_init__(self) -> None:
        if (self.mode == "named") != (self.tool_name is not None):
            raise ValueError("ToolChoice needs tool_name= with mode 'named', and accepts it with no other mode")


class CallSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of one call. None means that the provider's default applies."""

    server_address: str | None = None
    """The host name of the provider's server."""
    server_port: int | None = None
    """The port of the provider's server."""
    max_output_tokens: int | None = None
    """The largest number of output tokens."""
    temperature: float | None = None
    """The requested sampling temperature."""
    top_p: float | None = None
    """The requested probability mass for nucleus sampling."""
    frequency_penalty: float | None = None
    """The requested frequency penalty."""
    presence_penalty: float | None = None
    """The requested presence penalty."""
    seed: int | None = None
    """The requested seed."""
    stop_sequences: tuple[str, ...] = ()
    """The texts that end the reply."""
    reasoning_effort: str | None = None
    """The effort for reasoning, in the model's own terms."""
    output_type: str | None = None
    """``json`` if a schema was requested."""


_ENDED_WELL = frozenset({StopReason.TOOL_USE, StopReason.END_TURN, StopReason.PAUSE_TURN})


def is_empty(content: Sequence[ContentBlock], stop_reason: StopReason) -> bool:
    """Whether a reply ended well without text and without a tool call. A reply with only reasoning is empty.

    A reply that ended with a stop sequence or a pause is not empty.
    """
    if stop_reason not in (StopReason.END_TURN, StopReason.TOOL_USE):
        return False
    for block in content:  # no `any`, because it is slower and runs for every call
        if block.text.strip() if isinstance(block, TextBlock) else not isinstance(block, ThinkingBlock):
            return False
    return True


def ended_well(stop_reason: StopReason) -> bool:
    """Whether the model ended the reply normally, so that its tool calls are complete."""
    return stop_reason in _ENDED_WELL


def with_whole_calls(content: tuple[ContentBlock, ...], stop_reason: StopReason) -> tuple[ContentBlock, ...]:
    """The content of a reply after its end. If the reply was cut off or failed, every tool call is marked
    incomplete.
    """
    if ended_well(stop_reason) or not any(_runs(block) for block in content):
        return content
    return tuple(msgspec.structs.replace(block, incomplete=True) if _runs(block) else block for block in content)


def _runs(block: ContentBlock) -> bool:
    return isinstance(block, ToolUseBlock) and not block.incomplete
