"""The fourteen programs of `examples/programs` and of the book run against a server, and stay short."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.book.snippets import DOCS, blocks
from tests.support.two_vendors import TwoVendors, two_vendors

ROOT = Path(__file__).parents[1]
PROGRAMS = ROOT / "examples" / "programs"
PAGE = DOCS / "how-to" / "fourteen-programs.md"

SHORTEST_OF_PEERS = {
    "one_shot": 2,  # LiteLLM, llm, pydantic-ai
    "stream": 3,  # LiteLLM, llm
    "object_with_repair": 6,  # pydantic-ai
    "parallel_tools": 5,  # pydantic-ai
    "fallback": 3,  # LiteLLM
    "costs": 8,  # LiteLLM, with a callback that stores them
    "cancel": 5,  # Anthropic's SDK, with prices by hand
    "swap": 8,  # pydantic-ai
    "resume": 6,  # LangGraph
    "two_readers": 16,  # any, with a list and a condition
    "approval": 13,  # LangGraph
    "embeddings": 4,  # LangChain, without costs
    "live_lines": 3,  # LiteLLM
    "discount": 12,  # no library keeps the necessary data
}
"""Lines of code of the shortest program that does the same with another library."""

RUNNER = """
import contextlib, io, json, runpy, sys

printed = {}
for path in sys.argv[1:]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(path, run_name="__main__")
    printed[path] = out.getvalue()
print(json.dumps(printed))
"""
"""Run programs one after the other, each as a separate program. Python starts only once."""

KILLED = """
import os, runpy, signal, sys

said = sys.stdout.write

def write(text):
    said(text)
    if text.endswith("\\n"):
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)

sys.stdout.write = write
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Run a program and kill it after its first line of output."""


class Ran(NamedTuple):
    """The result of a program."""

    code: int
    printed: str


@pytest.fixture(scope="module")
def vendors() -> Iterator[TwoVendors]:
    with two_vendors() as running:
        yield running


def run(vendors: TwoVendors, home: Path, *arguments: object, answers: str = "") -> Ran:
    """Run a process in its own folder. Of this checkout, only the import path and the two vendors are
    available.
    """
    kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        cwd=home,
        env={**kept, **vendors.environment, "CALLBOARD_HOME": str(home), "PYTHONPATH": str(ROOT)},
        input=answers,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert not done.stderr
    return Ran(done.returncode, done.stdout)


@pytest.fixture(scope="module")
def printed(vendors: TwoVendors, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of each program that ends without a restart and reads no input."""
    alone = [name for name in SHORTEST_OF_PEERS if name not in ("resume", "approval", "costs", "discount")]
    paths = [PROGRAMS / f"{name}.py" for name in (*alone, "costs", "discount")]
    told = json.loads(run(vendors, tmp_path_factory.mktemp("home"), "-c", RUNNER, *paths).printed)
    return {Path(path).stem: text for path, text in told.items()}


EXPECTED = {
    "one_shot": "A fig.\n",
    "stream": "Once upon a time.",
    "object_with_repair": "{'name': 'Bonn', 'inhabitants': 336352}\n",
    "parallel_tools": "Rain in Bonn. Rain in Oslo.\n",
    "fallback": "openai:gpt-served A fig.\n",
    "swap": "Rain in Bonn.\nRain in Oslo.\n",
}


def test_a_program_prints_what_it_should(printed: dict[str, str]) -> None:
    assert {name: printed[name] for name in EXPECTED} == EXPECTED


def test_the_swapped_provider_gets_the_history(vendors: TwoVendors, printed: dict[str, str]) -> None:
    """The other provider gets the tool's call and result in its own format, without the first provider's signed
    thinking.
    """
    assert printed["swap"]
    swapped = [json.dumps(body) for path, body in vendors.asked if path == "/v1/responses" and "tools" in body]
    assert "Rain in Bonn." in swapped[0]
    assert "c2lnbmVk" not in swapped[0]
    thinking = [body for path, body in vendors.asked if path == "/v1/messages" and "thinking" in body]
    assert len(thinking) == 2
    assert "c2lnbmVk" in json.dumps(thinking[1])


