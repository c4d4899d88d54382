"""Makes session files as Claude Code and Codex write them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

T0 = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)

Record = dict[str, Any]


def stamp(seconds: float) -> str:
    """A time, in seconds after the start of all files."""
    return (T0 + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write(path: Path, records: Iterable[Record | str], *, append: bool = False) -> Path:
    """Write a file of JSON lines. A string is written unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab" if append else "wb") as file:
        for record in records:
            text = record if isinstance(record, str) else json.dumps(record, separators=(",", ":")) + "\n"
            file.write(text.encode())
    return path


# --- Claude Code ---


def usage(fresh: int = 3, out: int = 100, read: int = 0, written: int = 0, hour: int = 0, **more: Any) -> Record:
    """A `usage` object of the Messages API."""
    return {
        "input_tokens": fresh,
        "output_tokens": out,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written + hour,
        "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": hour},
        "service_tier": "standard",
        **more,
    }


class Claude:
    """One session of Claude Code, built line by line."""

    def __init__(
        self, session: str = "11111111-0000-4000-8000-000000000001", cwd: str = "/src/shop", branch: str = "main"
    ) -> None:
        self.session = session
        self.cwd = cwd
        self.branch = branch
        self.now = 0.0
        self.count = 0
        self.last: str | None = None

    def file(self, top: Path, name: str | None = None) -> Path:
        """Write the session's file into a folder of projects."""
        return top / self.cwd.replace("/", "-") / f"{name or self.session}.jsonl"

    def line(self, kind: str, message: Record | None = None, **more: Any) -> Record:
        self.count += 1
        self.now += 1
        uuid = f"{self.session[:8]}-{self.count:04d}-4000-8000-{self.session[-12:]}"
        record = {
            "parentUuid": self.last,
            "isSidechain": False,
            "userType": "external",
            "cwd": self.cwd,
            "sessionId": self.session,
            "version": "2.1.40",
            "gitBranch": self.branch,
            "type": kind,
            "uuid": uuid,
            "timestamp": stamp(self.now),
            **({} if message is None else {"message": message}),
            **more,
        }
        self.last = uuid
        return record

    def prompt(self, text: str = "Fix it", **more: Any) -> Record:
        return self.line("user", {"role": "user", "content": text}, **more)

    def result(self, tool_use_id: str, text: str = "done", **more: Any) -> Record:
        block = {"tool_use_id": tool_use_id, "type": "tool_result", "content": text}
        return self.line("user", {"role": "user", "content": [block]}, **more)

    def reply(
        self,
        number: int | str,
        counts: Record | None = None,
        *,
        model: str = "claude-sonnet-4-5-20250929",
        stop: str | None = "end_turn",
        content: list[Record] | None = None,
        request: str | None = "",
        **more: Any,
    ) -> Record:
        message = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": content or [{"type": "text", "text": "Secret words of the reply"}],
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage() if counts is None else counts,
        }
        if request is not None:
            more["requestId"] = request or f"req_{number}"
        return self.line("assistant", message, **more)

    def task(self, number: int | str, tool_use_id: str, counts: Record | None = None, **more: Any) -> Record:
        """A reply that starts a sub-agent."""
        block = {"type": "tool_use", "id": tool_use_id, "name": "Task", "input": {"prompt": "Look"}}
        return self.reply(number, counts, stop="tool_use", content=[block], **more)

    def progress(self, said: Record, agent: str, tool_use_id: str) -> Record:
        """A line that repeats a sub-agent's reply."""
        message = {key: said[key] for key in ("type", "timestamp", "uuid", "requestId", "message")}
        data = {"type": "agent_progress", "agentId": agent, "message": message}
        return self.line("progress", data=data, parentToolUseID=tool_use_id)


# --- Codex ---


def counts(fresh: int, cached: int, out: int, reasoning: int = 0) -> Record:
    """Codex's counts: input includes cached input, output includes reasoning."""
    return {
        "input_tokens": fresh + cached,
        "cached_input_tokens": cached,
        "output_tokens": out,
        "reasoning_output_tokens": reasoning,
        "total_tokens": fresh + cached + out,
    }


class Codex:
    """One session of Codex, built line by line."""

    def __init__(self, session: str = "01990000-0000-7000-8000-000000000001", cwd: str = "/src/shop") -> None:
        self.session = session
        self.cwd = cwd
        self.now = 0.0
        self.sums = counts(0, 0, 0)
        self.turn = 0

    def file(self, top: Path, name: str | None = None) -> Path:
        return top / "2026" / "03" / "01" / f"rollout-2026-03-01T09-00-00-{name or self.session}.jsonl"

    def line(self, kind: str, payload: Record) -> Record:
        self.now += 1
        return {"timestamp": stamp(self.now), "type": kind, "payload": payload}

    def meta(self, **more: Any) -> Record:
        payload = {
            "id": self.session,
            "timestamp": stamp(self.now),
            "cwd": self.cwd,
            "originator": "codex_cli_rs",
            "cli_version": "0.60.0",
            "model_provider": "openai",
            "git": {"branch": "main"},
            **more,
        }
        return self.line("session_meta", payload)

    def context(self, model: str = "gpt-5.1-codex", **more: Any) -> Record:
        self.turn += 1
        return self.line(
            "turn_context", {"cwd": self.cwd, "model": model, "turn_id": f"{self.session}-t{self.turn}", **more}
        )

    def message(self, text: str = "Secret words of the reply") -> Record:
        content = [{"type": "output_text", "text": text}]
        return self.line("response_item", {"type": "message", "role": "assistant", "content": content})

    def tokens(self, last: Record | None, *, with_last: bool = True) -> Record:
        """The usage after a reply; None repeats the sums."""
        if last is not None:
            self.sums = {name: count + last[name] for name, count in self.sums.items()}
        info: Record = {"total_token_usage": self.sums, "model_context_window": 272_000}
        if with_last:
            info["last_token_usage"] = last or counts(0, 0, 0)
        return self.line("event_msg", {"type": "token_count", "info": info, "rate_limits": None})


