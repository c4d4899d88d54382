"""Fitting a canonical history to one target, before every send."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from operator import is_
from typing import assert_never

import msgspec

from callboard.bus.values.content import (
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
from callboard.bus.values.messages import Message, Role, beginning_of, plain_beginning

from ..contract import CanonicalRequest
from .content import repair_object, repair_text, tools_as_text
from .history_target import (
    FittedHistory,
    Home,
    Loss,
    Target,
    block_type,
    foreign,
    has_fields,
    is_own_image,
    keeps_blank,
    left_out,
    refusal,
    refusal_in_result,
)

NOT_EXECUTED = "This tool call was interrupted and not run."
NO_RESULT = "This tool call was interrupted and has no result. It may have run in part or in full."
"""The result for a complete call that has none, for example because the process crashed."""
FAILED_SILENTLY = "The tool failed without an error text."
NO_OUTPUT = "(no output)"
"""The text that replaces a result without visible text, because some servers reject such a result."""
BEGINNING = "(The conversation starts with a message of the assistant.)"
MADE_BY_MODEL = "(Made by the assistant:)"
"""The text that precedes another model's image in a user message."""
OPTIONS = "history"
"""The key of this module's options in `provider_options`."""

_SPEAKERS = (Role.USER, Role.ASSISTANT)
"""The roles with plain text that is the same for every target."""


def fit_history(request: CanonicalRequest, target: Target) -> FittedHistory:
    """Fit a request's messages to a target. Pure."""
    can = request.capabilities
    return _Fitter(request, target if can is None else target.within(can)).fit()


