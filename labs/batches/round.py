"""One batch, the programs that are killed over it, and what must hold afterwards."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from subprocess import Popen

from engine import BatchResults
from tests.support.batch_engines import OFTEN, engine_at, nano_of, requests_of
from tests.support.batch_server import BatchServer, batch_server
from tests.support.batch_wires import MODELS
from tests.support.programs import started
from tracestore import CallFilter

FAULTS = (
    *("lose create", "drop create", "busy create", "hold create", "foreign create"),
    *("lose upload", "lose look", "break results", "cut results", "twice results"),
)
"""What a batch gets over by itself, or when it is asked for again."""

NOT_NAMELESS = "foreign create"
"""Where batches bear no name, as Anthropic's, nobody could tell somebody else's of that moment from a lost one."""

PROGRAM = """
    import sys
    import anyio
    from labs.batches.round import look_on, run_to_the_end

    does, url, store, wire, *texts = sys.argv[1:]
    run = look_on if does == "looks on" else run_to_the_end
    print(anyio.run(run, url, store, wire, texts).cost.nano_usd)
"""

PATIENCE_SECONDS = 120.0
"""How long a program that is left alone may take."""

BATCH = "night"


async def run_to_the_end(url: str, store: str, wire: str, texts: list[str]) -> BatchResults:
    """What a host's program does every time that it is started."""
    async with engine_at(url, store) as engine:
        batch = await engine.create_batch(
            requests_of(wire, *texts), batch_id=BATCH, polling=OFTEN, settle_seconds=0.0
        )
        return await batch.wait()


async def look_on(url: str, store: str, wire: str, texts: list[str]) -> BatchResults:
    """What another program does that wants the same results."""
    async with engine_at(url, store) as engine:
        batch = await engine.resume_batch(
            BATCH, requests=requests_of(wire, *texts), polling=OFTEN, settle_seconds=0.0
        )
        return await batch.wait()


class Round:
    """What a seed decides, and what came of it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.wire = self.chance.choice(list(MODELS))
        words = self.chance.choices(
            ["one", "fail", "late", "a longer one"], [8, 1, 1, 4], k=self.chance.randint(1, 40)
        )
        self.texts = [f"{word} {place}" for place, word in enumerate(words)]
        self.faults = [fault for fault in FAULTS if self.wire != "anthropic" or fault != NOT_NAMELESS]
        self.store = folder / "trace.db"

    def start(self, server: BatchServer, does: str = "creates") -> Popen[str]:
        self.counts[f"programs, one that {does}"] += 1
        return started(PROGRAM, does, server.url, self.store, self.wire, *self.texts)

    def trouble(self, server: BatchServer) -> None:
        """A program, perhaps others that create the same and one that looks on, some faults, and a kill."""
        faults = self.chance.choices(self.faults, k=self.chance.randint(0, 3))
        server.fail(*faults)
        self.counts["faults"] += len(faults)
        programs = [self.start(server) for _ in range(self.chance.choice((1, 1, 2, 3)))]
        if self.chance.random() < 0.4:
            programs.append(self.start(server, "looks on"))
        until = time.monotonic() + self.chance.uniform(0.4, 2.5)
        restarts = self.chance.random() < 0.3
        while time.monotonic() < until and any(program.poll() is None for program in programs):
            time.sleep(0.01)
            if restarts and self.chance.random() < 0.02:
                self.restart(server)
                restarts = False
        self.chance.shuffle(programs)
        for program in programs:
            self.counts["killed"] += program.poll() is None
            program.kill()
            program.communicate()
            if self.chance.random() < 0.5:  # whoever waited for it goes on
                time.sleep(self.chance.uniform(0.0, 0.6))

    def restart(self, server: BatchServer) -> None:
        self.counts["restarts of the provider"] += 1
        server.kill()
        server.start()

    def peace(self, server: BatchServer) -> str:
        """The last program. Returns what it said; of one that failed, its error."""
        self.restart(server)  # which forgets who is held
        server.forgive()
        with self.start(server) as program:
            said, errors = program.communicate(timeout=PATIENCE_SECONDS)
        return said.strip() if program.returncode == 0 else errors.strip().rpartition("\n")[2]


def run_round(seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """A round.

    Returns:
        What was done, and what should hold and doesn't.
    """
    played = Round(seed, folder)
    with batch_server(folder) as server:
        for _ in range(played.chance.randint(1, 6)):
            played.trouble(server)
        said = played.peace(server)
        return played.counts, asyncio.run(_faults_of(played, server, said))


async def _faults_of(played: Round, server: BatchServer, said: str) -> list[str]:
    """What the provider's books, the results and the trace say, where that is wrong."""
    if not said.isdigit():
        return [f"the last program ended with {said}"]
    answered = [text for text in played.texts if not text.startswith(("fail", "late"))]
    due = nano_of(played.wire, *answered)
    books = server.books()
    billed = sorted(key for key in books["billed"] if key.startswith(f"{BATCH}-"))
    results = await run_to_the_end(server.url, str(played.store), played.wire, played.texts)
    async with engine_at(server.url, played.store) as engine:
        assert engine.store is not None
        await engine.start()
        rows = await engine.store.calls(CallFilter(operation="batch"), limit=None)
    played.counts["requests"] += len(played.texts)
    places = [place for place, text in enumerate(played.texts) if text in answered]
    held = {
        f"the last program ended with {said!r}, not with {due}": said == str(due),
        f"billed are {billed}": billed == sorted(f"{BATCH}-{place}" for place in places),
        f"{len(rows)} calls in the trace": len(rows) == len(played.texts),
        "the results are others": [each.text for each in results if each.response is not None]
        == [f"answer to {text}" for text in answered],
        f"the results cost {results.cost.nano_usd}": results.cost.nano_usd == due,
        "the trace has another sum": sum(row.cost.nano_usd or 0 for row in rows if row.cost) == due,
    }
    return [what for what, holds in held.items() if not holds]
