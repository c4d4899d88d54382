"""`callboard demo`, from its first heading to its last, and `callboard replay`."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
from pathlib import Path

import pytest

from callboard.adapters.providers.local import find_model
from tests.support.present import present

from .running import PATIENCE_SECONDS, call, read_until, start

has_model = find_model() is not None and importlib.util.find_spec("xllamacpp") is not None
on_the_model = pytest.mark.skipif(not has_model, reason="the local model is not installed")

HEADINGS = (
    "One session, three wire protocols, one history",
    "A structured object",
    "A tool round, emulated",
    "The trace",
    "The same calls under other prices",
    "The engine stops",
    "Next",
)


def check_showing(out: str) -> None:
    """Check the parts that every demo has, with the model or with recordings."""
    places = [out.find(heading) for heading in HEADINGS]
    assert -1 not in places, out
    assert places == sorted(places)
    for model in ("local-chat", "local-messages", "local-responses"):
        assert re.search(rf"^{model} +\S", out, re.MULTILINE), f"no reply over {model}"
        assert re.search(rf"^ +\d +{model}:smollm2 +1 .* \$0\.0000\d+$", out, re.MULTILINE), f"no trace of {model}"
    for topic in ("actor.started", "llm.call_started", "llm.call_completed", "session.turn_completed"):
        assert topic in out
    assert re.search(r"^decoded +Person\(name=", out, re.MULTILINE)
    assert re.search(r"^the tool +Oslo: 4 degrees", out, re.MULTILINE)
    assert "example prices" in out
    assert re.search(r"^all +6 +\$\S+ +\$\S+ +[+-]\$", out, re.MULTILINE)
    assert len(re.findall(r"^as if on \S+ +\$", out, re.MULTILINE)) == 2
    assert "\x1b" not in out, "a pipe must get no control codes"


def test_the_demo_on_recordings_shows_every_step_and_leaves_a_trace(home: Path) -> None:
    """The committed cassettes fit the demo's script."""
    (home / "trace.db").write_text("somebody's")
    for options, calls in (([], 6), ([], 6), (["--keep"], 12)):
        done = call("demo", "--cassettes", *options, home=home, exits=0)
        assert done.stderr == ""
        check_showing(done.stdout)
        assert "Recorded replies, as requested" in done.stdout
        (query,) = re.findall(r"(traces --db \S+)", done.stdout)
        assert f"{calls} calls" in call(*query.split(), home=home).stdout
    (reprice,) = re.findall(r"(reprice --db .*)", done.stdout)
    assert "example prices, first version" in call(*reprice.split(), home=home, exits=0).stdout
    assert (home / "trace.db").read_text() == "somebody's"


def test_without_the_model_the_demo_runs_on_recordings(home: Path) -> None:
    done = call("demo", home=home, without="xllamacpp", exits=0)
    assert "is not installed" in done.stdout or "no weights found" in done.stdout
    assert "Recorded replies, because the model can't run here" in done.stdout
    check_showing(done.stdout)


def test_an_interrupted_demo_ends_quietly(home: Path) -> None:
    with start("demo", "--cassettes", home=home) as process:
        read_until(process, "session.turn_started")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=40)
    assert process.returncode in (0, 130)  # The demo ended before the signal.
    assert err == b""
    call("traces", home=home, exits=0)


@pytest.mark.deep("the local model")
@on_the_model
@pytest.mark.timeout(300)
def test_the_demo_on_the_model_shows_every_step(home: Path) -> None:
    """The real server starts and stops. The test does not check the words of the model."""
    done = call("demo", home=home, exits=0)
    check_showing(done.stdout)
    assert "A model on this machine" in done.stdout


# -- `callboard replay`, on the trace files of a real engine.


def test_replay_prints_every_event_in_order(traced: Path) -> None:
    """Each line has the seconds since the first event. The summary is the same as in the demo."""
    done = call("replay", home=traced, without="rich", exits=0)
    lines = done.stdout.splitlines()
    assert re.match(r" +0\.000  \S+", lines[0])
    topics = [line.split()[1] for line in lines[:-2]]
    started, completed = topics.index("llm.call_started"), topics.index("llm.call_completed")
    assert topics.index("session.created") < topics.index("session.turn_started") < started < completed
    assert any(re.search(r"llm\.call_completed +10 in, 5 out +\$0\.000003000", line) for line in lines)
    assert lines[-1].startswith(f"{len(topics)} events, from ")


def test_replay_as_json_is_one_envelope_a_line_and_needs_no_rich(traced: Path) -> None:
    done = call("replay", "--json", "--session", "ses_under_test", home=traced, without="rich", exits=0)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["session_id"] for row in rows} == {"ses_under_test"}
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    (run_id,) = {row["run_id"] for row in rows}
    same = call("replay", "--json", "--run", run_id, "--topic", "llm.*", "--speed", "1000", home=traced)
    assert [json.loads(line) for line in same.stdout.splitlines()] == [
        row for row in rows if row["topic"].startswith("llm.")
    ]


def test_replay_shows_only_the_filtered_events(traced: Path) -> None:
    for options, topics in (
        (("--topic", "llm.call_failed"), ["llm.call_failed"]),
        (("--topic", "llm.call_failed", "--topic", "*.created"), ["session.created", "llm.call_failed"]),
        (("--session", "ses_other"), []),
        (("--until", "2020-01-01"), []),
    ):
        done = call("replay", "--json", *options, home=traced, exits=0)
        assert [json.loads(line)["topic"] for line in done.stdout.splitlines()] == topics
    for wrong in ("--topic llm.call*", "--speed -1", "--speed nan", "--longest-pause -1"):
        assert call("replay", *wrong.split(), home=traced, exits=2).stderr


def test_a_slow_replay_shows_events_immediately_and_can_be_interrupted(traced: Path) -> None:
    with start("replay", "--speed", "0.00001", home=traced) as process:
        assert present(process.stdout).readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert present(process.stderr).read() == b""
