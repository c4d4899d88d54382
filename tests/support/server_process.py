"""A server of the tests in a process of its own, which may be killed and started again where it was."""

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
    """The process of a module whose `main` serves with `serve`, and keeps books and a list of faults."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._program = f"from {module} import main; main()"
        self._arguments = arguments
        self._port = 0
        self.url = ""
        self.start()

    def start(self) -> None:
        """Start it, at the address that it had."""
        self._process = started(self._program, *self._arguments, self._port)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self._port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.communicate()

    def fail(self, *faults: str) -> None:
        """Have faults strike."""
        self._tell(faults)

    def forgive(self) -> None:
        """Have no fault strike any more."""
        self._tell(None)

    def _tell(self, faults: Any) -> None:
        request = Request(f"{self.url}/faults", json.dumps(faults).encode(), method="POST")
        with urlopen(request, timeout=10) as reply:
            reply.read()

    def books(self) -> dict[str, Any]:
        """What was made and what is billed."""
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
        """Whoever asks may leave."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(handler: type[BaseHTTPRequestHandler], port: int) -> None:
    """Serve at a port, or at any for 0; print the URL, and live until stdin is closed."""
    server = _Server(("127.0.0.1", port), handler)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


def faults_after(faults: list[str], told: list[str] | None) -> list[str]:
    """The faults that are to strike, when these are told. None forgets all."""
    return [] if told is None else faults + told
