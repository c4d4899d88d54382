"""A process that has imported what commands need, and forks for each command that a test runs.

    python -m tests.cli.forking FILE

A command is a process all the same, with its own arguments, environment, folder, streams and threads. Only the
imports are made once for all of them, and modules aren't taken apart at its end; these two are most of its time.
That a command also starts from nothing, and ends, is shown by the book's pages and by `running.start`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import msgspec

from callboard import adapters, bus, engine, tracestore

WITHIN = (
    *(
        "aiosqlite",
        "anyio._backends._asyncio",
        "httpx",
        "psycopg",
        "rich._emoji_codes",
        "rich.console",
        "rich.live",
    ),
    *("rich.table", "structlog", "ulid", "yaml"),
)
"""What our modules, and those of libraries, import within functions."""


class Command(msgspec.Struct):
    """A command that the process is to run."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    """The folder in which the command works."""


class Forking:
    """The process, from the side of the tests. A command that doesn't end in time ends all of it."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,  # so that the streams are what they are for a command: pipes
                stdout=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def call(
        self, command: Command, said: bytes, *, timeout: float, stdout: int | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run one command."""
        assert len(said) < 65536, "more than a pipe takes"
        heard, speaks = os.pipe()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            os.write(speaks, said)
            os.close(speaks)
            try:
                files = [heard, out.fileno() if stdout is None else stdout, err.fileno()]
                socket.send_fds(self._socket, [msgspec.json.encode(command) + b"\n"], files)
                self._socket.settimeout(timeout)
                status = self._socket.recv(16)
            except BaseException as error:
                self.close()
                if isinstance(error, TimeoutError):
                    raise subprocess.TimeoutExpired(list(command.arguments), timeout) from error
                raise
            finally:
                os.close(heard)
            assert status, "the forking process has ended"
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command.arguments, int(status), out.read(), err.read())

    @property
    def closed(self) -> bool:
        return self._process.returncode is not None

    def close(self) -> None:
        """End it, and the command that it runs."""
        if not self.closed:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
        self._socket.close()


def main(file: int) -> None:
    """Serve until the tests have gone; in a child, be the command."""
    with socket.socket(fileno=file) as tests:
        import_all()
        gc.freeze()
        while True:
            request, streams, _, _ = socket.recv_fds(tests, 1 << 20, 3)
            while request and not request.endswith(b"\n"):
                request += tests.recv(1 << 20)
            if not request:
                return
            child = os.fork()
            if child == 0:
                break
            for stream in streams:
                os.close(stream)
            _, status = os.waitpid(child, 0)
            tests.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    for stream, number in zip(streams, range(3), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    status = 1
    try:
        status = be(msgspec.json.decode(request, type=Command))
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # what an interpreter does at its end: it waits for threads,
    atexit._run_exitfuncs()  # calls who asked for it,
    sys.stdout.flush()  # and writes what is left
    os._exit(status)


def be(command: Command) -> int:
    """The command, in this process. Gives its exit code."""
    from callboard.engine.cli import main

    os.environ.clear()
    os.environ.update(command.environment)
    time.tzset()
    os.chdir(command.folder)
    sys.argv = ["callboard", *command.arguments]
    return main()


def import_all() -> None:
    """All of ours but what would run."""
    for room in (bus, adapters, tracestore, engine):
        for module in walk_packages(room.__path__, f"{room.__name__}."):
            if not module.name.endswith("__main__") and "callboard.adapters.conformance" not in module.name:
                with contextlib.suppress(ModuleNotFoundError):  # of a library that is not installed
                    import_module(module.name)
    for name in WITHIN:
        import_module(name)


if __name__ == "__main__":
    main(int(sys.argv[1]))
