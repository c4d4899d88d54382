"""A process that has imported what programs need, and forks for each program that a test starts.

    python -m tests.support.forking FILE

Each program is still a process with its own arguments, environment, streams and threads, and a child of the test.
But the imports run only once for all programs, and no program destroys its modules at its end. This saves half a
second of CPU for each program.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import ctypes
import gc
import os
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, cast

import msgspec

CHECKOUT = Path(__file__).parents[2]
FIRST = ("aiosqlite", "anyio._backends._asyncio", "callboard.engine.engine", "tests.support.engines")
OURS = ("callboard", "examples", "labs", "tests")
SET_CHILD_SUBREAPER = 36
STREAMS = slice(10, 16)
"""The arguments of `Popen._execute_child` that are the ends of pipes: its own and ours, for each stream."""


class Program(msgspec.Struct):
    """A program that the process is to run."""

    text: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str = str(CHECKOUT)
    """The folder in which it runs."""
    without: str = ""
    """A library that it does not find."""
    session: bool = False
    """Whether it starts a new session, so that it has no terminal."""


class Forked(subprocess.Popen[Any]):
    """The process of a program.

    It is a grandchild of the process that forks. Its parent ends immediately, so it becomes a child of this one.
    """

    def __init__(
        self,
        program: Program,
        *,
        stdin: int = subprocess.PIPE,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
        text: bool = True,
    ) -> None:
        self._program = program
        command = [sys.executable, "-c", program.text, *program.arguments]
        super().__init__(command, stdin=stdin, stdout=stdout, stderr=stderr, text=text)

    def _execute_child(self, *arguments: Any) -> None:
        reads, tells, heard, writes, blamed, complains = arguments[STREAMS]
        self.pid = _forking().fork(self._program, [reads, writes, complains])
        self._child_created = True
        for end, ours in ((reads, tells), (writes, heard), (complains, blamed)):
            if ours >= 0:  # otherwise it is the caller's file
                os.close(end)


class _Forking:
    """The tests' interface to the forking process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=CHECKOUT,
                stdin=subprocess.PIPE,  # so that programs have pipes as streams, as usual
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(self, program: Program, streams: list[int]) -> int:
        """Fork. Returns the id of the new process."""
        with self._lock, _taking_orphans():
            socket.send_fds(self._socket, [msgspec.json.encode(program) + b"\n"], streams)
            answer = self._socket.recv(16)
            assert answer, self._process.communicate()[1].decode()
            return int(answer)

    def close(self) -> None:
        self._socket.close()
        self._process.communicate()


@cache
def _forking() -> _Forking:
    forking = _Forking()
    atexit.register(forking.close)
    return forking


@contextlib.contextmanager
def _taking_orphans() -> Iterator[None]:
    """Within the block, grandchildren become children when their parents end."""
    call = ctypes.CDLL(None).prctl
    call(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        call(SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def can_fork() -> bool:
    return sys.platform == "linux"


def main(file: int) -> None:
    """Serve until the tests have ended; in a grandchild, run the program."""
    with socket.socket(fileno=file) as tests:
        for name in FIRST:
            import_module(name)
        while True:
            request, streams, _, _ = socket.recv_fds(tests, 1 << 20, 3)
            while request and not request.endswith(b"\n"):
                request += tests.recv(1 << 20)
            if not request:
                return
            program = msgspec.json.decode(request, type=Program)
            for name in imported(program.text):
                with contextlib.suppress(ImportError):
                    import_module(name)
            gc.freeze()
            told, tells = os.pipe()
            if (child := os.fork()) == 0:
                if (grandchild := os.fork()) == 0:
                    break
                os.write(tells, str(grandchild).encode())
                os._exit(0)
            for end in (*streams, tells):
                os.close(end)
            os.waitpid(child, 0)
            tests.sendall(os.read(told, 16))
            os.close(told)
    os.close(told)
    os.close(tells)
    for stream, number in zip(streams, range(3), strict=True):
        os.dup2(stream, number)
        os.close(stream)
    be(program)


def imported(text: str) -> Iterator[str]:
    """Callboard's modules that a program imports."""
    for node in ast.parse(text).body:
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.startswith(OURS))
            case ast.ImportFrom(module=str(name), names=names) if name.startswith(OURS):
                yield name
                yield from (f"{name}.{each.name}" for each in names)


def be(program: Program) -> NoReturn:
    """Run the program in this process."""
    if program.session:
        os.setsid()
    os.chdir(program.folder)
    os.environ.clear()
    os.environ.update(program.environment)
    sys.path[:0] = [
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", *sys.path)
    ]
    time.tzset()
    if program.without:
        forget(program.without)
    sys.argv = ["-c", *program.arguments]
    module = sys.modules["__main__"] = ModuleType("__main__")
    status = 1
    try:
        exec(compile(program.text, "<string>", "exec"), vars(module))
        status = 0
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # at its end, an interpreter waits for threads,
    atexit._run_exitfuncs()  # calls the functions of atexit,
    sys.stdout.flush()  # and flushes the streams
    os._exit(status)


def forget(library: str) -> None:
    """Make the library missing, and import Callboard's modules that contain a part of it again."""
    gone = {name for name in sys.modules if name == library or name.startswith(f"{library}.")}
    fresh = gone
    while fresh:
        holders = {
            name
            for name, module in sys.modules.items()
            if name.startswith("callboard.") and any(_home_of(value) in fresh for value in _held(name, module))
        }
        fresh = holders - gone
        gone |= fresh
    for name in gone:
        package, _, last = name.rpartition(".")
        vars(sys.modules.get(package, ModuleType(""))).pop(last, None)
    for name in gone:
        del sys.modules[name]
    cast("dict[str, ModuleType | None]", sys.modules)[library] = None  # makes its import fail


def _held(name: str, module: ModuleType) -> Iterator[object]:
    """The objects in a module, without its submodules."""
    for attribute, value in vars(module).items():
        if not (isinstance(value, ModuleType) and value.__name__ == f"{name}.{attribute}"):
            yield value


def _home_of(value: object) -> object:
    """The name of the module that defines a value."""
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return home if isinstance(home, str) else None


if __name__ == "__main__":
    main(int(sys.argv[1]))
