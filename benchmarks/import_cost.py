"""What importing Callboard costs, in CPU time above the standard library's own floor, in one run.

    python benchmarks/import_cost.py [RUNS]

The floor is ``import asyncio, sqlite3, json, ssl``, which any asynchronous program with a database paid already.
Each figure is the least of RUNS fresh interpreters, taken in turn, so that a noisy machine disturbs all alike. The
limit that the project sets itself for ``import engine`` is 80 ms.
"""

from __future__ import annotations

import os
import subprocess
import sys

FLOOR = "import asyncio, sqlite3, json, ssl"
IMPORTS = ("import anyio, msgspec", "import bus", "import adapters", "import tracestore", "import engine")


def cpu_ms(statements: str) -> float:
    """CPU milliseconds of the statements in a fresh interpreter, byte code cached."""
    code = f"import time; a = time.process_time(); {statements}; print(time.process_time() - a)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    return float(done.stdout) * 1000


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    best: dict[str, float] = {}
    for _ in range(runs):
        for statement in ("pass", *IMPORTS):
            spent = cpu_ms(f"{FLOOR}; {statement}")
            best[statement] = min(best.get(statement, spent), spent)
    floor = best.pop("pass")
    print(f"{'floor: ' + FLOOR:45}{floor:7.1f} ms")
    for statement, spent in best.items():
        print(f"{statement:45}{spent - floor:+7.1f} ms")


if __name__ == "__main__":
    main()
