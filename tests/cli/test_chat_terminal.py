"""`callboard chat` at a real terminal: keys, pasted text, Tab, Ctrl-C, and the question at the end."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import selectors
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .running import COMMAND, PATIENCE_SECONDS, call, start

STYLES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")
WHERE_IS_THE_CURSOR = b"\x1b[6n"

EDITOR = "sh -c 'echo from the editor > $0'"

AT_ITS_TERMINAL = f"""
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C then signals this process
{COMMAND}
"""


class Terminal:
    """A chat at a pseudo-terminal, as the user sees it."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._descriptor = descriptor
        self._seen = b""

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def until(self, text: str) -> str:
        """Wait for `text`, and return everything shown up to its end."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            while text.encode() not in STYLES.sub(b"", self._seen):
                assert selector.select(max(0.0, give_up - time.monotonic())), f"no {text!r} in {self._seen!r}"
                piece = os.read(self._descriptor, 65536)
                self._seen += piece
                if WHERE_IS_THE_CURSOR in piece:
                    self.type("\x1b[1;1R")
        before, found, after = STYLES.sub(b"", self._seen).partition(text.encode())
        self._seen = after
        return (before + found).decode()

    def ended(self) -> int:
        """Wait for the end of the chat, and return its exit code."""
        return self.process.wait(timeout=PATIENCE_SECONDS)


@contextmanager
def chat(home: Path, *arguments: str, without: str = "") -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    how = {"more": {"TERM": "xterm", "VISUAL": EDITOR}, "session": True, "program": AT_ITS_TERMINAL}
    with start("chat", *arguments, home=home, without=without, **how, **streams) as process:
        os.close(theirs)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            os.close(ours)


def test_a_person_at_a_terminal(talkative: Path) -> None:
    """The user presses Tab, types and pastes several lines, discards a line, opens the editor, and saves at the
    end.
    """
    pytest.importorskip("prompt_toolkit")
    with chat(talkative) as terminal:
        terminal.until("you>")
        terminal.type("/mo\t")
        terminal.until("del")
        terminal.type(" two\t")
        terminal.until("two:parrot")
        terminal.type("\r")
        terminal.until("continues with two:parrot")
        terminal.until("you>")
        terminal.type('"""\rline 1\rline 2\r"""\r')
        terminal.until("two heard 1 messages, last: line 1")
        terminal.until("you>")
        terminal.type("\x1b[200~pasted 1\npasted 2\x1b[201~")
        terminal.until("pasted 2")
        terminal.type("\r")
        terminal.until("two heard 3 messages, last: pasted 1")
        terminal.until("you>")
        terminal.type("never sent")
        terminal.until("never sent")
        terminal.type("\x03/edit\r")
        terminal.until("two heard 5 messages, last: from the editor")
        terminal.until("you>")
        terminal.type("\x04")
        terminal.until("[y/N]")
        terminal.type("y\r")
        (session,) = set(re.findall(r"ses_\w+", terminal.until("--resume") + terminal.until("\n")))
        assert terminal.ended() == 0
    shown = call("sessions", session, home=talkative, exits=0)
    assert [line for line in shown.stdout.splitlines() if line.startswith("user>")] == [
        *("user> line 1", "user> pasted 1", "user> from the editor")
    ]
    assert b"+pasted 2" in (talkative / "chat-history").read_bytes()


def test_ctrl_c_stops_a_reply_and_the_next_chat_has_the_history(talkative: Path) -> None:
    pytest.importorskip("prompt_toolkit")
    with chat(talkative, "-m", "endless:m") as terminal:
        terminal.until("you>")
        terminal.type("Tell me a story.\r")
        terminal.until("Once upon a time")
        terminal.type("\x03")
        terminal.until("cancelled; the part that arrived is kept")
        terminal.until("you>")
        terminal.type("\x03")
        terminal.until("[y/N]")
        terminal.type("\x03")
        assert terminal.ended() == 0
    with chat(talkative) as terminal:
        terminal.until("you>")
        terminal.type("\x1b[A\r")
        terminal.until("last: Tell me a story.")
        terminal.until("you>")
        terminal.type("/quit\r")
        terminal.until("[y/N]")
        terminal.type("\r")
        assert terminal.ended() == 0


def test_a_chat_at_a_terminal_works_without_the_library_for_line_editing(talkative: Path) -> None:
    """The chat reads plain lines, and messages of several lines. The end of the input ends the chat."""
    with chat(talkative, "--save", without="prompt_toolkit") as terminal:
        terminal.until("you> ")
        terminal.type('"""\nline 1\nline 2\n"""\n')
        terminal.until("one heard 1 messages, last: line 1")
        terminal.until("you> ")
        terminal.type("\x04")
        terminal.until("To continue: ")
        assert terminal.ended() == 0
