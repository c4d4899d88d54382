"""The parts of the book that are read off the code: commands, events, and what proves the definition of done."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import get_args

import msgspec

from callboard import bus
from callboard.adapters.provider import adapter_types, provider_named
from callboard.adapters.servers import Note, notes
from callboard.bus.streams.events import StreamEvent, TurnEvent
from callboard.engine.cli.command_line import build_parser

from .field_strings import alias_strings, field_strings


def commands() -> str:
    """Every command of `callboard`, with each of its arguments and options."""
    return "\n\n".join(_command(parser) for parser in parsers(build_parser()))


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser, and all below it, in the order in which `--help` lists them."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """What a command takes, without the commands below it, its `--help`, and what `--help` doesn't show."""
    return [
        action
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
        and action.help != argparse.SUPPRESS
    ]


def _command(parser: argparse.ArgumentParser) -> str:
    depth = parser.prog.count(" ")
    usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).strip()
    parts = [f"{'#' * (depth + 2)} `{parser.prog}`", _escaped(parser.description or ""), f"```text\n{usage}\n```"]
    rows = [(_named(action), _escaped(_help(parser, action))) for action in arguments_of(parser)]
    if rows:
        parts.append(_table(("argument", "meaning"), rows))
    if parser.epilog:
        parts.append(_escaped(parser.epilog))
    return "\n\n".join(part for part in parts if part)


def _named(action: argparse.Action) -> str:
    """An argument as it is typed, in code."""
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    else:
        value = str(action.metavar or (action.dest if not action.option_strings else action.dest.upper()))
    if not action.option_strings:
        return f"`{value}`"
    value = "" if action.nargs == 0 else f" {value}"
    return ", ".join(f"`{name}{value}`" for name in action.option_strings)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Its help with the defaults put in, as `--help` shows it."""
    return parser._get_formatter()._expand_help(action) if action.help else ""


def events() -> str:
    """The event catalogue, by the first part of the topics."""
    groups: dict[str, list[type[bus.Event]]] = {}
    for event in get_args(bus.CatalogueEvent):
        groups.setdefault(event.topic_of().partition(".")[0], []).append(event)
    return "\n\n".join(
        "\n\n".join([f"## {group}.*", *(_struct(event, event.topic_of()) for event in members)])
        for group, members in groups.items()
    )


def providers() -> str:
    """Every type of adapter, with what its descriptor and its folder say of it."""
    rows = []
    for name in adapter_types():
        provider = provider_named(name)
        assert provider is not None
        speaks = (inspect.getdoc(import_module(provider.package)) or "").partition("\n")[0]
        keys = ", ".join(f"`{variable}`" for variable in provider.key_variables)
        rows.append((f"`{name}`", _in_a_cell(speaks), ", ".join(provider.kinds) or "recorded exchanges", keys))
    return _table(("`type`", "protocol", "models for", "environment variable of the key"), rows)


def servers() -> str:
    """A table for each server of the field notes: fact, what Callboard does, source."""
    by_server: dict[str, list[Note]] = {}
    for note in notes():
        by_server.setdefault(note.server, []).append(note)
    parts = []
    for name in sorted(by_server):
        rows = [(_fact(note), _in_a_cell(note.right), _source(note.source)) for note in by_server[name]]
        parts.append(f"## {name}\n\n{_table(('fact', 'what Callboard does', 'source'), rows)}")
    return "\n\n".join(parts)


def _fact(note: Note) -> str:
    return _in_a_cell(note.fact if note.wire == "any" else f"{note.fact} ({note.wire})")


def _source(source: str) -> str:
    """A link to a report or a page."""
    if source.startswith("https://"):
        return f"[{source.split('/')[2]}]({source})"
    repository, _, number = source.partition("#")
    return f"[{source}](https://github.com/{repository}/issues/{number})"


def stream_events() -> str:
    """What a stream consists of: the events of a reply, then those of a turn around them."""
    of_turns = [event for event in get_args(TurnEvent) if event not in get_args(StreamEvent)]
    return "\n\n".join(
        [
            "### Events of a reply",
            *(_struct(event, event.type, "####") for event in get_args(StreamEvent)),
            "### Events of a turn",
            *(_struct(event, str(event.__struct_config__.tag), "####") for event in of_turns),
        ]
    )


def _struct(kind: type[msgspec.Struct], topic: str, level: str = "###") -> str:
    said = field_strings(kind)
    annotations = {name: text for base in reversed(kind.__mro__) for name, text in _annotations(base).items()}
    rows = []
    for field in msgspec.structs.fields(kind):
        default = "" if field.required else f"`{_default(field)}`"
        meaning = _in_a_cell(said.get(field.name, ""))
        rows.append((f"`{field.name}`", f"`{_in_a_cell(annotations[field.name])}`", default, meaning))
    parts = [f"{level} `{topic}`", f"`{kind.__name__}`: {inspect.getdoc(kind)}"]
    if rows:
        parts.append(_table(("field", "type", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _annotations(kind: type) -> dict[str, str]:
    return {name: str(text) for name, text in inspect.get_annotations(kind).items()}


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return repr(field.default)
    return f"{getattr(field.default_factory, '__name__', 'made')}()"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _in_a_cell(text: str) -> str:
    """Markdown on one line, without the pipe that ends a cell."""
    return re.sub(r"\s+", " ", text).replace("|", r"\|")


def _escaped(text: str) -> str:
    """Plain text for Markdown and its tables."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", re.sub(r"\s+", " ", text).strip())


