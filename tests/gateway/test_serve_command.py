"""`callboard serve`: its routes, its output, and a complete run."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from callboard.adapters import AdapterConfig
from callboard.bus import ConfigurationError
from callboard.engine import Engine, ModelRegistry
from callboard.engine.cli import serve
from callboard.engine.cli.command_line import build_parser
from callboard.engine.gateway import gateway
from callboard.engine.gateway.application import ServedRequest
from callboard.engine.models.configured import registry_from_env
from tests.gateway.asking import Asked, scope_of
from tests.support.engines import entry, registry
from tests.support.scripted import Say

URL = "http://127.0.0.1:8375"


def parsed(*words: str) -> argparse.Namespace:
    return build_parser(["serve"]).parse_args(["serve", *words])


def test_without_a_provider_the_local_model_serves_every_name() -> None:
    models = serve.served_models(registry_from_env({}))
    assert models.serving("claude-opus-4-6") == ("local-tools",)
    assert models.serving("local-chat") == ("local-chat",)


@pytest.mark.parametrize("models", [
    registry_from_env({"ANTHROPIC_API_KEY": "k"}),
    ModelRegistry({"a": entry("a", "anthropic", AdapterConfig())}, {}),
], ids=["a key", "a file"])  # fmt: skip
def test_configured_models_are_served_as_they_are(models: ModelRegistry) -> None:
    assert serve.served_models(models) is models


def test_it_prints_how_to_use_it_from_each_client() -> None:
    said = "\n".join(serve.greeting(f"{URL}/", registry(Say("x")), keyless=True))
    for line in (
        f"ANTHROPIC_BASE_URL={URL} ANTHROPIC_API_KEY=any claude",
        f'base_url="{URL}/v1",wire_api="responses"',
        f"GOOGLE_GEMINI_BASE_URL={URL} GEMINI_API_KEY=any gemini",
        f'"baseURL": "{URL}/v1"',
        f"OPENAI_BASE_URL={URL}/v1 OPENAI_API_KEY=any",
    ):
        assert line in said
    assert "callboard clients add" not in said
    assert "local model" not in said


def test_it_prints_the_settings_of_a_client() -> None:
    assert "callboard clients add NAME" in "\n".join(serve.greeting(URL, registry(Say("x")), keyless=False))


@pytest.mark.parametrize("command", [None, "pip install it"])
def test_it_prints_whether_the_local_model_is_installed(
    command: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "what_to_install", lambda: command)
    said = "\n".join(serve.greeting(URL, serve.served_models(registry_from_env({})), keyless=True))
    assert "the local model serves every request" in said
    assert ("pip install it" in said) is (command is not None)


@pytest.mark.parametrize(("words", "keyless"), [
    ((), True),
    (("--host", "127.0.0.2"), True),
    (("--host", "::1"), True),
    (("--clients",), False),
    (("--host", "0.0.0.0"), False),
    (("--host", "192.0.2.1"), False),
])  # fmt: skip
def test_only_this_machine_needs_no_key(
    words: tuple[str, ...], keyless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[bool] = []
    monkeypatch.setattr(
        "callboard.engine.cli.serve.anyio.run", lambda work, arguments, keyless: served.append(keyless)
    )
    assert serve.run_serve(parsed(*words)) == 0
    assert served == [keyless]


def test_a_host_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not an IP address"):
        serve.run_serve(parsed("--host", "example.org"))


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_is_named_with_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(ConfigurationError, match=rf'needs {package}: pip install "callboard\[web\]"'):
        serve.run_serve(parsed())


@pytest.mark.parametrize(
    ("path", "status"), [("/callboard", 307), ("/callboard/", 200), ("/callboard/none", 404), ("/health", 200)]
)
async def test_the_live_view_is_served_with_the_gateway(path: str, status: int) -> None:
    async with Engine(models=registry(Say("x")), trace=False) as engine:
        beside = serve.CombinedApplication(gateway(engine, keyless=True), serve._view(engine, parsed()))
        asked = Asked()
        asked.body(b"")
        await beside(scope_of("GET", path), asked.receive, asked.send)
    assert asked.status == status


def test_a_request_is_logged_in_one_line() -> None:
    served = ServedRequest(
        method="POST", path="/v1/messages", status=200, seconds=1.5, client="acme", model="claude-x",
        served_by="openai:gpt-5.2", nano_usd=1_500_000,
    )  # fmt: skip
    assert serve.log_line(served) == "acme  POST /v1/messages  200  claude-x -> openai:gpt-5.2  1.50 s  $0.0015"


@pytest.mark.deep("a process")
def test_a_whole_run_serves_a_model_and_ends_on_ctrl_c(tmp_path: Path) -> None:
    models = tmp_path / "models.yaml"
    models.write_text("only: true\nadapters: {s: {type: scripted, options: {replies: [Hello], repeat: true}}}\n"
                      "models: {s:m: {adapter: s}}\ngateway: {names: {gpt-*: s:m}}\n")  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "callboard", "serve", "--port", "0", "--log", "--models-file", str(models)],
        env={**os.environ, "CALLBOARD_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = [process.stdout.readline()]
        while "Live view" not in said[-1]:
            said.append(process.stdout.readline())
        base = said[0].split()[-1]
        body = json.dumps({"model": "gpt-5", "messages": [{"role": "user", "content": "Hi"}]}).encode()
        with urllib.request.urlopen(f"{base}/v1/chat/completions", body, timeout=20) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "Hello"
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=20)
    finally:
        process.kill()
    assert "POST /v1/chat/completions  200  gpt-5 -> s:m" in complaints
    assert "Traceback" not in complaints
    assert (tmp_path / "trace.db").exists()
