"""The stream of one reply: its events, and their bytes for the client.

If client and provider use the same protocol, the reply is passed through with the provider's own bytes. Only the
model's name is replaced with the client's name for it. All other bytes are unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec

from callboard.adapters import CanonicalResponse
from callboard.bus import TaskHandle
from callboard.bus.streams.events import StepFinish, StreamEvent, TurnComplete, TurnEvent, weigh_all

from ..conversation.results import Reply
from ..conversation.turn import Turn
from ..runtime.runtime import Runtime
from .failures import Failure
from .wire import ClientRequest, ReplyWriter

_Members = dict[str, msgspec.Raw]
_members = msgspec.json.Decoder(_Members)

MODEL_PLACES: dict[str, tuple[str, ...]] = {
    "anthropic": ("message", "model"),
    "openai": ("response", "model"),
    "openai_compatible": ("model",),
    "gemini": ("modelVersion",),
}
"""The path of the model's name in a stream's events, by protocol. Some events do not have this path. In a whole
reply, the last field is at the top.
"""

ENDS_IN_FAILURE = frozenset({"error", "response.failed", "response.error"})
"""The events with which a provider reports that a reply failed."""


_ERROR_WITHIN = 20
"""The number of bytes at the start of an unnamed event that are searched for ``error``, for Chat Completions and
Gemini.
"""

MOST_WAITING_BYTES = 8 * 1024 * 1024
"""The maximum number of bytes of a stream that may wait for a slow client."""


class ClientTooSlow(Exception):
    """The client reads too slowly, so the remaining stream was dropped."""

    def __init__(self) -> None:
        super().__init__(f"it is more than {MOST_WAITING_BYTES} bytes behind")


class PassedReply:
    """The events of a reply as received from the provider. Use `take_in` as `WireRequest.on_event`."""

    def __init__(
        self, protocol: str, client_request: ClientRequest, model: Callable[[], str], *, is_array: bool = False
    ) -> None:
        self.has_content = False
        """Whether anything has arrived. If so, the provider uses the client's protocol."""
        self.body = b""
        """The whole reply; empty for a stream."""
        self.final = b""
        """The last event of a Responses stream, which contains the whole response."""
        self.failed = False
        """Whether the provider reported a failure in the stream."""
        self._frames: list[bytes] = []
        self._waiting_bytes = 0
        self._protocol = protocol
        self._client_request = client_request
        self._model = model
        self._named = protocol in ("anthropic", "openai")
        self._is_array = is_array
        self._place = MODEL_PLACES[protocol]
        self._renames: bool | None = None
        # The bytes of the member with the model's name, and their replacement.
        self._renaming: tuple[bytes, bytes] | None = None
        self._sent_first = False

    def take_in(self, name: str, data: bytes) -> None:
        self.has_content = True
        if not self._client_request.stream:
            self.body = data
            return
        if self._renames is None:
            self._renames = self._model() != self._client_request.model
        if name in _FINAL_EVENTS:
            self.final = data
        if name in ENDS_IN_FAILURE or (not name and b'"error"' in data[:_ERROR_WITHIN]):
            self.failed = True
        if self._waiting_bytes > MOST_WAITING_BYTES:
            return
        frame = self._framed(name, self._renamed(name, data) if self._renames else data)
        self._frames.append(frame)
        self._waiting_bytes += len(frame)

    def take(self) -> bytes:
        """The bytes for the client that have arrived. Raises ClientTooSlow."""
        if not self._frames:
            return b""
        if self._waiting_bytes > MOST_WAITING_BYTES:
            raise ClientTooSlow
        found = b"".join(self._frames)
        self._frames.clear()
        self._waiting_bytes = 0
        if self._is_array:
            found = (b"" if self._sent_first else b"[") + (
                found if self._sent_first else found.removeprefix(b",\r\n")
            )
            self._sent_first = True
        return found

    @property
    def end(self) -> bytes:
        """The bytes after the last event."""
        return b"]" if self._is_array else b""

    def document(self) -> bytes:
        """The whole reply with the client's name of the model."""
        if self._model() == self._client_request.model:
            return self.body
        return replaced(self.body, self._place[-1:], self._client_request.model)

    def _renamed(self, name: str, data: bytes) -> bytes:
        if self._named and name not in _NAMING_EVENTS:
            return data
        renaming = self._renaming
        if (
            renaming is not None and data.count(renaming[0]) == 1
        ):  # the usual case: replace the name without decoding
            return data.replace(*renaming)
        renamed = replaced(data, self._place, self._client_request.model)
        if len(self._place) == 1 and renamed is not data:
            found = _members.decode(data)[self._place[0]]
            key = b'"%s":' % self._place[0].encode()
            self._renaming = key + bytes(found), key + msgspec.json.encode(self._client_request.model)
        return renamed

    def _framed(self, name: str, data: bytes) -> bytes:
        if self._is_array:
            return b",\r\n" + data
        if b"\n" in data:
            data = b"\ndata: ".join(data.split(b"\n"))
        if self._named:
            return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
        return b"data: %s\r\n\r\n" % data if self._protocol == "gemini" else b"data: %s\n\n" % data


