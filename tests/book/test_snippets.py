"""Each code block of docs/ works as its page describes, in a new folder and without a provider's key."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from callboard import PriceTable
from callboard.adapters.providers.local.child import find_model
from callboard.engine.mcp.settings import settings_of
from callboard.engine.models.configured import read_models_yaml
from tests.book.snippets import DOCS, OUTPUT, ROOT, Block, blocks, matches
from tests.support.nats_server import own_nats_server, why_no_nats
from tests.support.postgres_server import own_server, program, why_not

README = "../README.md"
RUN_ELSEWHERE = {
    "how-to/agent-host.md": "tests/test_agent_host.py",
    "how-to/fourteen-programs.md": "tests/test_fourteen_programs.py",
}
"""Pages whose blocks are files of examples/, and the tests that run these files."""

PAGES = [
    README,
    *sorted(
        name
        for page in DOCS.rglob("*.md")
        if blocks(page) and (name := page.relative_to(DOCS).as_posix()) not in RUN_ELSEWHERE
    ),
]

IN_QUICK_RUNS = {"sessions.md"}
"""Pages that also run in quick runs. Each page needs a second, because it starts interpreters."""

ALL_OR_FIRST = [
    pytest.param(page, marks=[] if page in IN_QUICK_RUNS else pytest.mark.deep("every page of the book"))
    for page in PAGES
]

CALLED_ELSEWHERE = {
    "adding-a-provider.md": "tests/test_adding_a_provider.py",
    "embeddings.md": "tests/test_guide_pages.py",
    "generate.md": "tests/test_guide_pages.py",
    "how-to/background.md": "tests/engine/operations/test_background_page.py",
    "how-to/batches.md": "tests/test_guide_pages.py",
    "media.md": "tests/test_guide_pages.py",
    "objects.md": "tests/test_guide_pages.py",
    "routing.md": "tests/test_guide_pages.py",
    "sessions.md": "tests/test_guide_pages.py",
    "tools.md": "tests/test_guide_pages.py",
    "trace.md": "tests/test_guide_pages.py",
}
"""Pages whose functions are called by other tests, and the files of these tests."""

ON_THE_LOCAL_MODEL = {README, "embeddings.md", "tutorial.md"}
"""Pages that use the local model. Other pages use scripted models: tests/book/models/<page>.yaml or
everybody.yaml.
"""

ON_A_SERVER = {"how-to/many-hosts.md", "how-to/two-hosts.md"}
"""Pages that need a PostgreSQL server."""

WITH_A_BROKER = {"how-to/two-hosts.md"}
"""Pages that also need a NATS server and prepared tables."""

NOT_RUN_AT_MOST = 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader's folder with the checkout's examples and commands."""
    for shown in ("examples", "cassettes"):
        (tmp_path / shown).symlink_to(ROOT / shown)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").touch()
    for name, arguments in (("python", ""), ("callboard", "-m callboard.engine.cli")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (programs / name).chmod(0o755)
    (tmp_path / ".callboard").mkdir()
    return tmp_path


@pytest.fixture
def server(page: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A new PostgreSQL server with its tools, if the page needs one. Environment variables have its addresses."""
    if page not in ON_A_SERVER:
        yield
        return
    if (reason := why_not(own=True)) is not None:
        pytest.skip(reason)
    with own_server() as running:
        place = running.dsn.rpartition("@")[2].partition("/")[0]
        monkeypatch.setenv("ADMIN", running.dsn)
        monkeypatch.setenv("PLACE", place)
        monkeypatch.setenv("HOST_STORE", f"postgresql://callboard_host:host-secret@{place}/trace")
        monkeypatch.setenv("CALLBOARD_STORE", f"postgresql://callboard_reader:reader-secret@{place}/trace")
        monkeypatch.setenv("PATH", f"{program(running, 'psql').parent}{os.pathsep}{os.environ['PATH']}")
        if page not in WITH_A_BROKER:
            yield
            return
        with running.database() as shared, broker() as url:
            for name, address in (("HOST_STORE", shared), ("CALLBOARD_STORE", shared), ("BROKER", url)):
                monkeypatch.setenv(name, address)
            yield


@contextmanager
def broker() -> Iterator[str]:
    """Yield the address of a new NATS server."""
    if (reason := why_no_nats()) is not None:
        pytest.skip(reason)
    with own_nats_server() as running:
        yield running.url


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    return {
        **kept,
        "PATH": f"{folder / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "CALLBOARD_HOME": ".callboard",
        "COLUMNS": "120",
    }


def run(folder: Path, *command: str) -> str:
    """Run a command, which must succeed. Returns its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_scripted_models(page: str, folder: Path) -> None:
    """Write the models.yaml for the programs of a page."""
    own = ROOT / "tests" / "book" / "models" / f"{Path(page).stem}.yaml"
    given = own if own.exists() else own.with_name("everybody.yaml")
    shutil.copy(given, folder / ".callboard" / "models.yaml")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ALL_OR_FIRST)
@pytest.mark.usefixtures("server")
def test_the_blocks_of_a_page_work_as_it_describes(page: str, folder: Path) -> None:
    """Files are written, programs and commands run in the order of the page, and their output is that of the
    page.
    """
    if page in ON_THE_LOCAL_MODEL:
        if find_model() is None:
            pytest.skip("the local model's weights are not installed")
        pytest.importorskip("xllamacpp", reason="the local model's server has no wheel for this machine")
    else:
        write_scripted_models(page, folder)
    if page == README:
        run(folder, "callboard", "demo", "--cassettes")  # a replacement for `make demo`
    found = blocks(DOCS / page)
    for block in found:
        if block.language == "python":
            write_file(block, folder)  # other programs of the page import the file
    printed: dict[int, str] | None = None
    last = ""
    for block in found:
        if block.not_run is not None:
            continue
        write_file(block, folder)
        if is_inline(block):
            printed = printed_by_python(page, folder) if printed is None else printed
            last = printed[block.line]
        match block.language:
            case "yaml":
                check_yaml(block, folder)
            case "json" if block.title is not None:
                settings_of(folder / block.title)
            case "console":
                run_console(block, folder)
            case "text" if block.title == OUTPUT:
                assert matches(block.code, last), f"{page}:{block.line}: printed was\n{last}"
            case "python" | "text":
                pass
            case "sql" if block.title is not None:
                pass  # a command of the page runs the file
            case other:
                raise AssertionError(f"{page}:{block.line}: say why {other} is not run: <!-- not run: reason -->")


def write_file(block: Block, folder: Path) -> None:
    """Write the block to its file, if it has one."""
    if block.title is not None and block.title != OUTPUT:
        written = folder / block.title
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(block.code)


def is_inline(block: Block) -> bool:
    """Whether the block runs in its place on the page."""
    return block.language == "python" and block.title is None and block.not_run is None


def printed_by_python(page: str, folder: Path) -> dict[int, str]:
    """Return the output of each block by its line. Every function of the page must have been called."""
    if page in CALLED_ELSEWHERE:
        assert page.removesuffix(".md") in (ROOT / CALLED_ELSEWHERE[page]).read_text()
    result = folder / "result.json"
    run(folder, sys.executable, "-m", "tests.book.page_runner", str(DOCS / page), str(result))
    told = json.loads(result.read_text())
    if page not in CALLED_ELSEWHERE:
        assert told["uncalled"] == [], "these functions of the page are never called"
    return {int(line): text for line, text in told["printed"].items()}


def check_yaml(block: Block, folder: Path) -> None:
    """Check that the block is a valid models.yaml, valid prices, or at least valid YAML."""
    document = yaml.safe_load(block.code)
    file = folder / "checked.yaml"
    file.write_text(block.code)
    if "adapters" in document:
        read_models_yaml(file, {})
    elif "prices" in document or "tables" in document:
        assert PriceTable.all_from_yaml(file)


def run_console(block: Block, folder: Path) -> None:
    """Run each command and compare its output with the lines below it."""
    for command, expected in re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ ).*\n)*)", block.code, re.MULTILINE):
        printed = run(folder, "bash", "-c", re.sub(r"\s+# .*$", "", command))
        if expected.strip():
            assert matches(expected, printed), f"line {block.line}: {command} printed\n{printed}"


