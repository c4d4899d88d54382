"""The book builds without a warning, and leaves out no public name, command, event or key."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import get_args
from urllib.parse import quote

import pytest

from callboard import ProviderAdapter, TurnEvent, bus
from callboard.engine.cli.command_line import build_parser
from callboard.engine.models import models_yaml as models_reader
from callboard.engine.routing import model_choice
from docs.book import generated
from docs.book.generated import arguments_of, parsers
from tests.book.snippets import DOCS, ROOT
from tests.definition_of_done.rows import ROWS
from tests.support.browser import CHROMIUM, WHY_NOT, browser
from tests.support.virtual_time import runs_on

anyio_backend = runs_on("asyncio")

ROOMS = (
    *("callboard.bus", "callboard.adapters", "callboard.tracestore", "callboard.engine"),
    *("callboard.engine.middleware", "callboard.engine.tools"),
    *(
        "callboard.adapters.embeddings",
        "callboard.adapters.images",
        "callboard.adapters.videos",
        "callboard.adapters.conformance",
        "callboard.adapters.providers.scripted",
    ),
)


of_the_book = pytest.mark.deep("builds the whole book")


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the book in strict mode, without the layout of signatures."""
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("callboard[docs] is not installed")
    site = tmp_path_factory.mktemp("book")
    config = DOCS / "book" / "mkdocs.yml"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(config), "-d", str(site)],
        env={**os.environ, "BOOK_IN_FULL": "false", "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return site


@of_the_book
@pytest.mark.timeout(300)
def test_the_book_builds_without_a_warning_and_needs_no_network(book: Path) -> None:
    """No page of the book loads a script, an image or a style from another host."""
    for page in book.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link)[^>]* (?:src|href)="(https?:[^"]*)"', page.read_text())
        assert fetched == [], page


@of_the_book
@pytest.mark.timeout(300)
def test_every_public_name_has_an_entry(book: Path) -> None:
    """The entry is under the package that exports the name, or under the package that defines it."""
    inventory = (book / "objects.inv").read_bytes().split(b"\n", 4)[4]
    entries = {line.split(" ", 1)[0] for line in zlib.decompress(inventory).decode().splitlines()}
    for room in ROOMS:
        module = import_module(room)
        for name in module.__all__:
            homes = [home for home in ROOMS if getattr(import_module(home), name, None) is getattr(module, name)]
            assert any(f"{home}.{name}" in entries for home in homes), f"{room}.{name}"


@of_the_book
@pytest.mark.timeout(300)
def test_the_reference_has_every_command_and_option(book: Path) -> None:
    page = (book / "reference" / "commands.html").read_text()
    for parser in parsers(build_parser()):
        assert f"<code>{parser.prog}</code>" in page
        section = page.split(f"<code>{parser.prog}</code>", 1)[1]
        for action in arguments_of(parser):
            for option in action.option_strings:
                assert re.search(rf"<code>{option}[ <]", section), f"{parser.prog} {option}"


@of_the_book
@pytest.mark.timeout(300)
def test_the_reference_has_every_event(book: Path) -> None:
    """The page has each event of the bus by topic and each event of streams by type, with all fields."""
    page = (book / "reference" / "events.html").read_text()
    for event in {*get_args(bus.CatalogueEvent), *get_args(TurnEvent)}:
        section = page.split(f'<code>{event.__struct_config__.tag}</code><a class="headerlink"', 1)[1]
        for field in event.__struct_fields__:
            assert f"<code>{field}</code>" in section


@of_the_book
@pytest.mark.timeout(300)
def test_every_row_of_the_definition_of_done_links_to_its_tests(book: Path) -> None:
    """Each link leads to the first line of a test."""
    page = (book / "reference" / "definition-of-done.html").read_text()
    rows = re.findall(r"<tr>\s*<td>([\d.]+)</td>(.*?)</tr>", page, re.DOTALL)
    assert [number for number, _ in rows] == list(ROWS)
    for number, row in rows:
        links = re.findall(r'href="([^"#]+)#__codelineno-0-(\d+)"', row)
        assert links, number
        for file, line in links:
            shown = (book / "reference" / file).read_text()
            assert f'id="__codelineno-0-{line}"' in shown, (number, file)


def test_keywords_of_the_search_belong_to_pages() -> None:
    """Every page in the list exists, and every guide has keywords."""
    keywords = tomllib.loads((DOCS / "book" / "keywords.toml").read_text(encoding="utf-8"))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert set(keywords) <= pages
    assert {page for page in pages if page.startswith("how-to/")} <= set(keywords)


QUESTIONS = {
    "set a timeout for a call": "time-limits",
    "limit spending per user": "budget",
    "see the prompt that was sent": "see-the-prompt",
    "use azure openai": "azure-and-other-hosts",
    "add custom http headers": "headers-and-proxies",
    "use a proxy": "headers-and-proxies",
    "count tokens before sending": "count-tokens",
    "disable tracing": "turn-off-the-trace",
    "what is lost when switching providers": "swap-providers",
    "stream json objects while they arrive": "objects",
    "test my agent without a real model": "test-your-program",
    "delete a user's data": "delete-a-person",
    "migrate from litellm": "moving-here",
    "migrate from langchain": "moving-here",
    "recover after a crash": "after-a-crash",
    "does it work on windows": "platforms",
}
"""Questions of users, each with the page that answers it."""

