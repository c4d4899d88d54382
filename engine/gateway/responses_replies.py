"""Streamed replies of OpenAI's Responses wire, and the wire itself. Pure.

A stream has deltas for each item, and the whole item at its end. An item's id and index never change. Consecutive
texts are parts of one message, because only the next block shows the end of a text. Consecutive reasoning blocks
without a signature are parts of one summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from callboard.adapters import CanonicalResponse
from callboard.adapters.requests.content import encode_json, repair_text
from callboard.adapters.requests.settings import INPUT
from callboard.bus.streams.events import (
    ProviderBlock,
    StreamEvent,
    TextDelta,
    ThinkingDelta,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
)
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, ImageBlock, OpaqueBlock, TextBlock
from callboard.bus.values.usage import StopReason

from . import chat_replies
from . import responses_output as output
from .failures import Failure
from .responses_output import (
    COMPLETED,
    CUSTOM_KIND,
    FAILED,
    IN_PROGRESS,
    INCOMPLETE,
    ItemWriter,
    ResponseObject,
    data_of,
    message_item,
    reasoning_item,
    secret_token,
    sources_after,
    text_part,
)
from .responses_requests import read_request
from .responses_tools import FUNCTION, WireTool, call_fields
from .wire import ClientRequest, ClientWire, FreeFormReader, ReplyInfo, free_form_text

_PING = b": ping\n\n"


class _Open(msgspec.Struct):
    kind: str
    """``message``, ``reasoning`` or ``call``."""
    item_id: str
    index: int
    """The index of the item in the output."""
    block: int = -1
    """The index of the open part's block; -1 if no part is open."""
    parts: list[Json] = []
    """The finished parts of a message or of a summary."""
    texts: list[str] = []
    """The pieces of the open part or of the call."""
    status: str = COMPLETED
    wire: WireTool = WireTool(FUNCTION, "")
    """The client's form of a call's tool."""
    free_form: FreeFormReader | None = None