# --- Random folders ---


def claude_folder(top: Path, seed: int, sessions: int = 8) -> None:
    """Write a folder of sessions with all known difficulties. The same seed gives the same folder."""
    chance = random.Random(seed)
    models = ("claude-sonnet-4-5-20250929", "claude-opus-4-1-20250805", "claude-haiku-4-5-20251001")
    number = 0
    made: list[tuple[Claude, list[Record]]] = []
    for index in range(sessions):
        session = Claude(
            f"{seed:04d}{index:04d}-0000-4000-8000-{index:012d}", chance.choice(["/src/shop", "/src/api"])
        )
        session.now = index * 40_000.0
        records: list[Record] = []
        for _ in range(chance.randint(2, 12)):
            session.now += chance.randint(5, 4000)
            records.append(session.prompt())
            for _ in range(chance.randint(1, 3)):
                number += 1
                out, model = chance.randint(20, 4000), chance.choice(models)
                told = {
                    "read": chance.randint(0, 90_000),
                    "written": chance.choice([0, 900]),
                    "hour": chance.choice([0, 700]),
                }
                for part in sorted({chance.randint(1, 8), out // 2, out})[-chance.randint(1, 3) :]:
                    stop = "end_turn" if part == out else None
                    records.append(
                        session.reply(f"{seed}_{number}", usage(3, part, **told), model=model, stop=stop)
                    )
            if chance.random() < 0.3:
                records.append(
                    session.reply(f"error_{number}", usage(0, 0), model="<synthetic>", isApiErrorMessage=True)
                )
            if chance.random() < 0.4:
                number += 1
                records.append(session.task(f"{seed}_{number}", f"toolu_{number}", usage(5, 50)))
                agent = Claude(session.session, session.cwd)
                agent.count, agent.now = 5000 + number, session.now
                side = [agent.prompt("Look", isSidechain=True, agentId=f"a{number}")]
                for _ in range(chance.randint(1, 4)):
                    number += 1
                    reply = agent.reply(
                        f"{seed}_{number}", usage(7, chance.randint(5, 900), 5000), model=models[2]
                    )
                    side.append({**reply, "isSidechain": True, "agentId": f"a{number}"})
                write(session.file(top, f"{session.session}/subagents/agent-a{number}"), side)
                records.append(session.result(f"toolu_{number}", toolUseResult={"agentId": f"a{number}"}))
            if chance.random() < 0.3:  # an agent of earlier versions, whose lines are in the session's file
                number += 1
                records += [
                    session.task(f"{seed}_{number}", f"toolu_{number}"),
                    session.prompt("Look", isSidechain=True),
                ]
                number += 1
                records.append(session.reply(f"{seed}_{number}", usage(2, 40, 300), isSidechain=True))
            if chance.random() < 0.3:  # an agent that repeats its replies in lines of progress
                number += 1
                records.append(session.task(f"{seed}_{number}", f"toolu_{number}"))
                said = session.reply(f"{seed}_{number}_progress", usage(4, 60, 700))
                records += [session.progress(said, f"p{number}", f"toolu_{number}") for _ in range(2)]
            if chance.random() < 0.3:
                number += 1
                searches = {"web_search_requests": chance.randint(1, 3), "web_fetch_requests": 0}
                records.append(session.reply(f"{seed}_{number}", usage(3, 30, server_tool_use=searches)))
            if chance.random() < 0.2:
                records.append(session.prompt("The story so far", isCompactSummary=True))
        write(session.file(top), records)
        made.append((session, records))
    for session, records in made[:2]:  # a forked session: it begins with a copy of the other one
        fork = Claude(f"f{session.session[1:]}", session.cwd)
        fork.now, fork.count = session.now + 500_000, 9000
        number += 1
        past = [{**record, "sessionId": fork.session} for record in records]
        write(fork.file(top), [*past, fork.prompt(), fork.reply(f"{seed}_{number}", usage(3, 77))])


def codex_folder(top: Path, seed: int, sessions: int = 6) -> None:
    """Write a folder of Codex's sessions with all known difficulties. The same seed gives the same folder."""
    chance = random.Random(seed)
    for index in range(sessions):
        session = Codex(
            f"0199{seed:04d}-{index:04d}-7000-8000-{index:012d}", chance.choice(["/src/shop", "/src/api"])
        )
        session.now = index * 50_000.0
        records = [session.meta()]
        for _ in range(chance.randint(2, 10)):
            session.now += chance.randint(5, 3000)
            records.append(session.context(chance.choice(["gpt-5.1-codex", "gpt-5", "gpt-5-codex"])))
            for _ in range(chance.randint(1, 4)):
                told = counts(chance.randint(1, 9000), chance.randint(0, 90_000), chance.randint(10, 3000), 5)
                records += [session.message(), session.tokens(told, with_last=chance.random() < 0.8)]
                if chance.random() < 0.4:
                    records.append(session.tokens(None))
        write(session.file(top), records)
        if index < 2:  # a fork: its own first line, then the other's lines with new times
            fork = Codex(f"0199{seed:04d}-{index:04d}-7fff-8000-{index:012d}", session.cwd)
            fork.now, fork.sums = session.now + 200_000, session.sums
            own = fork.meta(forked_from_id=session.session)
            past = [{**record, "timestamp": stamp(fork.now)} for record in records]
            fork.now += 100
            rest = [fork.context(), fork.tokens(counts(10, 20, 30))]
            write(fork.file(top), [own, *past, *rest])
