"""Docstrings as our reference shows them: what is said of fields and parameters becomes a list.

    model: any of its names. prompt: text.        * `model`: any of its names.
                                                   * `prompt`: text.

Only names of the class or function itself count, and only where a sentence or a line begins. Sections (Args,
Returns, Raises) and the strings under fields are read by griffe itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import griffe

_NAMES = r"(?:^|(?<=[.;)]\s))(?P<names>{one}(?:,\s+{one})*):\s"
_NAME = re.compile(r"[^,\s]+")
_SECTION = re.compile(r"\s{4}|(?:Args|Returns|Raises|Yields):\n")
_REST = re.compile(r"(?<=[.;)`])\s(?=(?:Raises|Returns)\s)")


class Fields(griffe.Extension):
    """Rewrites the docstrings of classes and functions once they are loaded."""

    def on_class(self, *, cls: griffe.Class, **kwargs: Any) -> None:
        parameters = cls.members.get("__init__")
        own = [name for name in cls.members if not name.startswith("_")]
        for member in cls.members.values():
            if isinstance(member, griffe.Attribute) and member.labels == {"instance-attribute"}:
                member.value = None  # what the constructor does is of no interest; a field's default is
        if isinstance(parameters, griffe.Function):
            own += [parameter.name for parameter in parameters.parameters]
        _rewrite(cls, own)

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        _rewrite(func, [parameter.name.lstrip("*") for parameter in func.parameters])


def _rewrite(thing: griffe.Object, names: Iterable[str]) -> None:
    if thing.docstring is not None:
        thing.docstring.value = listed(thing.docstring.value, names)


def listed(text: str, names: Iterable[str]) -> str:
    """A docstring's text, with what it says of these names as a list."""
    known = sorted(set(names), key=len, reverse=True)
    if not known:
        return text
    pattern = re.compile(_NAMES.format(one="(?:" + "|".join(map(re.escape, known)) + ")"), re.MULTILINE)
    return "\n\n".join(_listed(paragraph, pattern) for paragraph in text.split("\n\n"))


def _listed(paragraph: str, pattern: re.Pattern[str]) -> str:
    starts = [*pattern.finditer(paragraph)] if not _SECTION.match(paragraph) else []
    if not starts:
        return paragraph
    *earlier, last = starts
    text, *rest = _REST.split(paragraph[last.end() :], maxsplit=1)
    ends = [match.start() for match in starts[1:]]
    said = [paragraph[match.end() : end] for match, end in zip(earlier, ends, strict=True)] + [text]
    items = [
        f"* {', '.join(f'`{name}`' for name in re.findall(_NAME, match['names']))}: {' '.join(words.split())}"
        for match, words in zip(starts, said, strict=True)
    ]
    before = paragraph[: starts[0].start()].strip()
    return "\n\n".join(part for part in (before, "\n".join(items), *rest) if part)
