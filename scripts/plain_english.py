"""Check that our prose is plain English: no wording from the list, no sentence of more than 30 words.

    python scripts/plain_english.py               README, docs and the other pages
    python scripts/plain_english.py --docstrings  docstrings of the rooms
    python scripts/plain_english.py --comments    comments of the rooms
    python scripts/plain_english.py --messages    texts of errors, warnings, log lines, reports and the live view
    python scripts/plain_english.py --help-texts  help texts of the command line
    python scripts/plain_english.py --count       figures only

Prints each offender with its file and line, and exits with 1 if there is one. The list is `plain_english.toml`.

In Python, `# plain: reason` at the end of a line exempts the message on it or below it.

In Markdown, `<!-- plain: reason -->` exempts the next block. `<!-- plain, from here: reason -->` exempts the text
up to `<!-- plain, to here -->`, or to the end of the page.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

ROOT = Path(__file__).parents[1]
LONGEST = 30
MEDIAN_AT_MOST = 16
ROOMS = ("bus", "adapters", "tracestore", "engine")
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "labs/README.md",
    "cassettes/README.md",
)

_FENCE = re.compile(r"^(```|~~~)")
_MARK = re.compile(r"^<!-- plain(?P<range>, from here)?: \S.* -->$")
_RANGE_END = "<!-- plain, to here -->"
_LIST_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ")
_DOCSTRING_ITEM = re.compile(r"^ *(?:[-*] |\d+\. |\w+: |[A-Z]\w+:$|\S+(?: \S+)* {2,}\S)")
_DELIMITER_ROW = re.compile(r"^\|[\s:|-]+\|$")
_CELL_END = re.compile(r"(?<!\\)\|")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')*_]*\s+(?=[\"'(*_`\[A-Z0-9])")
_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf)\.", re.IGNORECASE)
_WORD = re.compile(r"[\w$€%][\w'’.,:/@$€%+-]*")
_CODE = re.compile(r"(`+).+?\1", re.DOTALL)
_CODES = re.compile(r"`code`(?:(?:,? and |,? or |, |; )`code`)+")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_TAG = re.compile(r"<[^>]+>")
_EXEMPT_LINE = re.compile(r"#.*\bplain: \S")
_STRING_OR_COMMENT = re.compile(
    r"""(?P<quotes>\"{3}|'{3})(?:\\.|(?!(?P=quotes)).)*(?P=quotes)"""
    r"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>#[^\n]*)""",
    re.DOTALL,
)
"""Matches strings and comments. Only because it also matches strings, a `#` in a string is no comment."""
_TOOL_COMMENT = re.compile(r"# *(?:noqa|type: |plain: |pragma|fmt: |mypy: |pyright: |ruff: |---)|#!")
_SQL = re.compile(
    r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|FROM|WHERE|JOIN|ORDER BY|GROUP BY|WITH|AND|CASE|BEGIN|PRAGMA)\b"
)
_JS_STRING = re.compile(r"""(?<![\w\\])"([^"\\\n]*(?:\\.[^"\\\n]*)*)"|`([^`]*)`""")
_JS_VALUE = re.compile(r"\$\{[^{}]*\}|=>")
_JS_COMMENT = re.compile(r"^\s*(?://|\*|/\*).*$|(?<=[\s;])// .*$", re.MULTILINE)


class Text(NamedTuple):
    """A paragraph, a list item, a table cell, a heading or a docstring's paragraph."""

    file: str
    line: int
    words: str
    kind: Literal["prose", "heading", "cell", "message"] = "prose"
    """A heading and a table cell may be no sentence, so their lengths are not in the figures."""
    is_item: bool = False
    """Whether it is an item of a list."""


class Offender(NamedTuple):
    """A sentence, and the reason why it must be written differently."""

    file: str
    line: int
    reason: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}: {self.sentence}"


@cache
def patterns(*, messages: bool = False) -> tuple[tuple[re.Pattern[str], str], ...]:
    """The wordings of the list, each with its replacement.

    Args:
        messages: Whether to include the wordings of the second list.
    """
    with Path(__file__).with_suffix(".toml").open("rb") as file:
        lists: dict[str, dict[str, str]] = tomllib.load(file)
    listed = lists["instead"] | (lists["in_messages"] if messages else {})
    return tuple(
        (re.compile(rf"\b(?:{pattern.rstrip()})(?!\w)", re.IGNORECASE), use) for pattern, use in listed.items()
    )


@cache
def any_pattern(*, messages: bool) -> re.Pattern[str]:
    """All wordings of the list in one pattern. Few sentences have one, and only those are searched for each."""
    return re.compile("|".join(pattern.pattern for pattern, _ in patterns(messages=messages)), re.IGNORECASE)


def sentences(text: str) -> list[str]:
    """The sentences of a text. Code counts as one word, and so does a list of code."""
    plain = _CODES.sub("`code`", _TAG.sub("", _LINK.sub(r"\1", _CODE.sub("`code`", text))))
    plain = _ABBREVIATION.sub(r"\1", " ".join(plain.split()))
    return [sentence for sentence in _SENTENCE_END.split(plain) if _WORD.search(sentence)]


