"""Fitting a canonical history to one target, before every send.

The stored history is never changed. The result is a copy that the target accepts, with a report of everything that
was left out or changed.

- System text is `system_prompt`, then SYSTEM messages, then (where the provider has no such role) DEVELOPER
  messages, joined by a blank line.
- Every tool call is answered exactly once, directly after the message that made it. A call without a result, or a
  call that was cut off, is answered with an error. A result without a call is left out.
- Reasoning goes only to the provider that issued it, and only to its own model if it is bound to a model. Opaque
  data go only to their provider. On request, foreign reasoning goes along as text that names its origin.
- An image that a model made goes back to that model where its provider takes it, and to any other as the user's.
- Media that the target doesn't take are left out. A message or a result that would be empty without them says so.
- Empty text and empty messages are left out. Neighbours of one role are merged. If the provider insists, a user
  message comes first.
- Tool ids are the issuing provider's own if it is the target. Otherwise they are derived from our id. Our id
  itself is taken if it is legal there and not in use, and else a digest of it. So an id stays the same from send
  to send.
- A tool's name that a model made up is made legal. If the model takes no tools, calls and results are told in
  words.
- If the model takes no system text, the user says it first.

The request's `capabilities` narrow the target's abilities, because a model may be able to do less than its
protocol.

``provider_options["history"]`` of a request may say ``on_loss: "error"``, which makes every loss a CapabilityError
before anything is sent, and ``foreign_thinking: "text"``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from operator import attrgetter, is_
from typing import assert_never, cast

import msgspec

from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role, plain_texts

from ...contract import CanonicalRequest
from ...refusals.tools_in_words import tell_tools
from ..fitted import FittedHistory, Home, Target, left_out
from ..surrogates import mend_text
from .acceptance import foreign, has_fields, is_own_image, keeps_blank, refusal
from .losses import Losses
from .tool_calls import FittedCalls

FAILED_SILENTLY = "The tool failed without saying why."
NO_OUTPUT = "(no output)"
"""Stands in for a tool's result without visible text, for servers that refuse one."""
BEGINNING = "(The conversation begins with the assistant's message.)"
MADE_BY_MODEL = "(Made by the assistant:)"
"""Stands before an image that another model made, where the user shows it."""
OPTIONS = "history"
"""The key of `provider_options` with the options of this module."""

_SPEAKERS = (Role.USER, Role.ASSISTANT)
"""The roles whose plain text no target has to change."""

_ROLE = attrgetter("role")


def fit_history(request: CanonicalRequest, target: Target) -> FittedHistory:
    """Fit a request's messages to a target. Pure; see the module's text for the rules."""
    can = request.capabilities
    return _Fitter(request, target if can is None else target.within(can)).fit()


