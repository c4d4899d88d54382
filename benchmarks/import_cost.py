"""What importing Callboard costs, in CPU time above the standard library's own floor, in one run.

    python benchmarks/import_cost.py [RUNS]

The floor is ``import asyncio, sqlite3, json, ssl``, which any asynchronous program with a database paid already.
Each figure is the least of RUNS fresh interpreters, taken in turn, so that a noisy machine disturbs all alike. The
limit that the project sets itself for the names of ``engine`` that most programs import is 80 ms. Also the subject
``import`` of ``python -m benchmarks``.
"""

from __future__ import annotations

import os
import subprocess
import sys

FLOOR = "import asyncio, sqlite3, json, ssl"
ENGINE = "from engine import Engine, generate, stream"
"""What most programs name; `import engine` alone imports next to nothing."""
IMPORTS = (
    "import anyio, msgspec",
    "from bus import Actor, Bus, Supervisor",
    "import adapters",
    "import tracestore",
    ENGINE,
)
GATE_MS = 80


def cpu_ms(statements: str) -> float:
    """CPU milliseconds of the statements in a fresh interpreter, byte code cached."""
    code = f"import time; a = time.process_time(); {statements}; print(time.process_time() - a)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    return float(done.stdout) * 1000


def least(runs: int) -> dict[str, float]:
    """By statement, and ``pass`` for the floor alone."""
    best: dict[str, float] = {}
    for _ in range(runs):
        for statement in ("pass", *IMPORTS):
            spent = cpu_ms(f"{FLOOR}; {statement}")
            best[statement] = min(best.get(statement, spent), spent)
    return best


def rows(quick: bool) -> list[tuple[str, str, str, float, str, bool | None]]:
    best = least(1 if quick else 15)
    floor = best.pop("pass")
    found: list[tuple[str, str, str, float, str, bool | None]] = []
    for statement, spent in best.items():
        gate = f"≤ +{GATE_MS} ms" if statement == ENGINE else ""
        met = spent - floor <= GATE_MS if gate else None
        found.append((statement, f"{spent - floor:+.1f} ms", f"{floor:.1f} ms", spent / floor, gate, met))
    return found


def main() -> None:
    best = least(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
    floor = best.pop("pass")
    print(f"{'floor: ' + FLOOR:45}{floor:7.1f} ms")
    for statement, spent in best.items():
        print(f"{statement:45}{spent - floor:+7.1f} ms")


if __name__ == "__main__":
    main()
