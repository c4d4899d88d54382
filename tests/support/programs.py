"""Python programs of this checkout in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from .forking import Forked, Program, can_fork

CHECKOUT = Path(__file__).parents[2]


def started(
    program: str, *arguments: object, flags: tuple[str, ...] = (), fresh: bool = False, **environment: str
) -> subprocess.Popen[str]:
    """Start a program with these arguments. It can import the same packages as the tests.

    With flags or `fresh`, it runs in a new interpreter instead of a fork.
    """
    text, given = textwrap.dedent(program), [*map(str, arguments)]
    its_environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), **environment}
    if can_fork() and not flags and not fresh:
        return Forked(Program(text, given, its_environment))
    return subprocess.Popen(
        [sys.executable, *flags, "-c", text, *given], cwd=CHECKOUT, env=its_environment, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(
    program: str,
    *arguments: object,
    flags: tuple[str, ...] = (),
    fresh: bool = False,
    timeout: float = 60,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in which it may kill itself."""
    with started(program, *arguments, flags=flags, fresh=fresh, **environment) as process:
        try:
            said, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)


class Heard:
    """A process whose output is read continuously, because a full pipe would block it."""

    def __init__(
        self,
        command: Sequence[str],
        on_line: Callable[[bytes], object],
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._on_line, self._on_end = on_line, on_end
        self._errors = b""
        self.process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        """The process."""
        self._readers = [threading.Thread(target=read) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def kill(self) -> str:
        """Kill it, if it has not ended. Returns its stderr."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()
        return self._errors.decode(errors="replace")

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):  # an incomplete line is ignored
                    self._on_line(line)
        self._on_end()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as file:
            self._errors = file.read()
