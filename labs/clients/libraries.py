"""Libraries as clients of the gateway, over a provider of each of the four APIs.

    python -m labs.clients FOLDER --libraries PYTHON

PYTHON is the Python of an environment with `langchain-openai`, `langchain-anthropic`, `litellm` and
`pydantic-ai-slim[openai,anthropic,google]`. FOLDER has the packages `ai`, `@ai-sdk/openai`, `@ai-sdk/anthropic`,
`@ai-sdk/google` and `zod`. Each program of `scripts` prints a line for each of its clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from callboard import Engine
from callboard.engine.gateway import gateway

from .model import Asked, Call, Reply, ScriptedModel, least
from .provider import WIRES, ScriptedProvider

SCRIPTS = Path(__file__).parent / "scripts"
SECONDS = 300.0
"""The seconds that a program may take."""
TASKS = ("text", "stream", "tool", "schema")


class LibraryModel(ScriptedModel):
    """A model that says hello, follows a schema, or calls the first tool and repeats its result."""

    def __init__(self) -> None:
        super().__init__("")

    def answer(self, asked: Asked) -> Reply:
        if asked.schema is not None:
            return json.dumps(least(asked.schema))
        if asked.results:
            return f"The tool said: {asked.results[-1]}"
        if asked.tools:
            arguments = least(asked.tools[0].schema)
            return Call(asked.tools[0], arguments if isinstance(arguments, dict) else {})
        return "Hello from the model."


async def run_libraries(
    python: str,
    npm: Path,
    served: Callable[[Any], contextlib.AbstractAsyncContextManager[str]],
    models_yaml: Callable[[str, str], str],
    tell: Callable[[str], object],
) -> int:
    """Run each program over a provider of each API, and print the lines of a table. Returns the failed tasks."""
    commands = [
        *([python, str(path)] for path in sorted(SCRIPTS.glob("with_*.py"))),
        *([os.environ.get("NODE", "node"), str(path)] for path in sorted(SCRIPTS.glob("with_*.mjs"))),
    ]
    bad = 0
    found: dict[str, list[str]] = {}
    for kind in WIRES:
        provider = ScriptedProvider()
        provider.model = LibraryModel()
        folder = Path(tempfile.mkdtemp(prefix="callboard-clients-"))
        async with served(provider) as provider_url:
            models = folder / "models.yaml"
            models.write_text(models_yaml(kind, provider_url))
            async with (
                Engine(models=models, store=folder / "trace.db") as engine,
                served(gateway(engine, keyless=True)) as url,
            ):
                for command in commands:
                    for line in await _lines(command, {"GATEWAY": url, "NPM": str(npm)}):
                        failed = [f"{task}: {line.get(task)}" for task in TASKS if line.get(task) != "ok"]
                        found.setdefault(str(line["client"]), []).append("; ".join(failed) or "ok")
                        bad += len(failed)
        bad += len(provider.model.faults)
        for fault in provider.model.faults:
            tell(f"fault at {kind}: {fault}")
    tell("| client | " + " | ".join(WIRES) + " |")
    tell("|---|" + "---|" * len(WIRES))
    for client, cells in found.items():
        tell(f"| {client} | {' | '.join(cells)} |")
    return bad


async def _lines(command: list[str], variables: dict[str, str]) -> list[dict[str, Any]]:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={"PATH": os.environ["PATH"], "HOME": tempfile.gettempdir(), **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        return [{"client": Path(command[1]).stem, "text": "did not end"}]
    lines = [json.loads(line) for line in out.decode().splitlines() if line.startswith("{")]
    if process.returncode != 0:
        lines.append({"client": Path(command[1]).stem, "text": err.decode()[-500:]})
    return lines
