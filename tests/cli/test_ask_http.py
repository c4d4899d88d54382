"""`callboard ask` over HTTP: real providers' protocols, served by a process of its own, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.provider_server import provider_server, refusing_url
from tests.support.reply_server import reply_server

from .running import call

KEY = {"ANTHROPIC_API_KEY": "sk-wrong"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with reply_server(20) as url:
        yield url


@pytest.mark.parametrize("adapter", ["openai", "anthropic"])
@pytest.mark.parametrize("stream", [(), ("--no-stream",)])
def test_a_reply_comes_over_http(home: Path, server: str, adapter: str, stream: tuple[str, ...]) -> None:
    """Streamed or whole; without a models.yaml a key is enough, and the model is the provider's latest."""
    more = {f"{adapter.upper()}_API_KEY": "x", f"{adapter.upper()}_BASE_URL": server}
    if adapter == "openai":
        more["OPENAI_BASE_URL"] = f"{server}/v1"
    done = call("ask", "-u", *stream, "hi", home=home, more=more, exits=0)
    assert len(done.stdout) > 20
    assert done.stdout.endswith("\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{adapter}:")
    assert ("tokens a second" in line) is (stream == ())


def test_the_environment_may_name_the_model(home: Path, server: str) -> None:
    """For all who name none."""
    more = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": f"{server}/v1", "ANTHROPIC_API_KEY": "x"}
    for model in ("anthropic:claude-opus-5-5", "openai:gpt-5.4"):
        chosen = {"ANTHROPIC_BASE_URL": server, "CALLBOARD_MODEL": model}
        done = call("ask", "--json", "hi", home=home, more={**more, **chosen}, exits=0)
        assert json.loads(done.stdout)["model"].partition(":")[0] == model.partition(":")[0]


@pytest.mark.parametrize(
    ("status", "body", "code", "said"),
    [
        (
            401,
            '{"error": {"type": "authentication_error", "message": "invalid x-api-key"}}',
            2,
            "ANTHROPIC_API_KEY",
        ),
        (404, '{"error": {"type": "not_found_error", "message": "model: nope"}}', 2, "callboard models"),
        (403, '{"error": {"type": "permission_error", "message": "no"}}', 1, "--key"),
        (400, '{"error": {"type": "invalid_request_error", "message": "bad"}}', 1, "bad"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(
    home: Path, status: int, body: str, code: int, said: str
) -> None:
    """No key in it, no frames; 2 for what the person mends."""
    with provider_server(status, body.encode()) as server:
        more = {**KEY, "ANTHROPIC_BASE_URL": server.url}
        done = call("ask", "-m", "anthropic:claude-nope", "hi", home=home, more=more, exits=code)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line
    assert "sk-wrong" not in line


def test_a_kept_key_that_is_wrong_is_mended_where_it_is_kept(home: Path) -> None:
    """Not by the environment, which doesn't have it."""
    call("keys", "set", "anthropic", home=home, said="sk-kept", exits=0)
    with provider_server(401, b'{"error": {"type": "authentication_error", "message": "no"}}') as server:
        done = call("ask", "hi", home=home, more={"ANTHROPIC_BASE_URL": server.url}, exits=2)
    assert "callboard keys set anthropic" in done.stderr


def test_a_provider_that_cannot_be_reached_is_one_line(home: Path) -> None:
    """With what to do; the exit code is that of a failure."""
    file = home / "models.yaml"
    file.write_text(
        f'adapters: {{openai: {{type: openai, base_url: "{refusing_url()}", api_key_env: K, max_retries: 0}}}}\n'
        'default_model: "openai:m"\n'
    )
    done = call("ask", "hi", home=home, more={"K": "x"}, exits=1)
    (line,) = done.stderr.splitlines()
    assert "callboard doctor" in line
