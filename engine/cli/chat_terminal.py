"""Input at a terminal: messages of several lines, Tab completion, and a saved history.

prompt_toolkit provides the editing. It is only imported for a chat at a terminal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from glob import escape, glob
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import Completer, DynamicCompleter, WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from callboard.bus.files import refuse_link

from .chat_input import completions, history_path, is_open

LARGEST_HISTORY = 1_000_000  # the size in bytes above which a new history file is started


class TerminalReader:
    """Reads messages at a terminal. Enter sends the message, except between three quotation marks; Alt-Enter never
    sends it.
    """

    def __init__(self, prompt: str, models: Callable[[], Iterable[str]]) -> None:
        self._prompt = prompt
        self._models = models
        self._session: PromptSession[str] = PromptSession(
            history=history(history_path()),
            completer=DynamicCompleter(self._completer),
            complete_while_typing=False,
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation="",
            enable_suspend=True,
        )

    def read(self) -> str | None:
        try:
            return self._session.prompt(f"\n{self._prompt}")
        except EOFError:
            return None

    def ask(self, question: str) -> str:
        asking: PromptSession[str] = PromptSession()  # input() may lose a Ctrl-C when it starts to read
        try:
            return asking.prompt(question)
        except EOFError:
            return ""

    def _completer(self) -> Completer:
        text = get_app().current_buffer.document.text_before_cursor
        return WordCompleter(list(completions(text, self._models(), files)), WORD=True)


def files(begin: str) -> list[str]:
    """The paths that start with a text. A folder ends with a slash."""
    found = glob(f"{escape(os.path.expanduser(begin))}*")
    return sorted(f"{path}/" if os.path.isdir(path) else path for path in found)


def history(path: Path) -> History:
    """The history in a private file, or in memory if that file can't be used."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        refuse_link(path)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > LARGEST_HISTORY:
                path.unlink()
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys
