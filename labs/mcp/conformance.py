"""Runs the conformance suite of MCP, `@modelcontextprotocol/conformance` of npm, against Callboard's client.

    python -m labs.mcp.conformance FOLDER            each client scenario
    python -m labs.mcp.conformance FOLDER tools_call  these scenarios

FOLDER has the suite: `npm install --prefix FOLDER @modelcontextprotocol/conformance`. It needs Node 22;
`NODE` names the program if it is not the first on the path.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def suite(folder: Path) -> list[str]:
    """The command of the suite."""
    return [os.environ.get("NODE", "node"), str(folder / "node_modules" / ".bin" / "conformance")]


def scenarios(command: list[str]) -> list[str]:
    """The client scenarios of the suite."""
    listed = subprocess.run([*command, "list"], capture_output=True, text=True, check=True).stdout
    _, _, clients = listed.partition("Client scenarios")
    return re.findall(r"^  - (\S+)", clients, re.MULTILINE)


def passed(command: list[str], scenario: str, timeout: int = 60) -> tuple[int, int, str]:
    """How many checks of a scenario passed, of how many, and what the suite says about the others."""
    client = f"{shlex.quote(sys.executable)} -m labs.mcp.conformance_client"
    run = subprocess.run(
        [*command, "client", "--command", client, "--scenario", scenario, "--timeout", str(timeout * 1000)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=timeout + 30,
        check=False,
    )
    said = re.sub(r"\x1b\[[0-9;]*m", "", run.stdout + run.stderr)
    found = re.search(r"Passed: (\d+)/(\d+), (\d+) failed, (\d+) warnings", said)
    if found is None:
        return 0, 1, said[-2000:]
    good, total, failed, warned = map(int, found.groups())
    if run.returncode == 0 and not failed and not warned:
        return good, total, ""
    lines = [line for line in said.splitlines() if "FAILURE" in line or "WARNING" in line]
    return (good if failed or warned else 0), total, "\n".join(lines) or said[-2000:]


def main() -> int:
    command = suite(Path(sys.argv[1]))
    wanted = sys.argv[2:] or scenarios(command)
    bad = []
    checks = of = 0
    for scenario in wanted:
        good, total, faults = passed(command, scenario)
        checks, of = checks + good, of + total
        sys.stdout.write(f"{scenario}: {good}/{total}\n{faults}")
        sys.stdout.flush()
        if faults:
            sys.stdout.write("\n")
            bad.append(scenario)
    sys.stdout.write(f"{len(wanted) - len(bad)} of {len(wanted)} scenarios, {checks} of {of} checks\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
