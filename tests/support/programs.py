"""Python programs in processes of their own, from this checkout: some are killed, some end, all are watched."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def started(
    program: str, *arguments: object, flags: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[str]:
    """The process of a program, which is given these arguments and can import what we can."""
    return subprocess.Popen(
        [sys.executable, *flags, "-c", textwrap.dedent(program), *map(str, arguments)],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(
    program: str, *arguments: object, flags: tuple[str, ...] = (), timeout: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A program that has ended by itself, or was killed by itself."""
    with started(program, *arguments, flags=flags, **environment) as process:
        try:
            said, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, said, errors)