class ResponsesWriter:
    def __init__(self, client_request: ClientRequest, info: ReplyInfo) -> None:
        self._items = ItemWriter(client_request, info)
        self._object = ResponseObject(client_request, info)
        self._object.encode_echo()
        self._output: list[Json] = []
        self._texts: dict[int, JsonObject] = {}  # the finished parts by the indexes of their blocks
        self._count = 0  # the number of events
        self._open: _Open | None = None
        self._deferred: list[int] = []  # indexes of the blocks that are written with the reply's final content
        self._before = self._after = b""  # the encoded bytes of a delta before and after its text

    def start(self) -> bytes:
        started = self._object.at(IN_PROGRESS)
        return self._event("response.created", response=started) + self._event(
            "response.in_progress", response=started
        )

    def ping(self) -> bytes:
        return _PING

    def write(self, event: StreamEvent) -> bytes:
        match event:
            case TextDelta():
                if self._open is not None and self._open.block == event.content_block_index:
                    return self._delta(event.text)
                return self._begin_text(event.content_block_index) + self._delta(event.text)
            case ThinkingDelta():
                return self._thinking(event)
            case ToolUseStart():
                return self._begin_call(event)
            case ToolUseInputDelta():
                return self._arguments(event.partial_json)
            case ToolUseEnd():
                return self._end_call(event)
            case ProviderBlock():
                return self._provider_block(event)
            case _:
                return b""

    def finish(self, response: CanonicalResponse) -> bytes:
        status, _ = output.end_of(response.stop_reason)
        written = self._close(response.content, status=INCOMPLETE if status == INCOMPLETE else COMPLETED)
        written += self._images(response.content)
        if response.stop_reason is StopReason.REFUSAL:
            written += self._refusal(output.refusal_of(response) or _refused(response.content))
        self._complete_texts(response.content)
        return written + self._event(f"response.{status}", response=self._object.ended(response, self._output))

    def fail(self, failure: Failure) -> bytes:
        """The error, and then the failed response, in OpenAI's order."""
        error = output.error_object(failure)
        done = self._object.at(FAILED, self._output, error={name: error[name] for name in ("code", "message")})
        return self._event("error", error=error) + self._event("response.failed", response=done)

    # --- Events ---

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._count = self._count, self._count + 1
        data = encode_json({"type": kind, "sequence_number": number, **fields})
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)

    def _delta(self, text: str) -> bytes:
        """A delta of the open part. Most events are deltas, which differ only in the number and the text."""
        if not text:
            return b""
        assert self._open is not None
        self._open.texts.append(text)
        number, self._count = self._count, self._count + 1
        try:
            written = msgspec.json.encode(text)
        except UnicodeEncodeError:
            written = msgspec.json.encode(repair_text(text))
        return b"%b%d%b%b}\n\n" % (self._before, number, self._after, written)

    def _deltas_of(self, kind: str, place: JsonObject) -> None:
        self._before = f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":'.encode()
        logprobs: JsonObject = {"logprobs": []} if kind == _TEXT_DELTA else {}
        fields = msgspec.json.encode({**place, **logprobs})[1:-1]
        self._after = b',%b,"delta":' % fields

    def _place(self, opened: _Open) -> JsonObject:
        return {"item_id": opened.item_id, "output_index": opened.index}

    def _add(self, kind: str, item: JsonObject, **more: Json) -> tuple[_Open, bytes]:
        opened = _Open(kind, str(item["id"]), len(self._output), parts=[], texts=[])
        self._open = opened
        return opened, self._event("response.output_item.added", output_index=opened.index, item=item)

    def _done(self, item: JsonObject) -> bytes:
        index = len(self._output)
        self._output.append(item)
        self._open = None
        return self._event("response.output_item.done", output_index=index, item=item)

    def _write_item(self, item: JsonObject) -> bytes:
        _, written = self._add("whole", item)
        return written + self._done(item)

    def _close(self, content: Sequence[ContentBlock] = (), *, status: str = COMPLETED) -> bytes:
        """End the open item. At the reply's end, the final content may have more data than the deltas."""
        opened = self._open
        if opened is None:
            return b""
        match opened.kind:
            case "message":
                opened.status = status
                return self._end_message(opened, content)
            case "reasoning":
                return self._end_reasoning(opened, "".join(opened.texts))
            case _:  # a call without an end
                return self._end_call(ToolUseEnd("", {}, incomplete=True))

    # --- Messages ---

    def _begin_text(self, block: int) -> bytes:
        opened, written = self._open, b""
        if opened is not None and opened.kind == "message":
            written = self._end_text(opened, None)
        else:
            written = self._close()
            opened, added = self._add("message", message_item(self._items.ids.next("msg"), [], status=IN_PROGRESS))
            written += added
        opened.block, opened.texts = block, []
        place: JsonObject = {**self._place(opened), "content_index": len(opened.parts)}
        self._deltas_of(_TEXT_DELTA, place)
        part = text_part(TextBlock(""))
        return written + self._event("response.content_part.added", **place, part=part)

    def _end_text(self, opened: _Open, block: TextBlock | None, sources: Sequence[OpaqueBlock] = ()) -> bytes:
        text = "".join(opened.texts)
        place: JsonObject = {**self._place(opened), "content_index": len(opened.parts)}
        part = text_part(TextBlock(text))
        written = b""
        if block is not None and block.text == text and data_of(block.provider_raw).get("type") != "refusal":
            part = text_part(block, sources)
            annotations = part["annotations"]
            assert isinstance(annotations, list)
            for number, annotation in enumerate(annotations):
                written += self._event(
                    "response.output_text.annotation.added",
                    **place,
                    annotation_index=number,
                    annotation=annotation,
                )
        written += self._event("response.output_text.done", **place, text=text, logprobs=part["logprobs"])
        written += self._event("response.content_part.done", **place, part=part)
        opened.parts.append(part)
        self._texts[opened.block] = part
        opened.block = -1
        return written

    def _complete_texts(self, content: Sequence[ContentBlock]) -> None:
        """Add data that arrived later to earlier texts, for the last event."""
        for number, part in self._texts.items():
            block = content[number] if number < len(content) else None
            if isinstance(block, TextBlock) and block.text == part["text"]:
                part_of_block = text_part(block, sources_after(content, number))
                part.update(
                    {name: part_of_block[name] for name in ("annotations", "logprobs") if name in part_of_block}
                )

    def _end_message(self, opened: _Open, content: Sequence[ContentBlock]) -> bytes:
        block = content[opened.block] if 0 <= opened.block < len(content) else None
        block_text = block if isinstance(block, TextBlock) else None
        written = self._end_text(opened, block_text, sources_after(content, opened.block))
        item = message_item(opened.item_id, opened.parts, status=opened.status)
        if block_text is not None and (phase := data_of(block_text.provider_raw).get("phase")):
            item["phase"] = phase
        return written + self._done(item)

    def _refusal(self, text: str) -> bytes:
        opened, written = self._add("message", message_item(self._items.ids.next("msg"), [], status=IN_PROGRESS))
        place: JsonObject = {**self._place(opened), "content_index": 0}
        part: JsonObject = {"type": "refusal", "refusal": text}
        written += self._event("response.content_part.added", **place, part={**part, "refusal": ""})
        written += self._event("response.refusal.delta", **place, delta=text)
        written += self._event("response.refusal.done", **place, refusal=text)
        written += self._event("response.content_part.done", **place, part=part)
        return written + self._done(message_item(opened.item_id, [part]))

    # --- Reasoning ---

    def _thinking(self, event: ThinkingDelta) -> bytes:
        opened, written = self._open, b""
        if opened is None or opened.kind != "reasoning":
            if not event.text and event.signature is None:
                return b""
            written = self._close()
            opened, added = self._add("reasoning", reasoning_item(self._items.ids.next("rs"), [], None))
            written += added
        if event.text:
            if opened.block != event.content_block_index:
                written += self._end_summary(opened) + self._begin_summary(opened, event.content_block_index)
            written += self._delta(event.text)
        if event.signature is not None:
            written += self._end_reasoning(opened, event.signature)
        return written

    def _begin_summary(self, opened: _Open, block: int) -> bytes:
        opened.block, opened.texts = block, []
        place: JsonObject = {**self._place(opened), "summary_index": len(opened.parts)}
        self._deltas_of("response.reasoning_summary_text.delta", place)
        part: JsonObject = {"type": "summary_text", "text": ""}
        return self._event("response.reasoning_summary_part.added", **place, part=part)

    def _end_summary(self, opened: _Open) -> bytes:
        if opened.block < 0:
            return b""
        place: JsonObject = {**self._place(opened), "summary_index": len(opened.parts)}
        part: JsonObject = {"type": "summary_text", "text": "".join(opened.texts)}
        opened.parts.append(part)
        opened.block = -1
        written = self._event("response.reasoning_summary_text.done", **place, text=part["text"])
        return written + self._event("response.reasoning_summary_part.done", **place, part=part)

    def _end_reasoning(self, opened: _Open, secret: str) -> bytes:
        written = self._end_summary(opened)
        return written + self._done(reasoning_item(opened.item_id, opened.parts, secret_token(secret)))

    # --- Calls ---

    def _begin_call(self, event: ToolUseStart) -> bytes:
        written = self._close()
        wire = self._items.tools.get(event.tool_name, WireTool(FUNCTION, event.tool_name))
        item = self._items.call_item(wire, event.tool_use_id, _fields(wire.kind, {}, ""), IN_PROGRESS)
        opened, added = self._add("call", item)
        opened.wire = wire
        opened.parts.append(item)
        opened.free_form = FreeFormReader() if wire.kind == CUSTOM_KIND else None
        if wire.kind in _CALL_DELTAS:
            self._deltas_of(_CALL_DELTAS[wire.kind], self._place(opened))
        return written + added

    def _arguments(self, fragment: str) -> bytes:
        opened = self._open
        if opened is None or opened.kind != "call":
            return b""
        if opened.free_form is not None:
            return self._delta(opened.free_form.read(fragment))
        if opened.wire.kind == FUNCTION:
            return self._delta(fragment)
        return b""  # the item has no text that could become longer

    def _end_call(self, event: ToolUseEnd) -> bytes:
        opened = self._open
        if opened is None or opened.kind != "call":
            return b""
        streamed, wire = "".join(opened.texts), opened.wire
        text = _call_text(wire.kind, event, streamed)
        written = b""
        if wire.kind in _CALL_DELTAS:
            if text.startswith(streamed):
                written = self._delta(text[len(streamed) :])
            if wire.kind == FUNCTION:
                written += self._event(
                    "response.function_call_arguments.done", **self._place(opened), name=wire.name, arguments=text
                )
            else:
                written += self._event("response.custom_tool_call_input.done", **self._place(opened), input=text)
        started = opened.parts[0]
        assert isinstance(started, dict)
        status = INCOMPLETE if event.incomplete else COMPLETED
        item = {**started, "status": status, **_fields(wire.kind, event.final_input, text)}
        return written + self._done(item)

    # --- Other content ---

    def _provider_block(self, event: ProviderBlock) -> bytes:
        raw = event.raw
        if event.kind == "redacted_thinking":
            secret = raw.get("data") if isinstance(raw, dict) else raw
            item_id = self._items.ids.next("rs")
            return self._close() + self._write_item(reasoning_item(item_id, [], secret_token(str(secret))))
        if output.is_openai_item(event.kind, raw) and isinstance(raw, dict):
            item = raw if isinstance(raw.get("id"), str) else {**raw, "id": self._items.ids.next("item")}
            return self._close() + self._write_item(item)
        self._deferred.append(event.content_block_index)
        return b""

    def _images(self, content: Sequence[ContentBlock]) -> bytes:
        """Write the images of other providers. They arrive only with the final content."""
        written = b""
        for number in self._deferred:
            block = content[number] if number < len(content) else None
            item = self._items.image(block) if isinstance(block, ImageBlock) else None
            written += b"" if item is None else self._write_item(item)
        return written


