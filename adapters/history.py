"""Fitting a canonical history to one target, before every send.

The stored history is never changed: this makes a copy that the target accepts, and says what it had to leave out.

* System text is `system_prompt`, then SYSTEM, then (where the provider has no such role) DEVELOPER messages,
  joined by a blank line.
* Every tool call is answered exactly once, directly after the message that made it; a call without a result,
  or one that was cut off, is answered with an error; a result without a call is left out.
* Reasoning, and anything opaque, goes only to the provider that issued it.
* Empty text and empty messages are left out; neighbours of one role are merged.
* Tool ids are the issuing provider's own where it is the target. Otherwise they are derived from our id: the
  same if it is legal there and not taken, else a digest of it, so that it stays the same from send to send.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from operator import is_

import msgspec

from bus.content import (
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
from bus.log import Log
from bus.messages import Message, Role

from .contract import CallWarning, CanonicalRequest
from .surrogates import mend_text

_log = Log("adapters.history")

NOT_EXECUTED = "This tool call was interrupted and not executed."
FAILED_SILENTLY = "The tool failed without saying why."


class ToolIdRule(msgspec.Struct, frozen=True):
    """What a provider accepts as a tool call's id. pattern: of one character. prefix: of derived ids."""

    max_length: int = 64
    pattern: str = "[A-Za-z0-9_-]"
    prefix: str = "call_"

    def allows(self, wire_id: str) -> bool:
        return bool(re.fullmatch(f"{self.pattern}{{1,{self.max_length}}}", wire_id))

    def derive(self, canonical_id: str) -> str:
        """An id for a foreign call: deterministic, and different for different calls."""
        digest = hashlib.sha256(canonical_id.encode()).hexdigest()
        return (self.prefix + digest)[: self.max_length]


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider takes. provider: the adapter's name, to know its own opaque data again.

    replays_thinking: it wants its own reasoning back. keeps_developer: it has that role.
    adopts_signatures: a signature of unstated origin is taken to be its own.
    keeps_own_blanks: it wants text of white space alone back, if it marked it with data of its own.
    """

    provider: str
    tool_ids: ToolIdRule = ToolIdRule()
    accepts_images: bool = True
    accepts_audio: bool = False
    accepts_documents: bool = False
    replays_thinking: bool = False
    keeps_developer: bool = False
    adopts_signatures: bool = False
    keeps_own_blanks: bool = False


class Loss(msgspec.Struct, frozen=True):
    """One thing that the target will not see, and why."""

    session_id: str
    message_id: str
    block_type: str
    adapter: str
    reason: str


class FittedHistory(msgspec.Struct, frozen=True):
    """What to send. tool_ids: from our id of a call to the one for the wire. tool_names: by our id."""

    system: str | None
    messages: tuple[Message, ...]
    tool_ids: dict[str, str]
    tool_names: dict[str, str]
    losses: tuple[Loss, ...]

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """The losses, as the response reports them."""
        return tuple(
            CallWarning("content_dropped", f"{loss.block_type} was not sent to {loss.adapter}: {loss.reason}")
            for loss in self.losses
        )

    def log(self) -> None:
        """One WARN for each loss; never any content."""
        for loss in self.losses:
            _log.warning("content_dropped", **msgspec.structs.asdict(loss))


def fit_history(request: CanonicalRequest, target: Target) -> FittedHistory:
    """Fit a request's messages to a target. Pure; see the module's text for the rules."""
    return _Fitter(request, target).fit()


class _Fitter:
    def __init__(self, request: CanonicalRequest, target: Target) -> None:
        self.request = request
        self.target = target
        self.losses: list[Loss] = []
        self.tool_ids: dict[str, str] = {}
        self.tool_names: dict[str, str] = {}
        self.taken: set[str] = set()
        self.results = _collect_results(request.messages)
        self.called = {block.id for message in request.messages for block in message.tool_uses}

    def fit(self) -> FittedHistory:
        system = [mend_text(self.request.system_prompt)] if self.request.system_prompt else []
        hoisted = (Role.SYSTEM,) if self.target.keeps_developer else (Role.SYSTEM, Role.DEVELOPER)
        for role in hoisted:
            said = [mend_text(message.text) for message in self.request.messages if message.role is role]
            system += [text for text in said if text]
        fitted: list[Message] = []
        for message in self.request.messages:
            match message.role:
                case Role.USER | Role.DEVELOPER if message.role not in hoisted:
                    self._append(fitted, message, message.role, self._said(message))
                case Role.ASSISTANT:
                    content = self._assistant(message)
                    self._append(fitted, message, Role.ASSISTANT, content)
                    calls = [block for block in content if isinstance(block, ToolUseBlock)]
                    if calls:
                        self._append(fitted, None, Role.TOOL, [self._answer(call) for call in calls])
                case Role.TOOL:
                    self._report_dropped(message)
                case _:
                    pass
        return FittedHistory(
            system="\n\n".join(system) or None,
            messages=tuple(fitted),
            tool_ids=self.tool_ids,
            tool_names=self.tool_names,
            losses=tuple(self.losses),
        )

    def _append(
        self, fitted: list[Message], origin: Message | None, role: Role, content: Iterable[ContentBlock]
    ) -> None:
        """Add blocks of a role. origin: the message that they were, taken as it is if nothing had to change."""
        blocks = tuple(content)
        if not blocks:
            return
        if fitted and fitted[-1].role is role:
            fitted[-1] = Message(role, fitted[-1].content + blocks)
        elif origin is not None and len(blocks) == len(origin.content) and all(map(is_, blocks, origin.content)):
            fitted.append(origin)
        else:
            fitted.append(Message(role, blocks))

    def _said(self, message: Message) -> list[ContentBlock]:
        kept: list[ContentBlock] = []
        for block in message.content:
            if isinstance(block, TextBlock):
                if block.text.strip():
                    kept.append(self._mend(message, block))
            elif reason := self._refused(block):
                self._lose(message, block, reason)
            else:
                kept.append(block)
        return kept

    def _refused(self, block: ContentBlock) -> str | None:
        match block:
            case ImageBlock() if not self.target.accepts_images:
                return "the model takes no images"
            case AudioBlock() if not self.target.accepts_audio:
                return "the model takes no audio"
            case DocumentBlock() if not self.target.accepts_documents:
                return "the model takes no documents"
            case _:
                return None

    def _mend(self, message: Message, block: TextBlock) -> TextBlock:
        text = mend_text(block.text)
        if text is block.text:
            return block
        self._lose(message, block, "half a surrogate pair in its text was replaced")
        return msgspec.structs.replace(block, text=text)

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
                        wire_id = self._wire_id(block)
                        self.taken.add(wire_id)
                        self.tool_ids[block.id] = wire_id
                        self.tool_names[block.id] = block.name
                        kept.append(block)
                case ThinkingBlock() | RedactedThinkingBlock() | OpaqueBlock():
                    reason = self._foreign(block)
                    if reason is None:
                        kept.append(block)
                    else:
                        self._lose(message, block, reason)
                case ImageBlock():
                    self._lose(message, block, "images made by a model can't be sent back as its own")
                case _:
                    pass
        return kept

    def _keeps_blank(self, block: TextBlock) -> bool:
        raw = block.provider_raw
        return self.target.keeps_own_blanks and raw is not None and raw.provider == self.target.provider

    def _foreign(self, block: ThinkingBlock | RedactedThinkingBlock | OpaqueBlock) -> str | None:
        origin = block.provider_raw.provider if block.provider_raw is not None else None
        unsigned = isinstance(block, ThinkingBlock) and block.signature is None
        if origin is None and self.target.adopts_signatures and not unsigned:
            origin = self.target.provider
        if origin != self.target.provider:
            return f"it belongs to {origin or 'an unknown provider'}"
        if not self.target.replays_thinking and not isinstance(block, OpaqueBlock):
            return "this protocol takes no reasoning back"
        return None

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
            return ToolResultBlock(call.id, NOT_EXECUTED, is_error=True)
        message, result = self.results[call.id]
        if isinstance(result.content, str):
            text = mend_text(result.content)
            return result if text is result.content else msgspec.structs.replace(result, content=text)
        kept: list[TextBlock | ImageBlock] = []
        for block in result.content:
            if isinstance(block, TextBlock):
                kept.append(self._mend(message, block))
            elif self.target.accepts_images:
                kept.append(block)
            else:
                self._lose(message, block, "the model takes no images")
        return msgspec.structs.replace(result, content=tuple(kept))

    def _report_dropped(self, message: Message) -> None:
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                if block.tool_use_id not in self.called:
                    self._lose(message, block, "no message has the call that it answers")
                elif self.results[block.tool_use_id][1] is not block:
                    self._lose(message, block, "the call that it answers has a result already")

    def _lose(self, message: Message, block: ContentBlock, reason: str) -> None:
        kind = str(type(block).__struct_config__.tag)
        self.losses.append(Loss(self.request.session_id, message.id or "", kind, self.target.provider, reason))


def _collect_results(messages: Iterable[Message]) -> dict[str, tuple[Message, ToolResultBlock]]:
    results: dict[str, tuple[Message, ToolResultBlock]] = {}
    for message in messages:
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                results.setdefault(block.tool_use_id, (message, block))
    return results
