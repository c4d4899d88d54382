"""The CPU time of a start, in new interpreters with cached byte code.

The floor of an import is the standard library's modules, which any asynchronous program with a database imports.
*First answer* is a process that imports, opens its files and gets one answer from a local server, with an existing
or a new trace file. Its floor does the same with raw httpx and msgspec. Each figure is the minimum of several
processes, which alternate.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.reply_server import reply_server

from .table import Row

FLOOR = "import asyncio, sqlite3, json, ssl"
ENGINE = "from callboard import Engine, generate, stream"
"""The names that most programs import; `import callboard` alone imports almost nothing."""
IMPORTS = (
    "import anyio, msgspec",
    "from callboard.bus import Actor, Bus, Supervisor",
    "import callboard.adapters",
    "import callboard.tracestore",
    ENGINE,
)
IMPORT_GATE_MS = 64
ANSWER_GATE_MS = 250

MODELS = """
adapters: {{chat: {{type: openai_compatible, base_url: "{url}/v1", api_key_env: BENCHMARK_KEY}}}}
models: {{"chat:m": {{adapter: chat}}}}
default_model: "chat:m"
"""
RAW = """
import asyncio, os
import httpx, msgspec

async def main():
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    async with httpx.AsyncClient(timeout=60) as client:
        url = os.environ["BENCHMARK_URL"] + "/v1/chat/completions"
        headers = {"content-type": "application/json"}
        reply = await client.post(url, content=msgspec.json.encode(body), headers=headers)
        return msgspec.json.decode(reply.content)["choices"][0]["message"]["content"]

assert asyncio.run(main())
"""
ANSWERS = {
    "generate_sync": """
from callboard import generate_sync

assert generate_sync("chat:m", "Hello").text
""",
    "Engine, a session": """
import asyncio
from callboard import Engine

async def main():
    async with Engine() as engine:
        return (await engine.session("chat:m").send("Hello")).text

assert asyncio.run(main())
""",
}
TELL = "\nimport time\nprint(time.process_time())"


def cpu_ms(program: str, environment: Mapping[str, str]) -> float:
    """The CPU milliseconds of a process up to the end of its program."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", program + TELL],
        capture_output=True,
        text=True,
        env={**variables, **environment},
        check=True,
    )
    return float(done.stdout.split()[-1]) * 1000


def rows(quick: bool) -> list[Row]:
    with reply_server(5) as url, tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as homes:
        environment = {"CALLBOARD_HOME": home, "BENCHMARK_KEY": "x", "BENCHMARK_URL": url}
        programs = {"pass": FLOOR, **{name: f"{FLOOR}\n{name}" for name in IMPORTS}, "raw": RAW, **ANSWERS}
        Path(home, "models.yaml").write_text(MODELS.format(url=url))
        best: dict[str, float] = {}
        for turn in range(1 if quick else 11):
            for name, program in programs.items():
                _keep(best, name, cpu_ms(program, environment))
            new = Path(homes, str(turn))
            new.mkdir()
            (new / "models.yaml").write_text(MODELS.format(url=url))
            first = cpu_ms(ANSWERS["Engine, a session"], {**environment, "CALLBOARD_HOME": str(new)})
            _keep(best, "Engine, a session, a new trace file", first)
    floor, raw = best.pop("pass"), best.pop("raw")
    found = [_above(name, best.pop(name), floor, IMPORT_GATE_MS if name == ENGINE else None) for name in IMPORTS]
    answers = [
        _above(f"first answer: {name}, above raw httpx", spent, raw, ANSWER_GATE_MS)
        for name, spent in best.items()
    ]
    return [*found, *answers]


def _keep(best: dict[str, float], name: str, spent: float) -> None:
    best[name] = min(best.get(name, spent), spent)


def _above(name: str, spent: float, floor: float, gate: float | None) -> Row:
    added = spent - floor
    gate_text = "" if gate is None else f"≤ +{gate:g} ms"
    met = None if gate is None else added <= gate
    return Row(name, f"{added:+.1f} ms", f"{floor:.1f} ms", spent / floor, gate_text, met)
