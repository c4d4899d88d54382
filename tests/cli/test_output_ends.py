"""How a command ends when its output can't be written: the reader has gone, or the disk is full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from tests.support.engines import keeping
from tests.support.scripted import Say

from .running import CHECKOUT, call_into, environment

FULL = Path("/dev/full")

COMMANDS = (
    *(("traces",), ("traces", "--json"), ("traces", "--csv"), ("traces", "--help"), ("--help",), ("--version",)),
    *(("logs",), ("logs", "--json"), ("logs", "-q", "one"), ("sessions",), ("sessions", "ses_captured")),
    *(("cost",), ("cost", "--by", "day", "--csv"), ("budget",), ("budget", "--json")),
    *(("stats",), ("errors",), ("sql", "select * from events"), ("sql", "--csv", "select * from events")),
    *(("export", "--format", "csv", "-"), ("export", "--format", "jsonl", "-")),
    *(("replay",), ("replay", "--json")),
    *(("models",), ("models", "--all"), ("prices", "list"), ("prices", "show", "openai:gpt-5")),
    *(("doctor", "--offline"), ("plugins",), ("completion", "bash"), ("keys", "path")),
)


@pytest.fixture
def captured(home: Path) -> Path:
    """The home folder, with a trace file that keeps what was said."""

    async def work() -> None:
        async with keeping(home / "trace.db", Say("one"), Say("two")) as engine:
            session = engine.session("s:m", session_id="ses_captured")
            await session.send("first")
            await session.send("second")

    anyio.run(work)
    return home


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_whose_reader_has_gone_ends_with_141(captured: Path, words: tuple[str, ...]) -> None:
    """It writes nothing on stderr."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = call_into(writes, *words, home=captured)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_on_a_full_disk_ends_with_one_line(captured: Path, words: tuple[str, ...]) -> None:
    """The line names stdout and the reason, and the exit code is 1."""
    with FULL.open("w") as full:
        done = call_into(full.fileno(), *words, home=captured)
    assert (done.returncode, done.stderr) == (1, "callboard: stdout: No space left on device\n")


@pytest.mark.parametrize("words", [("traces",), ("traces", "--json")], ids=" ".join)
def test_a_pipe_to_a_program_that_reads_no_more_ends_with_141(captured: Path, words: tuple[str, ...]) -> None:
    """A new interpreter writes nothing about the pipe at its end either."""
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-m", "callboard", *words],
        stdin=subprocess.DEVNULL,
        stdout=writes,
        stderr=subprocess.PIPE,
        env=environment(captured),
        cwd=CHECKOUT,
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
@pytest.mark.parametrize("words", [("ask", "hi"), ("ask", "--no-stream", "hi"), ("chat",)], ids=" ".join)
def test_a_reply_on_a_full_disk_ends_with_one_line(talkative: Path, words: tuple[str, ...]) -> None:
    """A reply that could not be written is a failure."""
    with FULL.open("w") as full:
        done = call_into(full.fileno(), *words, home=talkative)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "callboard: stdout: No space left on device"
    assert "Traceback" not in done.stderr
