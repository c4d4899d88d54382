"""`callboard record`: a provider's answers as a cassette, which replays them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from callboard.adapters.cassettes.cassette import load_cassette
from callboard.engine import Engine
from tests.support.provider_server import ProviderServer, provider_server

from .running import call

REPLY = {
    "id": "c_1",
    "object": "chat.completion",
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hello."}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


@pytest.fixture
def server() -> Iterator[ProviderServer]:
    with provider_server(body=json.dumps(REPLY).encode()) as running:
        yield running


@pytest.fixture
def provided(home: Path, server: ProviderServer) -> Path:
    """A home folder with a model of that server."""
    (home / "models.yaml").write_text(
        "adapters:\n"
        f"  near: {{type: openai_compatible, base_url: '{server.url}', api_key_env: NEAR_KEY, max_retries: 0}}\n"
        "models:\n  'near:m': {adapter: near, aliases: [near]}\n"
    )
    return home


def record(*arguments: str, home: Path, said: str = "") -> subprocess.CompletedProcess[str]:
    return call("record", *arguments, home=home, said=said, more={"NEAR_KEY": "sk-very-secret"})


async def replayed(models: Path) -> list[str]:
    """What the recorded session says, asked by an engine that has only the cassette."""
    async with Engine(models=models, trace=False) as engine:
        session = engine.session("near")
        return [(await session.send(prompt)).text for prompt in ("Hi", "And?")]


def test_what_was_recorded_replays(provided: Path, tmp_path: Path) -> None:
    """The line that it shows, in models.yaml, answers the same session without a network, and holds no key."""
    file = tmp_path / "near.json"
    done = record("Hi", "And?", "--whole", "--model", "near", "-o", str(file), home=provided)
    assert (done.returncode, done.stdout.split()) == (0, ["Hello.", "Hello."]), done.stderr
    written, shown = done.stderr.splitlines()
    assert written == f"2 exchanges written to {file}"
    assert "sk-very-secret" not in file.read_text()
    adapter = shown.partition("models.yaml: ")[2]
    (provided / "models.yaml").write_text(
        f"adapters:\n  {adapter}\nmodels:\n  'near:m': {{adapter: near, aliases: [near]}}\n"
    )
    assert anyio.run(replayed, provided / "models.yaml") == ["Hello.", "Hello."]
    again = record("Hi", "--whole", "--model", "near", "-o", str(tmp_path / "x"), home=provided)
    assert again.returncode == 2
    assert "replays a cassette itself" in again.stderr


def test_the_prompts_are_those_of_stdin_and_streams_by_default(provided: Path, tmp_path: Path) -> None:
    """In one session: the second request has the first reply."""
    file = tmp_path / "near.json"
    done = record("--model", "near", "-o", str(file), home=provided, said="Hi\n\n")
    (exchange, *_) = load_cassette(file).exchanges
    assert isinstance(exchange.request.body, dict)
    assert exchange.request.body["stream"] is True
    assert done.stderr.splitlines()[-2] == f"1 exchange written to {file}"


def test_an_error_of_the_provider_is_recorded(provided: Path, tmp_path: Path, home: Path) -> None:
    """And the command fails, in one line."""
    file = tmp_path / "down.json"
    with provider_server(status=500, body=b'{"error": {"message": "down"}}') as broken:
        models = (provided / "models.yaml").read_text()
        url = models.partition("base_url: '")[2].partition("'")[0]
        (provided / "models.yaml").write_text(models.replace(url, broken.url))
        done = record("Hi", "--whole", "--model", "near", "-o", str(file), home=provided)
    assert done.returncode == 1
    assert done.stderr.startswith("callboard: ServerError")
    (exchange,) = load_cassette(file).exchanges
    assert exchange.reply.status == 500


def test_nothing_is_replaced_unless_asked(provided: Path, tmp_path: Path) -> None:
    """A file that is there stays, and nobody is asked."""
    file = tmp_path / "mine.json"
    file.write_text("mine")
    done = record("Hi", "--whole", "--model", "near", "-o", str(file), home=provided)
    assert (done.returncode, file.read_text()) == (1, "mine")
    assert "--replace" in done.stderr
    done = record("Hi", "--whole", "--replace", "--model", "near", "-o", str(file), home=provided)
    assert done.returncode == 0, done.stderr
    assert len(load_cassette(file).exchanges) == 1


@pytest.mark.parametrize(("arguments", "said"), [((), "nothing to ask"), (("Hi",), "goes over no HTTP")])
def test_what_can_not_be_recorded_is_said(
    talkative: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """No prompt, or an adapter without HTTP."""
    done = record(*arguments, "--model", "first", "-o", str(tmp_path / "x.json"), home=talkative)
    assert done.returncode in (1, 2)
    assert said in done.stderr
