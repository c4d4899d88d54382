"""`callboard keys`: manage API keys in a private file next to models.yaml. The environment takes precedence.

A key is typed without echo or read from a pipe. It is never an argument, because other users of the machine can
see arguments. It is only shown by `get`, and only into a pipe.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping

import msgspec

from callboard.adapters.provider import providers
from callboard.adapters.transport.transport import fault_of
from callboard.bus import CallboardError, ConfigurationError

from ..keys import change_key, keys_file, read_keys
from ..models.catalogue import nearest
from .options import add_action, flag
from .sanitize import echo, note
from .table import Column, write_rows

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


class KeyLine(msgspec.Struct, frozen=True):
    """A line of `callboard keys list --json`."""

    name: str  # the name of the key's variable
    source: str | None  # where the key was found: `environment` or `file`; None if there is no key
    in_environment: bool
    in_file: bool
    providers: tuple[str, ...]  # the types of adapters that use it if there is no models.yaml


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Store API keys in $CALLBOARD_HOME/keys.json, which only its owner can read. An environment "
        "variable has priority over the key with its name in the file."
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    setting = add_action(
        inner, "set", set_one, "Store a key", "Ask for the key without showing it, or read it from a pipe."
    )
    setting.add_argument("name", metavar="NAME", help="a provider such as openai, or a variable: OPENAI_API_KEY")
    setting.add_argument("value", nargs="*", help=argparse.SUPPRESS)
    listing = add_action(
        inner, "list", list_keys, "List the names of the keys", "List the names of the keys, never the keys."
    )
    flag(listing, "--json", help="print one JSON object a line for each key")
    listing.set_defaults(draws=True)
    refused = "Write the key that calls use. Output to a terminal is refused."
    get = add_action(inner, "get", get_one, "Write a key to a pipe", refused)
    get.add_argument("name", metavar="NAME", help="a provider, or a variable")
    remove = add_action(inner, "remove", remove_one, "Remove a key", "Remove a key from the file.")
    remove.add_argument("name", metavar="NAME", help="a provider, or a variable")
    add_action(inner, "path", show_path, "Print the path of the file")


def set_one(arguments: argparse.Namespace) -> int:
    variable = variable_of(arguments.name)
    if arguments.value:
        raise ConfigurationError(
            "a key must not be an argument: other users can see it in the process list, and your shell "
            "history stores it. Replace that key where it was issued. Then enter the new one with `callboard "
            f"keys set {variable}`"
        )
    key = _read(variable)
    replaced = change_key(keys_file(), variable, key)
    echo(f"{variable} is {'replaced' if replaced else 'stored'} in {keys_file()}.")
    if os.environ.get(variable):
        note(f"callboard: {variable} is also set in the environment, which has priority")
    return 0


def _read(variable: str) -> str:
    """Read a key from the terminal or from a pipe. Raises ConfigurationError without quoting the key."""
    try:
        if sys.stdin.isatty():
            from getpass import getpass

            key = getpass(f"{variable}: ").strip()
        else:
            key = sys.stdin.read().strip()
    except EOFError:
        key = ""
    fault = "it is empty" if not key else f"it holds {fault}" if (fault := fault_of(key)) else None
    if fault is not None:
        raise ConfigurationError(f"this is not a key for {variable}: {fault}. Nothing was changed")
    return key


def list_keys(arguments: argparse.Namespace) -> int:
    stored = read_keys(keys_file())
    write_rows(
        "json" if arguments.json else "table",
        KeyLine,
        list(_lines(stored.keys)),
        [
            Column("key", lambda line: line.name),
            Column("from", _source),
            Column("for", lambda line: ", ".join(line.providers) or "-", may_go=1),
        ],
        below=f"file: {stored.path}{'' if stored.exists else ' (not there)'}",
        whole=True,
    )
    if stored.fault is not None:
        raise CallboardError(f"{stored.path} is ignored: {stored.fault}. {stored.fix}")
    return 0


def _lines(stored: Mapping[str, str]) -> Iterator[KeyLine]:
    """The keys of the file, and the keys of the environment that are set or expected without a models.yaml."""
    users: dict[str, list[str]] = {}
    expected: set[str] = set()
    for provider in providers():
        expected.update(provider.key_variables[:1] if provider.expected else ())
        for variable in provider.key_variables:
            users.setdefault(variable, []).append(provider.name)
    for name in sorted({*users, *stored}):
        here, stored_key = bool(os.environ.get(name)), name in stored
        if here or stored_key or name in expected:
            source = "environment" if here else "file" if stored_key else None
            yield KeyLine(name, source, here, stored_key, tuple(sorted(users.get(name, ()))))


def _source(line: KeyLine) -> str:
    match line.source:
        case None:
            return "-"
        case "environment" if line.in_file:
            return "the environment, which has priority over the file"
        case "environment":
            return "the environment"
        case _:
            return "the file"


def get_one(arguments: argparse.Namespace) -> int:
    variable = variable_of(arguments.name)
    stored = read_keys(keys_file())
    key = os.environ.get(variable) or stored.keys.get(variable)
    if key is None:
        why = "" if stored.fault is None else f"; {stored.path} is ignored: {stored.fault}. {stored.fix}"
        raise CallboardError(f"no key {variable}{why}")
    if sys.stdout.isatty():
        raise CallboardError("a key is not shown at a terminal. Pipe it to the program that needs it")
    sys.stdout.write(f"{key}\n")
    return 0


def remove_one(arguments: argparse.Namespace) -> int:
    variable = variable_of(arguments.name)
    if not change_key(keys_file(), variable, None):
        raise CallboardError(f"{keys_file()} has no key {variable}")
    echo(f"Removed {variable} from {keys_file()}.")
    return 0


def show_path(arguments: argparse.Namespace) -> int:
    echo(str(keys_file()))
    return 0


def variable_of(name: str) -> str:
    """The variable for a provider's key. The name of a variable is returned unchanged."""
    variables = {provider.name: provider.key_variables[0] for provider in providers() if provider.key_variables}
    if name in variables:
        return variables[name]
    if _VARIABLE.fullmatch(name):
        return name
    near = nearest(name, variables)
    hint = f"did you mean {near[0]}?" if near else f"the providers are {', '.join(sorted(variables))}"
    raise ConfigurationError(
        f"this is neither a provider nor a variable such as OPENAI_API_KEY: {hint}. To store a key that "
        f"models.yaml names with api_key_env, use the name of its variable"
    )
