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

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import cycle
from operator import attrgetter, is_
from typing import assert_never, cast

import msgspec

from bus.values.content import (
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
from bus.values.messages import Message, Role, plain_texts

from ..contract import CanonicalRequest
from ..refusals.tools_in_words import tell_tools
from .fitted import FittedHistory, Home, Loss, Target, ToolIdRule, block_type, left_out
from .media import is_empty, media_type_of
from .surrogates import mend_object, mend_text

__all__ = [
    "BEGINNING",
    "FAILED_SILENTLY",
    "MADE_BY_MODEL",
    "NOT_EXECUTED",
    "NO_RESULT",
    "OPTIONS",
    "FittedHistory",
    "Loss",
    "Target",
    "ToolIdRule",
    "fit_history",
]

NOT_EXECUTED = "This tool call was interrupted and not executed."
NO_RESULT = "This tool call was interrupted and has no result; it may have been carried out, in part or in full."
"""Of a call that was whole: whoever ran it, such as a process that died, has not said what became of it."""
FAILED_SILENTLY = "The tool failed without saying why."
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
        self.losses: list[Loss] = []
        self.instructions: list[Message] = []  # what is part of the system text
        self.tool_ids: dict[str, str] = {}
        self.tool_names: dict[str, str] = {}
        self.homes: list[Home] = []
        self.taken: set[str] = set()
        self.shown: list[ContentBlock] = []  # of the reply that is being fitted
        self.messages = request.messages if target.carries_tools else self._tools_told()
        self.plain = _plain_beginning(self.messages)
        self.rest = self.messages[len(self.plain) :]
        self.results = _collect_results(self.rest)

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
                    self._report_dropped(message)
                case _:
                    pass
            former = fitted[-1].role if fitted else Role.ASSISTANT
        if plain and fitted[len(plain) - 1] is not self.messages[len(plain) - 1]:
            plain = plain[:-1]  # what followed was joined to it
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
            may_lose=self.options.get("on_loss") != "error",
        )

    def _system(self, hoisted: tuple[Role, ...]) -> str | None:
        system = [mend_text(self.request.system_prompt)] if self.request.system_prompt else []
        self.instructions = [message for message in self.rest if message.role in hoisted]
        for role in hoisted if self.instructions else ():
            said = [self._instruction(message) for message in self.instructions if message.role is role]
            system += [text for text in said if text]
        return "\n\n".join(system) or None

    def _instruction(self, message: Message) -> str:
        text = message.text
        mended = mend_text(text)
        if mended is not text:
            self._lose(message, message.content[0], "half a surrogate pair in its text was replaced")
        return mended

    def _system_parts(self, hoisted: tuple[Role, ...]) -> tuple[TextBlock, ...]:
        """The parts of the system text, if the host gave fields to one of them and there is a place for them."""
        parts = [
            (message, block)
            for role in hoisted
            for message in self.instructions
            if message.role is role
            for block in message.content
            if isinstance(block, TextBlock) and block.text
        ]
        marked = [(message, block) for message, block in parts if self._has_fields(block)]
        if not marked:
            return ()
        if self.target.takes_system and self.target.takes_system_parts:
            prompt = [TextBlock(mend_text(self.request.system_prompt))] if self.request.system_prompt else []
            texts = (msgspec.structs.replace(block, text=mend_text(block.text)) for _, block in parts)
            return (*prompt, *texts)
        for message, block in marked:
            self._lose(message, block, "the system text has no parts here, so that its fields can't go with it")
        return ()

    def _has_fields(self, block: TextBlock) -> bool:
        raw = block.provider_raw
        return raw is not None and raw.provider == self.target.provider and bool(raw.data)

    def _tools_told(self) -> tuple[Message, ...]:
        """The history for a model without tools."""
        calls: dict[str, ToolUseBlock] = {}
        for message in self.request.messages:
            for call in message.tool_uses:
                calls[call.id] = call
                self._lose(message, call, "the model takes no tools; with its result it is told in words")
            for block in message.content if message.tool_uses else ():
                if isinstance(block, ThinkingBlock | RedactedThinkingBlock):
                    self._lose(message, block, "it is bound to a call of a tool, which is told in words")
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
            self._lose(message, content[0], "a user message was put before it, for none came first")
            fitted.append(Message.user(BEGINNING))
        self._append(fitted, message, Role.ASSISTANT, content)
        calls = [block for block in content if isinstance(block, ToolUseBlock)]
        if calls:
            self._append(fitted, message, Role.TOOL, [self._answer(call) for call in calls])
        if self.shown:
            self._append(fitted, message, Role.USER, [TextBlock(MADE_BY_MODEL), *self.shown])
            self.shown = []

    @cached_property
    def called(self) -> set[str]:
        """Our ids of all calls."""
        return {block.id for message in self.messages for block in message.tool_uses}

    # -- what users say

    def _said(self, message: Message) -> list[ContentBlock]:
        kept: list[ContentBlock] = []
        refused: list[ContentBlock] = []
        for block in message.content:
            if isinstance(block, TextBlock):
                if block.text.strip():
                    kept.append(self._mend(message, block))
            elif reason := self._refused(block):
                self._lose(message, block, reason)
                refused.append(block)
            else:
                kept.append(block)
        return kept or [*left_out(refused)]

    def _refused(self, block: ContentBlock) -> str | None:
        match block:
            case OpaqueBlock():
                foreign = self._foreign(block)
                return foreign if foreign or self.target.takes_opaque else "this protocol takes no such content"
            case ImageBlock():
                kind, accepts, types = "images", self.target.accepts_images, self.target.image_types
            case AudioBlock():
                kind, accepts, types = "audio", self.target.accepts_audio, self.target.audio_types
            case DocumentBlock():
                kind, accepts, types = "documents", self.target.accepts_documents, self.target.document_types
            case _:
                return None
        if not accepts:
            return f"the model takes no {kind}"
        if is_empty(block):
            return "there is nothing in it"
        media_type = media_type_of(block, self.target.fetches)
        if types is None or media_type is None or media_type in types:
            return None
        return f"{media_type or 'no media type'} is none of {', '.join(types)}"

    def _mend(self, message: Message, block: TextBlock) -> TextBlock:
        text = mend_text(block.text)
        if text is block.text:
            return block
        self._lose(message, block, "half a surrogate pair in its text was replaced")
        return msgspec.structs.replace(block, text=text)

    # -- what assistants say

    def _assistant(self, message: Message) -> list[ContentBlock]:
        kept: list[ContentBlock] = []
        for block in message.content:
            match block:
                case TextBlock():
                    if block.text.strip() or self._keeps_blank(block):
                        kept.append(self._mend(message, block))
                case ToolUseBlock():
                    if block.id in self.tool_ids:
                        self._lose(message, block, "a tool call of the same id came before it")
                    else:
                        kept.append(self._call(message, block))
                case ThinkingBlock() | RedactedThinkingBlock() | OpaqueBlock():
                    reason = self._foreign(block)
                    if reason is None:
                        kept.append(block)
                    else:
                        kept += self._as_text(block)
                        self._lose(message, block, reason)
                case ImageBlock() if self._is_own_image(block):
                    kept.append(block)
                case ImageBlock():
                    self._show(message, block)
                case AudioBlock() | DocumentBlock() | ToolResultBlock():
                    pass  # no assistant message can carry them
                case _:
                    assert_never(block)
        return kept

    def _is_own_image(self, block: ImageBlock) -> bool:
        """Whether the target made an image and takes it back as its own."""
        raw = block.provider_raw
        if not self.target.replays_images or raw is None or raw.provider != self.target.provider:
            return False
        return None in (raw.model, self.target.model) or raw.model == self.target.model

    def _show(self, message: Message, block: ImageBlock) -> None:
        """Have the user show an image that another model made, behind what that said."""
        refused = self._refused(block)
        if refused is None:
            self.shown.append(msgspec.structs.replace(block, provider_raw=None))
        self._lose(message, block, refused or "a model's image goes to another as the user's")

    def _keeps_blank(self, block: TextBlock) -> bool:
        raw = block.provider_raw
        return self.target.keeps_own_blanks and raw is not None and raw.provider == self.target.provider

    def _foreign(self, block: ThinkingBlock | RedactedThinkingBlock | OpaqueBlock) -> str | None:
        raw = block.provider_raw
        origin = raw.provider if raw is not None else None
        unsigned = isinstance(block, ThinkingBlock) and block.signature is None
        if origin is None and self.target.adopts_signatures and not unsigned:
            origin = self.target.provider
        if origin != self.target.provider:
            return f"it belongs to {origin or 'an unknown provider'}"
        if isinstance(block, OpaqueBlock):
            return None
        if not self.target.replays_thinking:
            return "this protocol takes no reasoning back"
        if raw is not None and None not in (raw.model, self.target.model) and raw.model != self.target.model:
            return f"it belongs to the model {raw.model}"
        return None

    def _as_text(self, block: ContentBlock) -> list[TextBlock]:
        """Reasoning that another model shall read, if the caller wants that."""
        if self.options.get("foreign_thinking") != "text" or not isinstance(block, ThinkingBlock):
            return []
        raw = block.provider_raw
        text = mend_text(block.text)
        return [TextBlock(f"[Reasoning of {raw.provider if raw else 'another model'}]\n{text}")] if text else []

    # -- tool calls and their results

    def _call(self, message: Message, block: ToolUseBlock) -> ToolUseBlock:
        changed: dict[str, object] = {}
        name = _legal_name(block.name)
        if name != block.name:
            self._lose(message, block, "its name is no legal one and was changed")
            changed["name"] = name
        if block.raw_arguments and not block.input:
            self._lose(message, block, "its arguments are no JSON object; it was sent without any")
            changed["raw_arguments"] = None
        mended = mend_object(block.input)
        if mended is not block.input:
            self._lose(message, block, "half a surrogate pair in its arguments was replaced")
            changed["input"] = mended
        wire_id = self._wire_id(block)
        self.taken.add(wire_id)
        self.tool_ids[block.id] = wire_id
        self.tool_names[block.id] = name
        return msgspec.structs.replace(block, **changed) if changed else block

    def _wire_id(self, block: ToolUseBlock) -> str:
        rule = self.target.tool_ids
        raw = block.provider_raw
        if raw is not None and raw.provider == self.target.provider:
            own = raw.data.get("id")
            if isinstance(own, str) and own and own not in self.taken:
                return own
        wire_id = block.id if rule.allows(block.id) else rule.derive(block.id)
        number = 0
        while wire_id in self.taken:
            number += 1
            wire_id = rule.derive(f"{block.id} {number}")
        return wire_id

    def _answer(self, call: ToolUseBlock) -> ToolResultBlock:
        if call.id not in self.results:
            return ToolResultBlock(call.id, NOT_EXECUTED if call.incomplete else NO_RESULT, is_error=True)
        message, result = self.results[call.id]
        if isinstance(result.content, str):
            text, answer = mend_text(result.content), result
            if text is not result.content:
                self._lose(message, result, "half a surrogate pair in its text was replaced")
                answer = msgspec.structs.replace(result, content=text)
            self.homes.append((message.id or "", (answer,)))
            return answer
        kept: list[ResultPart] = []
        refused: list[ContentBlock] = []
        for block in result.content:
            if isinstance(block, TextBlock):
                kept.append(self._mend(message, block))
            elif reason := self._refused_in_result(block):
                self._lose(message, block, reason)
                refused.append(block)
            else:
                kept.append(block)
        answer = msgspec.structs.replace(result, content=tuple(kept or left_out(refused)))
        self.homes.append((message.id or "", (answer, *kept)))
        return answer

    def _refused_in_result(self, block: ImageBlock | DocumentBlock | OpaqueBlock) -> str | None:
        kind = str(type(block).__struct_config__.tag)
        if reason := self._refused(block):
            return reason
        what = block.kind if isinstance(block, OpaqueBlock) else kind
        return None if kind in self.target.results_carry else f"a tool's result can't hold any {what} here"

    def _report_dropped(self, message: Message) -> None:
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                if block.tool_use_id not in self.called:
                    self._lose(message, block, "no message has the call that it answers")
                elif self.results[block.tool_use_id][1] is not block:
                    self._lose(message, block, "the call that it answers has a result already")

    def _lose(self, message: Message, block: ContentBlock, reason: str) -> None:
        provider = self.target.provider
        self.losses.append(
            Loss(self.request.session_id, message.id or "", block_type(block), provider, reason, block)
        )


def _plain_beginning(messages: Sequence[Message]) -> tuple[str, ...]:
    """The texts of the messages at the beginning that are a user's and an assistant's plain text in turn.

    Most messages of most histories are, and every call asks them all: so there is no loop here.
    """
    in_turn = list(map(is_, map(_ROLE, messages), cycle(_SPEAKERS)))
    if False in in_turn:
        messages = messages[: in_turn.index(False)]
    texts = plain_texts(messages)
    return cast("tuple[str, ...]", tuple(texts[: texts.index(None)] if None in texts else texts))


def _collect_results(messages: Iterable[Message]) -> dict[str, tuple[Message, ToolResultBlock]]:
    results: dict[str, tuple[Message, ToolResultBlock]] = {}
    for message in messages:
        if message.role is not Role.TOOL:  # others can't have any
            continue
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                results.setdefault(block.tool_use_id, (message, block))
    return results


def _legal_name(name: str) -> str:
    """A tool's name in a form that every provider takes. Only a model can make up a name in another form."""
    legal = re.sub("[^A-Za-z0-9_-]", "_", name)[:64]
    return legal if re.match("[A-Za-z_]", legal) else f"_{legal}"[:64]
