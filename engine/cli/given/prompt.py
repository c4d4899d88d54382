"""What is asked: the words of the command line, and what comes through the pipe, which is one prompt."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence

from callboard.adapters import ContentBlock, TextBlock
from callboard.bus import ConfigurationError

from .attachments import PIPE, attachment

NOTHING = "there is nothing to ask: say it, or pipe it in, such as: git diff | callboard ask 'What is new?'"


class Pipe:
    """Standard input, read once and whole.

    A terminal, a closed stream and ``/dev/null`` hold nothing.
    """

    def __init__(self) -> None:
        self._data: bytes | None = None

    def read(self) -> bytes:
        """All bytes that come."""
        if self._data is None:
            self._data = sys.stdin.buffer.read() if _is_pipe() else b""
        return self._data

    def text(self) -> str:
        """All that comes, as text, without the line break at its end.

        Raises:
            ConfigurationError: It is no text.
        """
        try:
            return self.read().decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ConfigurationError("what comes through the pipe is no text; -a - attaches it") from None


def _is_pipe() -> bool:
    """Whether standard input is a pipe, a file or a socket."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def joined(piped: str, said: str) -> str:
    """The prompt: the pipe's text, then what was said."""
    return "\n\n".join(text for text in (piped, said) if text.strip())


def attached(sources: Sequence[tuple[str, str | None]], pipe: Pipe) -> list[ContentBlock]:
    """The blocks of attachments, each given by its source and, if it must be said, its type.

    Raises:
        ConfigurationError: One can't be read.
    """
    return [attachment(source, media_type, pipe.read) for source, media_type in sources]


def content_of(prompt: str, blocks: Sequence[ContentBlock]) -> str | list[ContentBlock]:
    """What is sent: the attachments, then the prompt.

    Raises:
        ConfigurationError: There is neither.
    """
    if not prompt.strip() and not blocks:
        raise ConfigurationError(NOTHING)
    if not blocks:
        return prompt
    return [*blocks, TextBlock(prompt)] if prompt.strip() else list(blocks)


def takes_pipe(sources: Sequence[tuple[str, str | None]]) -> bool:
    """Whether the pipe is an attachment, and so no part of the prompt."""
    return any(source == PIPE for source, _ in sources)
