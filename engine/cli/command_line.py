"""Runs a command and returns its exit code: 0 done, 1 failed, 2 wrong arguments or configuration, 130 interrupted.

Help does not import the library: the commands are in a table, and each command imports its own modules.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO, TypeAlias, cast

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class CommandEntry(NamedTuple):
    """The location of a command's code, and its line in ``--help``."""

    place: str  # `module:function` of the function that adds the command to a parser, relative to this package
    help: str  # a short description that starts with a verb


GROUPS: Mapping[str, Mapping[str, CommandEntry]] = {
    "Ask and chat": {
        "ask": CommandEntry("ask:add_command", "Ask a model a question"),
        "chat": CommandEntry("chat:add_command", "Chat with a model, and switch models at any time"),
        "image": CommandEntry("media:add_image", "Make an image from a prompt"),
        "video": CommandEntry("media:add_video", "Make a video from a prompt"),
        "batch": CommandEntry("batch:add_batch", "Send many requests at a lower price"),
        "background": CommandEntry(
            "batch:add_background", "Read replies that a provider completes in the background"
        ),
        "templates": CommandEntry("templates:add_command", "Store prompts with parameters for `ask -t`"),
    },
    "Embed and search": {
        "embed": CommandEntry("embed:add_embed", "Turn texts into vectors"),
        "collections": CommandEntry("embed:add_collections", "Store texts as vectors"),
        "similar": CommandEntry("embed:add_similar", "Find similar texts in a collection"),
    },
    "Inspect calls": {
        "traces": CommandEntry("traces:add_traces", "Show recorded calls with tokens, latency and cost"),
        "sessions": CommandEntry("sessions:add_sessions", "Show sessions and their messages"),
        "logs": CommandEntry("sessions:add_logs", "Show and search questions and answers"),
        "stats": CommandEntry("cost:add_stats", "Show latency, speed, cache hits and outcomes"),
        "errors": CommandEntry("cost:add_errors", "Count failed attempts by error and model"),
        "replay": CommandEntry("replay:add_command", "Print recorded events again"),
        "sql": CommandEntry("traces:add_sql", "Run a read-only SQL statement"),
    },
    "Costs and prices": {
        "cost": CommandEntry("cost:add_cost", "Sum up costs by model, day, session or tag"),
        "budget": CommandEntry("cost:add_budget", "Show the spent and remaining amount of a budget"),
        "prices": CommandEntry("prices:add_command", "Show, explain and update prices"),
        "reprice": CommandEntry(
            "reprice:add_command", "Recalculate the cost of recorded calls with another price table"
        ),
    },
    "Manage the trace": {
        "import": CommandEntry("upkeep:add_import", "Import calls that other programs recorded"),
        "export": CommandEntry("traces:add_export", "Export calls as CSV, JSON Lines or Parquet"),
        "prune": CommandEntry("upkeep:add_prune", "Delete old calls and events"),
        "backup": CommandEntry("upkeep:add_backup", "Copy a trace file while programs write to it"),
        "upgrade": CommandEntry("upkeep:add_upgrade", "Upgrade a trace file to this version"),
        "ship": CommandEntry("upkeep:add_ship", "Copy a trace file to a server as it grows"),
    },
    "Serve": {
        "serve": CommandEntry("serve:add_serve", "Serve models to any client, as a gateway"),
        "web": CommandEntry("serve:add_web", "Serve the live view to a browser"),
        "clients": CommandEntry("clients:add_command", "Manage the clients of a gateway: keys, budgets, models"),
        "serve-mcp": CommandEntry("serve:add_mcp", "Serve tools or a model as an MCP server"),
    },
    "Set up": {
        "demo": CommandEntry("demo:add_command", "Run a demo on a local model, without a key"),
        "doctor": CommandEntry("doctor:add_doctor", "Check configuration, keys, providers and the trace"),
        "models": CommandEntry("models:add_command", "List models with their features and prices"),
        "keys": CommandEntry("keys:add_command", "Store API keys in a private file"),
        "plugins": CommandEntry("doctor:add_plugins", "List adapters, tools and commands of other packages"),
        "completion": CommandEntry("completion:add_command", "Set up Tab completion for bash, zsh and fish"),
        "record": CommandEntry("record:add_command", "Record replies of a provider for tests and demos"),
    },
}
"""The commands by group and name, in the order of ``--help``."""

COMMANDS: Mapping[str, CommandEntry] = {name: entry for group in GROUPS.values() for name, entry in group.items()}
"""The commands by name, in the same order."""

