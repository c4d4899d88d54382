"""The server for `callboard serve`, `web` and `mcp`: uvicorn, with limits for headers and slow clients.

uvicorn accepts any number of headers of any length, and waits for them forever. Behind a proxy with its own
limits, any other server works as well.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from .http import ABORT

HEADER_SECONDS = 20.0
"""Seconds in which a client must send a request's headers."""

HEADER_BYTES = 128 * 1024
"""The size of headers in bytes at which the connection is closed. The gateway's own limit is lower, and is
reported to the client.
"""

DRAIN_SECONDS = 10
"""Seconds for open requests to end when the gateway stops."""


class BoundedProtocol(HttpToolsProtocol):
    """An HTTP connection with these limits."""

    _header_bytes = 0
    _in_headers = True
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            # asyncio sets this option only if a socket names its protocol, and accepted sockets may not name it.
            # Without the option, an answer in two pieces waits 40 ms for the client's acknowledgement.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES and not self.transport.is_closing():
                self._refuse(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[ABORT] = self.transport.abort
        self._in_headers, self._header_bytes = True, 0
        self._expect_headers()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._stop_waiting()
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and self.cycle is not None:
            self._end_by_closing(self.cycle)

    @staticmethod
    def _end_by_closing(cycle: RequestResponseCycle) -> None:
        """Send an answer of unknown length without chunks, and close the connection after it, because HTTP/1.0 has
        no chunks.

        uvicorn sends chunks to every client, against RFC 9112, section 6.1.
        """
        send = cycle.send
        has_length = True

        async def send_plain(message: Any) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
                if not has_length:
                    cycle.chunked_encoding, cycle.keep_alive = False, False
            elif not has_length:
                cycle.expected_content_length = len(message["body"])
            await send(message)

        # uvicorn creates the object and has no setting for its class, so its method is replaced.
        cycle.send = send_plain  # type: ignore[method-assign]

    def _expect_headers(self) -> None:
        self._stop_waiting()
        self._late = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._refuse(b"HTTP/1.1 408 Request Timeout\r\n")

    def _refuse(self, status: bytes) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        # otherwise the error would be sent in the middle of another answer
        if cycle is None or cycle.response_complete:
            self.transport.write(status + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()


def server_options() -> dict[str, Any]:
    return {
        "http": BoundedProtocol,
        "ws": "none",
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": 1,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
    }