def length(sentence: str) -> int:
    """The number of words."""
    return len(_WORD.findall(sentence))


def offenders(texts: Iterable[Text]) -> list[Offender]:
    """The sentences that break a rule, in order."""
    found = []
    for text in texts:
        if text.kind == "prose" and text.words.startswith("**") and not text.is_item:
            found.append(
                Offender(text.file, text.line, "bold start (use a heading)", text.words.partition("\n")[0])
            )
        for sentence in sentences(text.words):
            place = text.file, text.line
            messages = text.kind == "message"
            listed = any_pattern(messages=messages).search(sentence) is not None
            for pattern, use in patterns(messages=messages) if listed else ():
                match = pattern.search(sentence)
                if match is not None and not (text.kind == "heading" and match[0].startswith("W")):  # "What is …"
                    found.append(Offender(*place, f'"{match[0]}" (write: {use})', sentence))
            if (words := length(sentence)) > LONGEST and text.kind != "heading":
                found.append(Offender(*place, f"{words} words", sentence))
    return found


def pages() -> list[Path]:
    """The Markdown files of the project, without the changelog."""
    return [*(ROOT / page for page in PAGES), *sorted((ROOT / "docs").rglob("*.md"))]


def of_pages(files: Iterable[Path]) -> Iterator[Text]:
    """The texts of Markdown files without code blocks."""
    for file in files:
        yield from of_markdown(file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix())


def of_markdown(source: str, name: str) -> Iterator[Text]:
    """The texts of one Markdown file with their line numbers. A table gives a text for each cell."""
    block: list[str] = []
    first, exempt, in_range = 0, False, False
    for number, line in enumerate([*_without_code(source), ""], 1):
        starts = not line.strip() or line.startswith(("|", "#", "<!--")) or _LIST_ITEM.match(line)
        if starts and block:
            if not (exempt or in_range):
                yield from _texts(block, name, first)
            exempt = exempt and bool(line.strip())  # a mark applies to a whole list or table
            block = []
        if (mark := _MARK.match(line)) is not None:
            exempt, in_range = not mark["range"], in_range or bool(mark["range"])
        elif line == _RANGE_END:
            in_range = False
        elif line.strip() and not line.startswith("<!--"):
            first = first if block else number
            block.append(line)


def _without_code(source: str) -> list[str]:
    """The lines, with code blocks and front matter left empty."""
    lines, fenced = [], False
    front = source.startswith("---\n")
    for number, line in enumerate(source.splitlines()):
        if front:
            front = number == 0 or line != "---"
            lines.append("")
        elif _FENCE.match(line.strip()):
            fenced = not fenced
            lines.append("")
        else:
            lines.append("" if fenced else line)
    return lines


def _texts(block: list[str], name: str, line: int) -> Iterator[Text]:
    start = block[0]
    if start.startswith("#"):
        yield Text(name, line, start.lstrip("# "), kind="heading")
    elif start.startswith("|"):
        for number, row in enumerate(block, line):
            if not _DELIMITER_ROW.match(row):
                yield from (
                    Text(name, number, cell.strip(), "cell") for cell in _CELL_END.split(row) if cell.strip()
                )
    else:
        is_item = _LIST_ITEM.match(start) is not None
        yield Text(name, line, _LIST_ITEM.sub("", "\n".join(block), count=1), is_item=is_item)