PAIR = ("NAME", "VALUE")
"""The metavar of a flag with a name and a value. The parser also accepts them as one word, ``NAME=VALUE``."""


# --- Commands of other packages ---

AddCommand: TypeAlias = Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None]

GROUP: Final = "callboard.commands"


def plugin_names() -> list[str]:
    """The names of all commands of plugins, including plugins that can't be loaded."""
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP).names)


def plugin_command(name: str) -> AddCommand | None:
    """The function that adds a plugin's command; None if the plugin does not exist, or it can't be loaded."""
    from importlib.metadata import entry_points

    # This is checked first, so that a misspelt command does not import the library.
    if not entry_points(group=GROUP, name=name):
        return None
    from callboard.adapters.provider import plugin_named

    from .screen import configure

    configure()  # otherwise the warning about a broken plugin is not shown
    plugin = plugin_named(GROUP, name)
    assert plugin is not None
    offered, fault = plugin.load()
    return cast("AddCommand", offered) if fault is None and callable(offered) else None


# --- Running a command ---

FAILED = 1
BADLY_CONFIGURED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141  # the exit code after SIGPIPE, so that `callboard traces | head` ends normally

_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""The errors for a full or faulty disk. If such an error has no file name, it concerns stdout."""


_QUESTION_MARKS = ("?", "？", "؟")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. An error of Callboard is reported in one line on stderr, without a traceback."""
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:
        _discard_output()
        return PIPE_CLOSED
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        from .screen import print_error

        _discard_output()
        print_error(f"stdout: {error.strerror}")
        return FAILED
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            sys.stderr.write("\n")  # the terminal has just shown ^C
        return INTERRUPTED


def _discard_output() -> None:
    """Redirect stdout to the null device, because the interpreter flushes stdout again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(words: Sequence[str]) -> int:
    if not words:
        build_parser(()).print_help(sys.stderr)
        return BADLY_CONFIGURED
    words = _meant(words)
    arguments = _parser_of(words).parse_args(words)
    make_streams_forgiving()
    if getattr(arguments, "bare", False):  # it does not import the library, and raises no errors of Callboard
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    """Run the requested command. Its errors are converted to exit codes."""
    from callboard.bus.errors import AdapterError, CallboardError, ConfigurationError

    from .screen import configure as configure_logs
    from .screen import print_error, require_rich

    configure_logs()
    try:
        if _draws(arguments):
            require_rich()
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except ConfigurationError as error:
        print_error(str(error))
        return BADLY_CONFIGURED
    except AdapterError as error:
        from .screen import error_text, exit_code

        print_error(error_text(error))
        return exit_code(error)
    except CallboardError as error:
        print_error(str(error))
        return FAILED


def _draws(arguments: argparse.Namespace) -> bool:
    """Whether the command draws a table or a progress bar, from the parser default `draws`.

    The default is a bool or a function of the arguments. With --json or --csv, a command draws no table.
    """
    draws = getattr(arguments, "draws", False)
    if getattr(arguments, "json", False) or getattr(arguments, "format", "table") != "table":
        return False
    return bool(draws(arguments) if callable(draws) else draws)


def _meant(words: Sequence[str]) -> Sequence[str]:
    """Complete the words to a command.

    ``callboard help COMMAND`` means ``callboard COMMAND --help``. A question without a command is for ``ask``.
    """
    if words[0] == "help":
        return [*(word for word in words[1:] if word not in ("help", "-h", "--help")), "--help"]
    first = next((word for word in words[:2] if word != "--"), "")
    return ["ask", *words] if _is_question(first) else words


def _is_question(word: str) -> bool:
    """Whether a word is a question: it has a space or a question mark, which no command has."""
    return not word.startswith("-") and (len(word.split()) > 1 or word.strip().endswith(_QUESTION_MARKS))


def _parser_of(words: Sequence[str]) -> argparse.ArgumentParser:
    """The parser for these words. Only the first word's command, which may be a plugin's, has its options."""
    for word in words[1:2] if words[0] == "--" else words[:1]:
        if word in COMMANDS:
            return build_parser([word])
        if word and not word.startswith("-") and (add_command := plugin_command(word)) is not None:
            return build_parser((), [add_command])
        if word and not word.startswith("-"):
            build_parser(()).error(_unknown(word, words[words.index(word) + 1 :]))
    return build_parser(())


def _unknown(word: str, more: Sequence[str]) -> str:
    """The error text for an unknown command, with the words after it."""
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else "`callboard help` lists all commands"
    if len(more) > 1 and not any(each.startswith("-") for each in more):
        hint = f'{hint.rstrip("?")}, or a question in quotes? For example: callboard "Why is the sky blue?"'
    return f"unknown command {word!r}: {hint}"


def build_parser(
    names: Collection[str] = tuple(COMMANDS), plugins: Collection[AddCommand] = ()
) -> argparse.ArgumentParser:
    """The parser of the command line. Only the named commands have their options; others have only their help
    line.
    """
    parser: argparse.ArgumentParser = _MainParser(
        prog="callboard",
        description="Callboard: sessions over any model, every call an event, every cost a query.",
        epilog='`callboard "QUESTION"` is short for `callboard ask "QUESTION"`. '
        "`callboard help COMMAND` shows all options of a command. "
        "`callboard plugins` lists the commands of other packages. "
        "The folder $CALLBOARD_HOME (default ~/.callboard) has models.yaml, the keys and the trace. "
        "Exit codes: 0 done, 1 failed, 2 wrong arguments or configuration, 130 interrupted, 141 output not read.",
    )
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="show program's version number and exit",
    )
    commands: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for name in names:
        place, help = COMMANDS[name]
        module, _, function = place.partition(":")
        add_arguments: Callable[[argparse.ArgumentParser], None]
        add_arguments = getattr(import_module(f".{module}", __package__), function)
        add_arguments(commands.add_parser(name, help=help, description=f"{help}."))
    if not names:
        for name, entry in COMMANDS.items():
            commands.add_parser(name, help=entry.help)
    for add_command in plugins:
        add_command(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser that quotes the typed words in its messages, and accepts ``NAME=VALUE`` as a pair."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parse these words, or the process's arguments, as argparse does."""
        pairs = {flag for action in self._actions if action.metavar == PAIR for flag in action.option_strings}
        words = sys.argv[1:] if args is None else args
        return super().parse_known_args(_with_pairs(words, pairs) if pairs else words, namespace)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        from .sanitize import sanitize

        if file is None or file is not sys.stdout:
            super()._print_message(sanitize(message), file)
        elif message:  # argparse itself ignores a closed pipe or a full disk
            out = cast("TextIO", sys.stdout)
            out.write(sanitize(message))
            out.flush()


