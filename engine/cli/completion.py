"""`callboard completion`: print a shell's completion script, or the completions at the cursor."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from .command_line import BADLY_CONFIGURED, COMMANDS, build_parser, plugin_command, plugin_names

if TYPE_CHECKING:
    from callboard.tracestore import Store


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print the completion script for a shell. "
        'In ~/.bashrc: eval "$(callboard completion bash)". '
        'In ~/.zshrc, below compinit: eval "$(callboard completion zsh)". '
        "For fish: callboard completion fish > ~/.config/fish/completions/callboard.fish"
    )
    parser.add_argument("shell", nargs="?", choices=tuple(SCRIPTS), help="the shell")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    parser.add_argument("--breaks", default="", help=argparse.SUPPRESS)
    parser.add_argument("--words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run, bare=True)  # completion runs each time Tab is pressed, so it must be fast


def run(arguments: argparse.Namespace) -> int:
    """Write a completion script, or the completions of a word."""
    if arguments.line is not None:
        words = in_words(arguments.line)
        for each in proposals(words):
            sys.stdout.write(f"{without_break(each, words[-1], arguments.breaks)}\n")
    elif arguments.words is not None:
        sys.stdout.writelines(f"{each}\n" for each in proposals(arguments.words or [""]))
    elif arguments.shell is None:
        sys.stderr.write(f"callboard: name a shell: {', '.join(SCRIPTS)}\n")
        return BADLY_CONFIGURED
    else:
        sys.stdout.write(SCRIPTS[arguments.shell])
    return 0


def in_words(line: str) -> list[str]:
    """Split a line up to the cursor into words. The last one is the word being typed, which may be empty."""
    for end in ("", '"', "'"):
        try:
            words = shlex.split(line + end)
        except ValueError:  # a quotation mark is not closed
            continue
        return words if words and not line[-1:].isspace() else [*words, ""]
    return [""]


def without_break(proposed: str, word: str, breaks: str) -> str:
    """Adjust a completion for bash, which starts a new word after a colon or an equals sign."""
    at = max((word.rfind(sign) for sign in ":=" if sign in breaks), default=-1)
    return proposed[at + 1 :]


def proposals(words: Sequence[str]) -> list[str]:
    """The completions of the last word. The first word is the program's name."""
    _, *before, word = words if len(words) > 1 else (*words, "")
    if before[:1] == ["help"]:
        del before[0]
    command = before[0] if before else None
    if command is None and not word.startswith("-"):
        return _beginning(word, (*COMMANDS, "help", *plugin_names()))
    if command is not None and command in COMMANDS:
        parser = build_parser([command])
    else:
        added = None if command is None else plugin_command(command)
        parser = build_parser((), () if added is None else [added])
    found = completions(parser, before, word)
    return _beginning(word, (*found.words, *(() if found.source is None else values_of(found.source))))


def _beginning(word: str, words: Sequence[str]) -> list[str]:
    return [each for each in dict.fromkeys(words) if each.startswith(word) and each != "--"]


# --- Finding completions ---
# The code is pure. It interprets words as argparse does: options with their values, commands within commands, and
# positional arguments in order.

Source: TypeAlias = Literal["models", "sessions", "templates", "keys", "collections", "files"]
"""The sources of values that the parser does not have."""

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


class Completions(NamedTuple):
    words: Sequence[str] = ()  # the words from the parser: commands, options, choices
    source: Source | None = None  # the source of more values; None if there is none


def completions(parser: argparse.ArgumentParser, before: Sequence[str], word: str) -> Completions:
    """The possible words at a position."""
    place = _Place(parser)
    for argument in before:
        place.take(argument)
    return place.next(word)


