"""One round: the programs of a plan, with faults and restarts at the same time, and a last program that is not
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from tests.support.background_server import BackgroundServer, background_server
from tests.support.batch_server import BatchServer, batch_server
from tests.support.programs import Heard

from .checks import unsure_of, wrong_in
from .plan import Life, Plan, plan_of
from .program import Does, Orders

PACE_SECONDS = 0.01
PATIENCE_SECONDS = 180.0
"""The time limit of the last programs."""

LIFE_SECONDS = 4.0
"""A program that is ready but has written too few lines is killed after this time."""


class Program:
    """A running program, and its reports so far."""

    def __init__(self, orders: Orders) -> None:
        self.told: list[list[Any]] = []
        self.killed = False
        self._heard = Heard(
            [sys.executable, "-m", "labs.later.program", msgspec.json.encode(orders).decode()],
            lambda line: self.told.append(json.loads(line)),
        )

    @property
    def over(self) -> bool:
        """Whether it has ended by itself."""
        return self._heard.process.poll() is not None

    def wait(self, seconds: float) -> None:
        """Wait for its end, up to this time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._heard.process.wait(seconds)

    def end(self) -> str:
        """Kill it, if it has not ended. Returns its stderr if it failed."""
        self.killed = not self.over
        errors = self._heard.kill()
        code = self._heard.process.returncode
        return "" if self.killed or code == 0 else f"ended with {code}: {errors[-2000:]}"


class Round:
    """A round in progress."""

    def __init__(self, plan: Plan, batches: BatchServer, replies: BackgroundServer, store: Path) -> None:
        self.plan = plan
        self.batches, self.replies, self.store = batches, replies, store
        self.told: list[list[Any]] = []
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()

    def _start(self, does: Does, life: Life | None = None) -> Program:
        self.counts[f"programs: {does}"] += 1
        orders = Orders(
            batch_url=self.batches.url,
            reply_url=self.replies.url,
            store=str(self.store),
            does=does,
            batches=self.plan.batches,
            asks=() if life is None else life.asks,
        )
        return Program(orders)

    def _end(self, programs: list[Program]) -> None:
        for program in programs:
            error = program.end()
            if error:
                self.wrong.append(f"a program {error}")
            self.told += program.told
            self.counts["killed"] += program.killed
            self.counts.update(
                f"told: {' '.join(line[:2] if line[0] == 'event' else line[:1])}" for line in program.told
            )

    def live(self, life: Life) -> None:
        """Run one program until it is killed with -9, or until all its work is done."""
        self.batches.fail(*life.batch_faults)
        self.replies.fail(*life.reply_faults)
        self.counts["faults"] += len(life.batch_faults) + sum(map(bool, life.reply_faults))
        programs = [self._start("hosts", life)]
        if life.beside != "nothing":
            programs.append(self._start(life.beside))
        host, restarts, up = programs[0], list(life.restarts), 0.0
        while not all(program.over for program in programs) and len(host.told) < life.lines:
            now = time.monotonic()
            up = up or (now if host.told else 0.0)
            if up and now > up + LIFE_SECONDS:
                break
            if up and restarts and now > up + restarts[0]:
                self._restart(self.replies if restarts.pop(0) < 0.5 else self.batches)
            time.sleep(0.005)
        time.sleep(life.seconds)
        self._end(programs)

    def _restart(self, server: BatchServer | BackgroundServer) -> None:
        self.counts["restarts"] += 1
        server.kill()
        server.start()

    def peace(self) -> None:
        """Run the last program, perhaps with a second one. They are not killed."""
        for server in (self.batches, self.replies):
            self._restart(server)  # which forgets the requests that it delayed
            server.forgive()
        programs = [self._start("hosts")]
        if self.plan.peace_beside != "nothing":
            programs.append(self._start(self.plan.peace_beside))
        until = time.monotonic() + PATIENCE_SECONDS
        for program in programs:
            program.wait(until - time.monotonic())
            if not program.over:
                self.wrong.append(f"the last program doesn't end; it told {program.told[-5:]}")
        before = len(self.told)
        self._end(programs)
        for batch in self.plan.batches:
            self.wrong += [f"at peace: {batch.name}: {each}" for each in unsure_of(batch, programs[0].told)]
        self.wrong += [
            f"at peace: {line}" for line in self.told[before:] if line[0] == "failed" and not self._may_fail(line)
        ]

    def _may_fail(self, line: list[Any]) -> bool:
        return any(
            each.name == line[1] and (each.words.startswith("fail") or each.how == "cancelled")
            for each in self.plan.questions
        )


def run_round(seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Play a round.

    Returns:
    The counts, and the violations.
    """
    plan = plan_of(seed)
    with batch_server(folder) as batches, background_server(PACE_SECONDS, folder) as replies:
        played = Round(plan, batches, replies, folder / "trace.db")
        for life in plan.lives:
            played.live(life)
        played.peace()
        books = {"batches": batches.books(), "replies": replies.books()}
        wrong = asyncio.run(wrong_in(plan, books, played.told, played.store, played.counts))
    played.counts["requests in batches"] += sum(len(batch.texts) for batch in plan.batches)
    played.counts["questions"] += len(plan.questions)
    return played.counts, [*played.wrong, *wrong]
