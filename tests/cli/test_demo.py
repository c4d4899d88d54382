"""`callboard demo`, from its first heading to its last."""

from __future__ import annotations

import importlib.util
import re
import signal
from pathlib import Path

import pytest

from callboard.adapters.providers.local import find_model

from .running import call, read_until, start

has_model = find_model() is not None and importlib.util.find_spec("xllamacpp") is not None
on_the_model = pytest.mark.skipif(not has_model, reason="the local model is not installed")

HEADINGS = (
    "One session, three wire protocols, one history",
    "A structured object",
    "A tool round, emulated",
    "The trace",
    "The same calls under other prices",
    "And everything stops, in order",
    "Next",
)


def check_showing(out: str) -> None:
    """What every showing has, on the model or on recordings."""
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
    assert "\x1b" not in out, "no control codes in a pipe"


def test_the_demo_on_recordings_shows_every_step_and_leaves_a_trace(home: Path) -> None:
    """The committed cassettes are those of the demo's script; its trace can be queried and repriced."""
    done = call("demo", "--cassettes", home=home, exits=0)
    assert done.stderr == ""
    check_showing(done.stdout)
    assert "Recorded replies, as asked for" in done.stdout
    (query,) = re.findall(r"(traces --db \S+)", done.stdout)
    assert "6 calls" in call(*query.split(), home=home).stdout
    (reprice,) = re.findall(r"(reprice --db .*)", done.stdout)
    back = call(*reprice.split(), home=home, exits=0)
    assert "example prices, first version" in back.stdout


def test_each_demo_begins_a_trace_of_its_own_unless_told_to_keep(home: Path) -> None:
    """A host's trace file beside it is never touched."""
    (home / "trace.db").write_text("somebody's")
    for options, calls in (([], 6), ([], 6), (["--keep"], 12)):
        done = call("demo", "--cassettes", *options, home=home, exits=0)
        check_showing(done.stdout)
        trace = call("traces", "--json", "--db", str(home / "demo-trace.db"), home=home)
        assert len(trace.stdout.splitlines()) == calls
    assert (home / "trace.db").read_text() == "somebody's"


def test_without_the_model_the_demo_says_so_and_runs_on_recordings(home: Path) -> None:
    """A machine for which there is no wheel still sees everything."""
    done = call("demo", home=home, without="xllamacpp", exits=0)
    assert "is not installed" in done.stdout or "no weights found" in done.stdout
    assert "Recorded replies, since the model can't run here" in done.stdout
    check_showing(done.stdout)


def test_an_interrupted_demo_ends_quietly(home: Path) -> None:
    """Ctrl-C ends it with 130, no traceback, and a trace file that can be read."""
    with start("demo", "--cassettes", home=home) as process:
        read_until(process, "session.turn_started")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=40)
    assert process.returncode in (0, 130)  # 0 if it was quicker
    assert err == b""
    call("traces", home=home, exits=0)


@on_the_model
@pytest.mark.timeout(300)
def test_the_demo_on_the_model_shows_every_step(home: Path) -> None:
    """The real server, started and stopped; what it says is its own affair."""
    done = call("demo", home=home, exits=0)
    check_showing(done.stdout)
    assert "A model on this machine" in done.stdout
