"""Background responses: a numbered stream, polling, and cancellation.

Source: `openai.types.responses` (3.54.0: `response_retrieve_params`, `response_status`) and OpenAI's guide of
background mode, which Azure and other servers follow.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from callboard.adapters.http.wire_call import WireCall, get
from callboard.adapters.requests.host_options import joined_options
from callboard.bus.errors import AdapterError, StreamError
from callboard.bus.streams.events import StreamEvent
from callboard.bus.values.usage import TokenUsage

from ...contract import CanonicalRequest
from ...operations.wires import BackgroundStatus
from ...replies.assembler import Assembler
from ...replies.decoders import SseDecoder
from .quirks import Quirks
from .request import OPTIONS
from .response import Reply
from .stream import ResponsesNormaliser
from .wire import Item, Response, elements, read, read_or_default, read_usage

_UNDER_WAY = frozenset({"queued", "in_progress"})


class _Head(msgspec.Struct, gc=False):
    sequence_number: int | None = None


_decode_head = msgspec.json.Decoder(_Head).decode


class ResponsesInBackground:
    """The wire of background responses."""

    def __init__(self, provider: str, quirks: Quirks) -> None:
        self._provider = provider
        self._quirks = quirks

    def wanted(self, request: CanonicalRequest) -> bool:
        if request.response_id:
            return True
        if request.background:
            return self._quirks.background
        if OPTIONS not in request.provider_options and self._provider not in request.provider_options:
            return False
        try:
            return joined_options(request, OPTIONS, self._provider).get("background") is True
        except AdapterError:
            return False  # writing the request raises it again

    def attach(self, response_id: str, after: int | None) -> WireCall:
        behind = "" if after is None else f"&starting_after={after}"
        return get(f"{_path(response_id)}?stream=true{behind}")

    def look(self, response_id: str) -> WireCall:
        return get(_path(response_id))

    def cancel(self, response_id: str) -> WireCall:
        return WireCall(f"{_path(response_id)}/cancel", b"")

    def status(self, body: bytes) -> BackgroundStatus:
        response = read(Response, body)
        return BackgroundStatus(response.id or "", response.status not in _UNDER_WAY)

    def usage(self, body: bytes, assembler: Assembler) -> TokenUsage | None:
        response = read(Response, body)
        fees = Reply(assembler, self._quirks).fees
        for raw in elements(response.output):
            item = read_or_default(Item, raw)
            fees.note(item.type or "unknown", item)
        counts = fees.counts(response.tool_usage, response.usage)
        return read_usage(response.usage, response.service_tier, fees=counts, tool_usage=response.tool_usage)

    def normaliser(self, assembler: Assembler) -> NumberedResponses:
        return NumberedResponses(assembler, self._quirks)


class NumberedResponses(ResponsesNormaliser):
    """Reads one reply over any number of connections; see `NumberedNormaliser`."""

    def __init__(self, assembler: Assembler, quirks: Quirks) -> None:
        super().__init__(assembler, quirks)
        self.response_id = ""
        self.number: int | None = None
        self.told = False

    def on_event(self, name: bytes, data: bytes) -> None:
        number = _number_of(data)
        if number is not None and self.number is not None and number <= self.number:
            if self.assembler.raw is not None:
                self.assembler.raw.again(data)
            return
        try:
            super().on_event(name, data)
        except AdapterError:
            self.told = True
            raise
        finally:
            self.response_id = self.response_id or self.assembler.response_id or ""
        if number is not None:
            self.number = number

    def close(self) -> list[StreamEvent]:
        if not self.finished and self.error is None:  # a partial event is none
            self.error = StreamError("the stream ended before the response was complete")
        return self.assembler.take()

    def reopen(self) -> None:
        self._read_with(SseDecoder())
        self.error = None

    def take_whole(self, body: bytes) -> list[StreamEvent]:
        response = read(Response, body)
        if self.assembler.raw is not None:
            self.assembler.raw.body(body)
        self._reply.begin(response)
        for index, raw in enumerate(elements(response.output)):
            wire = read_or_default(Item, raw)
            item = self.item_of(wire, index)
            self._release(item.number)
            item.done(wire, raw)
        try:
            self._reply.finish(response)
        except AdapterError:
            self.told = True
            raise
        self.finished = True
        return self.assembler.take()


def _number_of(data: bytes) -> int | None:
    try:
        return _decode_head(data).sequence_number
    except (msgspec.MsgspecError, UnicodeError):
        return None


def _path(response_id: str) -> str:
    return f"/v1/responses/{quote(response_id, safe='')}"
