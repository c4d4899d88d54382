"""Streamable HTTP in front of a command that speaks over its standard streams, for the conformance suite.

    python -m labs.mcp.conformance_bridge PORT COMMAND ...

Each session has a process of its own. The suite speaks HTTP only, and this carries its messages unchanged.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

STREAM = {"content-type": "text/event-stream", "cache-control": "no-store"}


class Bridge:
    """One process, and the streams that wait for its messages."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[Any, asyncio.Queue[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = json.loads(line)
            # Messages from the server are sent to the newest stream: to a call, or else to the client's GET.
            key = message["id"] if "method" not in message else next(reversed(self._waiting), None)
            if (queue := self._waiting.get(key)) is not None:
                queue.put_nowait(message)

    def send(self, body: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(body.replace(b"\n", b" ") + b"\n")

    async def messages(self, key: Any) -> AsyncIterator[bytes]:
        """The events of a stream, up to the response to its request."""
        queue = self._waiting[key] = asyncio.Queue()
        try:
            while True:
                message = await queue.get()
                yield b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"
                if message.get("id") == key and "method" not in message:
                    return
        finally:
            self._waiting.pop(key, None)

    def close(self) -> None:
        self._reader.cancel()
        self._process.kill()


def app(command: list[str]) -> Starlette:
    bridges: dict[str, Bridge] = {}

    async def post(request: Request) -> Response:
        body = await request.body()
        message = json.loads(body)
        session = request.headers.get("mcp-session-id")
        if session is None:
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=2**24)
            session = f"session-{process.pid}"
            bridges[session] = Bridge(process)
        if (bridge := bridges.get(session)) is None:
            return Response(status_code=404)
        bridge.send(body)
        if "id" not in message or "method" not in message:
            return Response(status_code=202)
        return StreamingResponse(bridge.messages(message["id"]), headers={**STREAM, "mcp-session-id": session})

    async def get(request: Request) -> Response:
        bridge = bridges.get(request.headers.get("mcp-session-id", ""))
        return (
            Response(status_code=404)
            if bridge is None
            else StreamingResponse(bridge.messages(None), headers=STREAM)
        )

    async def delete(request: Request) -> Response:
        bridge = bridges.pop(request.headers.get("mcp-session-id", ""), None)
        if bridge is not None:
            bridge.close()
        return Response(status_code=200 if bridge is not None else 404)

    return Starlette(
        routes=[
            Route("/mcp", post, methods=["POST"]),
            Route("/mcp", get, methods=["GET"]),
            Route("/mcp", delete, methods=["DELETE"]),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(app(sys.argv[2:]), port=int(sys.argv[1]), log_level="error")
