"""Reads the descriptions of a function and its parameters from a docstring in Google's, NumPy's or Sphinx's
style."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Documented(NamedTuple):
    """The descriptions in a docstring."""

    description: str
    """The text before the first section."""
    parameters: dict[str, str]
    """The descriptions of the parameters, by name."""


_PARAMETERS = (
    "args",
    "arguments",
    "parameters",
    "params",
    "other parameters",
    "keyword arguments",
)
_SECTIONS = (
    *_PARAMETERS,
    *("attributes", "example", "examples", "note", "notes", "raises", "references", "return", "returns"),
    *("see also", "todo", "warning", "warnings", "warns", "yield", "yields"),
)
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ITEM = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")
_FIELD = re.compile(r":(\w+)(?:\s+([^:]*?))?\s*:\s*(.*)")
_SPHINX_PARAMETERS = ("param", "parameter", "arg", "argument", "key", "keyword")


def read_docstring(text: str | None) -> Documented:
    """Read a docstring. Any text will do: text outside the sections of these styles is description. Pure."""
    lines = inspect.cleandoc(text or "").splitlines()
    parameters: dict[str, str] = {}
    start = next((number for number, _ in enumerate(lines) if _begins(lines, number)), len(lines))
    position = start
    while position < len(lines):
        heading = _heading(lines, position)
        if heading is None:
            position = _read_field(lines, position, parameters)
            continue
        name, body_at, numpy = heading
        end = next((n for n in range(body_at, len(lines)) if _begins(lines, n)), len(lines))
        if name in _PARAMETERS:
            body = lines[body_at:end]
            parameters.update(_numpy_items(body) if numpy else _google_items(body))
        position = end
    return Documented(_paragraphs(lines[:start]), {name: text for name, text in parameters.items() if text})


def _begins(lines: Sequence[str], number: int) -> bool:
    """Whether a section, or one of Sphinx's fields, begins on a line."""
    return _heading(lines, number) is not None or _FIELD.match(lines[number]) is not None


def _heading(lines: Sequence[str], number: int) -> tuple[str, int, bool] | None:
    """The name of a section, the line where its body begins, and whether its style is NumPy's. None without a
    heading."""
    name = lines[number].strip().lower()
    if name.endswith(":") and name[:-1] in _SECTIONS and not lines[number].startswith(" "):
        return name[:-1], number + 1, False
    underlined = number + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[number + 1].strip())
    return (name, number + 2, True) if underlined and name in _SECTIONS else None


def _read_field(lines: Sequence[str], position: int, parameters: dict[str, str]) -> int:
    """Read a field of Sphinx (``:param name:``), if there is one. Returns the line where the next part may
    begin."""
    field = _FIELD.match(lines[position])
    end = position + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    if field is not None and field[1] in _SPHINX_PARAMETERS and field[2]:
        name = field[2].split()[-1].lstrip("*")  # ":param str name:" has the type before it
        parameters[name] = _joined([field[3], *lines[position + 1 : end]])
    return end


def _items(lines: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines of the least indentation, each with the lines below it that are indented further."""
    body = [line for line in lines if line.strip()]
    least = min((_indent(line) for line in body), default=0)
    item: tuple[str, list[str]] | None = None
    for line in body:
        if _indent(line) == least:
            if item is not None:
                yield item
            item = line.strip(), []
        elif item is not None:
            item[1].append(line)
    if item is not None:
        yield item


def _google_items(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for head, below in _items(lines):
        if match := _GOOGLE_ITEM.fullmatch(head):
            yield match[1], _joined([match[2], *below])


def _numpy_items(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for head, below in _items(lines):
        if match := _NUMPY_ITEM.fullmatch(head):
            for name in match[1].split(","):
                yield name.strip().lstrip("*"), _joined(below)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: Sequence[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())


def _paragraphs(lines: Sequence[str]) -> str:
    """The text with each paragraph on one line. Lists and indented parts keep their line breaks."""
    paragraphs: list[str] = []
    for block in "\n".join(lines).split("\n\n"):
        stripped = [line for line in block.splitlines() if line.strip()]
        keeps = any(line.startswith((" ", "- ", "* ")) or re.match(r"\d+[.)] ", line) for line in stripped)
        paragraphs.append("\n".join(stripped) if keeps else _joined(stripped))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