def test_the_cost_of_a_cancelled_reply_is_known(printed: dict[str, str]) -> None:
    """The output has the first words, the status, the tokens and the cost."""
    text, ending = printed["cancel"].splitlines()
    status, tokens, usd = ending.split()
    assert (text, status) == ("Once ", "cancelled")
    assert 1 <= int(tokens) < 50
    assert 0 < float(usd) < 0.001


def test_both_readers_have_the_whole_story(printed: dict[str, str]) -> None:
    told = {"early": "", "late": ""}
    for line in printed["two_readers"].splitlines():
        name, _, text = line.partition(" ")
        told[name] += text
    assert told == dict.fromkeys(("early", "late"), "Once upon a time.")


def test_progress_is_reported_after_each_batch(printed: dict[str, str]) -> None:
    """The vectors have a price."""
    *progress, end = printed["embeddings"].splitlines()
    assert progress == [f"{done} 1000" for done in range(100, 1001, 100)]
    vectors, usd = end.split()
    assert vectors == "1000"
    assert float(usd) > 0


def test_each_call_has_a_line(printed: dict[str, str]) -> None:
    (line,) = printed["live_lines"].splitlines()
    assert line.startswith("anthropic:claude-haiku-4-5 completed, 20 + 10 tokens, $0.00007")


def test_costs_and_a_discount_are_those_of_the_trace(printed: dict[str, str]) -> None:
    """The costs cover all programs that ran before."""
    rows = {model: (int(calls), float(usd)) for model, calls, usd in map(str.split, printed["costs"].splitlines())}
    assert rows["anthropic:claude-opus-4-6"] == (1, 0)
    assert rows["openai:text-embedding-3-small"][0] == 10
    assert all(usd > 0 for model, (_, usd) in rows.items() if model != "anthropic:claude-opus-4-6")
    before, after = map(float, printed["discount"].split())
    assert sum(usd for _, usd in rows.values()) == pytest.approx(before)
    of_anthropic = sum(usd for model, (_, usd) in rows.items() if model.startswith("anthropic:"))
    assert before - after == pytest.approx(of_anthropic * 0.2)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9")
def test_a_conversation_survives_kill_9(vendors: TwoVendors, tmp_path: Path) -> None:
    program = PROGRAMS / "resume.py"
    killed = run(vendors, tmp_path, "-c", KILLED, program, "My name is Ada.")
    assert killed == (-signal.SIGKILL, "You have said: My name is Ada.\n")
    assert run(vendors, tmp_path, program, "Who am I?").printed == "You have said: My name is Ada. / Who am I?\n"


def test_a_call_waits_for_its_approval_across_a_restart(vendors: TwoVendors, tmp_path: Path) -> None:
    program = PROGRAMS / "approval.py"
    assert run(vendors, tmp_path, program).printed == "awaiting_tools\n"
    assert run(vendors, tmp_path, program, answers="yes\n").printed == "pay {'euros': 30}? Paid 30 euros.\n"


# -- The length of the programs


def lines(path: Path) -> int:
    """The number of lines of code, without blank lines and comments."""
    with path.open("rb") as file:
        skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING, tokenize.ENDMARKER)
        kinds = (*skipped, tokenize.INDENT, tokenize.DEDENT)
        return len({token.start[0] for token in tokenize.tokenize(file.readline) if token.type not in kinds})


def test_none_is_longer_than_the_shortest_peer_s() -> None:
    """Each program only imports `callboard` and the standard library."""
    for name, shortest in SHORTEST_OF_PEERS.items():
        path = PROGRAMS / f"{name}.py"
        assert lines(path) <= shortest, name
        nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
        imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        imported |= {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
        assert imported - sys.stdlib_module_names == {"callboard"}, name


def test_the_page_of_the_book_has_the_programs() -> None:
    shown = {block.title: block.code for block in blocks(PAGE) if block.language == "python"}
    found = {f"examples/programs/{path.name}": path.read_text(encoding="utf-8") for path in PROGRAMS.glob("*.py")}
    assert shown == found
    assert len(found) == len(SHORTEST_OF_PEERS) == 14
