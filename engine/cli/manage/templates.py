"""`callboard templates`: the templates of prompts that `callboard ask -t NAME` fills."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess

import msgspec

from callboard.bus import ConfigurationError

from ..common.fitting import FittingTable
from ..common.harmless import harmless, note, say, write_json
from ..common.output import json_text
from ..common.places import command_name, short
from ..common.screen import make_console
from ..common.words import plural
from ..templates.folder import folder, load, names, path_of, write
from ..templates.template import Template

FAILED = 1

NEW = """\
# system: You are a translator.
prompt: |
  Translate into $language:

  $input
defaults:
  language: English
# model: NAME
# options: {temperature: 0}
# schema: name, age int
# tools: [NAME]
# extract: first
"""
"""What stands in a template that `edit` makes."""


class Listed(msgspec.Struct, frozen=True):
    """A line of `callboard templates list --json`."""

    name: str
    """The name of the template."""
    path: str
    """The path of its file."""
    parameters: tuple[str, ...] = ()
    """The names of its parameters, ``input`` left out."""
    model: str | None = None
    """The model that it asks; None is the default one."""
    description: str | None = None
    """The sentence that it says of itself."""
    error: str | None = None
    """The fault of its file; None if there is none."""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "templates",
        help="Store prompts with parameters for `ask -t`",
        description="Templates are files in $CALLBOARD_HOME/templates, one NAME.yaml each. $name in prompt and "
        "system is a parameter, and $input is what is asked.",
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = inner.add_parser(
        "list", help="List templates with their parameters", description="Lists all templates."
    )
    listing.add_argument("--json", action="store_true", help="one JSON object a line for each template")
    listing.set_defaults(run=list_templates)
    show = inner.add_parser("show", help="Show a template", description="Writes the text of a template.")
    show.add_argument("name", metavar="NAME", help="the template")
    show.add_argument("--json", action="store_true", help="one JSON object")
    show.set_defaults(run=show_template)
    edit = inner.add_parser(
        "edit",
        help="Edit a template",
        description="Opens a template in $VISUAL or $EDITOR, and checks it afterwards. A new one begins with an "
        "example.",
    )
    edit.add_argument("name", metavar="NAME", help="the template")
    edit.set_defaults(run=edit_template)
    path = inner.add_parser(
        "path",
        help="Print the path of the folder, or of a template",
        description="Writes the path of the folder, or a file.",
    )
    path.add_argument("name", nargs="?", metavar="NAME", help="the template (default: the folder)")
    path.set_defaults(run=show_path)


def list_templates(arguments: argparse.Namespace) -> int:
    """A template that can't be read is listed with its fault, which is no failure of the list."""
    found = [_listed(name) for name in names()]
    if arguments.json:
        for row in found:
            write_json(json_text(row))
        return 0
    console = make_console()
    if not found:
        hint = f"`{command_name()} templates edit NAME` makes one"
        console.print(f"No templates in {folder()}; {hint}.", soft_wrap=True)
        return 0
    table = FittingTable()
    table.add_column("template")
    table.add_column("parameters", folds=True)
    table.add_column("model", may_go=1)
    table.add_column("description", folds=True, may_go=2)
    for row in found:
        said = row.description or "" if row.error is None else f"can't be read: {row.error}"
        table.add_row(row.name, ", ".join(row.parameters) or "-", row.model or "-", said)
    console.print(table)
    console.print(f"\n{plural(len(found), 'template')} in {folder()}", style="dim", soft_wrap=True)
    return 0


def _listed(name: str) -> Listed:
    path = str(path_of(name))
    try:
        template = load(name)
    except ConfigurationError as error:
        return Listed(name, path, error=str(error).removeprefix(f"{path}: "))
    return Listed(name, path, template.parameters, template.model, template.description)


def show_template(arguments: argparse.Namespace) -> int:
    """Raises ConfigurationError."""
    template = load(arguments.name)
    if arguments.json:
        write_json(json_text(template))
        return 0
    for line in harmless(path_of(arguments.name).read_text(encoding="utf-8")).splitlines():
        say(line)
    return 0


def edit_template(arguments: argparse.Namespace) -> int:
    """Raises ConfigurationError, also if the file is wrong afterwards; it stays as it was left."""
    path = path_of(arguments.name)
    new = not path.exists()
    if new:
        write(path, NEW)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    except (OSError, ValueError) as error:
        if new:
            path.unlink()
        raise ConfigurationError(
            f"the editor {editor!r} can't be started: {error}; $EDITOR names another"
        ) from error
    if code != 0:
        if new and path.read_text(encoding="utf-8") == NEW:
            path.unlink()
        note(f"callboard: the editor ended with {code}")
        return FAILED
    template: Template = load(arguments.name)
    asks = "".join(f" -p {name} …" for name in template.parameters if name not in template.defaults)
    say(f"{short(path)} is kept. To use it: {command_name()} ask -t {template.name}{asks} …")
    return 0


def show_path(arguments: argparse.Namespace) -> int:
    """Raises ConfigurationError."""
    say(str(folder() if arguments.name is None else path_of(arguments.name)))
    return 0