class _Fitter:
    def __init__(self, request: CanonicalRequest, target: Target) -> None:
        options = request.provider_options.get(OPTIONS)
        self.options = options if options is not None and isinstance(options, Mapping) else {}
        self.request = request
        self.target = target
        self.losses = Losses(request.session_id, target.provider)
        self.instructions: list[Message] = []  # what is part of the system text
        self.homes: list[Home] = []
        self.shown: list[ContentBlock] = []  # of the reply that is being fitted
        self.messages = request.messages if target.carries_tools else self._tools_told()
        self.plain = _plain_beginning(self.messages)
        self.rest = self.messages[len(self.plain) :]
        self.calls = FittedCalls(self.rest, target, self.losses, self.homes)

    def fit(self) -> FittedHistory:
        hoisted = (Role.SYSTEM,) if self.target.keeps_developer else (Role.SYSTEM, Role.DEVELOPER)
        system = self._system(hoisted)
        plain, rest = self.plain, self.rest
        fitted = list(self.messages[: len(plain)])
        if system and not self.target.takes_system:
            plain, rest = (), self.messages
            fitted = [Message.user(system)]
        self.homes += fitted
        former = fitted[-1].role if fitted else Role.ASSISTANT  # whom a user may follow
        for message in rest:
            role = message.role
            if role is not former and role in _SPEAKERS and message.plain_text:
                fitted.append(message)
                self.homes.append(message)
                former = role
                continue
            match role:
                case Role.USER | Role.DEVELOPER if role not in hoisted:
                    self._append(fitted, message, role, self._said(message))
                case Role.ASSISTANT:
                    self._append_reply(fitted, message)
                case Role.TOOL:
                    self.calls.report_dropped(message)
                case _:
                    pass
            former = fitted[-1].role if fitted else Role.ASSISTANT
        if plain and fitted[len(plain) - 1] is not self.messages[len(plain) - 1]:
            plain = plain[:-1]  # what followed was joined to it
        return FittedHistory(
            system=system if self.target.takes_system else None,
            system_parts=self._system_parts(hoisted) if self.instructions else (),
            messages=tuple(fitted),
            tool_ids=self.calls.ids,
            tool_names=self.calls.names,
            losses=tuple(self.losses.found),
            session_id=self.request.session_id,
            adapter=self.target.provider,
            homes=tuple(self.homes),
            plain=plain,
            may_lose=self.options.get("on_loss") != "error",
        )

    def _system(self, hoisted: tuple[Role, ...]) -> str | None:
        prompt = self.request.system_prompt or ""
        system = [mend_text(prompt)] if prompt.strip() else []  # Anthropic refuses a blank system text
        self.instructions = [message for message in self.rest if message.role in hoisted]
        for role in hoisted if self.instructions else ():
            said = [self._instruction(message) for message in self.instructions if message.role is role]
            system += [text for text in said if text.strip()]
        return "\n\n".join(system) or None

    def _instruction(self, message: Message) -> str:
        return self.losses.mended(message, message.content[0], message.text) if message.content else ""

    def _system_parts(self, hoisted: tuple[Role, ...]) -> tuple[TextBlock, ...]:
        """The parts of the system text, if the host gave fields to one of them and there is a place for them."""
        parts = [
            (message, block)
            for role in hoisted
            for message in self.instructions
            if message.role is role
            for block in message.content
            if isinstance(block, TextBlock) and block.text.strip()
        ]
        marked = [(message, block) for message, block in parts if has_fields(block, self.target)]
        if not marked:
            return ()
        if self.target.takes_system and self.target.takes_system_parts:
            said = self.request.system_prompt or ""
            prompt = [TextBlock(mend_text(said))] if said.strip() else []
            texts = (msgspec.structs.replace(block, text=mend_text(block.text)) for _, block in parts)
            return (*prompt, *texts)
        for message, block in marked:
            self.losses.note(
                message, block, "the system text has no parts here, so that its fields can't go with it"
            )
        return ()

    def _tools_told(self) -> tuple[Message, ...]:
        """The history for a model without tools."""
        calls: dict[str, ToolUseBlock] = {}
        for message in self.request.messages:
            for call in message.tool_uses:
                calls[call.id] = call
                self.losses.note(message, call, "the model takes no tools; with its result it is told in words")
            for block in message.content if message.tool_uses else ():
                if isinstance(block, ThinkingBlock | RedactedThinkingBlock):
                    self.losses.note(message, block, "it is bound to a call of a tool, which is told in words")
        return tuple(tell_tools(self.request.messages, calls, ())) if calls else self.request.messages

    def _append(self, fitted: list[Message], origin: Message, role: Role, content: Iterable[ContentBlock]) -> None:
        """Add blocks of a role.

        Args:
            fitted: The messages so far.
            origin: The message that the blocks came from. It is taken as it is if nothing had to change.
            role: The role.
            content: The blocks.
        """
        blocks = tuple(content)
        if not blocks:
            return
        if fitted and fitted[-1].role is role:
            fitted[-1] = Message(role, fitted[-1].content + blocks, steers=fitted[-1].steers)
        elif origin.role is role and len(blocks) == len(origin.content) and all(map(is_, blocks, origin.content)):
            fitted.append(origin)
        else:
            fitted.append(Message(role, blocks, steers=origin.steers))
        self.homes.append((origin.id or "", blocks))

    def _append_reply(self, fitted: list[Message], message: Message) -> None:
        content = self._assistant(message)
        if not content and not self.shown:
            content += left_out(block for block in message.content if isinstance(block, ImageBlock))
        if content and not fitted and self.target.begins_with_user:
            self.losses.note(message, content[0], "a user message was put before it, for none came first")
            fitted.append(Message.user(BEGINNING))
        self._append(fitted, message, Role.ASSISTANT, content)
        calls = [block for block in content if isinstance(block, ToolUseBlock)]
        if calls:
            self._append(fitted, message, Role.TOOL, [self.calls.answer(call) for call in calls])
        if self.shown:
            self._append(fitted, message, Role.USER, [TextBlock(MADE_BY_MODEL), *self.shown])
            self.shown = []

    # -- what users say

    def _said(self, message: Message) -> list[ContentBlock]:
        kept: list[ContentBlock] = []
        refused: list[ContentBlock] = []
        for block in message.content:
            if isinstance(block, TextBlock):
                if block.text.strip():
                    kept.append(self.losses.mended_block(message, block))
            elif reason := refusal(block, self.target):
                self.losses.note(message, block, reason)
                refused.append(block)
            else:
                kept.append(block)
        return kept or [*left_out(refused)]

    # -- what assistants say

    def _assistant(self, message: Message) -> list[ContentBlock]:
        kept: list[ContentBlock] = []
        for block in message.content:
            match block:
                case TextBlock():
                    if block.text.strip() or keeps_blank(block, self.target):
                        kept.append(self.losses.mended_block(message, block))
                case ToolUseBlock():
                    if block.id in self.calls.ids:
                        self.losses.note(message, block, "a tool call of the same id came before it")
                    else:
                        kept.append(self.calls.fit(message, block))
                case ThinkingBlock() | RedactedThinkingBlock() | OpaqueBlock():
                    reason = foreign(block, self.target)
                    if reason is None:
                        kept.append(block)
                    else:
                        kept += self._as_text(block)
                        self.losses.note(message, block, reason)
                case ImageBlock() if is_own_image(block, self.target):
                    kept.append(block)
                case ImageBlock():
                    self._show(message, block)
                case AudioBlock() | DocumentBlock() | ToolResultBlock():
                    pass  # no assistant message can carry them
                case _:
                    assert_never(block)
        return kept

    def _show(self, message: Message, block: ImageBlock) -> None:
        """Have the user show an image that another model made, behind what that said."""
        refused = refusal(block, self.target)
        if refused is None:
            self.shown.append(msgspec.structs.replace(block, provider_raw=None))
        self.losses.note(message, block, refused or "a model's image goes to another as the user's")

    def _as_text(self, block: ContentBlock) -> list[TextBlock]:
        """Reasoning that another model shall read, if the caller wants that."""
        if self.options.get("foreign_thinking") != "text" or not isinstance(block, ThinkingBlock):
            return []
        raw = block.provider_raw
        text = mend_text(block.text)
        return [TextBlock(f"[Reasoning of {raw.provider if raw else 'another model'}]\n{text}")] if text else []


def _plain_beginning(messages: Sequence[Message]) -> tuple[str, ...]:
    """The texts of the messages at the beginning that are a user's and an assistant's plain text in turn.

    Most messages of most histories are, and every call asks them all: so there is no loop here.
    """
    in_turn = list(map(is_, map(_ROLE, messages), cycle(_SPEAKERS)))
    if False in in_turn:
        messages = messages[: in_turn.index(False)]
    texts = plain_texts(messages)
    return cast("tuple[str, ...]", tuple(texts[: texts.index(None)] if None in texts else texts))
