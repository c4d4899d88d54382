"""`callboard completion`: the script that lets a shell complete commands, options, models, sessions, templates."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from ..command_line import BADLY_CONFIGURED, build_parser
from ..commands import COMMANDS
from ..completion.scripts import SCRIPTS
from ..completion.wanted import wanted
from ..plugin_commands import plugin_command, plugin_names


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "completion",
        help="Set up Tab completion for bash, zsh and fish",
        description="Writes what a shell reads at its start. "
        'In ~/.bashrc: eval "$(callboard completion bash)". '
        'In ~/.zshrc, below compinit: eval "$(callboard completion zsh)". '
        "For fish: callboard completion fish > ~/.config/fish/completions/callboard.fish",
    )
    parser.add_argument("shell", nargs="?", choices=tuple(SCRIPTS), help="the shell")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    parser.add_argument("--breaks", default="", help=argparse.SUPPRESS)
    parser.add_argument("--words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(run=run, bare=True)  # it runs at each Tab


def run(arguments: argparse.Namespace) -> int:
    """Write a script, or what may stand at a place."""
    if arguments.line is not None:
        words = in_words(arguments.line)
        for each in proposals(words):
            sys.stdout.write(f"{without_break(each, words[-1], arguments.breaks)}\n")
    elif arguments.words is not None:
        sys.stdout.writelines(f"{each}\n" for each in proposals(arguments.words or [""]))
    elif arguments.shell is None:
        sys.stderr.write(f"callboard: say for which shell: {', '.join(SCRIPTS)}\n")
        return BADLY_CONFIGURED
    else:
        sys.stdout.write(SCRIPTS[arguments.shell])
    return 0


def in_words(line: str) -> list[str]:
    """A line up to the cursor as words. The last is the one that is being written, which may be empty."""
    for end in ("", '"', "'"):
        try:
            words = shlex.split(line + end)
        except ValueError:  # a quotation that is still open
            continue
        return words if words and not line[-1:].isspace() else [*words, ""]
    return [""]


def without_break(proposed: str, word: str, breaks: str) -> str:
    """What bash puts in place of its own last word, which begins behind a colon or an equals sign."""
    at = max((word.rfind(sign) for sign in ":=" if sign in breaks), default=-1)
    return proposed[at + 1 :]


def proposals(words: Sequence[str]) -> list[str]:
    """What may stand in place of the last of the words, the first of which is the program's name."""
    _, *before, word = words if len(words) > 1 else (*words, "")
    if before[:1] == ["help"]:
        del before[0]
    command = before[0] if before else None
    if command is None and not word.startswith("-"):
        return _beginning(word, (*COMMANDS, "help", *plugin_names()))
    found = wanted(_parser_of(command), before, word)
    if found.source is None:
        return _beginning(word, found.words)
    from ..completion.values import values_of

    more = values_of(found.source)
    return _beginning(word, (*found.words, *more))


def _parser_of(command: str | None) -> argparse.ArgumentParser:
    if command is not None and command in COMMANDS:
        return build_parser([command])
    added = None if command is None else plugin_command(command)
    return build_parser((), () if added is None else [added])


def _beginning(word: str, known: Sequence[str]) -> list[str]:
    return [each for each in dict.fromkeys(known) if each.startswith(word) and each != "--"]