def test_few_blocks_are_not_run() -> None:
    told = [(page, block.line, block.not_run) for page in PAGES for block in blocks(DOCS / page) if block.not_run]
    assert len(told) <= NOT_RUN_AT_MOST, told


def test_files_that_a_page_writes_are_used_there() -> None:
    """A command of the same page runs the file, another program imports it, or a settings file names it."""
    for page in PAGES:
        text = (DOCS / page).read_text()
        for block in blocks(DOCS / page):
            if block.title is not None and block.title != OUTPUT and block.language == "python":
                used = (f'"{block.title}"', f"python {block.title}", f"\nfrom {Path(block.title).stem} import ")
                assert any(each in text for each in used), f"{page}: nothing runs {block.title}"


STANDING_ALONE = [
    pytest.param(
        page,
        block,
        id=f"{Path(page).name}:{block.line}",
        marks=[] if page == README else pytest.mark.deep("quick runs have the whole page"),
    )
    for page in (README, "index.md")
    for block in blocks(DOCS / page)
    if is_inline(block)
]


@pytest.mark.parametrize(("page", "block"), STANDING_ALONE)
def test_each_program_of_the_first_pages_runs_alone(page: str, block: Block, folder: Path) -> None:
    """Each program runs from its own file on scripted models."""
    write_scripted_models(page, folder)
    (folder / "program.py").write_text(block.code)
    assert run(folder, "python", "program.py").strip()
