"""Answers as JSON and as server-sent events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

import anyio
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from callboard.bus import CallboardError, Log

_log = Log("web")

HEARTBEAT_SECONDS = 15.0
"""The time between two signs of life on an idle stream. A connection that is gone is noticed by then."""

LONGEST_SECONDS = 3600.0
"""After this time a stream ends, and the page asks again; so that nobody looks on who may no longer."""

_encoder = msgspec.json.Encoder(enc_hook=str)


class Refused(Exception):
    """A request that gets an error for an answer.

    Args:
        status: The HTTP status.
        why: The reason, for people.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status
        self.why = why


def as_json(value: object) -> bytes:
    """A value as JSON in UTF-8. Half a surrogate pair, as a broken tokenizer may yield, is escaped."""
    try:
        return _encoder.encode(value)
    except UnicodeError:
        return json.dumps(msgspec.to_builtins(value, enc_hook=str)).encode("ascii")


def answer(value: object, status: int = 200) -> Response:
    """A value as an answer that nobody keeps."""
    return Response(as_json(value), status, {"cache-control": "no-store"}, media_type="application/json")


def frame(event: str, data: bytes, frame_id: str | None = None) -> bytes:
    """One server-sent event. JSON of ours has no line breaks."""
    head = b"" if frame_id is None else b"id: " + frame_id.encode() + b"\n"
    return head + b"event: " + event.encode() + b"\ndata: " + data.replace(b"\n", b" ") + b"\n\n"


class EventStream(Response):
    """Server-sent events, for as long as the page is there.

    The page's leaving ends the frames at once, whether anything is being sent or not. A slow page holds up its own
    frames and nothing else.

    Args:
        frames: The frames. They are closed in any case.
    """

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(None, 200, headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._frames = frames
        self._sending = anyio.Lock()
        self.open: set[anyio.CancelScope] = set()
        """The scopes of the view's open streams, each of which ends its stream when it is cancelled."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with anyio.move_on_after(LONGEST_SECONDS):
            async with anyio.create_task_group() as group:
                self.open.add(group.cancel_scope)
                group.start_soon(self._until_gone, receive, group.cancel_scope)
                group.start_soon(self._heartbeat, send)
                try:
                    async for each in self._frames:
                        await self._send(send, each)
                except OSError:
                    pass  # the connection is gone
                except CallboardError as error:  # the page asks again by itself
                    _log.warning("frames_ended", path=scope["path"], error=str(error))
                finally:
                    self.open.discard(group.cancel_scope)
                    await _close(self._frames)
                    group.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        async with self._sending:
            await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _heartbeat(self, send: Send) -> None:
        with contextlib.suppress(OSError):
            await self._send(send, b"retry: 1000\n\n")
            while True:
                await anyio.sleep(HEARTBEAT_SECONDS)
                await self._send(send, b": here\n\n")

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


async def _close(frames: AsyncIterator[bytes]) -> None:
    close = getattr(frames, "aclose", None)
    if close is not None:
        with anyio.CancelScope(shield=True):  # its own clean-up is quick: it waits for nothing
            await close()
