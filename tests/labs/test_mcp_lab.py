"""A small part of the MCP lab. With Node and its packages, also the protocol's own conformance suite.

`CALLBOARD_NPM` names a folder with `@modelcontextprotocol/conformance` and the reference servers in its
`node_modules` (see `labs/mcp`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs callboard[mcp]")

from labs.mcp import __main__ as lab
from labs.mcp.conformance import passed, reason, scenarios, suite, target

NPM = os.environ.get("CALLBOARD_NPM")

needs_npm = pytest.mark.skipif(NPM is None, reason="CALLBOARD_NPM names no folder with the judges of npm")


def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, npm: str | None) -> None:
    monkeypatch.setattr(lab, "ROUND_SECONDS", 1.0)
    options = argparse.Namespace(npm=npm, time=None)
    counts, failures = asyncio.run(lab.round_of(1, options, tmp_path.resolve()))
    assert failures == []
    assert counts["kills"] > 0
    assert counts["restarts"] > 0


@pytest.mark.deep("kills servers of the tests at random")
def test_killed_servers_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path, monkeypatch, None)


@needs_npm
def test_killed_reference_servers_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played(tmp_path, monkeypatch, NPM)


@needs_npm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["client", "http"])
def test_the_client_and_the_server_pass_the_conformance_suite(kind: str) -> None:
    """Each scenario that applies passes. One scenario of version 0.1.16 contradicts RFC 8414, and later versions
    fix it.
    """
    command = suite(Path(str(NPM)))
    contradicts = {"auth/2025-03-26-oauth-metadata-backcompat"}
    with target(kind) as tested:
        applies = [name for name in scenarios(command, tested.words[0]) if reason(name, tested) is None]
        failed = {name: faults for name in applies if (faults := passed(command, tested, name)[2])}
    assert applies
    assert failed.keys() <= contradicts, failed