_TEXT_DELTA = "response.output_text.delta"

_CALL_DELTAS = {
    FUNCTION: "response.function_call_arguments.delta",
    CUSTOM_KIND: "response.custom_tool_call_input.delta",
}
"""The kinds of calls with deltas."""


def _fields(kind: str, arguments: JsonObject, text: str) -> JsonObject:
    if kind == FUNCTION:
        return {"arguments": text}
    return {INPUT: text} if kind == CUSTOM_KIND else call_fields(kind, arguments)


def _call_text(kind: str, event: ToolUseEnd, streamed: str) -> str:
    """The complete text of a call: its arguments, or the input of a custom tool."""
    if kind == CUSTOM_KIND:
        full_text = free_form_text(event.final_input)
        return streamed if event.incomplete and not full_text.startswith(streamed) else full_text
    if streamed:
        try:
            if event.incomplete or msgspec.json.decode(streamed) == event.final_input:
                return streamed
        except msgspec.DecodeError:
            pass  # the adapter has the parsed arguments, if they are valid
    return msgspec.json.encode(event.final_input).decode()


def _refused(content: Sequence[ContentBlock]) -> str:
    """The text of a refusal in the content."""
    texts = (block for block in content if isinstance(block, TextBlock))
    return "".join(block.text for block in texts if data_of(block.provider_raw).get("type") == "refusal")


WIRE = ClientWire(
    name="responses",
    protocol="openai",
    read_request=read_request,
    writer=ResponsesWriter,
    write_reply=output.write_reply,
    write_failure=output.write_failure,
    # the addresses of models belong to Chat Completions
    write_models=chat_replies.write_models,
    write_model=chat_replies.write_model,
    write_token_count=chat_replies.write_token_count,
)
"""The wire of OpenAI's Responses API."""
