"""A provider on 127.0.0.1 that answers each request with the same status, or never. It runs in its own threads."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    """The headers, with lower-case names."""


class ProviderServer:
    """The server of `provider_server`: its URL, and its requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self.unanswered = threading.Semaphore(0)
        """Released for each request that gets no reply."""


@contextmanager
def in_threads(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server in threads of this process within a block. Yields its URL."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@contextmanager
def provider_server(
    status: int | None = 200, body: bytes = b'{"data": []}', replies: float = math.inf
) -> Iterator[ProviderServer]:
    """Run a server within a block. Requests after this number of replies get none."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            server.asked.append(Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            if status is None or len(server.asked) > replies:
                server.unanswered.release()
                over.wait(60)
                return
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with in_threads(Handler) as url:
        server = ProviderServer(url)
        try:
            yield server
        finally:
            over.set()


def refusing_url() -> str:
    """The URL of a port without a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"
