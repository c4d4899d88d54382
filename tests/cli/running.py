"""Run commands in separate processes, and make their files."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any
from unittest import mock

import anyio

from callboard import PriceTable, ServerError
from callboard.engine.cli import main
from tests.support.engines import running
from tests.support.forking import Forked, Program, can_fork
from tests.support.scripted import Say

CHECKOUT = Path(__file__).parents[2]
PRICES = CHECKOUT / "examples" / "demo-prices.yaml"
PATIENCE_SECONDS = 40.0

MODELS = """
adapters:
  one: {type: "tests.cli.adapters:Parrot"}
  two: {type: "tests.cli.adapters:Parrot"}
  broken: {type: "tests.cli.adapters:Broken"}
  endless: {type: "tests.cli.adapters:Endless"}
  rude: {type: "tests.cli.adapters:Rude"}
  obedient: {type: "tests.cli.adapters:Obedient"}
  locked: {type: "tests.cli.adapters:Parrot", api_key_env: A_KEY_THAT_IS_NOT_SET}
models:
  "one:parrot": {adapter: one, aliases: [first]}
  "two:parrot": {adapter: two, aliases: [second]}
  "broken:m": {adapter: broken}
  "endless:m": {adapter: endless}
  "rude:m": {adapter: rude}
  "obedient:m": {adapter: obedient}
  "locked:m": {adapter: locked}
default_model: first
"""


COMMAND = """
import sys
import tests.cli.everything
from callboard.engine.cli import main
sys.argv[0] = "callboard"
sys.exit(main())
"""


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    return {**kept, "CALLBOARD_HOME": str(home), "PYTHONUTF8": "1", "COLUMNS": "120", "VISUAL": "true"}


def start(
    *arguments: str,
    home: Path,
    without: str = "",
    more: Mapping[str, str] | None = None,
    session: bool = False,
    text: bool = False,
    program: str = COMMAND,
    **streams: int,
) -> subprocess.Popen[Any]:
    """Start a command. All three streams are pipes unless `streams` names others.

    Args:
        arguments: The command's arguments.
        home: The command's home folder.
        without: A library that the command can't import.
        more: Further environment variables.
        session: Whether the process starts a session, so that it has no controlling terminal.
        text: Whether the streams are text.
        program: The text of the program that runs the command.
        streams: Open files, in place of pipes.
    """
    variables = {**environment(home), **(more or {})}
    if can_fork():
        forked = Program(program, arguments, variables, without=without, session=session)
        return Forked(forked, text=text, **streams)
    hide = f"import sys\nsys.modules[{without!r}] = None\n"
    return subprocess.Popen(
        [sys.executable, "-c", hide + program, *arguments],
        cwd=CHECKOUT,
        env=variables,
        start_new_session=session,
        text=text,
        **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def call(
    *arguments: str,
    home: Path,
    said: str = "",
    without: str = "",
    more: Mapping[str, str] | None = None,
    exits: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. It runs in this process, unless it must lack a library or find other packages."""
    if without or "PYTHONPATH" in (more or {}):
        done = _ended(start(*arguments, home=home, without=without, more=more), said)
    else:
        with tempfile.TemporaryFile() as stdout:
            done = _here(arguments, home, stdout, said, more or {})
            stdout.seek(0)
            done.stdout = stdout.read().decode()
    assert exits in (None, done.returncode), done.stdout + done.stderr
    return done


def call_into(stdout: int, *arguments: str, home: Path, said: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in this process that writes to an open file, such as a pipe or a device."""
    with os.fdopen(os.dup(stdout), "wb") as out:
        return _here(arguments, home, out, said, {})


def _here(
    arguments: Sequence[str], home: Path, stdout: IO[bytes], said: str, more: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, with streams and an environment of its own."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(said.encode())
        stdin.seek(0)
        streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
        texts = {name: io.TextIOWrapper(stream, encoding="utf-8") for name, stream in streams.items()}
        variables = mock.patch.dict(os.environ, {**environment(home), **more}, clear=True)
        with mock.patch.multiple(sys, **texts), variables, contextlib.chdir(CHECKOUT):
            try:
                code = main(arguments)
            except SystemExit as end:
                code = end.code
        for text in texts.values():
            text.detach()
        stderr.seek(0)
        return subprocess.CompletedProcess(arguments, code, "", stderr.read().decode())


def _ended(process: subprocess.Popen[bytes], said: str) -> subprocess.CompletedProcess[str]:
    with process:
        try:
            out, err = process.communicate(said.encode(), timeout=PATIENCE_SECONDS * 4)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())


def at_terminal(
    *arguments: str, home: Path, on: str = "stdin stdout stderr", typed: str = "", after: str = "", **more: str
) -> tuple[int, str, str]:
    """Run a command at a terminal. Return its exit code, the terminal's text, and its other output.

    `on` names the streams at the terminal. `typed` is typed when the terminal shows `after`. `more` has
    environment variables.
    """
    ours, theirs = pty.openpty()
    streams = {name: theirs if name in on.split() else subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
    variables = {"TERM": "xterm", **more}
    with start(*arguments, home=home, more=variables, session=True, **streams) as process:
        os.close(theirs)
        if process.stdin is not None:
            process.stdin.close()
        shown = b""
        with contextlib.suppress(OSError):  # A terminal ends with OSError on Linux.
            while piece := os.read(ours, 65536):
                shown += piece
                if typed and after.encode() in shown:
                    os.write(ours, typed.encode())
                    typed = ""
        other = b"".join(pipe.read() for pipe in (process.stdout, process.stderr) if pipe is not None)
        code = process.wait(PATIENCE_SECONDS)
    os.close(ours)
    return code, shown.decode(), other.decode()


def read_until(process: subprocess.Popen[bytes], text: str) -> str:
    """Return the command's output up to `text`."""
    seen = b""
    give_up = time.monotonic() + PATIENCE_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while text.encode() not in seen:
            assert selector.select(max(0.0, give_up - time.monotonic())), (
                f"the command did not write {text!r}, only {seen!r}"
            )
            piece = os.read(process.stdout.fileno(), 65536)
            assert piece, f"the command ended without {text!r}, after {seen!r}"
            seen += piece
    return seen.decode()


def make_trace(path: Path) -> None:
    """Write a trace file of three calls on two models. The last call fails."""

    async def work() -> None:
        broken = Say(fails=ServerError("no", retryable=False))
        table = PriceTable.all_from_yaml(PRICES)[0]
        replies = {"local-chat": [Say("one")], "local-messages": [Say("two"), broken]}
        async with running(store=path, prices=table, **replies) as (engine, _):
            session = engine.session("local-chat:m", session_id="ses_under_test")
            await session.send("first")
            session.model = "local-messages:m"
            await session.send("second")
            try:
                await session.send("third")
            except ServerError:
                return
            raise AssertionError("the third call fails")

    anyio.run(work)