FOUND = """(() => {
    const said = document.querySelector('.md-search-result__meta')?.innerText ?? '';
    const links = [...document.querySelectorAll('.md-search-result__item > a')];
    return /matching/.test(said) && links.length && links.map((link) => new URL(link.href).pathname);
})()"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Yield the address of a server for the files of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@of_the_book
@pytest.mark.skipif(CHROMIUM is None, reason=WHY_NOT)
@pytest.mark.timeout(300)
async def test_the_first_two_results_of_a_question_have_its_page(book: Path) -> None:
    """Stop words are ignored, and the keywords of a page are searched."""
    missed = {}
    with serving(book) as url:
        async with browser() as running:
            page = await running.page()
            for question, name in QUESTIONS.items():
                await page.open("about:blank")
                await page.open(f"{url}/index.html?q={quote(question)}")
                found = list(dict.fromkeys(await page.until(FOUND, 60)))[:2]
                if not any(path.endswith(f"/{name}.html") for path in found):
                    missed[question] = found
    assert missed == {}
    assert page.errors == []


def public_things() -> Iterator[tuple[str, object]]:
    """The exported classes and functions, and the public methods and properties of the classes."""
    for room in ROOMS:
        module = import_module(room)
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type) or inspect.isfunction(thing):
                yield f"{room}.{name}", thing
            # the methods of adapters are those of ProviderAdapter
            shown = thing is ProviderAdapter or not name.endswith("Adapter")
            if isinstance(thing, type) and shown and thing.__module__.split(".")[0] in ROOMS:
                for member, value in vars(thing).items():
                    plain = getattr(value, "__func__", value)
                    if not member.startswith("_") and (inspect.isfunction(plain) or isinstance(value, property)):
                        yield f"{room}.{name}.{member}", getattr(thing, member)


def test_every_public_name_has_a_docstring() -> None:
    protocols = [thing for _, thing in public_things() if getattr(thing, "_is_protocol", False)]
    of_protocols = {member for one in protocols for member in vars(one) if inspect.getdoc(getattr(one, member))}
    silent = [
        name
        for name, thing in public_things()
        if not (thing.__doc__ if isinstance(thing, type) else inspect.getdoc(thing))
        and name.rpartition(".")[2] not in of_protocols
    ]
    assert silent == []


@pytest.mark.deep("the book's reader loads all sources")
def test_every_alias_has_a_description() -> None:
    """An alias for a union, a literal or a constant has a string below it."""
    griffe = pytest.importorskip("griffe", reason="callboard[docs] is not installed")
    loader = griffe.GriffeLoader(search_paths=[str(ROOT)])
    for package in {room.partition(".")[0] for room in ROOMS}:
        loader.load(package)
    loader.resolve_aliases()
    silent = []
    for room in ROOMS:
        package = loader.modules_collection[room]
        for name in import_module(room).__all__:
            found = package[name]
            if found.is_alias:
                found = found.final_target
            if found.is_attribute and not found.docstring:
                silent.append(f"{room}.{name}")
    assert silent == []


def test_descriptions_of_fields_in_a_docstring_become_a_list() -> None:
    """The list has only existing names at the beginning of a sentence. The sentence about errors stays text."""
    fields = pytest.importorskip("docs.book.fields", reason="callboard[docs] is not installed")
    text = "Bounds of it: two. calls: at once;\nmore wait. a,\nb: how\nfar. Note: this. Raises\nValueError."
    assert fields.listed(text, ["a", "b", "calls", "it"]) == (
        "Bounds of it: two.\n\n* `calls`: at once; more wait.\n* `a`, `b`: how far. Note: this.\n\n"
        "Raises\nValueError."
    )
    sections = "Sums up.\n\nArgs:\n    a: how far. b: no name here.\n\nReturns:\n    a: it."
    assert fields.listed(sections, ["a", "b"]) == sections, "sections are left to griffe"


def test_the_tables_of_events_have_the_strings_under_fields() -> None:
    said = generated.field_strings(bus.ToolProgress)
    row = next(line for line in generated.events().splitlines() if line.startswith("| `fraction` |"))
    assert said["fraction"]
    assert " ".join(said["fraction"].split()) in row


def test_the_reference_has_exactly_the_keys_of_models_yaml() -> None:
    text = (DOCS / "reference" / "models-yaml.md").read_text()
    told = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    reader = models_reader
    assert told == reader._TOP_KEYS | reader._ADAPTER_KEYS | reader._MODEL_KEYS
    for key in (*reader._DEFAULT_KEYS, *reader._TOOL_KEYS, *model_choice.CAPABILITY_LIMITS):
        assert f"`{key}`" in text
