"""One round: processes on one file are killed; then another engine opens the file, and the file is checked."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import msgspec

from callboard.engine import Engine
from tests.support.programs import Heard
from tests.support.reply_models import registry

UP_SECONDS = 30.0
"""The time limit for a victim's first reply, which normally takes one or two seconds of CPU. On a busy machine it
can take minutes. So a late victim doesn't fail yet: a second victim starts on another file, and the two race.
"""

RACE_SECONDS = 1800.0
"""The time limit of the race. If neither wins it, the machine is too slow."""

RESUMED = 3
"""The number of sessions that are resumed, of those whose messages were flushed. The rows of all sessions are
checked.
"""


class Told(msgspec.Struct):
    """The last reports of a victim."""

    run: str = ""
    seq: int = 0
    """All events up to this seq were flushed."""
    sessions: dict[str, int] = {}
    """The number of stored messages of each session at that time."""
    answered: dict[str, tuple[str, int]] = {}
    """The requests whose answers the victim received, with their session and its number of messages at that
    time.
    """


class Answered(msgspec.Struct):
    """A victim's report about one answer."""

    request: str
    session: str
    messages: int


class Plan(msgspec.Struct, frozen=True):
    """The plan of one victim, derived from a seed."""

    kind: str
    once_up: bool
    """Whether its time begins with its first reply. Otherwise it begins at its start."""
    at: float
    """The seconds until the kill."""


def plans(seed: int) -> list[Plan]:
    """One victim, or two that write to one file at the same time."""
    chance = random.Random(seed)
    found = []
    for _ in range(2 if chance.random() < 0.25 else 1):
        kind = "full" if chance.random() < 0.25 else "calls"
        once_up = chance.random() < 0.85
        found.append(Plan(kind, once_up, chance.uniform(0.0, 1.5 if kind == "full" and once_up else 0.7)))
    return found


class Victim:
    """A running victim, and its reports so far."""

    def __init__(self, url: str, path: Path, seed: str, plan: Plan) -> None:
        self.plan = plan
        self.told = Told()
        self.flushes = 0
        self._answered: dict[str, tuple[str, int]] = {}
        self._url, self._seed = url, seed
        self._up = threading.Event()  # or when it has ended
        command = [sys.executable, "-m", "labs.kills.victim", url, str(path), seed, plan.kind]
        self._heard = Heard(command, self._note, self._up.set)

    def _note(self, line: bytes) -> None:
        if line == b"up\n":
            self._up.set()
            return
        if line.startswith(b'{"request"'):
            answer = msgspec.json.decode(line, type=Answered)
            self._answered[answer.request] = (answer.session, answer.messages)
        else:
            self.told = msgspec.json.decode(line, type=Told)
            self.flushes += 1
        self.told.answered = self._answered

    def kill(self) -> list[str]:
        """Wait for the planned moment and kill the process. Returns what is wrong if it had already ended, or
        never gave a reply.
        """
        if self.plan.once_up and not self._up.wait(UP_SECONDS) and (wrong := self._overtaken()):
            return [f"{wrong}:\n{self._end()}"]
        time.sleep(self.plan.at)
        ended = self._heard.process.poll()
        errors = self._end()
        return [] if ended is None else [f"a victim ended by itself ({ended}): {errors}"]

    def _overtaken(self) -> str:
        """Return an error if a second victim on another file gets a reply first, so that this one hangs."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="callboard-kills-") as folder:
            other = Victim(self._url, Path(folder) / "trace.db", self._seed, Plan("calls", True, 0.0))
            try:
                while not other._up.wait(0.1) and not self._up.is_set():
                    if time.monotonic() - began > RACE_SECONDS:
                        return f"neither it nor another one is up within {RACE_SECONDS:g} s"
                took = time.monotonic() - began
                if self._up.wait(took):
                    return ""
                return f"not up within {UP_SECONDS + 2 * took:.0f} s; another one was within {took:.0f} s"
            finally:
                other._end()

    def _end(self) -> str:
        """Kill the process. Returns its stderr."""
        return self._heard.kill()[-3000:]


class Report(msgspec.Struct):
    """The result of a round."""

    seed: int
    failures: list[str]
    counts: Counter[str]


def run_round(seed: int, url: str, path: Path) -> Report:
    """Run and kill the victims of this seed on a file, which may already contain events."""
    failures: list[str] = []
    counts: Counter[str] = Counter()
    victims = [Victim(url, path, f"{seed}/{number}", plan) for number, plan in enumerate(plans(seed))]
    for victim in sorted(victims, key=lambda one: one.plan.at):
        failures += victim.kill()
        counts["killed"] += 1
        counts[f"killed, {victim.plan.kind}"] += 1
        counts["flushes told"] += victim.flushes
    counts["spill files found"] += len(list(path.parent.glob(f"{path.name}.spill-*")))
    told = [victim.told for victim in victims if victim.told.run or victim.told.answered]
    try:
        failures += asyncio.run(_take_up(url, path, told))
        failures += examine(path, told, counts)
    except Exception as error:
        failures.append(f"the file can't be taken up: {error!r}")
    return Report(seed, failures, counts)


async def _take_up(url: str, path: Path, told: list[Told]) -> list[str]:
    """Open the file with a new engine and resume sessions, as the next process would. Returns what is wrong."""
    wrong: list[str] = []
    async with Engine(models=registry(url), store=path, capture_content=True) as engine:
        await (await engine._host.running_life()).settle()
        for victim in told:
            for name, messages in list(victim.sessions.items())[:RESUMED]:
                if not messages:
                    continue
                session = await engine.resume(name)
                if len(session.messages) < messages:
                    wrong.append(f"session {name} had {messages} messages flushed, not {len(session.messages)}")
                await session.send("Still there?")
        await engine.flush()
    return wrong


def examine(path: Path, told: list[Told], counts: Counter[str]) -> list[str]:
    """Check the file, which no process has open. Returns what is wrong."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        wrong = [
            f"integrity: {message}" for (message,) in file.execute("PRAGMA integrity_check") if message != "ok"
        ]
        runs = {
            name: (number, ended) for number, name, ended in file.execute("SELECT id, run_id, ended_us FROM runs")
        }
        wrong += [f"run {name} is not ended" for name, (_, ended) in runs.items() if ended is None]
        spans = {run: span for run, *span in file.execute(_SPANS)}
        wrong += [f"run {run}: events {span}, not unbroken" for run, span in spans.items() if not _unbroken(span)]
        for victim in told:
            wrong += _unkept(file, victim.answered)
            counts["answers told"] += len(victim.answered)
            number, _ = runs.get(victim.run, (0, None))
            last = spans.get(number, [0, 0, 0])[1]
            if last < victim.seq:
                wrong.append(f"run {victim.run}: flushed up to {victim.seq}, stored up to {last}")
            for session, messages in victim.sessions.items():
                ((stored,),) = file.execute(_WHOLE_MESSAGES, (session,))
                if stored < messages:
                    wrong.append(f"session {session}: {messages} messages flushed, {stored} stored")
        wrong += [f"call {row} is open" for row in file.execute("SELECT id FROM calls WHERE status = 'started'")]
        wrong += [f"attempt {row}: its ends are not one" for row in file.execute(_ENDS_NOT_ONE)]
        wrong += [f"attempt {row}: no row" for row in file.execute(_WITHOUT_ROW)]
        for what, sql in _COUNTED.items():
            ((counts[what],),) = file.execute(sql)
    beside = sorted(
        each.name for each in path.parent.iterdir() if each.name not in (path.name, f"{path.name}.lock")
    )
    return wrong + [f"left beside the file: {name}" for name in beside]


