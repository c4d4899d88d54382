"""The assembler: canonical events from a provider's fragments.

- One block is open at a time. Its events are contiguous, and indexes only grow.
- The first fragment of a later block closes the open block, if the open block may be complete. Text and reasoning
  opened with `implicit_end` may be complete. So may a tool call whose arguments are a whole JSON object.
- Otherwise the later fragments are held until the open block ends. `finish` emits the rest in the blocks' order.
- `message.start` and the provider's other data are held until the first content, so an attempt that fails before
  any content emits nothing.
- Text for a closed block opens a new block. Arguments for a closed tool call are reported in `warnings`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from callboard.bus.clock import Clock
from callboard.bus.errors import AdapterError, OverloadedError, ServerError, WarningCode
from callboard.bus.streams.events import MessageComplete, MessageStart, ProviderEvent, StreamEvent, TextDelta
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    ContentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import CallWarning, ended_well, with_whole_calls
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource

from ..contract import CanonicalRequest
from .block import CleanInput, GrowingArguments, Meaning, ReplyBlock, parse_arguments
from .usage import usage_until_now

if TYPE_CHECKING:
    from ..http.errors import ErrorType
    from ..http.fidelity import EventRelay, RawKept

FAILED_ENDS: Mapping[str, ErrorType] = {
    "error": ServerError,
    "abort": ServerError,  # vLLM and SGLang, when they abandon a reply
    "cancelled": ServerError,  # by the provider; a reply that Callboard cancels never has this reason
    "network_error": ServerError,  # Z.ai
    "insufficient_system_resource": OverloadedError,  # DeepSeek
}
"""Errors by stop reason, in lower case.

