"""Content from output items, whole or streamed.

An `OutputItem` gets deltas, if any, and then the whole item, which is authoritative. Text that is missing in the
deltas is emitted from the whole item. Opaque data (ids, encrypted reasoning, phases) come only from the whole
item. A message becomes one text block for each part. A reasoning item becomes one thinking block for each part of
its summary, or of its raw reasoning; the last one has the item itself. A function call and a custom tool's call
become a tool use. Other items are kept unchanged. An item after reasoning records the reasoning item (`after`),
because the two may be sent back only together.
"""

from __future__ import annotations

from weakref import proxy

import msgspec

from callboard.bus.errors import AdapterError, StreamError, WarningCode
from callboard.bus.values.base import JsonObject
from callboard.bus.values.usage import StopReason

from ...contract import CanonicalRequest
from ...replies.assembler import Assembler
from ...replies.block import parse_arguments
from ...requests.content import image_of_base64
from .data import Quirks, error_in_reply
from .wire import (
    DETAILS,
    Item,
    Part,
    Response,
    ToolFees,
    as_arguments,
    as_object,
    is_present,
    read,
    read_or_default,
    read_usage,
    read_value,
)

HOST_CALLS = frozenset(
    {"computer_call", "local_shell_call", "shell_call", "apply_patch_call", "mcp_approval_request"}
)
"""Types of items that request work from the host, unless the reply contains the output. They are kept as opaque
blocks.
"""

CUSTOM = "custom_tool_call"
TOOL_CALLS = ("function_call", CUSTOM)

IMAGE_CALL = "image_generation_call"

REASONING_PART = "reasoning_part"
"""The type of `provider_raw` in a thinking block that is a part of an item. A later block has the whole item."""


class Reply:
    """One reply: its items in order, and the data that needs all of them."""

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        self.assembler = assembler
        self.quirks = quirks
        self.items: list[OutputItem] = []
        self.refused = False
        self.host_calls: set[str | None] = set()
        self.fees = ToolFees()

    def add(self, kind: str) -> OutputItem:
        item = OutputItem(self, len(self.items), kind)
        self.items.append(item)
        return item

    def reasoning_before(self, number: int) -> str | None:
        before = (item.item_id for item in reversed(self.items[:number]) if item.kind == "reasoning")
        return next(before, None)

    def begin(self, response: Response) -> None:
        if response.id:
            self.assembler.response_id = response.id
        if response.model:
            self.assembler.model = response.model

    def finish(self, response: Response) -> None:
        """Finish the reply. Raises the error of a failed reply."""
        tool_usage = response.tool_usage
        fees = self.fees.counts(tool_usage, response.usage)
        usage = read_usage(response.usage, response.service_tier, fees=fees, tool_usage=tool_usage)
        self.assembler.usage = usage or self.assembler.usage
        self._note_details(response)
        error = error_of(response, self.assembler.provider)
        if error is not None:
            raise error
        if response.status in ("queued", "in_progress"):
            raise StreamError(f"the response is still {response.status}, and is not polled", retryable=False)
        reason, raw = self._stop_reason(response)
        self.assembler.finish(reason, raw, usage)

    def _note_details(self, response: Response) -> None:
        if response.has_no_details:
            return
        details = {name: value for name in DETAILS if (value := read_value(getattr(response, name)))}
        self.assembler.details |= details
        removed = details.get("input_transformations")
        if isinstance(removed, list) and removed:
            reasons = {str(each.get("reason")) for each in removed if isinstance(each, dict)}
            what = f"{self.assembler.provider} left {len(removed)} items of reasoning out of the request"
            message = f"{what}: {', '.join(sorted(reasons))}"
            self.assembler.warn(WarningCode.PROVIDER_CHANGED_INPUT, message)

    def _stop_reason(self, response: Response) -> tuple[StopReason, str | None]:
        raw = response.status
        if raw != "completed" or is_present(response.incomplete_details):
            details = read_value(response.incomplete_details)
            reason = details.get("reason") if isinstance(details, dict) else None
            raw = reason if isinstance(reason, str) and reason else raw
        match raw:
            case "max_output_tokens":
                return StopReason.MAX_TOKENS, raw
            case "content_filter":
                return StopReason.CONTENT_FILTER, raw
            case "completed" if self._at_limit():
                return StopReason.MAX_TOKENS, raw
            case "completed" if self.assembler.has_tool_use or self.host_calls:
                return StopReason.TOOL_USE, raw
            case "completed" if self.refused:
                return StopReason.REFUSAL, raw
            case "completed":
                return StopReason.END_TURN, raw
            case "cancelled":
                return StopReason.CANCELLED, raw
            case None:
                self.assembler.warn_no_stop_reason()
                return StopReason.PROVIDER_SPECIFIC, raw
            case _:
                return StopReason.PROVIDER_SPECIFIC, raw

    def _at_limit(self) -> bool:
        request, usage = self.assembler.request, self.assembler.usage
        if not self.quirks.completed_at_limit or request is None or usage is None:
            return False
        return usage.output_tokens >= output_limit(request, self.quirks)


