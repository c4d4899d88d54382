"""`callboard templates`: manage prompts with parameters. Each is a YAML file. `callboard ask -t NAME` fills it.

A parameter is `$name` or `${name}` in `system` and `prompt`; `$$` is a dollar sign. The caller's text replaces
`$input`, or follows the prompt. Parameters within an inserted value are not replaced.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from string import Template as Pattern
from typing import Literal, NamedTuple

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.files import write_private
from callboard.bus.values.base import Json, JsonObject
from callboard.tracestore.home import home_folder

from ..models.catalogue import nearest
from ..models.models_yaml import read_yaml, write_yaml
from .command_line import FAILED
from .options import add_action, command_name, flag, short
from .sanitize import echo, note, sanitize, write_json
from .table import Column, json_text, plural, write_rows

INPUT = "input"
"""The name of the parameter for the caller's text."""


class Filled(NamedTuple):
    """A template with a value for each parameter."""

    prompt: str
    system: str | None


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template, as in its file. All fields may be omitted."""

    name: str = ""
    description: str | None = None  # a sentence for `callboard templates list`
    system: str | None = None  # the system prompt, with parameters
    prompt: str | None = None  # the prompt, with parameters; None uses only the caller's text
    model: str | None = None  # the model, by any of its names
    defaults: Mapping[str, str | int | float] = {}  # default values of parameters
    options: Mapping[str, Json] = {}  # options of the call, such as `temperature`
    schema: str | JsonObject | None = None
    """The schema of the reply: a JSON Schema, or its short form such as ``name, age int``."""
    tools: tuple[str, ...] = ()  # the names of tools that the model may call
    extract: Literal["first", "last"] | None = None
    """The code block to return as the answer: ``first`` or ``last``. None returns the whole reply."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in the order of their first use, without ``input``."""
        found = (name for text in (self.system, self.prompt) if text is not None for name in _identifiers(text))
        return tuple(dict.fromkeys(name for name in found if name != INPUT))

    def check(self) -> None:
        """Check the rules that types can't express."""
        for field, text in (("system", self.system), ("prompt", self.prompt)):
            if text is not None and not Pattern(text).is_valid():
                raise ConfigurationError(
                    f"{field}: invalid parameter after $. Write a parameter as $name, and a dollar sign as $$"
                )
        for name in self.defaults:
            if name not in self.parameters:
                raise ConfigurationError(f"defaults.{name}: system and prompt have no ${name}")

    def filled(self, input: str, parameters: Mapping[str, str]) -> Filled:
        missing = [name for name in self.parameters if name not in parameters and name not in self.defaults]
        if missing:
            raise ConfigurationError(
                f"template {self.name!r} needs a value for {', '.join(missing)}: -p {missing[0]} VALUE"
            )
        for name in parameters:
            if name not in self.parameters:
                raise ConfigurationError(
                    f"template {self.name!r} has no parameter {name!r}: expected one of "
                    f"{', '.join(self.parameters) or 'none'}"
                )
        values = {**{name: str(value) for name, value in self.defaults.items()}, **parameters, INPUT: input}
        system = None if self.system is None else Pattern(self.system).substitute(values)
        if self.prompt is None:
            return Filled(input, system)
        prompt = Pattern(self.prompt).substitute(values)
        placed = INPUT in (*_identifiers(self.prompt), *_identifiers(self.system or ""))
        return Filled(prompt if placed or not input else f"{prompt.rstrip()}\n\n{input}", system)


def _identifiers(text: str) -> list[str]:
    return Pattern(text).get_identifiers()


# --- The folder ---

_NAME = re.compile(r"[\w][\w.-]*")
_SUFFIX = ".yaml"


def folder() -> Path:
    """The folder of templates, which may not exist."""
    return home_folder() / "templates"


def names() -> list[str]:
    """The names of all templates, in order."""
    try:
        found = [path.stem for path in folder().iterdir() if path.suffix == _SUFFIX and _NAME.fullmatch(path.stem)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def path_of(name: str) -> Path:
    """The path of a template, which may not exist."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is not a template name: use letters, digits, '-', '_' and '.'")
    return folder() / f"{name}{_SUFFIX}"


def load(name: str) -> Template:
    path = path_of(name)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = nearest(name, names())
        hint = f"did you mean {near[0]!r}?" if near else f"create it with `callboard templates edit {name}`"
        raise ConfigurationError(f"no template {name!r} in {folder()}: {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    try:
        return read(name, text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def read(name: str, text: str) -> Template:
    """Parse a template."""
    document = read_yaml(text, "the template")
    if isinstance(document, str):  # the file contains only a text
        document = {"prompt": document}
    try:
        template = msgspec.convert({} if document is None else document, Template)
    except msgspec.ValidationError as error:
        raise ConfigurationError(str(error).replace("`$.", "`")) from error
    template.check()
    return msgspec.structs.replace(template, name=name)


def save(template: Template, *, replace: bool = False) -> Path:
    """Save a template under its name. Returns the path of the file."""
    path = path_of(template.name)
    template.check()
    if path.exists() and not replace:
        raise ConfigurationError(f"template {template.name!r} already exists: {path}")
    write(path, as_yaml(template))
    return path


def write(path: Path, text: str) -> None:
    """Write a file in the folder. The folder is created if needed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, text.encode())
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be written: {error.strerror or error}") from error


