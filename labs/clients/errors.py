"""Errors of a provider, as each program meets them at the vendor's own server and through the gateway.

    python -m labs.clients FOLDER --errors

Each program runs three times with each error: against a provider of its own API without a gateway, through a
gateway over the same provider, and through a gateway over a provider of another API. The gateway does not retry
here (`max_retries: 0`), so that the program has to. It must do as it does without a gateway: repeat the request,
compact its conversation, or end with the provider's message.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from callboard import Engine
from callboard.engine.gateway import gateway

from .model import NEW, OLD, Asked, ScriptedModel
from .programs import Outcome, Place, Program, run
from .provider import Data, Fault, ScriptedProvider

OTHER = {
    "anthropic": "openai_compatible", "openai": "anthropic", "openai_compatible": "gemini", "gemini": "openai",
}  # fmt: skip
"""The API of the provider in the third run, by the program's API."""


def _body(kind: str, status: int, words: str, chat: tuple[str, str | None], messages: str, gemini: str) -> Data:
    match kind:
        case "anthropic":
            return {"type": "error", "error": {"type": messages, "message": words}}
        case "gemini":
            error: Data = {"code": status, "message": words, "status": gemini}
            if status == 429:
                error["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s"}]
            return {"error": error}
        case _:
            return {"error": {"message": words, "type": chat[0], "param": None, "code": chat[1]}}


def limited(kind: str) -> Fault:
    chat = ("requests", "rate_limit_exceeded")
    body = _body(kind, 429, "Rate limit reached. Please try again in 1s.", chat, "rate_limit_error",
                 "RESOURCE_EXHAUSTED")  # fmt: skip
    return Fault(429, body, {"retry-after": "1"})


def overloaded(kind: str) -> Fault:
    status = 529 if kind == "anthropic" else 503
    words = "Overloaded" if kind == "anthropic" else "The model is overloaded. Please try again later."
    body = _body(kind, status, words, ("server_error", "server_error"), "overloaded_error", "UNAVAILABLE")
    return Fault(status, body)


def cut(kind: str) -> Fault:
    return Fault(200, {})


def overflow(kind: str) -> Fault:
    words = {
        "anthropic": "prompt is too long: 210000 tokens > 200000 maximum",
        "openai": "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "openai_compatible": "This model's maximum context length is 128000 tokens. However, your "
        "messages resulted in 130000 tokens. Please reduce the length of the messages.",
        "gemini": "The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).",
    }[kind]
    chat = ("invalid_request_error", "context_length_exceeded")
    return Fault(400, _body(kind, 400, words, chat, "invalid_request_error", "INVALID_ARGUMENT"))


class Error(NamedTuple):
    """An error, and the request of the conversation that gets it."""

    make: Callable[[str], Fault]
    results: int
    """The minimum number of tool results in that request."""


ERRORS: Mapping[str, Error] = {
    "429": Error(limited, 0),
    "overloaded": Error(overloaded, 0),
    "cut": Error(cut, 1),
    "overflow": Error(overflow, 1),
}


class Seen(NamedTuple):
    """The behaviour of a program after an error."""

    requests: int
    """The requests that the provider got."""
    answered: bool
    status: int | None
    said: str
    """The line of its output that names the error, if the program did not answer."""
    seconds: float

    def __str__(self) -> str:
        how = "answers" if self.answered else f"ends with {self.status}: {self.said or 'no message'}"
        return f"{self.requests} requests, {how}"


class Lab(NamedTuple):
    """One program with one error."""

    program: Program
    error: str
    npm: Path
    served: Callable[[Any], contextlib.AbstractAsyncContextManager[str]]
    models_yaml: Callable[[str, str], str]

    async def seen(self, kind: str, *, direct: bool) -> Seen:
        """Run the program over a provider of this API, with or without a gateway."""
        folder = Path(tempfile.mkdtemp(prefix="callboard-clients-"))
        home, work = folder / "home", folder / "work"
        home.mkdir()
        work.mkdir()
        word = f"code-{secrets.token_hex(4)}"
        note = work / "note.txt"
        note.write_text(f"{word}\nThis is {OLD}.\n")
        provider = ScriptedProvider(self._once())
        provider.model = ScriptedModel(str(note))
        began = time.monotonic()
        prompt = f"Read {note}, replace '{OLD}' by '{NEW}' in it, and tell me the code in its first line."
        async with (
            self.served(provider) as provider_url,
            self._server(provider_url, kind, folder, direct=direct) as url,
        ):
            place = Place(home, work, url, "any", self.program.model)
            outcome = await run(self.program, self.npm, place, prompt)
        answered = outcome.status == 0 and f"{word}, and is final now" in outcome.output
        return Seen(len(provider.bodies), answered, outcome.status, _said(outcome), time.monotonic() - began)

    def _once(self) -> Callable[[str, Asked], Fault | None]:
        """Return the error only for the first request that matches."""
        error, left = ERRORS[self.error], [1]

        def fault(kind: str, asked: Asked) -> Fault | None:
            if len(asked.tools) < 2 or len(asked.results) < error.results or not left:
                return None
            left.pop()
            return error.make(kind)

        return fault

    @contextlib.asynccontextmanager
    async def _server(self, provider_url: str, kind: str, folder: Path, *, direct: bool) -> AsyncIterator[str]:
        if direct:
            yield provider_url
            return
        models = folder / "models.yaml"
        text = self.models_yaml(kind, provider_url)
        models.write_text(text.replace("    api_key:", "    max_retries: 0\n    api_key:"))
        engine = Engine(models=models, store=folder / "trace.db")
        async with engine, self.served(gateway(engine, keyless=True)) as url:
            yield url


def _said(outcome: Outcome) -> str:
    lines = [*outcome.errors.splitlines(), *outcome.output.splitlines()]
    words = r"rate|limit|overload|context|too long|token count|stream|error|closed|terminated|unavailable"
    found = [line.strip() for line in lines if re.search(words, line, re.IGNORECASE)]
    return found[-1][:160] if found else ""


async def compare(lab: Lab) -> tuple[str, bool]:
    """A line of the table, and whether the program behaves through the gateway as it does without a gateway."""
    own = lab.program.wire
    at_home = await lab.seen(own, direct=True)
    same = await lab.seen(own, direct=False)
    other = await lab.seen(OTHER[own], direct=False)
    alike = not at_home.answered or (same.answered and other.answered)
    cells = " | ".join(str(each) for each in (at_home, same, other))
    return f"| {lab.program.name} | {lab.error} | {cells} |", alike