class OutputItem:
    def __init__(self, reply: Reply, number: int, kind: str) -> None:
        self.kind = kind
        self.number = number
        self.placed = False
        """Whether the item has some content, or has ended."""
        self.is_done = False
        self.item_id: str | None = None
        self.wire_id: str | None = None
        """The provider's id of the item, from the item's first or last event."""
        self.call_id: str | None = None
        self.index: int | None = None
        """The server's index of the item, which another item may share."""
        self._reply: Reply = proxy(reply)  # a weak reference, because the reply owns its items
        self._assembler = reply.assembler
        self._implicit_end = reply.quirks.late_ends
        self._part: int | None = None
        self._key: tuple[int, int] = (number, 0)
        self._keys: list[tuple[int, int]] = []
        self._source = ""
        self._arguments: list[str] = []  # arguments before the call's name

    def text(self, part: int, fragment: str) -> None:
        if fragment:
            if part != self._part:
                self._enter(part)
            self._assembler.text(self._key, fragment, implicit_end=self._implicit_end)
            self.placed = True

    def _enter(self, part: int) -> None:
        if self._part is not None:
            self._assembler.end(self._key)
        self._part = part
        self._key = (self.number, part)
        if self._key not in self._keys:
            self._keys.append(self._key)

    def refusal(self, part: int, fragment: str) -> None:
        if fragment:
            self._reply.refused = True
            self.text(part, fragment)

    def thinking(self, source: str, part: int, fragment: str) -> None:
        """Add reasoning, from the summary or from the raw content. The kind that arrives first is used."""
        if fragment and self._source in ("", source):
            self._source = source
            if part != self._part:
                if self._part is not None:
                    self._assembler.block_raw(self._key, {"type": REASONING_PART})
                self._enter(part)
            self._assembler.thinking(self._key, fragment, implicit_end=self._implicit_end)
            self.placed = True

    def begin_call(self, item: Item) -> None:
        if item.name and not self.placed:
            self._assembler.tool_start(
                self._key, item.name, raw=self._call_raw(item), implicit_end=self._implicit_end
            )
            self.placed = True
            for fragment in self._arguments:
                self._assembler.tool_arguments(self._key, fragment)

    def arguments(self, fragment: str) -> None:
        if not fragment:
            return
        if self.placed:
            self._assembler.tool_arguments(self._key, fragment)
        else:
            self._arguments.append(fragment)

    def custom_input(self, fragment: str) -> None:
        """Add text to a custom tool's call. This text is the call's only argument."""
        if fragment:
            started = self._assembler.block_text(self._key) if self.placed else self._arguments
            self.arguments(custom_arguments(fragment)[len(_CUSTOM_HEAD) if started else 0 : -len(_CUSTOM_TAIL)])

    def all_arguments(self, text: str) -> None:
        """Set the whole arguments.

        If the deltas are the start of the text, the remaining text is emitted. Otherwise the text replaces the
        deltas.
        """
        so_far = self._assembler.block_text(self._key) if self.placed else "".join(self._arguments)
        if text.startswith(so_far):
            self.arguments(text[len(so_far) :])
        elif self.placed:
            self._assembler.replace_arguments(self._key, text)
        elif parse_arguments(text).value is not None:
            self._arguments = [text]

    def part_done(self, position: int, part: Part) -> None:
        """Complete a message's part. The part stays open until the item ends, because some servers repeat this
        event.
        """
        self._whole_part(position, part, {})

    def done(self, item: Item, raw: msgspec.Raw) -> None:
        """Complete the item. Idempotent."""
        if self.is_done:
            return
        self.item_id = item.id
        self.wire_id = item.id or self.wire_id
        self.call_id = item.call_id or self.call_id
        match self.kind:
            case "message":
                self._message_done(item)
            case "reasoning":
                self._reasoning_done(item, raw)
            case "function_call" | "custom_tool_call":
                self._call_done(item)
            case kind:
                self._reply_waits(item)
                self._reply.fees.note(kind, item)
                self._other_item(kind, as_object(raw))
        self.is_done = self.placed = True

    def _other_item(self, kind: str, raw: JsonObject) -> None:
        image = image_of_base64(raw.get("result")) if kind == IMAGE_CALL else None
        if image is None:
            self._assembler.whole(self._key, kind, raw)
            return
        rest = {name: value for name, value in raw.items() if name != "result"}
        self._assembler.image(self._key, kind, raw, image, rest)

    def _message_done(self, item: Item) -> None:
        parts = [(raw, read_or_default(Part, raw)) for raw in item.content or ()]
        full_text = "".join(part.text or part.refusal or "" for _, part in parts)
        streamed = "".join(self._assembler.block_text(key) for key in self._keys)
        data: JsonObject = {}
        after = self._reply.reasoning_before(self.number)
        if item.id and after:
            data |= {"item_id": item.id, "after": after}
        if item.phase:
            data["phase"] = item.phase
        for position, (raw, part) in enumerate(parts):
            if part.type in ("output_text", "refusal", "text", None):
                self._whole_part(position, part, data, add_text=streamed != full_text)
            else:
                self._assembler.whole((self.number, position), part.type, as_object(raw))
        for key in self._keys:
            self._assembler.end(key)

    def _whole_part(self, position: int, part: Part, data: JsonObject, *, add_text: bool = True) -> None:
        raw = dict(data)
        if part.refusal is not None:
            raw["type"] = "refusal"
            self._reply.refused = True
        if part.annotations:
            raw["annotations"] = [as_object(annotation) for annotation in part.annotations]
        if part.logprobs:
            raw["logprobs"] = [as_object(logprob) for logprob in part.logprobs]
        key = (self.number, position)
        if add_text:
            self.text(position, _remainder(part.text or part.refusal or "", self._assembler.block_text(key)))
        if raw:
            self._assembler.text(key, "", raw=raw)

    def _reasoning_done(self, item: Item, raw: msgspec.Raw) -> None:
        texts = {"summary": _texts(item.summary), "content": _texts(item.content)}
        source = self._source or ("summary" if any(texts["summary"]) else "content")
        if self._implicit_end and self.placed:
            return  # the block is closed, and the data isn't needed, because this server accepts no reasoning back
        for part, text in enumerate(texts[source]):
            self.thinking(source, part, _remainder(text, self._assembler.block_text((self.number, part))))
        self._assembler.thinking(self._key, "", raw=as_object(raw), implicit_end=self._implicit_end)
        if item.encrypted_content:
            self._assembler.signature(self._key, item.encrypted_content)
        self._assembler.end(self._key)

    def _call_done(self, item: Item) -> None:
        if not self.placed:
            self.begin_call(item if item.name else Item(name="unknown", call_id=item.call_id, id=item.id))
        custom = self.kind == CUSTOM
        self.all_arguments(custom_arguments(as_arguments(item.input)) if custom else as_arguments(item.arguments))
        self._assembler.block_raw(self._key, self._call_raw(item))
        self._assembler.end(self._key, incomplete=item.status == "incomplete")

    def _call_raw(self, item: Item) -> JsonObject:
        after = self._reply.reasoning_before(self.number)
        data: JsonObject = {
            "id": item.call_id or item.id,
            "item_id": item.id if after else None,
            "after": after,
            "namespace": item.namespace,
            "caller": read_value(item.caller),
            "async": item.is_async,
            "type": CUSTOM if self.kind == CUSTOM else None,
        }
        return {name: value for name, value in data.items() if value}

    def _reply_waits(self, item: Item) -> None:
        if self.kind in HOST_CALLS or item.execution == "client":
            self._reply.host_calls.add(item.call_id)
        elif self.kind.endswith("_output"):
            self._reply.host_calls.discard(item.call_id)

    def close(self) -> None:
        """End an item that had no end event, because the reply has ended."""
        if self.kind in TOOL_CALLS and not self.placed:
            self.begin_call(Item(name="unknown"))
            self._assembler.end(self._key, incomplete=True)


