"""`callboard background` finds the reply of a program that was killed, and reads it to its end."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.background_server import WORDS, BackgroundServer, background_server
from tests.support.programs import ended

from .running import call

MODELS = """
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
def server() -> Iterator[BackgroundServer]:
    with background_server(0.01) as running:
        yield running


def test_a_killed_programs_reply_is_listed_and_read(server: BackgroundServer, tmp_path: Path) -> None:
    """It enters its session; then nothing is open any more."""
    (tmp_path / "models.yaml").write_text(MODELS.format(url=server.url))
    killed = ended(KILLED, server.url, tmp_path / "trace.db")
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
    assert len(server.books()["made"]) == 1
