"""The file with the lines that were typed into chats, which Up brings back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from callboard.bus.private_file import write_private
from callboard.tracestore.home import home_folder


def history_path() -> Path:
    """The path of the file."""
    return home_folder() / "chat-history"


def forget_lines(said: set[str]) -> bool:
    """Delete the entries of the file that were said in a session which is deleted.

    Args:
        said: The texts of the session's messages.

    Returns:
        Whether any were there.

    Raises:
        OSError: The file could not be read or written.
    """
    path = history_path()
    try:
        lines = path.read_text("utf-8", "replace").splitlines(keepends=True)
    except FileNotFoundError:
        return False
    kept = [entry for entry in _entries(lines) if _text(entry) not in said]
    left = "".join(line for entry in kept for line in entry)
    if left == "".join(lines):
        return False
    write_private(path, left.encode())
    return True


def _entries(lines: list[str]) -> Iterator[list[str]]:
    """The entries: a time after ``#``, then each line of the text after ``+``."""
    entry: list[str] = []
    for line in lines:
        if entry and line.startswith("#") and any(each.startswith("+") for each in entry):
            yield entry
            entry = []
        entry.append(line)
    if entry:
        yield entry


def _text(entry: list[str]) -> str:
    return "".join(line[1:] for line in entry if line.startswith("+")).strip()
