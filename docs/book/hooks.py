"""What mkdocs can't do by itself: generated parts, search keywords, and links to files that are no pages.

A page says ``<!-- generated: commands -->`` where `docs.book.generated` writes. A link from a page to a file
outside docs/ works where the repository is browsed; in the built book it leads to a page that shows the file.
`keywords.toml` has words that readers search for and that a page does not use.
"""

from __future__ import annotations

import posixpath
import re
import sys
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # so that this tree is described, not one that is installed

from docs.book import generated  # noqa: E402 (after the path)

KEYWORDS: dict[str, str] = tomllib.loads(Path(__file__).with_name("keywords.toml").read_text(encoding="utf-8"))
_BOOSTS = {
    "how-to": 2.0,
    "reference": 0.7,
    "live-view": 0.9,
    "design-notes.md": 0.5,
}  # by a page's first folder; else 1

_LINK = re.compile(r"\]\(([^)\s:#]+)(#[^)\s]*)?\)")
_MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"
_CELL = re.compile("<td>.*?</td>")
_LINE = re.compile("^#L")
_FENCES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".json": "json", ".sh": "bash"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file outside docs/ that some page, or such a file itself, links to."""
    waiting = [path for file in files.documentation_pages() for path in _outside(_whole(file), _place(file))]
    shown: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path not in shown:
            shown.add(path)
            text = _shown(path)
            files.append(File.generated(config, _source(path), content=_UNSEARCHED + text))
            if path.endswith(".md"):
                waiting += _outside(text, path)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the generated parts, set keywords and weight for the search, and point links at pages of the book."""
    if (words := KEYWORDS.get(page.file.src_uri)) is not None:
        page.meta["tags"] = sorted(set(words.split()))
    if (boost := _BOOSTS.get(page.file.src_uri.partition("/")[0])) is not None:
        page.meta.setdefault("search", {"boost": boost})
    markdown = _MARK.sub(lambda mark: generated.PARTS[mark[1]](), markdown)
    place = _place(page.file)

    def lead(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), link[1]))
        uri = target.removeprefix("docs/") if target.startswith("docs/") else _source(target)
        if files.get_file_from_path(uri) is None:
            return link[0]  # which mkdocs then complains of
        anchor = _LINE.sub("#__codelineno-0-", link[2] or "") if uri.startswith("source/") else link[2] or ""
        return f"]({posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    return _LINK.sub(lead, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the backslash of pipes in a table's code."""
    return _CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), html)


def _whole(file: File) -> str:
    """A page's text with its generated parts, whose links count, too."""
    return _MARK.sub(lambda mark: generated.PARTS[mark[1]](), file.content_string)


def _place(file: File) -> str:
    """Where a page's text is in the repository."""
    if file.src_uri.startswith("source/"):
        return file.src_uri.removeprefix("source/").removesuffix(".md")
    return f"docs/{file.src_uri}"


def _source(path: str) -> str:
    return f"source/{path}.md"


def _outside(text: str, place: str) -> list[str]:
    """The files outside docs/ that a text links to, by their paths in the repository."""
    targets = (
        posixpath.normpath(posixpath.join(posixpath.dirname(place), link[1])) for link in _LINK.finditer(text)
    )
    return [path for path in targets if not path.startswith(("docs/", "..")) and (ROOT / path).exists()]


def _shown(path: str) -> str:
    """A page that shows a file, or the programs in a folder."""
    file = ROOT / path
    if file.is_dir():
        return "\n\n".join([f"# {path}", *(_fenced(entry) for entry in sorted(file.glob("*.py")))])
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    return f"# {path}\n\n{_fenced(file)}"


def _fenced(file: Path) -> str:
    language = _FENCES.get(file.suffix, "text")
    text = file.read_text(encoding="utf-8")
    return f'`````{language} title="{file.name}" linenums="1"\n{text}\n`````'
