"""The part of a long conversation that is sent, and how a request fits its model.

The history is never changed. A `Context` returns the first message of the history to send, and the messages that
replace the part before it. A policy is called before each reply, and again if the prompt was too long. It may cut
only before a user message, because providers reject a tool's result without its call.

Some providers reject reasoning if the messages before the reasoning were changed. Then the request is sent again
without the reasoning (see `adapters.http.repair`), and later turns leave it out.

A reply can be required to follow a schema. A model that accepts schemas gets the schema. Other models get a forced
tool call, and its arguments are the reply. If calls can't be forced, or the caller has tools or wants reasoning,
the schema is added to the system text.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from callboard.adapters import (
    AdapterCapabilities,
    CallWarning,
    CanonicalResponse,
    ContentBlock,
    Message,
    Role,
    StopReason,
    TextBlock,
    ToolChoice,
    ToolDefinition,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.adapters.requests.content import without_reasoning
from callboard.adapters.requests.schemas import instruction
from callboard.bus.errors import WarningCode
from callboard.bus.values.base import JsonObject

from ..models.entries import ModelInput, joined


class RefusedReasoning:
    """The ids of the messages with refused reasoning, by provider. At most as large as the history."""

    def __init__(self) -> None:
        self._refused: dict[str, set[str]] = {}

    def note(self, provider: str, sent: Sequence[Message], warnings: Sequence[CallWarning]) -> None:
        """Record reasoning that the provider refused in a call."""
        if any(warning.code == WarningCode.REASONING_REFUSED for warning in warnings):
            self._refused.setdefault(provider, set()).update(
                message.id
                for message in sent
                if message.id and without_reasoning(message, provider) is not message
            )

    def without(self, provider: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        refused = self._refused.get(provider)
        if not refused:
            return messages
        return tuple(
            without_reasoning(message, provider) if message.id in refused else message for message in messages
        )

    def copy(self) -> RefusedReasoning:
        """A copy for a fork. Later refusals are recorded separately."""
        other = RefusedReasoning()
        other._refused = {provider: set(ids) for provider, ids in self._refused.items()}
        return other


# --- Replies that follow a schema ---


SchemaMode: TypeAlias = Literal["native", "auto"]
"""``native``: only the model itself may enforce the schema. ``auto``: if the model can't, a forced tool call or an
instruction is used.
"""

ANSWER_TOOL = "answer"


def hold_to_schema(
    model_input: ModelInput,
    schema: JsonObject | None,
    mode: SchemaMode,
    capabilities: AdapterCapabilities,
    *,
    choice: ToolChoice | None,
    reasons: bool,
) -> ModelInput:
    """The model's input, changed so that its reply follows a schema."""
    if schema is None or mode == "native" or capabilities.supports_structured_output:
        return msgspec.structs.replace(model_input, schema=schema) if schema is not None else model_input
    if _can_be_forced(capabilities) and not model_input.tools and choice is None and not reasons:
        tool = ToolDefinition(ANSWER_TOOL, "Give the answer.", schema)
        return msgspec.structs.replace(
            model_input,
            tools=(tool,),
            forced=ToolChoice("named", ANSWER_TOOL),
            warnings=(
                *model_input.warnings,
                _warning(WarningCode.SCHEMA_AS_TOOL, "the schema was sent as the arguments of a tool"),
            ),
        )
    return msgspec.structs.replace(
        model_input,
        system_prompt=joined(model_input.system_prompt, instruction(schema, with_tools=bool(model_input.tools))),
        warnings=(
            *model_input.warnings,
            _warning(WarningCode.SCHEMA_AS_INSTRUCTION, "the schema was sent in the system prompt"),
        ),
    )


def _can_be_forced(capabilities: AdapterCapabilities) -> bool:
    return capabilities.supports_tools and capabilities.supports_tool_choice


def _warning(code: WarningCode, what: str) -> CallWarning:
    return CallWarning(code, f"the model does not support output schemas; {what}")


def answer_as_text(response: CanonicalResponse) -> CanonicalResponse:
    """Replace the forced tool call of a response with its arguments, as text."""
    content: list[ContentBlock] = []
    for block in response.content:
        if isinstance(block, ToolUseBlock) and block.name == ANSWER_TOOL:
            content.append(TextBlock(arguments_text(block)))
        elif not isinstance(block, TextBlock):  # text next to the call is not part of the answer
            content.append(block)
    if not any(isinstance(block, TextBlock) for block in content):
        return response
    stop = StopReason.END_TURN if response.stop_reason is StopReason.TOOL_USE else response.stop_reason
    return msgspec.structs.replace(response, content=tuple(content), stop_reason=stop)


def arguments_text(call: ToolUseBlock) -> str:
    """The arguments of a call as the model wrote them. If that text is missing, they are encoded again."""
    if call.raw_arguments is not None:
        return call.raw_arguments
    return "" if call.incomplete else msgspec.json.encode(call.input).decode()