class _MainParser(_Parser):
    """The parser of the whole command line. Its help lists the commands in groups."""

    def format_help(self) -> str:
        """The help text. Commands of plugins are a separate group."""
        lines = {line.dest: line for line in self._command_lines()}
        groups = {title: [lines.pop(name) for name in group if name in lines] for title, group in GROUPS.items()}
        groups["Plugins"] = list(lines.values())
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, members in groups.items():
            formatter.start_section(title)
            formatter.add_arguments(members)
            formatter.end_section()
        formatter.start_section("Options")
        formatter.add_arguments([action for action in self._actions if action.option_strings])
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _command_lines(self) -> Sequence[argparse.Action]:
        """argparse's actions for the commands, with their help lines."""
        return [
            line
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for line in action._choices_actions
        ]


def _with_pairs(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """Split each ``NAME=VALUE`` after one of these flags into two words.

    ``-o NAME=VALUE``, ``-oNAME=VALUE`` and ``--option=NAME=VALUE`` mean ``-o NAME VALUE``.
    """
    found: list[str] = []
    takes = False
    for place, word in enumerate(words):
        if word == "--":
            return [*found, *words[place:]]
        pair: str | None = word if takes else None
        takes = not takes and word in flags
        if pair is None:
            for flag in flags:
                joined = word.removeprefix(f"{flag}=" if flag.startswith("--") else flag)
                if joined not in (word, ""):
                    found.append(flag)
                    pair = joined
                    break
        name, equals, value = (pair or "").partition("=")
        found += [name, value] if equals and name else [word if pair is None else pair]
    return found


class _Version(argparse.Action):
    """Like argparse's version action, but imports the version only when requested, because that takes 15 ms."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from .sanitize import echo

        echo(f"callboard {installed_version()}")
        parser.exit()


def installed_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("callboard")
    except PackageNotFoundError:
        return "(not installed)"


def make_streams_forgiving() -> None:
    """Make output streams tolerant of unsupported characters and closed streams.

    Unsupported characters become question marks. A stream that was closed at the start (``>&-``) accepts writes.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (until the process ends)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
