"""The input of a chat: how lines are read and interpreted, Ctrl-C, and the history file for the Up key."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Protocol, Self

from callboard.bus import CallboardError
from callboard.bus.files import write_private
from callboard.tracestore.home import home_folder

from ..models.catalogue import nearest


class SlashCommand(NamedTuple):
    """A line of a chat that is a command and not a message."""

    name: str  # the name, without the slash
    argument: str  # the text after the name


HELP: Mapping[str, str] = {
    "model": "/model NAME switches to another model, /model alone lists them",
    "preview": "/preview NAME shows what another model would receive and lose",
    "attach": "/attach FILE or URL adds it to the next message, /attach alone lists them",
    "edit": "/edit writes a message in $EDITOR",
    "retry": "/retry sends the last message again, /retry NAME to another model",
    "cost": "/cost shows the cost of the conversation",
    "save": "/save saves the conversation, so that you can continue it later",
    "help": "/help shows this list",
    "quit": "/quit, quit, exit or Ctrl-D leaves",
}
"""The help text of each command."""

SHORT_HELP = (
    '/help shows the commands. """ starts and ends a message of several lines. '
    "Ctrl-C stops a reply, Ctrl-D leaves."
)


def command_of(line: str) -> SlashCommand | None:
    """The command in a line; None if it is a message. A path such as ``/etc/hosts is ...`` is a message."""
    text = line.strip()
    if text.lower() in ("exit", "quit"):
        return SlashCommand("quit", "")
    name, _, argument = text.removeprefix("/").partition(" ")
    if not text.startswith("/") or "\n" in text or "/" in name:
        return None
    return SlashCommand({"exit": "quit", "q": "quit", "?": "help"}.get(name, name), argument.strip())


def unknown(name: str) -> str:
    """The message for an unknown command."""
    near = nearest(name, HELP)
    return f"unknown command /{name}: {f'did you mean /{near[0]}?' if near else '/help shows them'}"


def completions(text: str, models: Iterable[str], files: Callable[[str], Sequence[str]]) -> Sequence[str]:
    """The Tab completions for the last word of a line."""
    command, blank, argument = text.partition(" ")
    if not text.startswith("/"):
        return ()
    if not blank:
        return [f"/{name}" for name in HELP]
    if command in ("/model", "/preview", "/retry"):
        return sorted(models)
    return files(argument) if command == "/attach" else ()


MARK = '"""'


def is_open(text: str) -> bool:
    """Whether a message has started with three quotation marks but has not ended."""
    stripped = text.strip()
    return stripped.startswith(MARK) and not (len(stripped) >= 2 * len(MARK) and stripped.endswith(MARK))


def unwrapped(text: str) -> str:
    """The message without the quotation marks around it and without blanks at its ends."""
    stripped = text.strip()
    if stripped.startswith(MARK):
        stripped = stripped.removeprefix(MARK).removesuffix(MARK).strip("\r\n")
    return stripped


# --- Reading lines ---


class Reader(Protocol):
    """Reads the user's input."""

    def read(self) -> str | None:
        """The next message; None at the end of the input."""

    def ask(self, question: str) -> str:
        """The answer to a question; empty at the end of the input."""


class PlainReader:
    """Reads a message from each line, or from the lines between three quotation marks."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        if sys.stdin.isatty():
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 (it gives input() arrows and a history)

    def read(self) -> str | None:
        text = self._line(f"\n{self._prompt}" if self._prompt else "")
        while text is not None and is_open(text):
            more = self._line("")
            if more is None:
                break
            text = f"{text}\n{more}"
        return text

    def ask(self, question: str) -> str:
        return self._line(question) or ""

    def _line(self, prompt: str) -> str | None:
        try:
            return input(prompt)
        except EOFError:
            return None


def edited(text: str = "") -> str:
    """The text that the user has written in ``$VISUAL`` or ``$EDITOR``."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="callboard-") as folder:  # only the user can read this folder
        file = Path(folder, "message.md")
        file.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
            written = file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CallboardError(f"{editor}: {error}; set $EDITOR to another editor") from error
    if code:
        raise CallboardError(f"{editor} ended with {code}; no message was sent")
    return written.strip()


# --- Ctrl-C in a chat ---
#   idle       nothing immediately: the next reading starts with KeyboardInterrupt, and the chat ends
#   reading    KeyboardInterrupt, in the middle of reading
#   replying   the reply is cancelled; a second one raises KeyboardInterrupt
#
# Between these, Python would raise KeyboardInterrupt anywhere in the main thread: also in a callback of the
# garbage collector, where it is shown and lost.


class Interrupts:
    """A context that defines the effect of Ctrl-C. Use it only on the main thread."""

    def __init__(self) -> None:
        self._reading = False
        self._waiting = False
        self._cancel: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def reading(self) -> Iterator[None]:
        try:
            self._reading = True
            if self._waiting:
                raise KeyboardInterrupt
            yield
        finally:
            self._reading = self._waiting = False

    @contextmanager
    def replying(self, cancel: Callable[[], object]) -> Iterator[None]:
        self._cancel = cancel
        try:
            yield
        finally:
            self._cancel, self._reading = None, False

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            self._reading = True  # a second Ctrl-C raises KeyboardInterrupt
            cancel()
        elif self._reading:
            raise KeyboardInterrupt
        else:
            self._waiting = True


# --- The history file ---


def history_path() -> Path:
    return home_folder() / "chat-history"


def forget_lines(texts: set[str]) -> None:
    """Delete a deleted session's lines from the history."""
    path = history_path()
    try:
        lines = path.read_text("utf-8", "replace").splitlines(keepends=True)
    except FileNotFoundError:
        return
    remaining = [entry for entry in _entries(lines) if _text_of(entry) not in texts]
    new_content = "".join(line for entry in remaining for line in entry)
    if new_content != "".join(lines):
        write_private(path, new_content.encode())


def _entries(lines: list[str]) -> Iterator[list[str]]:
    """The entries of the history file: a time after ``#``, then each line of the text after ``+``."""
    entry: list[str] = []
    for line in lines:
        if entry and line.startswith("#") and any(each.startswith("+") for each in entry):
            yield entry
            entry = []
        entry.append(line)
    if entry:
        yield entry


def _text_of(entry: list[str]) -> str:
    return "".join(line[1:] for line in entry if line.startswith("+")).strip()
