"""The folder of templates: $CALLBOARD_HOME/templates, one YAML file for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from callboard.bus import ConfigurationError
from callboard.bus.private_file import write_private
from callboard.engine.models.nearest_names import nearest
from callboard.engine.models.yaml_text import read_yaml, write_yaml
from callboard.tracestore.home import home_folder

from .template import Template

_NAME = re.compile(r"[\w][\w.-]*")
_SUFFIX = ".yaml"


def folder() -> Path:
    """The folder, which need not be there."""
    return home_folder() / "templates"


def names() -> list[str]:
    """The names of all templates, in order."""
    try:
        found = [path.stem for path in folder().iterdir() if path.suffix == _SUFFIX and _NAME.fullmatch(path.stem)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def path_of(name: str) -> Path:
    """The path of a template, which need not be there.

    Raises:
        ConfigurationError: It is no name of a template.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} is no name of a template: letters, digits, '-', '_' and '.' are")
    return folder() / f"{name}{_SUFFIX}"


def load(name: str) -> Template:
    """The template of a name.

    Raises:
        ConfigurationError: There is none, or its file is wrong. The text names the file and the place.
    """
    path = path_of(name)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = nearest(name, names())
        hint = f"did you mean {near[0]!r}?" if near else f"`callboard templates edit {name}` makes one"
        raise ConfigurationError(f"there is no template {name!r} in {folder()}: {hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: can't be read: {error}") from error
    try:
        return read(name, text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def read(name: str, text: str) -> Template:
    """The template that the text of a file says.

    Raises:
        ConfigurationError: The text is wrong.
    """
    document = read_yaml(text, "the template")
    if isinstance(document, str):  # a file with a text in it and nothing else
        document = {"prompt": document}
    try:
        template = msgspec.convert({} if document is None else document, Template)
    except msgspec.ValidationError as error:
        raise ConfigurationError(str(error).replace("`$.", "`")) from error
    template.check()
    return msgspec.structs.replace(template, name=name)


def save(template: Template, *, replace: bool = False) -> Path:
    """Write a template into the folder, under its name.

    Returns:
        The path of the file.

    Raises:
        ConfigurationError: The template is wrong, there is one of this name, or the file can't be written.
    """
    path = path_of(template.name)
    template.check()
    if path.exists() and not replace:
        raise ConfigurationError(f"there is a template {template.name!r} already: {path}")
    write(path, as_yaml(template))
    return path


def write(path: Path, text: str) -> None:
    """Write a file of the folder, which is made if need be.

    Raises:
        ConfigurationError: It can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, text.encode())
    except OSError as error:
        raise ConfigurationError(f"{path}: can't be written: {error.strerror or error}") from error


def as_yaml(template: Template) -> str:
    """The file of a template: only what it says, and texts of several lines as one sees them."""
    return write_yaml({name: msgspec.to_builtins(value) for name, value in _said(template)})


def _said(template: Template) -> Iterator[tuple[str, object]]:
    for field in msgspec.structs.fields(Template):
        value = getattr(template, field.name)
        if field.name != "name" and value != field.default and value not in ({}, ()):
            yield field.name, value