class _Place:
    """A position in a command line."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._option: argparse.Action | None = None  # the option whose values are expected
        self._values = 0  # the number of the option's values
        self._positionals = 0  # the number of positional arguments of this parser
        self._only_positionals = False

    def take(self, argument: str) -> None:
        """Move past a word."""
        if self._option is not None and self._more_values(argument):
            self._values += 1
            if self._values == _count(self._option):
                self._option = None
        elif argument == "--" and not self._only_positionals:
            self._only_positionals, self._option = True, None
        elif argument.startswith("-") and len(argument) > 1 and not self._only_positionals:
            name, equals, _ = argument.partition("=")
            action = self._parser._option_string_actions.get(name)
            self._option = None if equals or action is None or not _count(action) else action
            self._values = 0
        else:
            self._option = None
            self._take_positional(argument)

    def next(self, word: str) -> Completions:
        """The possible next words that start with this text."""
        if self._option is not None and (_count(self._option) > 0 or not word.startswith("-")):
            return self._of(self._option)
        if word.startswith("-") and not self._only_positionals:
            name, equals, _ = word.partition("=")
            action = self._parser._option_string_actions.get(name) if equals else None
            if action is not None:
                found = self._of(action)
                return Completions([f"{name}={each}" for each in found.words])
            return Completions([option for each in self._shown() for option in each.option_strings])
        action = self._positional()
        return Completions() if action is None else self._of(action)

    def _more_values(self, argument: str) -> bool:
        assert self._option is not None
        return _count(self._option) > 0 or not argument.startswith("-")

    def _take_positional(self, argument: str) -> None:
        action = self._positional()
        if isinstance(action, argparse._SubParsersAction):
            inner = action.choices.get(argument)
            if inner is not None:
                self._parser, self._positionals = inner, 0
                return
        self._positionals += 1

    def _positional(self) -> argparse.Action | None:
        positionals = [
            action for action in self._parser._actions if not action.option_strings and _is_shown(action)
        ]
        if self._positionals < len(positionals):
            return positionals[self._positionals]
        return positionals[-1] if positionals and positionals[-1].nargs in ("*", "+") else None

    def _shown(self) -> list[argparse.Action]:
        return [action for action in self._parser._actions if _is_shown(action)]

    def _of(self, action: argparse.Action) -> Completions:
        if action.choices is not None:
            return Completions([str(each) for each in action.choices])
        for option in action.option_strings:
            if option in _BY_OPTION:
                return Completions(source=_BY_OPTION[option])
        metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar or ""
        if action.option_strings:
            return Completions(source="files" if metavar.startswith(_FILES) else _BY_METAVAR.get(metavar))
        command = self._parser.prog.partition(" ")[2]
        return Completions(source=_BY_COMMAND.get(command) or _BY_METAVAR.get(metavar) or "files")


def _count(action: argparse.Action) -> int:
    """The number of values of an option; -1 if the values continue until the next option."""
    if isinstance(action.nargs, int):
        return action.nargs
    return 1 if action.nargs is None else -1


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS


# --- Values ---

MOST_SESSIONS = 100
"""The maximum number of sessions that are proposed, the latest first."""

_PLAIN = re.compile(r"[\w.:/@%+,=-]+")


def values_of(source: Source) -> list[str]:
    """All values of a source, in a useful order."""
    from callboard.bus import CallboardError

    try:
        return [value for value in _READ[source]() if _PLAIN.fullmatch(value)]
    except (CallboardError, OSError):
        return []


def _model_names() -> Iterable[str]:
    from ..models.configured import load_registry

    registry = load_registry(None)
    return (*dict.fromkeys((*registry.models, *sorted(registry.names))),)


def _sessions() -> Iterable[str]:
    from .options import from_trace

    async def read(store: Store) -> list[str]:
        return [row.session_id for row in await store.sessions(MOST_SESSIONS)]

    return from_trace(argparse.Namespace(db=None, store=None), read)


def _templates() -> Iterable[str]:
    from .templates import names

    return names()


def _keys() -> Iterable[str]:
    from callboard.adapters.provider import providers

    from ..keys import keys_file, read_keys

    return (*(provider.name for provider in providers() if provider.key_variables), *read_keys(keys_file()).keys)


def _collections() -> Iterable[str]:
    from callboard.tracestore.collections import CollectionFile

    from .embed import collections_file

    with CollectionFile(collections_file(), readonly=True) as file:
        return [each.name for each in file.collections()]


_READ: dict[Source, Callable[[], Iterable[str]]] = {
    "models": _model_names,
    "sessions": _sessions,
    "templates": _templates,
    "keys": _keys,
    "collections": _collections,
    "files": lambda: (),
}


# --- Shell scripts ---

BASH = """\
_callboard_completion() {
    local proposed
    COMPREPLY=()
    while IFS= read -r proposed; do
        COMPREPLY+=("$proposed")
    done < <(callboard completion --line "${COMP_LINE:0:COMP_POINT}" --breaks "$COMP_WORDBREAKS" 2>/dev/null)
}
complete -o default -F _callboard_completion callboard
"""  # plain: a program for a shell

ZSH = """\
#compdef callboard
_callboard() {
    local -a proposed
    proposed=("${(@f)$(callboard completion --words "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$proposed[1]" ]]; then
        compadd -- "${proposed[@]}"
    else
        _files
    fi
}
if [[ "$funcstack[1]" == "_callboard" ]]; then
    _callboard "$@"
else
    compdef _callboard callboard
fi
"""  # plain: a program for a shell

FISH = """\
function __callboard_completion
    set -l word (commandline -ct)
    set -l proposed (callboard completion --words (commandline -opc) "$word" 2>/dev/null)
    if test (count $proposed) -gt 0
        printf '%s\\n' $proposed
    else
        __fish_complete_path "$word"
    end
end
complete -c callboard -f -a '(__callboard_completion)'
"""  # plain: a program for a shell

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
"""The script by the name of its shell."""