def as_yaml(template: Template) -> str:
    """A template as YAML: only the fields that are set, with multi-line texts as blocks."""
    found: dict[str, object] = {}
    for field in msgspec.structs.fields(Template):
        value = getattr(template, field.name)
        if field.name != "name" and value != field.default and value not in ({}, ()):
            found[field.name] = msgspec.to_builtins(value)
    return write_yaml(found)


# --- The command ---


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
"""The initial content of a template in `edit`."""


class Listed(msgspec.Struct, frozen=True):
    """A line of `callboard templates list --json`."""

    name: str
    path: str  # the path of its file
    parameters: tuple[str, ...] = ()  # the names of its parameters, without `input`
    model: str | None = None
    description: str | None = None
    error: str | None = None  # the problem with its file


def add_command(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Store prompts with parameters. A template is a file NAME.yaml in $CALLBOARD_HOME/templates. "
        "$name in prompt and system is a parameter, and $input is the question."
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = add_action(
        inner, "list", list_templates, "List templates with their parameters", "List all templates."
    )
    flag(listing, "--json", help="print one JSON object a line for each template")
    listing.set_defaults(draws=True)
    show = add_action(inner, "show", show_template, "Show a template", "Print the text of a template.")
    show.add_argument("name", metavar="NAME", help="the template")
    flag(show, "--json", help="print one JSON object")
    edit = add_action(
        inner,
        "edit",
        edit_template,
        "Edit a template",
        "Open a template in $VISUAL or $EDITOR, and check it afterwards. A new template starts with an example.",
    )
    edit.add_argument("name", metavar="NAME", help="the template")
    path = add_action(inner, "path", show_path, "Print the path of the folder, or of a template")
    path.add_argument("name", nargs="?", metavar="NAME", help="the template (default: the folder)")


def list_templates(arguments: argparse.Namespace) -> int:
    """List the templates. An unreadable template is listed with its error."""
    found = [_listed(name) for name in names()]
    return write_rows(
        "json" if arguments.json else "table",
        Listed,
        found,
        [
            Column("template", lambda row: row.name),
            Column("parameters", lambda row: ", ".join(row.parameters) or "-", folds=True),
            Column("model", lambda row: row.model or "-", may_go=1),
            Column("description", _description, folds=True, may_go=2),
        ],
        empty=f"No templates in {folder()}. Create one with `{command_name()} templates edit NAME`.",
        below=f"{plural(len(found), 'template')} in {folder()}",
        whole=True,
    )


def _description(row: Listed) -> str:
    return row.description or "" if row.error is None else f"can't be read: {row.error}"


def _listed(name: str) -> Listed:
    path = str(path_of(name))
    try:
        template = load(name)
    except ConfigurationError as error:
        return Listed(name, path, error=str(error).removeprefix(f"{path}: "))
    return Listed(name, path, template.parameters, template.model, template.description)


def show_template(arguments: argparse.Namespace) -> int:
    template = load(arguments.name)
    if arguments.json:
        write_json(json_text(template))
        return 0
    for line in sanitize(path_of(arguments.name).read_text(encoding="utf-8")).splitlines():
        echo(line)
    return 0


def edit_template(arguments: argparse.Namespace) -> int:
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
            f"the editor {editor!r} can't be started: {error}. Set $EDITOR to another one"
        ) from error
    if code != 0:
        if new and path.read_text(encoding="utf-8") == NEW:
            path.unlink()
        note(f"callboard: the editor ended with {code}")
        return FAILED
    template: Template = load(arguments.name)
    asks = "".join(f" -p {name} …" for name in template.parameters if name not in template.defaults)
    echo(f"{short(path)} is saved. To use it: {command_name()} ask -t {template.name}{asks} …")
    return 0


def show_path(arguments: argparse.Namespace) -> int:
    echo(str(folder() if arguments.name is None else path_of(arguments.name)))
    return 0
