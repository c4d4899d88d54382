"""What of a long conversation is sent, when the whole no longer fits: a session's context policy.

The history is never changed; a `Context` says from which message on it is sent, and what is said in the place of
the part before. A policy is asked before each reply, and again when the prompt turned out too long. What it
answers stays until it answers something else, so that providers find the prompt's beginning in their caches.

It may cut only where a user speaks: a tool's result without its call would be refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from adapters import Message, Role, TextBlock, ToolResultBlock, ToolUseBlock

__all__ = ["Context", "ContextPolicy", "Conversation", "LastTurns", "Summarise", "Truncate"]


class Context(msgspec.Struct, frozen=True):
    """`preface`, and then the conversation's messages from `start` on."""

    start: int = 0
    preface: tuple[Message, ...] = ()

    def of(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """What is sent of these messages."""
        return (*self.preface, *messages[self.start :])


WHOLE = Context()


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy decides upon.

    messages: all of them, the present turn's included. context: as it is. too_long: the last prompt was. limit:
    how many tokens a prompt may have; None if the model's window isn't known. estimate: tokens of some messages,
    with the session's tools and system prompt. ask: another model call, traced and paid with the turn; its text.
    """

    messages: tuple[Message, ...]
    context: Context
    too_long: bool
    limit: int | None
    estimate: Callable[[Sequence[Message]], int]
    ask: Callable[[str], Awaitable[str]]

    @property
    def sent(self) -> tuple[Message, ...]:
        """The messages as the context has them."""
        return self.context.of(self.messages)

    @property
    def turns(self) -> tuple[int, ...]:
        """Where a context may start: the places of what the user said, from the present start on."""
        return tuple(
            place
            for place, message in enumerate(self.messages)
            if place >= self.context.start
            and message.role is Role.USER
            and (place == 0 or self.messages[place - 1].role is not Role.USER)
        )


class ContextPolicy(Protocol):
    """Decides what is sent. One object may serve many sessions."""

    async def assemble(self, conversation: Conversation) -> Context:
        """The context from now on; the present one changes nothing. It is called again until the prompt fits."""


class LastTurns:
    """The last `turns` turns, the present one included; what came before is not sent.

    Raises ValueError for none.
    """

    def __init__(self, turns: int) -> None:
        if turns < 1:
            raise ValueError("LastTurns(turns) needs at least 1: the turn that is asked")
        self._turns = turns

    async def assemble(self, conversation: Conversation) -> Context:
        turns = conversation.turns
        return Context(turns[-self._turns]) if len(turns) > self._turns else conversation.context


class Truncate:
    """When the prompt is too long, leaves out the oldest turns.

    keep: how much of the limit to fill then, between 0 and 1, so that it isn't needed again in the next turn.
    Raises ValueError for another.
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
Below is the beginning of a conversation between a user and an assistant. Write down what the assistant has to \
know of it to go on: facts, decisions, names, figures, open questions, results of tools. Write nothing else.

{text}"""


class Summarise:
    """When the prompt is too long, has the older turns summarised, and sends the summary in their place.

    The session's own model writes the summary, in several calls if it must read more than half its window; they
    are traced, and paid with the turn. keep_turns: how many of the last turns stay as they are. instructions: with
    ``{text}`` where the transcript goes.
    Raises ValueError for no turns, or instructions without that place.
    """

    def __init__(self, *, keep_turns: int = 2, instructions: str = SUMMARY_PROMPT) -> None:
        if keep_turns < 1:
            raise ValueError("Summarise(keep_turns=) needs at least 1: the turn that is asked")
        if "{text}" not in instructions:
            raise ValueError("Summarise(instructions=) needs {text} where the transcript goes")
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
        return Context(cut, (Message.user(f"What was said before, in short:\n\n{summary}"),))


def room(conversation: Conversation) -> int:
    """How many tokens a prompt may have. Of an unknown window, less than what was just too much for it."""
    sent = conversation.estimate(conversation.sent)
    return sent if conversation.limit is None else min(conversation.limit, sent)


def transcript(messages: Sequence[Message]) -> str:
    """A conversation as text: who says what, which tools were called, and what they gave."""
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
