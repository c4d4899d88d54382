"""The parts of a chat that can be looked at without one: lines, commands, Tab, and what Ctrl-C means when."""

from __future__ import annotations

import io
import re
import signal
import stat
from pathlib import Path

import pytest

from callboard.bus import CallboardError
from callboard.bus.streams.events import TextDelta, ThinkingDelta
from callboard.engine import RequestLoss, RequestPreview
from callboard.engine.cli.chat.backstage import Interrupts, ReplyWriter
from callboard.engine.cli.chat.chat import preview_lines
from callboard.engine.cli.chat.lines import HELP, command_of, completions, edited, is_open, unknown, unwrapped
from callboard.engine.cli.common.screen import Screen, console_class


@pytest.mark.parametrize(
    ("text", "opened", "meant"),
    [
        ("hello ", False, "hello"),
        ('"""', True, ""),
        ('"""a', True, "a"),
        ('"""\na\nb\n"""', False, "a\nb"),
        ('"""a"""', False, "a"),
        ('""""', True, '"'),
        ('say """', False, 'say """'),
        ('"""\n  a\n"""', False, "  a"),
    ],
)
def test_three_quotation_marks_hold_several_lines(text: str, opened: bool, meant: str) -> None:
    """They begin at the message's beginning, and end at a line's end."""
    assert is_open(text) is opened
    assert unwrapped(text) == meant


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("/cost", ("cost", "")),
        (" /model  a:b ", ("model", "a:b")),
        ("/exit", ("quit", "")),
        ("/", ("", "")),
        ("/etc/hosts is what?", None),
        ("/a\nb", None),
        ("hello /cost", None),
    ],
)
def test_a_line_with_a_slash_is_a_command(line: str, command: tuple[str, str] | None) -> None:
    """Unless it is a path, or has several lines."""
    assert command_of(line) == command


def test_tab_offers_commands_models_and_files() -> None:
    """By the word at the cursor; nothing within a message."""

    def files(begin: str) -> list[str]:
        return [f"{begin}.png"]

    def offered(text: str) -> list[str]:
        return list(completions(text, ["b", "a"], files))

    assert offered("/mo") == [f"/{name}" for name in HELP]
    assert (offered("/model "), offered("/retry a")) == (["a", "b"], ["a", "b"])
    assert offered("/attach x") == ["x.png"]
    assert (offered("/cost "), offered("hello /m")) == ([], [])
    assert "did you mean /attach?" in unknown("atach")


def test_an_interrupt_while_a_reply_comes_cancels_it_and_a_second_one_is_meant() -> None:
    """After the reply all is as before."""
    cancelled: list[str] = []
    with Interrupts() as interrupts:
        with interrupts.replying(lambda: cancelled.append("first")):
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        with interrupts.replying(lambda: cancelled.append("second")):
            signal.raise_signal(signal.SIGINT)
    assert cancelled == ["first", "second"]


def test_an_interrupt_between_a_reply_and_the_prompt_ends_the_chat_at_the_prompt() -> None:
    """It is raised nowhere else, and only once; the handler that was there before is there again."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        with interrupts.replying(lambda: None):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.reading():
            raise AssertionError("never read")
        with interrupts.reading():
            pass
        with pytest.raises(KeyboardInterrupt), interrupts.reading():
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_message_is_written_in_an_editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In $VISUAL, else $EDITOR, with the text to begin with; an editor that fails sends nothing."""
    script = tmp_path / "my editor"
    script.write_text('#!/bin/sh\nprintf " and more\\n" >> "$1"\n')
    script.chmod(0o700)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"'{script}'")
    assert edited("begun") == "begun and more"
    for editor in ("false", "/no/such/editor", "'"):
        monkeypatch.setenv("VISUAL", editor)
        with pytest.raises(CallboardError, match=editor):
            edited()


def test_the_history_is_private_and_never_behind_a_link(tmp_path: Path) -> None:
    """A file of its owner alone; one that can't be had is a history of this chat only."""
    pytest.importorskip("prompt_toolkit")
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from callboard.engine.cli.chat.terminal import LARGEST_HISTORY, files, history

    path = tmp_path / "home" / "chat-history"
    kept = history(path)
    assert isinstance(kept, FileHistory)
    kept.append_string("a\nb")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(history(path).load_history_strings()) == ["a\nb"]
    path.write_bytes(b"x" * (LARGEST_HISTORY + 1))
    assert list(history(path).load_history_strings()) == []
    (tmp_path / "link").symlink_to(path)
    assert isinstance(history(tmp_path / "link"), InMemoryHistory)
    assert files(str(tmp_path / "ho")) == [f"{tmp_path}/home/"]


def _preview(*losses: RequestLoss, refused: str | None = None) -> RequestPreview:
    return RequestPreview(
        model="x:m",
        provider="x",
        path="",
        body="",
        warnings=(),
        losses=losses,
        input_tokens=12,
        input_nano_usd=None,
        refused=refused,
    )


def test_the_losses_of_a_preview_are_lines_with_their_places() -> None:
    """By the number of the message as a person counts; the same loss twice is one line."""
    same = RequestLoss(what="thinking", reason="it is x's", message=1, block=0)
    losses = (
        same,
        same,
        RequestLoss(what="image", reason="none", message=2, block=0),
        RequestLoss(what="provider_options.y.z", reason="it is y's", tool="look"),
        RequestLoss(what="parameter_dropped", reason="seed was not sent"),
    )
    assert list(preview_lines(_preview(*losses), said=2)) == [
        "x:m would be sent about 12 tokens, unpriced",
        "message 2, thinking: it is x's (2 times)",
        "the next message, image: none",
        "tool look, provider_options.y.z: it is y's",
        "seed was not sent",
        "5 in all",
    ]
    assert list(preview_lines(_preview(refused="no key"), said=0)) == ["x:m can't be asked: no key"]


@pytest.mark.parametrize("at_terminal", [True, False])
def test_a_chat_at_a_terminal_shows_what_the_model_thinks_apart_from_its_reply(at_terminal: bool) -> None:
    """On a line of its own; a pipe has the reply alone."""
    shown = io.StringIO()
    screen = Screen(
        console_class()(force_terminal=at_terminal, no_color=True, file=shown, width=60, highlight=False)
    )

    async def feed() -> None:
        writer = ReplyWriter(screen, "m> ")
        for event in (ThinkingDelta("Hm, "), ThinkingDelta("well."), TextDelta("Yes.")):
            writer.feed(event)
        writer.end()

    screen.run(feed)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()).splitlines()
    assert [line.rstrip() for line in lines] == [*(["thinks> Hm, well."] if at_terminal else []), "m> Yes."]
