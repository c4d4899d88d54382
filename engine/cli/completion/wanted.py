"""What belongs at the place of the last word of a command line, by the parser of its command. Pure.

The words are read as argparse reads them, as far as they go: options with their values, the words of commands
below commands, positional arguments in their order.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

Source: TypeAlias = Literal["models", "sessions", "templates", "keys", "collections", "files"]
"""Where values come from that no parser knows."""

_BY_OPTION: dict[str, Source] = {
    "--model": "models",
    "--session": "sessions",
    "--resume": "sessions",
    "--template": "templates",
}
_BY_METAVAR: dict[str, Source] = {"SESSION": "sessions", "MODEL": "models", "COLLECTION": "collections"}
_BY_COMMAND: dict[str, Source] = {
    **dict.fromkeys(("templates show", "templates edit", "templates path"), "templates"),
    **dict.fromkeys(("keys set", "keys get", "keys remove"), "keys"),
}
_FILES = ("FILE", "PATH", "FOLDER")


class Wanted(NamedTuple):
    """What may stand at the place of a word."""

    words: Sequence[str] = ()
    """The words that a parser knows: commands, options, choices."""
    source: Source | None = None
    """Where other values come from; None if there are none to propose."""


def wanted(parser: argparse.ArgumentParser, before: Sequence[str], word: str) -> Wanted:
    """What may stand at a place.

    Args:
        parser: The parser of the whole command line.
        before: The words before the place, without the program's name.
        word: The beginning of the word at the place.
    """
    place = _Place(parser)
    for said in before:
        place.take(said)
    return place.next(word)


class _Place:
    """How far a command line has come."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._option: argparse.Action | None = None  # that wants a value
        self._values = 0  # of the option, so far
        self._positionals = 0  # in this parser, so far
        self._only_positionals = False

    def take(self, said: str) -> None:
        """Go on behind a word."""
        if self._option is not None and self._more_values(said):
            self._values += 1
            if self._values == _count(self._option):
                self._option = None
        elif said == "--" and not self._only_positionals:
            self._only_positionals, self._option = True, None
        elif said.startswith("-") and len(said) > 1 and not self._only_positionals:
            name, equals, _ = said.partition("=")
            action = self._parser._option_string_actions.get(name)
            self._option = None if equals or action is None or not _count(action) else action
            self._values = 0
        else:
            self._option = None
            self._take_positional(said)

    def next(self, word: str) -> Wanted:
        """What may come now, as a word that begins so."""
        if self._option is not None and (_count(self._option) > 0 or not word.startswith("-")):
            return self._of(self._option)
        if word.startswith("-") and not self._only_positionals:
            name, equals, _ = word.partition("=")
            action = self._parser._option_string_actions.get(name) if equals else None
            if action is not None:
                found = self._of(action)
                return Wanted([f"{name}={each}" for each in found.words])
            return Wanted([option for each in self._shown() for option in each.option_strings])
        action = self._positional()
        return Wanted() if action is None else self._of(action)

    def _more_values(self, said: str) -> bool:
        assert self._option is not None
        return _count(self._option) > 0 or not said.startswith("-")

    def _take_positional(self, said: str) -> None:
        action = self._positional()
        if isinstance(action, argparse._SubParsersAction):
            inner = action.choices.get(said)
            if inner is not None:
                self._parser, self._positionals = inner, 0
                return
        self._positionals += 1

    def _positional(self) -> argparse.Action | None:
        known = [action for action in self._parser._actions if not action.option_strings and _is_shown(action)]
        if self._positionals < len(known):
            return known[self._positionals]
        return known[-1] if known and known[-1].nargs in ("*", "+") else None

    def _shown(self) -> list[argparse.Action]:
        return [action for action in self._parser._actions if _is_shown(action)]

    def _of(self, action: argparse.Action) -> Wanted:
        if action.choices is not None:
            return Wanted([str(each) for each in action.choices])
        for option in action.option_strings:
            if option in _BY_OPTION:
                return Wanted(source=_BY_OPTION[option])
        metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar or ""
        if action.option_strings:
            return Wanted(source="files" if metavar.startswith(_FILES) else _BY_METAVAR.get(metavar))
        command = self._parser.prog.partition(" ")[2]
        return Wanted(source=_BY_COMMAND.get(command) or _BY_METAVAR.get(metavar) or "files")


def _count(action: argparse.Action) -> int:
    """How many values an option has; -1 for one that ends with the next option."""
    if isinstance(action.nargs, int):
        return action.nargs
    return 1 if action.nargs is None else -1


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS
