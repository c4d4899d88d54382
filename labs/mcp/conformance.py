"""Runs the conformance suite of MCP, `@modelcontextprotocol/conformance` of npm, against Callboard.

    python -m labs.mcp.conformance FOLDER client               each client scenario, against `mcp_servers`
    python -m labs.mcp.conformance FOLDER http                 each server scenario, against `mcp_service`
    python -m labs.mcp.conformance FOLDER cli                  against `callboard serve-mcp --http`
    python -m labs.mcp.conformance FOLDER stdio                against `callboard serve-mcp`, over a bridge
    python -m labs.mcp.conformance FOLDER client tools_call    only these scenarios

FOLDER has the suite: `npm install --prefix FOLDER @modelcontextprotocol/conformance`. It needs Node 22;
`NODE` names the program if it is not the first on the path. Scenarios that do not apply are listed with the
reason.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .conformance_server import TOOLS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}

VERSIONS = ("2025-11-25", "2026-07-28")
"""The versions of the protocol at which a scenario runs, if it has both: with and without a session."""

NO_QUESTIONS = (
    "a served tool asks the client for approvals only. With other questions it would run again from its start for "
    "each answer, in the newest protocol. It uses the engine in place of sampling"
)
NO_LOG = "a served tool reports progress. It has no log messages for clients, and the server offers no logging"
NO_OFFERS = (
    "the command serves tools that stay the same. `mcp_service` serves resources, prompts, and lists that change"
)
NO_EXTENSION = "an extension of the protocol that is not offered"
HTTP_ONLY = "it tests HTTP"

NOT_APPLICABLE = {
    r"tools-call-(sampling|elicitation)|elicitation-.*": NO_QUESTIONS,
    r"input-required-result-(?!unsupported-methods).*": NO_QUESTIONS,
    r"sep-2575-server-rejects-undeclared-capability|sep-2575-missing-capability-http-400": NO_QUESTIONS,
    r"logging-set-level|tools-call-with-logging": NO_LOG,
    r"server-sse-polling|server-sse-priming-event|server-sse-retry-field": (
        "a client that loses its connection calls again. The server stores no events to resume from"
    ),
    r"tasks-.*|sep-2640-.*": NO_EXTENSION,
}
"""Scenarios and checks of servers by the reason why they do not apply."""

OF_CLIENTS = {r"sep-2640-.*|auth/dpop.*|auth/wif-.*": NO_EXTENSION}
"""The same for clients. The client library supports neither DPoP nor workload identity federation."""

OF_OFFERS = r"resources-.*|prompts-.*|completion-.*|sep-2164-.*|sep-2549-(resources|prompts)-.*|.*-list-changed-.*"
OF_HTTP = r"dns-.*|server-sse-.*|server-session-.*|server-stateless|http-.*"


class Target(NamedTuple):
    """The program under test."""

    words: list[str]
    """The arguments of the suite that name it."""
    versions: tuple[str, ...] = ("",)
    not_applicable: dict[str, str] = NOT_APPLICABLE


def suite(folder: Path) -> list[str]:
    """The command of the suite."""
    return [os.environ.get("NODE", "node"), str(folder / "node_modules" / ".bin" / "conformance")]


def scenarios(command: list[str], role: str) -> dict[str, str]:
    """The scenarios of a client or of a server, with the versions of the protocol that have them."""
    listed = subprocess.run([*command, "list"], capture_output=True, text=True, check=True).stdout
    of_role = listed.partition(f"{role.capitalize()} scenarios")[2].partition("scenarios (")[0]
    return dict(re.findall(r"^  - (\S+)(?: \[(.*)\])?", of_role, re.MULTILINE))


@contextmanager
def target(kind: str) -> Iterator[Target]:
    """The client's command, or a server that runs meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    names = [getattr(each, "__name__", None) or getattr(each, "name", "") for each in TOOLS]
    served = [word for name in names for word in ("-T", f"labs/mcp/conformance_server.py:{name}")]
    python = [sys.executable, "-m"]
    limits = dict(NOT_APPLICABLE)
    match kind:
        case "client":
            command = shlex.join([*python, "labs.mcp.conformance_client"])
            yield Target(["client", "--command", command], not_applicable=OF_CLIENTS)
            return
        case "http":
            command = [*python, "labs.mcp.conformance_server", str(port)]
        case "cli":
            command = [*python, "callboard", "serve-mcp", "--http", "--port", str(port), *served]
            limits[OF_OFFERS] = NO_OFFERS
        case _:
            command = [
                *python,
                "labs.mcp.conformance_bridge",
                str(port),
                *python,
                "callboard",
                "serve-mcp",
                *served,
            ]
            limits[OF_OFFERS] = NO_OFFERS
            limits[OF_HTTP] = HTTP_ONLY
    url = f"http://127.0.0.1:{port}/mcp"
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as server:
        try:
            _wait(port, server)
            yield Target(["server", "--url", url], VERSIONS[: 1 if kind == "stdio" else 2], limits)
        finally:
            server.terminate()


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server accepts connections."""
    while server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise SystemExit("the server has ended")


def reason(name: str, tested: Target) -> str | None:
    """Why a scenario or a check does not apply; None if it does."""
    found = (why for pattern, why in tested.not_applicable.items() if re.fullmatch(pattern, name))
    return next(found, None)


def passed(
    command: list[str], tested: Target, scenario: str, version: str = "", timeout: int = 180
) -> tuple[int, int, str]:
    """How many checks of a scenario passed, of how many, and what the suite says about the others."""
    words = [*tested.words, "--scenario", scenario, *(["--spec-version", version] if version else [])]
    if tested.words[0] == "client":
        words += ["--timeout", str(timeout * 1000)]
    try:
        run = subprocess.run(
            [*command, *words],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=ENVIRONMENT,
            timeout=timeout + 30,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 0, 1, f"  not done in {timeout + 30} s"
    output = re.sub(r"\x1b\[[0-9;]*m", "", run.stdout + run.stderr)
    found = re.search(r"Passed: (\d+)/(\d+), (\d+) failed, (\d+) warnings", output)
    if found is None:
        return 0, 1, output[-2000:]
    good, total, failed, warned = map(int, found.groups())
    bad = dict(re.findall(r"\[(\S+) *\] (?:FAILURE|WARNING) (.*)", output))
    left_out = [name for name in bad if reason(name, tested) is not None]
    lines = [f"  {name}: {why}" for name, why in bad.items() if name not in left_out]
    if not lines and (failed or warned or run.returncode) and not left_out:
        return (good if failed or warned else 0), total, output[-2000:]
    return good, total - min(len(left_out), failed), "\n".join(lines)


def main() -> int:
    command = suite(Path(sys.argv[1]))
    kind, selected = sys.argv[2], sys.argv[3:]
    bad: list[str] = []
    left_out: dict[str, str] = {}
    runs = checks = of = 0
    with target(kind) as tested:
        scenario_levels = scenarios(command, tested.words[0])
        for scenario in selected or scenario_levels:
            if why := reason(scenario, tested):
                left_out[scenario] = why
                continue
            has = scenario_levels.get(scenario, "")
            versions = [each for each in tested.versions if each in has]
            if kind == "stdio" and not versions:
                left_out[scenario] = "the bridge carries sessions only"
                continue
            for version in versions or [""]:
                good, total, faults = passed(command, tested, scenario, version)
                runs, checks, of = runs + 1, checks + good, of + total
                sys.stdout.write(f"{scenario} {version}: {good}/{total}\n{faults}{chr(10) if faults else ''}")
                sys.stdout.flush()
                if faults:
                    bad.append(scenario)
    for scenario, why in left_out.items():
        sys.stdout.write(f"{scenario} does not apply: {why}\n")
    sys.stdout.write(f"{runs - len(bad)} of {runs} runs of scenarios, {checks} of {of} checks\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