def _unkept(file: sqlite3.Connection, answered: dict[str, tuple[str, int]]) -> list[str]:
    """The answers that a victim received but that are missing from the file."""
    wrong = []
    for request, (session, messages) in answered.items():
        ended = file.execute("SELECT 1 FROM calls WHERE request_id = ? AND status = 'completed'", (request,))
        if not ended.fetchall():
            wrong.append(f"request {request} was answered, and is not completed in the file")
        ((stored,),) = file.execute(_WHOLE_MESSAGES, (session,))
        if stored < messages:
            wrong.append(f"session {session}: {messages} messages were handed over, {stored} stored")
    return wrong


def _unbroken(span: list[int]) -> bool:
    first, last, count = span
    return first == 1 and last == count


_SPANS = "SELECT run, min(seq), max(seq), count(*) FROM events GROUP BY run"
_WHOLE_MESSAGES = """
    SELECT count(*) FROM session_messages AS m JOIN content AS c ON c.hash = m.hash WHERE m.session_id = ?
"""
_ENDS_NOT_ONE = """
    SELECT request_id, attempt, count(*) FILTER (WHERE topic = 'llm.call_started') AS begun,
           count(*) FILTER (WHERE topic IN ('llm.call_completed', 'llm.call_failed')) AS ended
      FROM events WHERE topic GLOB 'llm.call_*' GROUP BY request_id, attempt HAVING begun <> 1 OR ended <> 1
"""
_WITHOUT_ROW = """
    SELECT DISTINCT e.request_id, e.attempt FROM events AS e
     WHERE e.topic = 'llm.call_started'
       AND NOT EXISTS (SELECT 1 FROM calls AS c WHERE c.request_id = e.request_id AND c.attempt = e.attempt)
"""
_COUNTED = {
    "events in the file": "SELECT count(*) FROM events",
    "attempts in the file": "SELECT count(*) FROM calls",
    "of those, closed as process_lost": "SELECT count(*) FROM calls WHERE error_class = 'process_lost'",
}
