"""Each code block of docs/ works as the page says, in a new folder and without a provider's key."""

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
"""Pages whose blocks are files of examples/, and the tests that run those."""

PAGES = [
    README,
    *sorted(
        name
        for page in DOCS.rglob("*.md")
        if blocks(page) and (name := page.relative_to(DOCS).as_posix()) not in RUN_ELSEWHERE
    ),
]

IN_QUICK_RUNS = {"sessions.md"}
"""Each page takes a second of interpreters that start, and README's programs run in quick runs, too."""

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
"""Pages whose functions are called by tests of their own, and where."""

ON_THE_LOCAL_MODEL = {README, "embeddings.md", "tutorial.md"}
"""All others talk to scripted models: tests/book/models/<page>.yaml, or everybody.yaml."""

ON_A_SERVER = {"how-to/many-hosts.md", "how-to/two-hosts.md"}
"""Pages whose reader has a PostgreSQL server."""

WITH_A_BROKER = {"how-to/two-hosts.md"}
"""Those of them whose reader has a NATS server, too, and has made the tables."""

NOT_RUN_AT_MOST = 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A reader's folder: the checkout's examples, and commands that are this checkout's."""
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
    """A new PostgreSQL server with its tools, if the page's reader has one. Its addresses are where they say."""
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
    """The address of a new NATS server."""
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
    """What a command prints; it must succeed."""
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
    """The models.yaml with which a page's programs are run."""
    own = ROOT / "tests" / "book" / "models" / f"{Path(page).stem}.yaml"
    given = own if own.exists() else own.with_name("everybody.yaml")
    shutil.copy(given, folder / ".callboard" / "models.yaml")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ALL_OR_FIRST)
@pytest.mark.usefixtures("server")
def test_a_pages_blocks_do_what_it_says(page: str, folder: Path) -> None:
    """Files are written, programs and commands run in the page's order, and outputs are as printed there."""
    if page in ON_THE_LOCAL_MODEL:
        if find_model() is None:
            pytest.skip("the local model's weights are not installed")
        pytest.importorskip("xllamacpp", reason="the local model's server has no wheel for this machine")
    else:
        write_scripted_models(page, folder)
    if page == README:
        run(folder, "callboard", "demo", "--cassettes")  # instead of `make demo`
    found = blocks(DOCS / page)
    for block in found:
        if block.language == "python":
            write_file(block, folder)  # which other programs of the page import
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
    """If it is one."""
    if block.title is not None and block.title != OUTPUT:
        written = folder / block.title
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(block.code)


def is_inline(block: Block) -> bool:
    """It is run where it stands."""
    return block.language == "python" and block.title is None and block.not_run is None


def printed_by_python(page: str, folder: Path) -> dict[int, str]:
    """What each block printed, by its line; all functions of the page must have been called."""
    if page in CALLED_ELSEWHERE:
        assert page.removesuffix(".md") in (ROOT / CALLED_ELSEWHERE[page]).read_text()
    result = folder / "result.json"
    run(folder, sys.executable, "-m", "tests.book.page_runner", str(DOCS / page), str(result))
    told = json.loads(result.read_text())
    if page not in CALLED_ELSEWHERE:
        assert told["uncalled"] == [], "these functions of the page are never called"
    return {int(line): text for line, text in told["printed"].items()}


def check_yaml(block: Block, folder: Path) -> None:
    """It is what it looks like: a models.yaml, prices, or at least YAML."""
    document = yaml.safe_load(block.code)
    file = folder / "checked.yaml"
    file.write_text(block.code)
    if "adapters" in document:
        read_models_yaml(file, {})
    elif "prices" in document or "tables" in document:
        assert PriceTable.all_from_yaml(file)


def run_console(block: Block, folder: Path) -> None:
    """Each command, and what stands below it."""
    for command, expected in re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ ).*\n)*)", block.code, re.MULTILINE):
        printed = run(folder, "bash", "-c", re.sub(r"\s+# .*$", "", command))
        if expected.strip():
            assert matches(expected, printed), f"line {block.line}: {command} printed\n{printed}"


def test_few_blocks_are_not_run() -> None:
    told = [(page, block.line, block.not_run) for page in PAGES for block in blocks(DOCS / page) if block.not_run]
    assert len(told) <= NOT_RUN_AT_MOST, told


def test_files_that_a_page_writes_are_used_there() -> None:
    """A command of the same page runs them, another program imports them, or a file of settings names them."""
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
    """As a file of its own, on scripted models: nothing is there but what it imports and makes itself."""
    write_scripted_models(page, folder)
    (folder / "program.py").write_text(block.code)
    assert run(folder, "python", "program.py").strip()
