"""`callboard batch` reads and writes JSON lines. Each command is a separate process."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.background_server import WORDS, BackgroundServer, background_server
from tests.support.batch_server import BatchServer, batch_server
from tests.support.programs import ended

from .running import call

MODELS = """
adapters:
  openai: {{type: openai, api_key: a-secret-key, base_url: "{url}"}}
models:
  "openai:gpt-5-mini": {{adapter: openai, aliases: [mini]}}
"""

REQUESTS = """\
{"id": "a", "prompt": "one", "system": "Be brief."}

{"id": "b", "messages": [{"role": "user", "content": "fail"}]}
{"id": "c", "prompt": "half", "max_tokens": 20}
{"prompt": "three"}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BatchServer]:
    with batch_server(tmp_path) as running:
        yield running


@pytest.fixture
def home(tmp_path: Path, server: BatchServer) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "models.yaml").write_text(MODELS.format(url=server.url))
    (tmp_path / "requests.jsonl").write_text(REQUESTS)
    return folder


def test_a_batch_is_submitted_listed_awaited_and_read(server: BatchServer, home: Path, tmp_path: Path) -> None:
    """The commands share only the trace. A second submit with the same id sends nothing."""
    file = str(tmp_path / "requests.jsonl")
    for _ in range(2):
        done = call("batch", "submit", file, "--model", "mini", "--id", "night", home=home)
        assert (done.returncode, done.stdout) == (0, "night\n"), done.stderr
    assert len(server.books()["jobs"]) == 1
    done = call("batch", "wait", "night", "--every", "0.01", home=home)
    assert done.returncode == 1, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["id"] for result in results] == ["a", "b", "c", "night-3"]
    assert [result.get("text") for result in results] == [
        "answer to one",
        None,
        "answer to half",
        "answer to three",
    ]
    assert results[1]["error_type"] == "InvalidRequestError"
    assert results[1]["cost_nano_usd"] == 0
    assert all(result["cost_nano_usd"] > 0 for result in results if "text" in result)
    assert "3 answers, 1 error" in done.stderr
    again = call("batch", "results", "night", home=home)
    assert again.stdout == done.stdout
    (listed,) = [json.loads(line) for line in call("batch", "list", "--json", home=home).stdout.splitlines()]
    assert (listed["id"], listed["status"], listed["counted"]) == ("night", "completed", True)
    rows = call("traces", "--json", home=home).stdout.splitlines()
    assert sorted(json.loads(row)["operation"] for row in rows) == ["batch"] * 4 + ["batch_create"]


def test_a_batch_is_cancelled(server: BatchServer, home: Path, tmp_path: Path) -> None:
    """Requests that were answered before the cancellation keep their results."""
    file = str(tmp_path / "requests.jsonl")
    batch_id = call("batch", "submit", file, "--model", "mini", home=home).stdout.strip()
    server.fail("lose look")  # A resume looks up the job first. A failure of this request must not end the job.
    done = call("batch", "cancel", batch_id, home=home)
    assert done.returncode == 1
    done = call("batch", "cancel", batch_id, home=home)
    assert done.returncode == 0, done.stderr
    done = call("batch", "wait", batch_id, "--every", "0.01", home=home)
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result.get("error_type") for result in results] == [
        None,
        "InvalidRequestError",
        None,
        "CancelledError",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "line 1 is not a request"),
        ('{"prompt": "x", "promt": "y"}', "promt"),
        ('{"prompt": "x", "messages": []}', "not both"),
        ("", "no requests"),
    ],
)
def test_lines_that_are_no_requests_are_refused(home: Path, line: str, said: str) -> None:
    done = call("batch", "submit", "-", "--model", "mini", home=home, said=line)
    assert done.returncode != 0
    assert said in done.stderr


# -- `callboard background` finds the reply of a killed program, and reads it to its end.

BACKGROUND_MODELS = """
adapters:
  openai: {{type: openai, api_key: a-secret-key, base_url: "{url}", options: {{quirks: openai}}}}
models:
  "openai:gpt-5.2": {{adapter: openai}}
"""

KILLED = """
    import sys
    import anyio
    from tests.support.background_engines import die_in_a_turn

    anyio.run(die_in_a_turn, *sys.argv[1:], "streamed", "TextDelta")
"""


@pytest.fixture(scope="module")
def background() -> Iterator[BackgroundServer]:
    with background_server(0.01) as running:
        yield running


def test_a_killed_programs_reply_is_listed_and_read(background: BackgroundServer, tmp_path: Path) -> None:
    """The reply is stored in its session. Afterwards no background reply is open."""
    (tmp_path / "models.yaml").write_text(BACKGROUND_MODELS.format(url=background.url))
    killed = ended(KILLED, background.url, tmp_path / "trace.db")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = call("background", "list", "--json", home=tmp_path)
    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["session"], line["model"]) == ("s1", "openai:gpt-5.2")
    done = call("background", "read", line["id"], home=tmp_path)
    assert (done.returncode, done.stdout.rstrip("\n")) == (0, WORDS), done.stderr
    assert WORDS in call("sessions", "s1", home=tmp_path).stdout
    done = call("background", "read", home=tmp_path)
    assert done.returncode != 0
    assert "background list" in done.stderr
    assert len(background.books()["made"]) == 1