_FINAL_EVENTS = frozenset({"response.completed", "response.incomplete"})

_NAMING_EVENTS = frozenset(
    {
        "message_start",
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    }
)
"""The named events that contain the model's name."""


def replaced(data: bytes, place: tuple[str, ...], value: str) -> bytes:
    """Replace the text at a path in JSON. Data without this path is returned unchanged."""
    first, *rest = place
    try:
        members = _members.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data  # for example [DONE]
    found = members.get(first)
    if found is None:
        return data
    if not rest:
        members[first] = msgspec.Raw(msgspec.json.encode(value))
    else:
        members[first] = msgspec.Raw(replaced(bytes(found), tuple(rest), value))
    return msgspec.json.encode(members)


WEIGH_EVERY = 256
"""The number of waiting events from which their size is computed. Most streams stay below it."""


class TurnEvents:
    """The events of a turn, received when they are appended to its log.

    A reader of the log is not used: with a slow client, it could get folded events, but bytes that were already
    sent can't be changed.
    """

    def __init__(self, runtime: Runtime, turn: Turn) -> None:
        self._runtime = runtime
        self._turn = turn
        self._task: TaskHandle[Reply] | None = None
        self._seq = 0
        self._arrived: list[TurnEvent] = []
        self._weighed = 0
        self._bytes = 0
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self._task = await self._runtime.host.start_turn(self._turn)
        self._collect()

    def _collect(self) -> None:
        log = self._turn.log
        if self._bytes <= MOST_WAITING_BYTES:
            self._arrived += log.since(self._seq)
            if len(self._arrived) - self._weighed >= WEIGH_EVERY:
                self._bytes += weigh_all(self._arrived[self._weighed :])
                self._weighed = len(self._arrived)
        self._seq = log.next_seq
        if log.closed:
            self._closed = True
        else:
            log.notify(self._collect)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[TurnEvent]:
        """The events that have arrived, at least one. Empty after the successful end of the turn.

        Raises the turn's exception, or ClientTooSlow.
        """
        assert self._task is not None
        while not self._arrived:
            if self._closed:
                await self._task.wait()
                return []
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._bytes > MOST_WAITING_BYTES:
            raise ClientTooSlow
        arrived, self._arrived, self._weighed, self._bytes = self._arrived, [], 0, 0
        return arrived

    async def aclose(self) -> None:
        """Cancel the turn if it still runs, and wait for its end."""
        if self._task is None or self._task.done:
            return
        self._turn.cancel()
        with anyio.CancelScope(shield=True), contextlib.suppress(Exception):
            await self._task.wait()


class StreamWriter:
    """Writes a stream with the client's wire, or the provider's own bytes if the reply is passed through."""

    def __init__(
        self, passed: PassedReply, new_writer: Callable[[], ReplyWriter], own_words: Callable[[Any], Any]
    ) -> None:
        self.started = False
        """Whether the reply has started."""
        self._passed = passed
        self._new_writer = new_writer
        self._own_words = own_words
        self._writer: ReplyWriter | None = None

    def write(self, batch: Sequence[object]) -> bytes:
        """The bytes of some events. The first bytes include the reply's start. Raises ClientTooSlow."""
        start = b"" if self.started else self._begin(passes=self._passed.has_content)
        if self._writer is None:
            return self._passed.take()
        write = self._writer.write
        # a gateway's turn runs no tools and gets no steering messages
        events: list[StreamEvent] = [
            self._own_words(event) for event in batch if not isinstance(event, StepFinish | TurnComplete)
        ]
        return start + (write(events[0]) if len(events) == 1 else b"".join(map(write, events)))

    def finish(self, response: CanonicalResponse) -> bytes:
        start = b"" if self.started else self._begin(passes=False)
        if self._writer is None:
            return self._passed.take() + self._passed.end
        return start + self._writer.finish(self._own_words(response))

    def fail(self, failure: Failure) -> bytes:
        """The bytes for the end of a reply that failed after the status was sent."""
        start = b"" if self.started else self._begin(passes=False)
        if self._writer is None:
            rest = self._passed.take()
            return rest if self._passed.failed else rest + self._new_writer().fail(failure)
        return start + self._writer.fail(failure)

    def _begin(self, *, passes: bool) -> bytes:
        self.started = True
        if passes:
            return b""
        self._writer = self._new_writer()
        return self._writer.start()
