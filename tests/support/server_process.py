"""A test server in a process of its own, which may be killed and started again at the same address."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Self
from urllib.request import Request, urlopen

from .programs import started


class ServerProcess:
    """The process of a module whose `main` calls `serve`. It has records and a list of faults."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._program = f"from {module} import main; main()"
        self._arguments = arguments
        self._port = 0
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it, at the same address as before."""
        self._process = started(self._program, *self._arguments, self._port)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()

    def fail(self, *faults: str) -> None:
        """Add faults."""
        self._tell(faults)

    def forgive(self) -> None:
        """Remove all faults."""
        self._tell(None)

    def _tell(self, faults: Any) -> None:
        request = Request(f"{self.url}/faults", json.dumps(faults).encode(), method="POST")
        with urlopen(request, timeout=10) as reply:
            reply.read()

    def books(self) -> dict[str, Any]:
        """The records: everything that was made and billed."""
        with urlopen(f"{self.url}/books", timeout=10) as reply:
            books: dict[str, Any] = json.loads(reply.read())
        return books

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(handler: type[BaseHTTPRequestHandler], port: int) -> None:
    """Serve at a port, or at a free one for 0. Print the URL, and run until stdin is closed."""
    server = _Server(("127.0.0.1", port), handler)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def faults_after(faults: list[str], told: list[str] | None) -> list[str]:
    """The list of faults after a request that adds these. None removes all."""
    return [] if told is None else faults + told
