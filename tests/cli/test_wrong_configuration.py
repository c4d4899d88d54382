"""A configuration that is wrong: one line that says where and what to do, by whichever command one meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import call

COMMANDS = {
    "ask": ("hello",),
    "chat": (),
    "embed": ("--model", "a:m", "hello"),
    "image": ("--model", "a:m", "-o", "{home}/i.png", "hello"),
    "models": (),
    "record": ("--model", "a:m", "-o", "{home}/r.json", "hello"),
    "web": ("--port", "0"),
}

FAULTS = {
    "not YAML": ("models.yaml", b"adapters: [\n  x: {", "models.yaml"),
    "a list": ("models.yaml", b"- adapters\n", "models.yaml"),
    "a type that there isn't": ("models.yaml", b"adapters: {a: {type: nope}}\n", "'nope'"),
    "a key that there isn't": ("models.yaml", b"adapterz: {}\n", "adapterz"),
    "no text": ("models.yaml", b"\xff\xfe\x00\x01", "models.yaml"),
    "a price without a model": ("prices.yaml", b"prices: [{model: 3}]\n", "prices.yaml"),
}
SPENDING = ("ask", "chat", "embed", "image", "web")
"""Commands that read prices before they do anything."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_wrong_is_named(command: str, fault: str, home: Path) -> None:
    """The command ends with 2, and shows nothing of the library's own."""
    name, content, named = FAULTS[fault]
    if name == "prices.yaml" and command not in SPENDING:
        pytest.skip("it reads no prices")
    (home / name).write_bytes(content)
    said = refused(command, home)
    assert named in said


@pytest.mark.parametrize("command", COMMANDS)
def test_a_home_that_is_a_file_is_named(command: str, tmp_path: Path) -> None:
    """And the variable that would lead elsewhere."""
    home = tmp_path / "elsewhere"
    home.write_text("no folder")
    assert f"{home} is a file, and should be a folder: set CALLBOARD_HOME" in refused(command, home)


@pytest.mark.parametrize("command", ["ask", "embed"])
def test_an_adapter_that_cannot_start_as_configured_is_told_once(command: str, home: Path) -> None:
    """By the command; what its actor logs of the same error is not shown beside it."""
    (home / "models.yaml").write_text(
        "adapters: {a: {type: 'tests.cli.adapters:Misplaced'}}\n"
        "models: {'a:m': {adapter: a}}\ndefault_model: a:m\n"
    )
    assert refused(command, home) == "callboard: misplaced: there is no such file"


def refused(command: str, home: Path) -> str:
    words = (word.format(home=home) for word in COMMANDS[command])
    done = call(command, *words, home=home, exits=2)
    assert done.stdout == ""
    assert 'File "' not in done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("callboard: ")
    return line