All protocols share this table, because gateways pass such reasons on unchanged.
"""


def failed_end(reason: str | None, provider: str) -> AdapterError | None:
    """The error that a stop reason means; None if the reason means a regular end or is missing."""
    kind = FAILED_ENDS.get((reason or "").lower())
    if kind is None:
        return None
    message = f"the reply ended with {reason!r} before it was complete"
    return kind(f"{provider}: {message}", provider=provider, provider_code=reason, provider_message=message)


Key: TypeAlias = Hashable


class Assembler:
    """Collects one reply. Feed it, then `take()` the events that are ready.

    Set `usage` as soon as the provider reports it. `clean_input` converts a tool call's arguments back, if the
    provider got a changed schema of the tool.

    Args:
        message_id: The id of the reply, in its events.
        provider: The adapter's name, recorded in all opaque data.
        requested_model: The requested model, recorded in ``provider_raw``, because some signatures are bound to a
            model.
        clock: Makes the ids of tool calls.
        estimate_usage: Estimates the usage of a reply from its output, for providers that report none.
        request: The request, for protocols whose replies depend on it.
    """

    relay: EventRelay | None = None
    """Passes the provider's events on to a client that uses the same protocol."""
    raw: RawKept | None = None
    """Collects the provider's raw reply, if requested."""

    def __init__(
        self,
        *,
        message_id: str,
        provider: str,
        requested_model: str,
        clock: Clock,
        estimate_usage: Callable[[str], TokenUsage],
        request: CanonicalRequest | None = None,
    ) -> None:
        self.message_id = message_id
        self.provider = provider
        self.request = request
        self.clean_input: CleanInput | None = None
        self.fragments: Meaning = "either"  # the meaning of the server's fragments of arguments
        self.model = requested_model
        self.response_id: str | None = None
        self._usage: TokenUsage | None = None
        self._count_usage: Callable[[], TokenUsage | None] | None = None
        self.stop_reason: StopReason | None = None
        self.raw_stop_reason: str | None = None
        self.details: JsonObject = {}  # the reply's other data, by the provider's names
        self.known_warnings: tuple[CallWarning, ...] = ()  # the request's warnings, for the start of the reply
        self.warnings: list[CallWarning] = []
        self.started = False
        self.complete = False
        self.final_content: tuple[ContentBlock, ...] = ()
        self._requested_model = requested_model
        self._clock = clock
        self._estimate_usage = estimate_usage
        self._ready: list[StreamEvent] = []
        self._early: list[ProviderEvent] = []  # until the reply starts
        self._by_key: dict[Key, ReplyBlock] = {}
        self._open: ReplyBlock | None = None
        self._waiting_blocks: list[ReplyBlock] = []
        self._done: list[ReplyBlock] = []
        # Pairs of a call and the earlier call with the same id.
        self._repeated: list[tuple[ReplyBlock, ReplyBlock]] = []

    # --- Fragments from the provider ---

    def text(self, key: Key, fragment: str, *, implicit_end: bool = False, raw: JsonObject | None = None) -> None:
        """Add text to a block. An empty fragment opens no block."""
        if fragment:
            block = self._by_key.get(key)
            # Hot path: one more delta of the open block.
            if block is not None and block is self._open and block.kind == "text":
                block.parts.append(fragment)
                self._ready.append(TextDelta(fragment, block.index, self.message_id))
            else:
                self._fragment(key, "text", fragment, implicit_end)
        if raw is not None:
            self.block_raw(key, raw)

    def thinking(
        self, key: Key, fragment: str, *, implicit_end: bool = False, raw: JsonObject | None = None
    ) -> None:
        """Add reasoning to a block. With `raw` the block exists even without text."""
        if fragment or raw is not None:
            block = self._fragment(key, "thinking", fragment, implicit_end)
            if raw is not None:
                block.raw = raw

    def signature(self, key: Key, signature: str, *, raw: JsonObject | None = None) -> None:
        """Set the signature of a reasoning block. The block's last delta contains it."""
        block = self._fragment(key, "thinking", "", implicit_end=False)
        block.signature = signature
        if raw is not None:
            block.raw = raw

    def tool_start(
        self, key: Key, name: str, *, raw: JsonObject | None = None, implicit_end: bool = False
    ) -> None:
        """Start a tool call.

        A call with the id and name of an earlier call is held until the end. It is dropped if the arguments are
        the same, and emitted otherwise.
        """
        name = self._plain_name(name)
        block = ReplyBlock(
            self.message_id,
            "tool",
            implicit_end,
            raw=raw,
            tool_name=name,
            tool_id=self._clock.new_id("tu"),
            arguments=GrowingArguments(self.fragments),
        )
        former = self._call_of_id(block)
        self._claim(key, block)
        if former is None:
            self._admit(block)
        elif not self.complete:
            self._repeated.append((block, former))

    def tool_arguments(self, key: Key, fragment: str) -> None:
        block = self._by_key.get(key)
        if block is None or block.kind != "tool":
            self.warn(
                WarningCode.STRAY_TOOL_ARGUMENTS, f"arguments for an unknown tool call ({key!r}) were dropped"
            )
        elif block.closed:
            if fragment.strip() and fragment.strip() != block.text.strip():
                self.warn(
                    WarningCode.LATE_TOOL_ARGUMENTS,
                    f"arguments for {block.tool_name!r} after its end were dropped",
                )
        elif fragment and block.arguments is not None:
            new = block.arguments.add(fragment)
            if new and block is self._open:
                self._ready.append(block.delta(new))

    def tool_input(self, key: Key, final_input: JsonObject) -> None:
        """Set the call's whole arguments, as an object, in place of the fragments."""
        block = self._by_key.get(key)
        if block is not None and block.kind == "tool" and not block.closed:
            block.final_input = final_input

    def replace_arguments(self, key: Key, text: str) -> None:
        """Replace a call's arguments, if the new arguments are a JSON object."""
        block = self._by_key.get(key)
        arguments = parse_arguments(text).value
        if block is None or block.kind != "tool" or block.closed or arguments is None:
            return
        if arguments != (
            block.final_input if block.final_input is not None else parse_arguments(block.text).value
        ):
            block.final_input = arguments
            message = f"the arguments for {block.tool_name!r} at the end of the call differ from the streamed ones"
            self.warn(WarningCode.ARGUMENTS_REPLACED, message)

    def block_raw(self, key: Key, raw: JsonObject) -> None:
        """Set the provider's data of a block, if the data arrives after the block's start."""
        block = self._by_key.get(key)
        if block is not None and not block.closed:
            block.raw = raw

    def block_text(self, key: Key) -> str:
        """The current text of a block, or the current arguments of a call."""
        block = self._by_key.get(key)
        return "" if block is None else block.text

    def resends_arguments(self, key: Key) -> bool:
        """Whether the server repeats all arguments so far in each fragment of a call."""
        block = self._by_key.get(key)
        return block is not None and block.arguments is not None and block.arguments.resent

    def whole(self, key: Key, kind: str, raw: JsonObject) -> None:
        """Add a whole block outside the catalogue, unchanged."""
        self._add_complete(key, OpaqueBlock(kind, self._raw(raw)), kind, raw)

    def image(self, key: Key, kind: str, raw: JsonObject, image: ImageBlock, rest: JsonObject) -> None:
        """Add a whole image that the model made."""
        self._add_complete(key, msgspec.structs.replace(image, provider_raw=self._raw(rest)), kind, raw)

    def redacted_thinking(self, key: Key, data: str, *, raw: JsonObject | None = None) -> None:
        raw = raw if raw is not None else {"type": "redacted_thinking", "data": data}
        self._add_complete(key, RedactedThinkingBlock(data, self._raw(raw)), "redacted_thinking", raw)

    def _add_complete(self, key: Key, block: ContentBlock, kind: str, raw: JsonObject) -> None:
        holder = ReplyBlock(self.message_id, "whole", True, whole=block, whole_raw=raw, tool_name=kind, ended=True)
        self._claim(key, holder)
        self._admit(holder)

    def is_closed(self, key: Key) -> bool:
        """Whether a block accepts no more data."""
        block = self._by_key.get(key)
        return block is not None and block.closed

    def end(self, key: Key, *, incomplete: bool = False) -> None:
        """End a block, as reported by the provider."""
        block = self._by_key.get(key)
        if block is not None:
            block.ended = True
            block.incomplete = incomplete
            self._settle()

    @property
    def usage(self) -> TokenUsage | None:
        return self._usage if self._count_usage is None else self._count_usage()

    @usage.setter
    def usage(self, usage: TokenUsage | None) -> None:
        self._usage, self._count_usage = usage, None

    def usage_from(self, count: Callable[[], TokenUsage | None]) -> None:
        """Compute the usage only when needed, by calling `count`. For providers that report usage with every
        delta.
        """
        self._count_usage = count

    def place(self, key: Key) -> int:
        """The index of a block in the reply. If the block has no content, this is the index of the next block."""
        block = self._by_key.get(key)
        return (
            len(self._done) + (self._open is not None) + len(self._waiting_blocks)
            if block is None
            else block.index
        )

    def provider_event(self, kind: str, raw: Json) -> None:
        """Add other data of the provider. The data is held until the reply starts."""
        if not self.complete:
            reported = ProviderEvent(kind, raw, self.message_id)
            (self._ready if self.started else self._early).append(reported)

    def warn(self, code: WarningCode, message: str) -> None:
        self.warnings.append(CallWarning(code, message))

    # --- The end of the reply ---

    def finish(
        self, stop_reason: StopReason, raw_stop_reason: str | None, usage: TokenUsage | None = None
    ) -> None:
        """End a reply that is complete. If the provider reported no usage, it is estimated.

        Raises AdapterError if the stop reason is an error.
        """
        usage = usage or self.usage
        failure = failed_end(raw_stop_reason, self.provider)
        if failure is not None:
            self.usage, self.raw_stop_reason = usage, raw_stop_reason
            raise failure
        if usage is None:
            usage = self._estimate_usage(self.partial_text())
            self.warn(
                WarningCode.USAGE_ESTIMATED, f"{self.provider} reported no usage; the token counts are estimates"
            )
        self._finish(stop_reason, raw_stop_reason, usage, cut_off=False)

    def fork(self) -> Assembler:
        """Copy the reply so far. The copy can be ended while the provider sends more."""
        fork = copy.copy(self)
        fork.warnings = list(self.warnings)
        fork.details = dict(self.details)
        fork._ready = []
        fork._early = list(self._early)
        fork._done = list(self._done)
        fork._repeated = list(self._repeated)
        fork._waiting_blocks = [block.copy() for block in self._waiting_blocks]
        fork._open = self._open.copy() if self._open is not None else None
        return fork

    def abort(self, stop_reason: StopReason, usage: TokenUsage | None = None) -> None:
        """End a reply that was cancelled or broke off. The open block is closed with its content so far."""
        self._finish(stop_reason, self.raw_stop_reason, usage or self.usage_so_far(), cut_off=True)

    def usage_so_far(self) -> TokenUsage:
        """The usage of the reply, as if the reply ended now."""
        if self.complete and self.usage is not None:
            return self.usage
        return usage_until_now(self.usage, self._estimate_usage(self.partial_text()))

    @property
    def received(self) -> bool:
        """Whether any part of the reply has arrived, usage included."""
        return self.started or bool(self._waiting_blocks) or self.usage is not None

    def _finish(self, stop_reason: StopReason, raw: str | None, usage: TokenUsage, *, cut_off: bool) -> None:
        if self.complete:
            return
        cut_off_calls = cut_off or not ended_well(stop_reason)
        self._settle()
        while self._open is not None:
            self._close_open(cut_off=cut_off_calls)
            self._settle()
        self._drop_repeated(cut_off=cut_off_calls)
        self._begin()
        if usage.source is UsageSource.INCONSISTENT:
            self.warn(
                WarningCode.USAGE_INCONSISTENT,
                f"{self.provider} reported usage that contradicts itself, so the call has no price",
            )
        content = tuple(block.content for block in self._done if block.content is not None)
        self.stop_reason, self.raw_stop_reason, self.usage = stop_reason, raw, usage
        self.final_content = with_whole_calls(content, stop_reason)
        self.complete = True
        self._ready.append(MessageComplete(self.final_content, stop_reason, raw, usage, self.message_id))

    def replaced(self, what: Sequence[str]) -> None:
        """Warn once for each kind of unreadable data that was replaced in the body."""
        for each in what:
            message = f"the provider sent {each}, which was replaced"
            if not any(warning.message == message for warning in self.warnings):
                self.warn(WarningCode.BODY_MENDED, message)

    def warn_no_stop_reason(self) -> None:
        self.warn(WarningCode.NO_STOP_REASON, "the provider sent no stop reason")

    @property
    def has_tool_use(self) -> bool:
        return any(block.kind == "tool" for block in self._by_key.values())

    @property
    def has_content(self) -> bool:
        return bool(self._by_key)

    def partial_text(self) -> str:
        """All current text, reasoning and arguments, for an estimate of output tokens."""
        blocks = [*self._done, *([self._open] if self._open else []), *self._waiting_blocks]
        return "".join(part for block in blocks for part in block.written())

    def take(self) -> list[StreamEvent]:
        """Return the events that are ready, once."""
        ready = self._ready
        if ready:
            self._ready = []
        return ready

    # --- Order of blocks ---

    def _fragment(
        self, key: Key, kind: Literal["text", "thinking"], fragment: str, implicit_end: bool
    ) -> ReplyBlock:
        block = self._by_key.get(key)
        if block is None or block.closed or block.kind != kind:
            block = ReplyBlock(self.message_id, kind, implicit_end)
            self._claim(key, block)
            self._admit(block)
        if fragment:
            block.parts.append(fragment)
            if block is self._open:
                self._ready.append(block.delta(fragment))
        return block

    def _claim(self, key: Key, block: ReplyBlock) -> None:
        former = self._by_key.get(key)
        if former is not None:
            former.ended = True  # a closed block gets no more events
        self._by_key[key] = block

    def _admit(self, block: ReplyBlock) -> None:
        if self.complete:
            return  # `message.complete` is last
        self._waiting_blocks.append(block)
        if self._open is not None and self._open.may_be_complete():
            self._close_open()
        self._settle()

    def _plain_name(self, name: str) -> str:
        """A tool's name without the chat template marks that some servers leave in it."""
        plain = name.partition("<|")[0].strip()
        if plain and plain != name and "<|" in name:
            self.warn(WarningCode.TOOL_NAME_MENDED, f"the tool's name {name!r} was read as {plain!r}")
            return plain
        return name

    def _call_of_id(self, block: ReplyBlock) -> ReplyBlock | None:
        """An earlier call with the same provider id and name; None if there is none."""
        wire_id = block.raw.get("id") if block.raw else None
        if not wire_id:
            return None
        for other in (*self._done, self._open, *self._waiting_blocks):
            if other is None or other.kind != "tool" or other.tool_name != block.tool_name:
                continue
            if other.raw and other.raw.get("id") == wire_id:
                return other
        return None

    def _drop_repeated(self, *, cut_off: bool) -> None:
        """Drop repeated calls, and emit calls that only share an id."""
        repeated, self._repeated = self._repeated, []
        for block, former in repeated:
            again = block.copy()
            again.close(self._raw, self.clean_input, cut_off=cut_off)
            call, first = again.content, former.content
            assert isinstance(call, ToolUseBlock)
            assert isinstance(first, ToolUseBlock)
            if call.incomplete or not call.input or (call.input == first.input and not first.incomplete):
                message = f"the call of {call.name!r} arrived twice with the same id and counts once"
                self.warn(WarningCode.REPEATED_CALL, message)
            else:
                self._start(block)
                self._close_open(cut_off=cut_off)

    def _settle(self) -> None:
        """Close the open block if it has ended, and open the next blocks."""
        while True:
            if self._open is None:
                if not self._waiting_blocks:
                    return
                self._start(self._waiting_blocks.pop(0))
            elif self._open.ended:
                self._close_open()
            else:
                return

    def _begin(self) -> None:
        if not self.started:
            self.started = True
            self._ready.append(MessageStart(self.message_id, self.model, self.provider, self.known_warnings))
            if self._early:
                self._ready += self._early
                self._early = []

    def _start(self, block: ReplyBlock) -> None:
        self._begin()
        self._open = block
        self._ready += block.open(len(self._done))

    def _close_open(self, *, cut_off: bool = False) -> None:
        block = self._open
        assert block is not None
        self._open = None
        self._ready += block.close(self._raw, self.clean_input, cut_off=cut_off)
        self._done.append(block)
        if block.unwrapped:
            message = f"the arguments for {block.tool_name!r} were a JSON string with the object inside"
            self.warn(WarningCode.ARGUMENTS_UNWRAPPED, message)

    def _raw(self, data: JsonObject) -> ProviderRaw:
        return ProviderRaw(self.provider, data, self._requested_model)
