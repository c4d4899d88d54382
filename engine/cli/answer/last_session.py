"""Which conversation was the last, and with which tools: a small file, for ``-c``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.private_file import write_private
from callboard.tracestore.home import home_folder


class LastSession(msgspec.Struct, frozen=True):
    """The last conversation of this person."""

    session_id: str
    """The id of its session."""
    tools: tuple[str, ...] = ()
    """The tools that it was given, in the words of the command line: their code is not stored."""


def _file() -> Path:
    return home_folder() / "last-session.json"


def last_session() -> LastSession:
    """The last conversation.

    Raises:
        ConfigurationError: There is none yet.
    """
    try:
        return msgspec.json.decode(_file().read_bytes(), type=LastSession)
    except (OSError, msgspec.DecodeError):
        raise ConfigurationError("there is no conversation to go on with yet: ask without -c first") from None


def remember(session_id: str, tools: Sequence[str] = ()) -> None:
    """Take this conversation as the last. A folder that can't be written is no reason to fail."""
    with contextlib.suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_private(_file(), msgspec.json.encode(LastSession(session_id, tuple(tools))))