def of_docstrings(folders: Iterable[Path]) -> Iterator[Text]:
    """The paragraphs of all docstrings, and of the strings below fields."""
    for file in sorted(path for folder in folders for path in folder.rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        for statement in _statements(*_nodes(file, ast.Module)):
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield from _of_docstring(text, name, statement.lineno)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements of a module, also nested ones. Expressions, which are most of the nodes, are left out."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        inner = getattr(node, field, None)
        for statement in inner if isinstance(inner, list) else ():
            yield statement
            yield from _statements(statement)


def _of_docstring(value: str, name: str, line: int) -> Iterator[Text]:
    """The paragraphs without code. An argument, a list item and a table row are a text each."""
    for paragraph in value.split("\n\n"):
        lines: list[str] = []
        first = line
        if not paragraph.lstrip("\n").startswith("     " * 2):
            for number, part in enumerate(paragraph.replace("``", "`").splitlines(), line):
                if lines and _DOCSTRING_ITEM.match(part):
                    yield _docstring_text(lines, name, first)
                    lines = []
                first = first if lines else number
                lines += [part.strip()] if part.strip() else []
        if lines:
            yield _docstring_text(lines, name, first)
        line += paragraph.count("\n") + 2


def _docstring_text(lines: list[str], name: str, line: int) -> Text:
    text = "\n".join(lines)
    return Text(name, line, _LIST_ITEM.sub("", text, count=1), is_item=_LIST_ITEM.match(text) is not None)


def of_comments(folders: Iterable[Path]) -> Iterator[Text]:
    """All comments, without marks for tools, heads of sections, and drawings.

    Comments on consecutive lines are one text, up to an empty one or a list item.
    """
    for file in sorted(path for folder in folders for path in folder.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        lines: list[str] = []
        first, last, place = 0, 0, file.relative_to(ROOT).as_posix()
        number, counted = 1, 0
        for match in _STRING_OR_COMMENT.finditer(source):
            comment, start = match["comment"], match.start()
            if comment is None:
                continue
            number, counted = number + source.count("\n", counted, start), start
            words = comment[1:]
            text = "" if _TOOL_COMMENT.match(comment) or words.startswith("   ") else words.strip()
            alone = not source[source.rfind("\n", 0, start) + 1 : start].strip()
            if lines and (not text or not alone or number != last + 1 or _DOCSTRING_ITEM.match(text)):
                yield _docstring_text(lines, place, first)
                lines = []
            if text:
                first = first if lines else number
                lines.append(text)
                last = number if alone else 0
        if lines:
            yield _docstring_text(lines, place, first)


def of_messages(folders: Iterable[Path]) -> Iterator[Text]:
    """All other texts of the rooms: string literals of three words or more, without docstrings and SQL."""
    files = sorted(path for folder in folders for path in folder.rglob("*.*"))
    for file in files:
        name = file.relative_to(ROOT).as_posix()
        if file.suffix == ".py" and file.name != "__init__.py":  # which has only lists of names
            yield from _messages_of(file, name)
        elif file.suffix in (".js", ".html") and "vendor" not in name:
            source = _JS_COMMENT.sub("", file.read_text(encoding="utf-8"))
            for match in _JS_STRING.finditer(source):
                words = match[1] or _JS_VALUE.sub("`code`", match[2] or "")
                if len(_WORD.findall(words)) > 2:
                    yield Text(name, source.count("\n", 0, match.start()) + 1, words, "message")


def _nodes(file: Path, *types: type[ast.AST]) -> Sequence[Any]:
    """The nodes of these types in a file, cached for the tests of the structure."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from scripts.house import nodes

    return nodes(file, *types)


def _messages_of(file: Path, name: str) -> Iterator[Text]:
    lines = file.read_text(encoding="utf-8").splitlines()
    skipped: set[ast.AST] = {statement.value for statement in _nodes(file, ast.Expr)}  # docstrings
    for node in _nodes(file, ast.JoinedStr, ast.Constant):
        if node in skipped:
            continue
        match node:
            case ast.JoinedStr(values=values):
                skipped.update(values)
                text = "".join(part.value if isinstance(part, ast.Constant) else "`code`" for part in values)
            case ast.Constant(value=str(text)):
                pass
            case _:
                continue
        if len(_WORD.findall(text)) <= 2 or _SQL.search(text):
            continue
        if not any(_EXEMPT_LINE.search(line) for line in lines[max(node.lineno - 2, 0) : node.end_lineno]):
            yield Text(name, node.lineno, text, "message")


def of_help() -> Iterator[Text]:
    """The help texts of the command line: each command's description, arguments and epilog."""
    sys.path.insert(0, str(ROOT))
    from callboard.engine.cli.command_line import build_parser
    from docs.book.generated import arguments_of, parsers

    for parser in parsers(build_parser()):
        for text in (parser.description, parser.epilog, *(action.help for action in arguments_of(parser))):
            if text:
                yield Text(parser.prog, 0, text, "message")


def figures(texts: Iterable[Text]) -> tuple[int, float, int]:
    """The number of sentences, and the median and 95th percentile of their words."""
    lengths = sorted(
        length(one) for text in texts if text.kind in ("prose", "message") for one in sentences(text.words)
    )
    return len(lengths), statistics.median(lengths), lengths[int(len(lengths) * 0.95)]


def main() -> int:
    """Print the offenders and the figures.

    Returns:
        The exit code: 1 if there is an offender.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="Markdown files; default: all pages")
    parser.add_argument("--docstrings", action="store_true", help="check the docstrings of the rooms instead")
    parser.add_argument("--comments", action="store_true", help="check the comments of the rooms instead")
    parser.add_argument("--messages", action="store_true", help="check errors, warnings, logs and reports instead")
    parser.add_argument("--help-texts", action="store_true", help="check the command line's help instead")
    parser.add_argument("--count", action="store_true", help="print figures only")
    arguments = parser.parse_args()
    if arguments.docstrings:
        texts = list(of_docstrings(ROOT / room for room in ROOMS))
    elif arguments.comments:
        texts = list(of_comments(ROOT / room for room in ROOMS))
    elif arguments.messages:
        texts = list(of_messages(ROOT / room for room in ROOMS))
    elif arguments.help_texts:
        texts = list(of_help())
    else:
        texts = list(of_pages([file.resolve() for file in arguments.files] or pages()))
    found = offenders(texts)
    if not arguments.count:
        print(*found, sep="\n")
    total, median, most = figures(texts)
    too_long = sum(one.reason.endswith(" words") for one in found)
    listed = len({one[:2] + one[3:] for one in found if one.reason.startswith('"')})
    print(f"{total} sentences: median {median:g} words, 95th percentile {most}")
    print(f"{too_long} over {LONGEST} words, {listed} with listed wording")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