class _Fitter:
    def __init__(self, request: CanonicalRequest, target: Target) -> None:
        options = request.provider_options.get(OPTIONS)
        self.options = options if options is not None and isinstance(options, Mapping) else {}
        self.request = request
        self.target = target
        self.losses: list[Loss] = []  # in the order of their discovery
        self.instructions: list[Message] = []  # parts of the system text
        self.homes: list[Home] = []
        self.shown: list[ContentBlock] = []  # images of the assistant message that is being fitted
        self.messages = request.messages if target.carries_tools else self._tools_as_text()
        self.beginning = beginning_of(self.messages)
        self.plain = plain_beginning(self.messages, self.beginning)
        self.rest = self.messages[len(self.plain) :]
        self.tool_ids: dict[str, str] = {}  # the calls' ids on the wire, by Callboard's ids
        self.tool_names: dict[str, str] = {}
        self._used_ids: set[str] = set()  # ids on the wire

    def fit(self) -> FittedHistory:
        hoisted = (Role.SYSTEM,) if self.target.keeps_developer else (Role.SYSTEM, Role.DEVELOPER)
        system = self._system(hoisted)
        plain, rest = self.plain, self.rest
        fitted = list(self.messages[: len(plain)])
        if system and not self.target.takes_system:
            plain, rest = (), self.messages
            fitted = [Message.user(system)]
        self.homes += fitted
        # The role of the previous message; a user message may come next.
        former = fitted[-1].role if fitted else Role.ASSISTANT
        for message in rest:
            role = message.role
            if role is not former and role in _SPEAKERS and message.plain_text:
                fitted.append(message)
                self.homes.append(message)
                former = role
                continue
            match role:
                case Role.USER | Role.DEVELOPER if role not in hoisted:
                    self._append(fitted, message, role, self._content_of(message))
                case Role.ASSISTANT:
                    self._append_reply(fitted, message)
                case Role.TOOL:
                    self.report_dropped(message)
                case _:
                    pass
            former = fitted[-1].role if fitted else Role.ASSISTANT
        if plain and fitted[len(plain) - 1] is not self.messages[len(plain) - 1]:
            plain = plain[:-1]  # the last text was joined with the next message
        return FittedHistory(
            system=system if self.target.takes_system else None,
            system_parts=self._system_parts(hoisted) if self.instructions else (),
            messages=tuple(fitted),
            tool_ids=self.tool_ids,
            tool_names=self.tool_names,
            losses=tuple(self.losses),
            session_id=self.request.session_id,
            adapter=self.target.provider,
            homes=tuple(self.homes),
            plain=plain,
            beginning=self.beginning,
            may_lose=self.options.get("on_loss") != "error",
        )

    def _system(self, hoisted: tuple[Role, ...]) -> str | None:
        prompt = self.request.system_prompt or ""
        system = [repair_text(prompt)] if prompt.strip() else []  # Anthropic refuses a blank system text
        self.instructions = [message for message in self.rest if message.role in hoisted]
        for role in hoisted if self.instructions else ():
            texts = [self._instruction(message) for message in self.instructions if message.role is role]
            system += [text for text in texts if text.strip()]
        return "\n\n".join(system) or None

    def _instruction(self, message: Message) -> str:
        return self.repaired(message, message.content[0], message.text) if message.content else ""

    def _system_parts(self, hoisted: tuple[Role, ...]) -> tuple[TextBlock, ...]:
        """The parts of the system text, if the host gave one of them fields and the target supports parts."""
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
            text = self.request.system_prompt or ""
            prompt = [TextBlock(repair_text(text))] if text.strip() else []
            texts = (msgspec.structs.replace(block, text=repair_text(block.text)) for _, block in parts)
            return (*prompt, *texts)
        for message, block in marked:
            self.note(message, block, "the system prompt has no parts here, so its fields can't be sent")
        return ()

    def _tools_as_text(self) -> tuple[Message, ...]:
        """The history for a model without tools."""
        calls: dict[str, ToolUseBlock] = {}
        for message in self.request.messages:
            for call in message.tool_uses:
                calls[call.id] = call
                self.note(message, call, "the model does not support tools, so it is sent as text with its result")
            for block in message.content if message.tool_uses else ():
                if isinstance(block, ThinkingBlock | RedactedThinkingBlock):
                    self.note(message, block, "it belongs to a tool call that is sent as text")
        return tuple(tools_as_text(self.request.messages, calls, ())) if calls else self.request.messages

    def note(self, message: Message, block: ContentBlock, reason: str) -> None:
        kind = block_type(block)
        self.losses.append(
            Loss(self.request.session_id, message.id or "", kind, self.target.provider, reason, block)
        )

    def repaired(self, message: Message, block: ContentBlock, text: str) -> str:
        """Return a block's text without half surrogate pairs. Record a loss if the text had any."""
        repaired = repair_text(text)
        if repaired is not text:
            self.note(message, block, "half a surrogate pair in its text was replaced")
        return repaired

    def repaired_block(self, message: Message, block: TextBlock) -> TextBlock:
        text = self.repaired(message, block, block.text)
        return block if text is block.text else msgspec.structs.replace(block, text=text)

    def _append(self, fitted: list[Message], origin: Message, role: Role, content: Iterable[ContentBlock]) -> None:
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
            self.note(
                message, content[0], "a user message was added before it, because the first message must be one"
            )
            fitted.append(Message.user(BEGINNING))
        self._append(fitted, message, Role.ASSISTANT, content)
        calls = [block for block in content if isinstance(block, ToolUseBlock)]
        if calls:
            self._append(fitted, message, Role.TOOL, [self.answer(call) for call in calls])
        if self.shown:
            self._append(fitted, message, Role.USER, [TextBlock(MADE_BY_MODEL), *self.shown])
            self.shown = []

    def _content_of(self, message: Message) -> list[ContentBlock]:
        content: list[ContentBlock] = []
        refused: list[ContentBlock] = []
        for block in message.content:
            if isinstance(block, TextBlock):
                if block.text.strip():
                    content.append(self.repaired_block(message, block))
            elif reason := refusal(block, self.target):
                self.note(message, block, reason)
                refused.append(block)
            else:
                content.append(block)
        return content or [*left_out(refused)]

    # --- Assistant messages ---

    def _assistant(self, message: Message) -> list[ContentBlock]:
        content: list[ContentBlock] = []
        for block in message.content:
            match block:
                case TextBlock():
                    if block.text.strip() or keeps_blank(block, self.target):
                        content.append(self.repaired_block(message, block))
                case ToolUseBlock():
                    if block.id in self.tool_ids:
                        self.note(message, block, "an earlier tool call has the same id")
                    else:
                        content.append(self.fit_call(message, block))
                case ThinkingBlock() | RedactedThinkingBlock() | OpaqueBlock():
                    reason = foreign(block, self.target)
                    if reason is None:
                        content.append(block)
                    else:
                        content += self._as_text(block)
                        self.note(message, block, reason)
                case ImageBlock() if is_own_image(block, self.target):
                    content.append(block)
                case ImageBlock():
                    self._show(message, block)
                case AudioBlock() | DocumentBlock() | ToolResultBlock():
                    pass  # assistant messages can't contain audio or documents
                case _:
                    assert_never(block)
        return content

    def _show(self, message: Message, block: ImageBlock) -> None:
        """Move an image that another model made to a user message, after the assistant's message."""
        refused = refusal(block, self.target)
        if refused is None:
            self.shown.append(msgspec.structs.replace(block, provider_raw=None))
        self.note(message, block, refused or "an image of another model is sent as an image of the user")

    def _as_text(self, block: ContentBlock) -> list[TextBlock]:
        """Another model's reasoning as text, if the caller enables this conversion."""
        if self.options.get("foreign_thinking") != "text" or not isinstance(block, ThinkingBlock):
            return []
        raw = block.provider_raw
        text = repair_text(block.text)
        return [TextBlock(f"[Reasoning of {raw.provider if raw else 'another model'}]\n{text}")] if text else []

    # --- Calls and results ---

    def fit_call(self, message: Message, block: ToolUseBlock) -> ToolUseBlock:
        """The call with an id and a name that the target accepts."""
        changed: dict[str, object] = {}
        name = _legal_name(block.name)
        if name != block.name:
            self.note(message, block, "its name is not valid and was changed")
            changed["name"] = name
        if block.raw_arguments and not block.input:
            self.note(message, block, "its arguments are not a JSON object and were left out")
            changed["raw_arguments"] = None
        repaired = repair_object(block.input)
        if repaired is not block.input:
            self.note(message, block, "half a surrogate pair in its arguments was replaced")
            changed["input"] = repaired
        wire_id = self._wire_id(block)
        self._used_ids.add(wire_id)
        self.tool_ids[block.id] = wire_id
        self.tool_names[block.id] = name
        return msgspec.structs.replace(block, **changed) if changed else block

    def _wire_id(self, block: ToolUseBlock) -> str:
        rule = self.target.tool_ids
        raw = block.provider_raw
        if raw is not None and raw.provider == self.target.provider:
            provider_id = raw.data.get("id")
            if isinstance(provider_id, str) and provider_id and provider_id not in self._used_ids:
                return provider_id
        wire_id = block.id if rule.allows(block.id) else rule.derive(block.id)
        number = 0
        while wire_id in self._used_ids:
            number += 1
            wire_id = rule.derive(f"{block.id} {number}")
        return wire_id

    def answer(self, call: ToolUseBlock) -> ToolResultBlock:
        if call.id not in self._results:
            return ToolResultBlock(call.id, NOT_EXECUTED if call.incomplete else NO_RESULT, is_error=True)
        message, result = self._results[call.id]
        if isinstance(result.content, str):
            text = self.repaired(message, result, result.content)
            answer = result if text is result.content else msgspec.structs.replace(result, content=text)
            self.homes.append((message.id or "", (answer,)))
            return answer
        results: list[ResultPart] = []
        refused: list[ContentBlock] = []
        for block in result.content:
            if isinstance(block, TextBlock):
                results.append(self.repaired_block(message, block))
            elif reason := refusal_in_result(block, self.target):
                self.note(message, block, reason)
                refused.append(block)
            else:
                results.append(block)
        answer = msgspec.structs.replace(result, content=tuple(results or left_out(refused)))
        self.homes.append((message.id or "", (answer, *results)))
        return answer

    def report_dropped(self, message: Message) -> None:
        """Record the loss of results without a call, and of second results."""
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                if block.tool_use_id not in self._called:
                    self.note(message, block, "its tool call is missing")
                elif self._results[block.tool_use_id][1] is not block:
                    self.note(message, block, "its tool call already has a result")

    @cached_property
    def _called(self) -> set[str]:
        return {block.id for message in self.rest for block in message.tool_uses}

    @cached_property
    def _results(self) -> dict[str, tuple[Message, ToolResultBlock]]:
        """The first result of each call, with its message, by Callboard's ids."""
        results: dict[str, tuple[Message, ToolResultBlock]] = {}
        for message in self.rest:
            if message.role is not Role.TOOL:  # messages of other roles contain no results
                continue
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    results.setdefault(block.tool_use_id, (message, block))
        return results


def _legal_name(name: str) -> str:
    """A tool's name in a form that every provider accepts. Only a model may have invented an invalid name."""
    legal = re.sub("[^A-Za-z0-9_-]", "_", name)[:64]
    return legal if re.match("[A-Za-z_]", legal) else f"_{legal}"[:64]
