"""`callboard replay`, on files that a real engine left."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.support.present import present

from .running import PATIENCE_SECONDS, call, start


def test_replay_prints_every_event_in_order(traced: Path) -> None:
    """With the seconds since the first, and the same few words as the demo."""
    done = call("replay", home=traced, without="rich", exits=0)
    lines = done.stdout.splitlines()
    assert re.match(r" +0\.000  \S+", lines[0])
    topics = [line.split()[1] for line in lines[:-2]]
    started, completed = topics.index("llm.call_started"), topics.index("llm.call_completed")
    assert topics.index("session.created") < topics.index("session.turn_started") < started < completed
    assert any(re.search(r"llm\.call_completed +10 in, 5 out +\$0\.000003000", line) for line in lines)
    assert lines[-1].startswith(f"{len(topics)} events, from ")


def test_replay_as_json_is_one_whole_envelope_a_line_and_needs_no_rich(traced: Path) -> None:
    """Programs get every id, and seq in order."""
    done = call("replay", "--json", "--session", "ses_under_test", home=traced, without="rich", exits=0)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["session_id"] for row in rows} == {"ses_under_test"}
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    (run_id,) = {row["run_id"] for row in rows}
    same = call("replay", "--json", "--run", run_id, "--topic", "llm.*", "--speed", "1000", home=traced)
    assert [json.loads(line) for line in same.stdout.splitlines()] == [
        row for row in rows if row["topic"].startswith("llm.")
    ]


@pytest.mark.parametrize(
    ("options", "topics"),
    [
        (("--topic", "llm.call_failed"), ["llm.call_failed"]),
        (("--topic", "llm.call_failed", "--topic", "*.created"), ["session.created", "llm.call_failed"]),
        (("--session", "ses_other"), []),
        (("--until", "2020-01-01"), []),
    ],
)
def test_replay_shows_only_what_the_filters_leave(
    traced: Path, options: tuple[str, ...], topics: list[str]
) -> None:
    """An empty answer is no failure."""
    done = call("replay", "--json", *options, home=traced, exits=0)
    assert [json.loads(line)["topic"] for line in done.stdout.splitlines()] == topics


@pytest.mark.parametrize(
    "options", [("--topic", "llm.call*"), ("--speed", "-1"), ("--speed", "nan"), ("--longest-pause", "-1")]
)
def test_replay_badly_asked_says_so(traced: Path, options: tuple[str, ...]) -> None:
    """Exit code 2, as for every command, and no traceback."""
    done = call("replay", *options, home=traced, exits=2)
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_a_slow_replay_shows_each_event_when_it_comes_and_can_be_interrupted(traced: Path) -> None:
    """A hundred thousand times slower than it was, the first line is there at once."""
    with start("replay", "--speed", "0.00001", home=traced) as process:
        assert present(process.stdout).readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert present(process.stderr).read() == b""
