"""The client programs: their configuration for a gateway, and their command lines."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

SECONDS = 120.0
"""The seconds that a program may take."""


class Place(NamedTuple):
    """The folders, address and key for one run of a program."""

    home: Path
    """An empty folder."""
    work: Path
    """The folder with the file."""
    url: str
    """The gateway's address."""
    key: str
    """The client's key of the gateway."""
    model: str
    """The name of the requested model."""


class Program(NamedTuple):
    """One program of npm."""

    name: str
    wire: str
    """The protocol that it speaks, as the adapters name it."""
    binary: str
    model: str
    """The name of the model in its requests."""
    prepare: Callable[[Place], Mapping[str, str]]
    """Writes its configuration, and returns the variables of its environment."""
    arguments: Callable[[Place, str], list[str]]
    """The arguments for a prompt."""


# --- Claude Code ---


def _claude(place: Place) -> Mapping[str, str]:
    return {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": place.key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _ask_claude(place: Place, prompt: str) -> list[str]:
    return [
        "-p",
        prompt,
        "--model",
        place.model,
        "--allowedTools",
        "Read,Edit",
        "--permission-mode",
        "acceptEdits",
    ]


# --- Codex ---


def _codex(place: Place) -> Mapping[str, str]:
    folder = place.home / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(
        f"""model = "{place.model}"
model_provider = "gateway"

[model_providers.gateway]
name = "gateway"
base_url = "{place.url}/v1"
wire_api = "responses"
env_key = "GATEWAY_KEY"
"""
    )
    return {"CODEX_HOME": str(folder), "GATEWAY_KEY": place.key}


def _ask_codex(place: Place, prompt: str) -> list[str]:
    return ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", prompt]


# --- Gemini CLI ---


def _gemini(place: Place) -> Mapping[str, str]:
    folder = place.home / ".gemini"
    folder.mkdir()
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "general": {"disableAutoUpdate": True},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    return {"GEMINI_API_KEY": place.key, "GOOGLE_GEMINI_BASE_URL": place.url}


def _ask_gemini(place: Place, prompt: str) -> list[str]:
    return ["-p", prompt, "-m", place.model, "--skip-trust", "--yolo"]


# --- opencode ---


def _opencode(place: Place) -> Mapping[str, str]:
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": f"gateway/{place.model}",
        "small_model": f"gateway/{place.model}",
        "enabled_providers": ["gateway"],
        "permission": {"edit": "allow", "bash": "allow", "external_directory": "allow"},
        "provider": {
            "gateway": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "gateway",
                "options": {"baseURL": f"{place.url}/v1", "apiKey": place.key},
                "models": {place.model: {"name": place.model, "tool_call": True}},
            }
        },
    }
    path = place.home / "opencode.json"
    path.write_text(json.dumps(settings))
    return {
        "OPENCODE_CONFIG": str(path),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }


def _ask_opencode(place: Place, prompt: str) -> list[str]:
    return ["run", prompt]


# A model that Codex knows has its own tools: ``gpt-5.5`` a free-form ``apply_patch``, ``gpt-5.6`` only JavaScript.
PROGRAMS = (
    Program("claude", "anthropic", "claude", "claude-sonnet-4-5", _claude, _ask_claude),
    Program("codex", "openai", "codex", "gpt-5.5", _codex, _ask_codex),
    Program("codex-code", "openai", "codex", "gpt-5.6-terra", _codex, _ask_codex),
    Program("gemini", "gemini", "gemini", "gemini-2.5-pro", _gemini, _ask_gemini),
    Program("opencode", "openai_compatible", "opencode", "lab-chat", _opencode, _ask_opencode),
)


class Outcome(NamedTuple):
    """The result of a run of a program."""

    status: int | None
    """The exit status; None if it did not end in time."""
    output: str
    errors: str


async def run(program: Program, npm: Path, place: Place, prompt: str) -> Outcome:
    """Run a program until it exits."""
    node = Path(os.environ.get("NODE", "node"))
    path = os.pathsep.join([*([str(node.parent)] if node.parent != Path() else []), os.environ["PATH"]])
    environment = {
        "PATH": path,
        "HOME": str(place.home),
        "XDG_CONFIG_HOME": str(place.home / "config"),
        "XDG_DATA_HOME": str(place.home / "data"),
        "XDG_CACHE_HOME": str(place.home / "cache"),
        "XDG_STATE_HOME": str(place.home / "state"),
        "TERM": "dumb",
        "NO_COLOR": "1",
        **program.prepare(place),
    }
    process = await asyncio.create_subprocess_exec(
        str(npm / "node_modules" / ".bin" / program.binary),
        *program.arguments(place, prompt),
        cwd=place.work,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
    except TimeoutError:
        return Outcome(None, "", "")
    finally:
        end(process.pid)
    return Outcome(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def end(group: int) -> None:
    """Kill the processes that a program started and did not end."""
    import contextlib
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
