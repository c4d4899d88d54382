"""`callboard web`: its pages, its output, and the addresses that it refuses."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from .running import call, start

ADDRESS = re.compile(r"(http://\S+)/#token=(\S+)")


@contextmanager
def serving(home: Path, *words: str) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    """Run the command. Yield its address, its token and its process, and interrupt the process at the end."""
    more = {"COLUMNS": "200"}
    with start("web", "--port", "0", *words, home=home, more=more, text=True, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        seen = ""
        try:
            for line in process.stdout:
                seen += line
                if found := ADDRESS.search(line):
                    yield found[1], found[2], process
                    return
            raise AssertionError(seen)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(20)


@contextmanager
def signed_in(address: str, token: str) -> Iterator[httpx.Client]:
    """A browser that has opened the printed address."""
    with httpx.Client(base_url=f"{address}/", timeout=20) as client:
        assert client.post("api/sign-in", json={"token": token}).status_code == 200
        client.headers["x-callboard-csrf"] = client.get("api/me").json()["csrf"]
        yield client


def test_the_default_trace_is_shown_with_an_engine(traced: Path) -> None:
    """The command listens on this machine only."""
    with serving(traced) as (address, token, process):
        assert address.startswith("http://127.0.0.1:")
        with signed_in(address, token) as client:
            me = client.get("api/me").json()
            assert (me["engine"], me["trace"].endswith("trace.db")) == (True, True)
            assert me["scopes"] == ["change", "content", "view"]
            assert len(client.get("api/calls").json()) == 3
            assert client.get("", headers={"host": "evil.example"}).status_code == 403
        assert "another browser" in process.stdout.readline()
        second = ADDRESS.search(process.stdout.readline())
        assert second[2] != token
        with signed_in(address, second[2]):
            pass
        port = address.rpartition(":")[2]
        done = call("web", "--port", port, "--db", str(traced / "trace.db"), home=traced, exits=2)
        assert port in done.stderr
    assert process.returncode in (0, 130)


def test_a_trace_of_another_process_is_shown(traced: Path) -> None:
    """With `--db` there is no engine. With `--view-only` a change is refused. An interrupt ends the open pages."""
    with serving(traced, "--db", str(traced / "trace.db"), "--view-only") as (address, token, process):
        with signed_in(address, token) as client:
            me = client.get("api/me").json()
            assert (me["engine"], me["scopes"]) == (False, ["content", "view"])
            assert len(client.get("api/calls").json()) == 3
            assert client.post("api/undo", json={}).status_code == 403
            with client.stream("GET", "api/now") as frames:
                lines = frames.iter_lines()
                while not next(lines).startswith("data:"):
                    pass
                process.send_signal(signal.SIGINT)
                for _ in lines:
                    pass
        assert process.wait(20) in (0, 130)
        rest = process.stdout.read()
        assert "Traceback" not in rest
        assert "ERROR" not in rest


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_can_connect_only_if_an_option_allows_it(address: str, home: Path) -> None:
    """The refusal names the option that allows it."""
    done = call("web", "--bind", address, home=home, exits=2)
    assert "--allow-network" in done.stderr


def test_a_missing_trace_is_refused(home: Path) -> None:
    """No server starts, and no file is created."""
    done = call("web", "--db", str(home / "nothing.db"), home=home, exits=1)
    assert "nothing.db" in done.stderr
    assert not (home / "nothing.db").exists()
