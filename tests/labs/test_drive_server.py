"""The checks of `labs.drive_server` on a running server, and the comparison of plain and streamed replies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from labs.drive_server import Outcome, faults_of
from tests.support.reply_server import reply_server

ROOT = Path(__file__).parents[2]


def test_a_running_server_is_driven_whole_and_streamed() -> None:
    """The output has a line with the usage for each protocol, and the plain and streamed replies agree."""
    with reply_server(3, None) as url:
        command = [sys.executable, "-m", "labs.drive_server", url, "--model", "bench", "--only", "plain"]
        command += ["--protocol", "chat", "messages", "responses"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    lines = done.stdout.splitlines()
    assert lines[0] == "plain: all agree"
    for protocol in ("chat", "messages", "responses"):
        assert any(protocol in line and "ok" in line and "end_turn 900+120 reported" in line for line in lines)
    assert done.returncode == 0


def test_a_plain_and_a_streamed_reply_that_differ_are_a_fault() -> None:
    """Replies are compared by stop reason and input tokens. Missing input tokens are not compared."""
    whole = Outcome("", "Hi", ("end_turn", 7))
    assert faults_of(whole, Outcome("", "Hi", ("end_turn", 7))) == []
    assert faults_of(whole, Outcome("", "Hi", ("end_turn", None))) == []
    for other in (("end_turn", 8), ("max_tokens", 7), ("ServerError",)):
        (fault,) = faults_of(whole, Outcome("", "Hi", other))
        assert fault.endswith("differ")
    assert faults_of(Outcome("", "", (), "it hung"), whole) == ["whole: it hung"]


def test_a_closed_port_is_an_error_but_no_fault() -> None:
    """Both calls fail with the same AdapterError, so they agree."""
    words = ["-m", "labs.drive_server", "http://127.0.0.1:9", "--model", "x", "--only", "plain"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, check=False)
    assert "NetworkError" in done.stdout
    assert done.returncode == 0