def _remainder(full_text: str, so_far: str) -> str:
    """The part of `full_text` that was not emitted; empty if the emitted text is not its start."""
    return full_text[len(so_far) :] if full_text.startswith(so_far) else ""


def _texts(parts: list[msgspec.Raw] | None) -> list[str]:
    return [read_or_default(Part, part).text or "" for part in parts or ()]


_CUSTOM_HEAD, _CUSTOM_TAIL = '{"input":"', '"}'


def custom_arguments(text: str) -> str:
    return msgspec.json.encode({"input": text}).decode()


def output_limit(request: CanonicalRequest, quirks: Quirks) -> int:
    return max(request.max_output_tokens, quirks.min_output_tokens)


def error_of(response: Response, provider: str) -> AdapterError | None:
    if is_present(response.error):
        return error_in_reply({"error": msgspec.json.decode(response.error)}, provider)
    if response.status == "failed":
        return error_in_reply(
            {"code": "server_error", "message": "the response failed without a reason"}, provider
        )
    return None


def read_reply(body: bytes, assembler: Assembler, quirks: Quirks) -> None:
    """Feed a whole reply to the assembler. Raises AdapterError, or msgspec's decoding errors."""
    response = read(Response, body)
    reply = Reply(assembler, quirks)
    reply.begin(response)
    output = response.output or ()
    if not output and response.object != "response":
        raise error_of(response, assembler.provider) or StreamError("the reply is not a response object")
    seen_items: set[tuple[str | None, str | None, str | None]] = set()
    for raw, item in [(raw, read(Item, raw)) for raw in output]:
        named = (item.type, item.id, item.call_id)
        if item.id and named in seen_items and item.type in (*TOOL_CALLS, "message", "reasoning"):
            continue  # the item was already read
        seen_items.add(named)
        reply.add(item.type or "unknown").done(item, raw)
    reply.finish(response)
