"""The commands of a chat, which begin with a slash: their names, their help, and what Tab offers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from callboard.engine.models.nearest_names import nearest


class SlashCommand(NamedTuple):
    """A line of a chat that is no message."""

    name: str
    """The name, without the slash."""
    argument: str
    """What stands behind it."""


HELP: Mapping[str, str] = {
    "model": "/model NAME goes on with another model, /model alone lists them",
    "preview": "/preview NAME says what another model would be sent, and what would be lost",
    "attach": "/attach FILE or URL goes with the next message, /attach alone lists what does",
    "edit": "/edit writes a message in $EDITOR",
    "retry": "/retry asks the last message again, /retry NAME asks another model",
    "cost": "/cost is what the conversation has cost",
    "save": "/save keeps the conversation, so that one can go on with it later",
    "help": "/help is this",
    "quit": "/quit, quit, exit or Ctrl-D leaves",
}
"""What each command does."""

SHORT_HELP = '/help shows the commands. """ begins and ends several lines. Ctrl-C stops a reply, Ctrl-D leaves.'


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
    """What to say to a command that doesn't exist."""
    near = nearest(name, HELP)
    return f"there is no command /{name}: {f'did you mean /{near[0]}?' if near else '/help shows them'}"


def completions(text: str, models: Iterable[str], files: Callable[[str], Sequence[str]]) -> Sequence[str]:
    """What Tab offers for the last word of a line.

    Args:
        text: The line up to the cursor.
        models: The names of the models.
        files: Gives the paths that begin so.
    """
    command, blank, argument = text.partition(" ")
    if not text.startswith("/"):
        return ()
    if not blank:
        return [f"/{name}" for name in HELP]
    if command in ("/model", "/preview", "/retry"):
        return sorted(models)
    return files(argument) if command == "/attach" else ()
