"""The benchmarks run and print correct tables. No test asserts a time."""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from benchmarks import actors, bus, fanout, figures, functions, paced
from benchmarks.__main__ import arguments_of
from benchmarks.floors import HandClients, RawClients
from benchmarks.table import Row, as_row, render, run
from benchmarks.ways import body_of, question, streams, way
from tests.support.depth import first_is_quick
from tests.support.reply_models import PROTOCOLS
from tests.support.reply_server import reply_server

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "subject",
    first_is_quick([fanout, bus, actors, functions], "more subjects"),
    ids=lambda module: module.__name__,
)
def test_a_subject_gives_rows_with_ratios(subject: object) -> None:
    gc.collect()
    # a subject collects garbage before each measurement, and must not visit the objects of other tests
    gc.freeze()
    rows = subject.rows(quick=True)  # type: ignore[attr-defined]
    assert rows
    assert all(row.figure and row.ratio > 0 for row in rows)
    assert all((row.met is None) == (row.gate == "") for row in rows)


def test_no_benchmark_imports_another_in_a_circle() -> None:
    """Each module of the benchmarks imports only modules that do not import it."""
    folder = ROOT / "benchmarks"
    imports = {
        path.stem: {
            node.module.partition(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        }
        for path in folder.glob("*.py")
    }

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        ahead = [*imports.get(name, ())]
        while ahead:
            if (each := ahead.pop()) not in found:
                found.add(each)
                ahead += imports.get(each, ())
        return found

    assert [name for name in imports if name in reached(name)] == []


def test_the_command_prints_one_table() -> None:
    command = [sys.executable, "-m", "benchmarks", "fanout", "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    assert "append and 5 readers" in done.stdout
    assert "×" in done.stdout


def test_an_unknown_subject_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        arguments_of(["bsu"])
    assert "no subject bsu" in capsys.readouterr().err


@pytest.mark.parametrize("protocol", first_is_quick(sorted(PROTOCOLS), "more protocols"))
def test_the_floors_read_the_same_events_and_a_whole_reply(protocol: str) -> None:
    run(both_floors(protocol))


async def both_floors(protocol: str) -> None:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(reply_server(25))
        path, body = body_of(PROTOCOLS[protocol], url, question("req"), stream=False)
        for clients in (HandClients(url), RawClients(url)):
            await stack.enter_async_context(clients)
            assert (await clients.post(path, body))["usageMetadata" if protocol == "gemini" else "usage"]
        by_name = [await stack.enter_async_context(way(name, url, protocol)) for name in ("hand", "raw")]
        for each in by_name:
            await streams(each, 6, 3)
    assert [each.opened for each in by_name] == [6, 6]
    assert by_name[0].events == by_name[1].events >= 6 * 25


def test_a_window_measures_streams_that_are_under_way() -> None:
    assert all(row.ratio > 0 for row in run(paced.level("chat", 2, seconds=0.05, rounds=1)))


def test_a_subject_measured_again_takes_its_own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n<!-- figures: begin -->\n<!-- figures: end -->\n", "utf-8")
    monkeypatch.setattr(figures, "README", page)
    for name, text in (("a", "one\n"), ("b", "two\n"), ("a", "three\n")):
        figures.write(name, text)
    written = page.read_text("utf-8")
    assert "one" not in written
    assert written.index("three") < written.index("two") < written.index("<!-- figures: end -->")


def test_a_plain_tuple_is_a_row_and_its_number_a_gate() -> None:
    assert as_row(("burst", "9 µs", "5 µs", 1.8, 2.0)) == Row("burst", "9 µs", "5 µs", 1.8, "≤ 2×", True)
    assert "NOT MET" in render("Per delta", [as_row(("burst", "9 µs", "5 µs", 2.4, 2.0))])