@cache
def definition_of_done() -> str:
    """A table for each section: the row, how we have it, and the tests that prove it, with links to them."""
    from tests.definition_of_done.proofs import proofs
    from tests.definition_of_done.rows import ROWS, SECTIONS

    table = proofs()
    parts = []
    for section, title in SECTIONS.items():
        rows = []
        for number, row in ROWS.items():
            if number.rpartition(".")[0] == section:
                tests = dict.fromkeys(proof.test.partition("[")[0] for proof in table[number])
                rows.append((number, row.text, row.decided, "<br>".join(map(_link, tests))))
        parts += [f"## {section} {title}", _table(("row", "what", "as we have it", "proved by"), rows)]
    return "\n\n".join(parts)


def _link(test: str) -> str:
    """To a test, by its node id."""
    path, name = test.split("::", 1)
    before, _, _ = (ROOT / path).read_text(encoding="utf-8").partition(f"def {name.rpartition('::')[2]}(")
    return f"[{_words(name)}](../../{path}#L{before.count(chr(10)) + 1})"


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")


def _rest(package: str) -> str:
    """The public names of a package that no page of the reference speaks of: new ones, until they find a place."""
    missing = [name for name in import_module(package).__all__ if not is_documented(package, name)]
    if not missing:
        return ""
    return "\n\n".join(["## Other names", *(f"::: {package}.{name}" for name in missing)])


def is_documented(package: str, name: str) -> bool:
    """Whether a page of the reference speaks of it, there or where it comes from."""
    rooms = (package, *ROOMS[: ROOMS.index(package)]) if package in ROOMS else (package, *ROOMS)
    return any(f"{room}.{name}" in _documented() and _is_same(room, package, name) for room in rooms)


@cache
def _documented() -> frozenset[str]:
    return frozenset(name for page in REFERENCE.rglob("*.md") for name in _names_on(page))


def _names_on(page: Path) -> list[str]:
    """The names that a page of the reference documents, in its order."""
    return re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def names_of(folder: str) -> str:
    """A table for each page in a folder of the reference: its names, with the start of each docstring."""
    navigation = (Path(__file__).parent / "mkdocs.yml").read_text(encoding="utf-8")
    parts = []
    for file in re.findall(rf"reference/{folder}/([\w-]+\.md)", navigation):
        if file != "index.md":
            page = REFERENCE / folder / file
            title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
            rows = [(f"[`{name.rpartition('.')[2]}`][{name}]", _summary(name)) for name in _names_on(page)]
            parts.append(f"### [{title}]({file})\n\n{_table(('name', 'description'), rows)}")
    return "\n\n".join(parts)


def _summary(name: str) -> str:
    """The first paragraph of a docstring, or of the string below an alias or a constant."""
    package, _, attribute = name.rpartition(".")
    thing = getattr(import_module(package), attribute)
    text = alias_strings(name.split(".")[1]).get(attribute) or inspect.getdoc(thing) or ""
    return _in_a_cell(text.partition("\n\n")[0].replace("``", "`"))


def _is_same(room: str, package: str, name: str) -> bool:
    return getattr(import_module(room), name, None) is getattr(import_module(package), name)


ROOMS = ("callboard.bus", "callboard.adapters", "callboard.tracestore", "callboard.engine")
"""A room may export names of those before it, which are documented there."""

INNER = (
    *("callboard.engine.middleware", "callboard.engine.tools", "callboard.adapters.embeddings"),
    *("callboard.adapters.images", "callboard.adapters.videos"),
    *("callboard.adapters.conformance", "callboard.adapters.providers.scripted"),
)
"""Packages below them whose names are public, too."""

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"

PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "events": events,
    "servers": servers,
    "providers": providers,
    "stream_events": stream_events,
    "definition_of_done": definition_of_done,
    **{
        f"names_of_{folder}": partial(names_of, folder)
        for folder in ("engine", "bus", "adapters", "tracestore", "testing")
    },
    **{
        f"rest_of_{room.removeprefix('callboard.').replace('.', '_')}": partial(_rest, room)
        for room in (*ROOMS, *INNER)
    },
}
"""By the name that pages say."""