class Context(msgspec.Struct, frozen=True):
    """The part of a conversation that is sent: the `preface`, and then the messages from `start` on."""

    start: int = 0
    """The index of the first message that is sent."""
    preface: tuple[Message, ...] = ()
    """The messages that are sent instead of those before `start`."""

    def of(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages of a conversation that are sent."""
        return (*self.preface, *messages[self.start :])


WHOLE = Context()


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation that a policy gets."""

    messages: tuple[Message, ...]
    """All messages, including those of the current turn."""
    context: Context
    """The current context."""
    too_long: bool
    """Whether the last prompt was too long."""
    limit: int | None
    """The maximum number of tokens of a prompt; None if the model's window is unknown."""
    estimate: Callable[[Sequence[Message]], int]
    """A function that estimates the tokens of messages, with the session's tools and system prompt."""
    ask: Callable[[str], Awaitable[str]]
    """A function that sends a prompt to the model and returns the reply's text. The call is traced, and its cost
    is included in the turn's cost.
    """

    @property
    def sent(self) -> tuple[Message, ...]:
        """The messages that the current context sends."""
        return self.context.of(self.messages)

    @property
    def turns(self) -> tuple[int, ...]:
        """The positions where a context may start: user messages that start a turn, from the current start on.

        A steering message does not start a turn.
        """
        return tuple(
            place
            for place, message in enumerate(self.messages)
            if place >= self.context.start
            and message.role is Role.USER
            and not message.steers
            and (place == 0 or self.messages[place - 1].role is not Role.USER)
        )


class ContextPolicy(Protocol):
    """Decides which part of a conversation is sent. One object may serve many sessions."""

    async def assemble(self, conversation: Conversation) -> Context:
        """Return the context to use from now on. This is called again until the prompt fits."""


class LastTurns:
    """Sends the last turns, including the current one.

    Args:
        turns: The number of turns, at least 1.

    Raises:
        ValueError: The number is below 1.
    """

    def __init__(self, turns: int) -> None:
        if turns < 1:
            raise ValueError("LastTurns(turns) must be at least 1, for the current turn")
        self._turns = turns

    async def assemble(self, conversation: Conversation) -> Context:
        turns = conversation.turns
        return Context(turns[-self._turns]) if len(turns) > self._turns else conversation.context


class Truncate:
    """Leaves out the oldest turns when the prompt is too long.

    Args:
        keep: The share of the token limit to fill, between 0 and 1. A share below 1 leaves room for the next
            turns.

    Raises:
        ValueError: The share is not between 0 and 1.
    """

    def __init__(self, *, keep: float = 0.7) -> None:
        _require_share("keep", keep)
        self._keep = keep

    async def assemble(self, conversation: Conversation) -> Context:
        if not conversation.too_long:
            return conversation.context
        target = self._keep * room(conversation)
        later = conversation.turns[1:]
        for place in later:
            shorter = Context(place, conversation.context.preface)
            if conversation.estimate(shorter.of(conversation.messages)) <= target:
                return shorter
        return Context(later[-1], conversation.context.preface) if later else conversation.context


SUMMARY_PROMPT = """\
Below is the beginning of a conversation between a user and an assistant. Write down everything the \
assistant needs to continue it: facts, decisions, names, figures, open questions, results of tools. \
Write nothing else.

{text}"""


class Summarise:
    """Summarises the older turns if the prompt is too long, and sends the summary instead of them.

    The session's own model writes the summary. If the older turns fill more than half of the model's window, this
    takes several calls. The calls are traced, and their cost is included in the turn's cost.

    Args:
        keep_turns: The number of most recent turns that are sent unchanged, at least 1.
        instructions: The prompt for a summary. ``{text}`` is replaced by the transcript.

    Raises:
        ValueError: `keep_turns` is below 1, or the instructions lack ``{text}``.
    """

    def __init__(self, *, keep_turns: int = 2, instructions: str = SUMMARY_PROMPT) -> None:
        if keep_turns < 1:
            raise ValueError("Summarise(keep_turns=) must be at least 1, for the current turn")
        if "{text}" not in instructions:
            raise ValueError("Summarise(instructions=) needs {text} as the place of the transcript")
        self._keep_turns = keep_turns
        self._instructions = instructions

    async def assemble(self, conversation: Conversation) -> Context:
        turns = conversation.turns
        if not conversation.too_long or len(turns) < 2:
            return conversation.context
        cut = turns[-self._keep_turns] if len(turns) > self._keep_turns else turns[-1]
        ends = [*(place for place in turns if conversation.context.start < place < cut), cut]
        most = room(conversation) // 2
        summary = "".join(message.text for message in conversation.context.preface)
        begin = conversation.context.start
        for place, end in enumerate(ends):
            last = end == cut
            if not last and conversation.estimate(conversation.messages[begin : ends[place + 1]]) <= most:
                continue
            text = "\n\n".join(part for part in (summary, transcript(conversation.messages[begin:end])) if part)
            summary = await conversation.ask(self._instructions.replace("{text}", text))
            begin = end
        return Context(cut, (Message.user(f"Summary of the conversation so far:\n\n{summary}"),))


def room(conversation: Conversation) -> int:
    """The maximum number of tokens of a prompt. If the window is unknown, it is the size of the prompt that was
    too long.
    """
    sent = conversation.estimate(conversation.sent)
    return sent if conversation.limit is None else min(conversation.limit, sent)


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as text: messages, tool calls and tool results."""
    lines: list[str] = []
    for message in messages:
        for block in message.content:
            match block:
                case TextBlock():
                    lines.append(f"{message.role}: {block.text}")
                case ToolUseBlock():
                    lines.append(f"call of {block.name}: {msgspec.json.encode(block.input).decode()}")
                case ToolResultBlock():
                    lines.append(f"result: {_result_text(block)}")
                case _:
                    lines.append(f"{message.role}: ({type(block).__name__.removesuffix('Block').lower()})")
    return "\n".join(lines)


def _result_text(block: ToolResultBlock) -> str:
    if isinstance(block.content, str):
        return block.content
    return " ".join(part.text if isinstance(part, TextBlock) else "(image)" for part in block.content)


def _require_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, not {value}")
