"""`callboard chat` over a pipe: replies are on stdout, and everything else is on stderr."""

from __future__ import annotations

import io
import re
import signal
import stat
from pathlib import Path

import pytest

from callboard.bus import (
    CallboardError,
    Cost,
    CostSource,
    Message,
    MessageMetadata,
    Role,
    StopReason,
    TokenUsage,
    UsageSource,
)
from callboard.bus.streams.events import TextDelta, ThinkingDelta
from callboard.engine import RequestLoss, RequestPreview
from callboard.engine.calls.outcome import NOT_KNOWN
from callboard.engine.cli.chat import preview_lines, replies_text
from callboard.engine.cli.chat_input import (
    HELP,
    Interrupts,
    command_of,
    completions,
    edited,
    is_open,
    unknown,
    unwrapped,
)
from callboard.engine.cli.screen import ReplyWriter, Screen, console_class

from .running import call, read_until, start


def test_a_conversation_continues_when_its_model_is_swapped(talkative: Path) -> None:
    """The second model receives the history of the first. A bare `exit` or `quit` ends the chat too."""
    for word in ("/quit", "exit", "Quit"):
        said = f"hello\n/model second\nagain\n{word}\nnot read\n"
        done = call("chat", home=talkative, said=said, exits=0)
        assert done.stdout == "one heard 1 messages, last: hello\ntwo heard 3 messages, last: again\n"
    assert "continues with second" in done.stderr


def test_an_unknown_model_is_one_line_and_changes_nothing(talkative: Path) -> None:
    """A model with a missing key is refused too. `/model` alone lists the models, and marks the current one."""
    said = "/model secnd\n/model locked:m\n/model\nhello\n"
    done = call("chat", "--model", "two:parrot", home=talkative, said=said, exits=0)
    assert done.stdout.splitlines() == ["two heard 1 messages, last: hello"]
    lines = done.stderr.splitlines()
    complaints = [line for line in lines if line.startswith("callboard: ")]
    assert len(complaints) == 2
    assert "unknown model 'secnd': did you mean second?" in complaints[0]
    assert "A_KEY_THAT_IS_NOT_SET" in complaints[1]
    assert any(line.startswith("* two:parrot") and line.endswith("second") for line in lines)
    assert any(line.startswith("  locked:m") and "needs A_KEY_THAT_IS_NOT_SET" in line for line in lines)


def test_a_call_that_fails_is_one_line_and_the_chat_continues(talkative: Path) -> None:
    done = call("chat", "--model", "broken:m", home=talkative, said="hello\n/model first\nstill there?\n", exits=0)
    assert "callboard: ServerError of broken: the provider is on fire" in done.stderr.splitlines()
    assert done.stdout.splitlines() == ["one heard 1 messages, last: still there?"]


def test_an_interrupt_cancels_a_reply_or_ends_the_chat_at_the_prompt(talkative: Path) -> None:
    """The history keeps the part of the reply that arrived. No interrupt prints a traceback."""
    with start("chat", "--model", "endless:m", home=talkative) as process:
        process.stdin.write(b"Tell me a story.\n")
        process.stdin.flush()
        read_until(process, "Once upon a time")
        process.send_signal(signal.SIGINT)
        process.stdin.write(b"What did you say?\n")
        process.stdin.flush()
        read_until(process, "And before that: Tell me a story. / Once upon a time\n")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=40)
    assert process.returncode in (0, 130)
    assert b"cancelled" in err
    assert b"Traceback" not in err


def test_a_message_can_have_several_lines(talkative: Path) -> None:
    lines = 'one\n"""\ntwo\nthree\n"""\n"""four\nfive'
    done = call("chat", home=talkative, said=lines, exits=0)
    assert [line.partition("last: ")[2] or line for line in done.stdout.splitlines()] == [
        *("one", "two", "three", "four", "five")
    ]


def test_retry_sends_the_last_message_again_without_its_reply(talkative: Path) -> None:
    """`/retry MODEL` sends the message to another model. Earlier messages stay in the history."""
    done = call("chat", home=talkative, said="/retry\nhello\nagain\n/retry second\n/retry\n", exits=0)
    assert done.stdout.splitlines() == [
        "one heard 1 messages, last: hello",
        *("one heard 3 messages, last: again", "two heard 3 messages, last: again"),
        "two heard 3 messages, last: again",
    ]
    assert "no message to retry yet" in done.stderr


def test_save_in_the_middle_of_a_chat_stores_it_from_its_start(talkative: Path) -> None:
    """`/save` stores the whole chat and does not interrupt it. `chat -c` and `ask -c` continue it."""
    done = call("chat", home=talkative, said="hello\n/save\n/save\nagain\n", exits=0)
    assert done.stdout.splitlines()[-1] == "one heard 3 messages, last: again"
    (session,) = set(re.findall(r"ses_\w+", done.stderr))
    assert (
        call("chat", "-c", home=talkative, said="more\n", exits=0).stdout == "one heard 5 messages, last: more\n"
    )
    assert call("ask", "-c", "still", home=talkative, exits=0).stdout == "one heard 7 messages, last: still\n"
    shown = call("sessions", session, home=talkative, exits=0)
    assert [line for line in shown.stdout.splitlines() if line.startswith("user> ")] == [
        *("user> hello", "user> again", "user> more", "user> still")
    ]


def test_an_attachment_goes_with_the_next_message_and_no_other(talkative: Path) -> None:
    """`/attach` reads the file. A missing file gives one line on stderr."""
    (talkative / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n....")
    lines = f"/attach {talkative}/x.png\n/attach /nowhere\nwhat\nwhat\n"
    done = call("chat", "-m", "obedient:m", home=talkative, said=lines, exits=0)
    assert done.stdout.splitlines() == ["ImageBlock TextBlock|None|None|", "TextBlock|None|None|"]
    assert "callboard: /nowhere: No such file or directory" in done.stderr


def test_a_chat_takes_options_tools_and_a_system_prompt(talkative: Path, tmp_path: Path) -> None:
    file = tmp_path / "tools.py"
    file.write_text('def add(a: int, b: int) -> int:\n    """Add."""\n    return a + b\n')
    options = ("-m", "obedient:m", "-s", "be kind", "-o", "temperature", "0", "-T", str(file))
    done = call("chat", *options, home=talkative, said='what\ncall add {"a": 1, "b": 2}\n', exits=0)
    assert done.stdout.splitlines()[0] == "TextBlock|be kind|0.0|add"
    assert done.stdout.splitlines()[-1] == "The tool says 3"


def test_a_command_that_does_not_exist_is_corrected(talkative: Path) -> None:
    """An unknown command is not sent, but a path is a message. `/cost` counts the replies without a price."""
    done = call("chat", home=talkative, said="/mdoel x\n/etc/hosts is what?\nagain\n/cost\n", exits=0)
    assert "unknown command /mdoel: did you mean /model?" in done.stderr
    assert done.stdout.splitlines()[0] == "one heard 1 messages, last: /etc/hosts is what?"
    assert "unpriced for 2 replies" in done.stderr
    assert "2 calls" in call("traces", home=talkative).stdout


KNOWN = Cost(1_250_000, CostSource.COMPUTED)
UNPRICED = Cost(None, CostSource.UNPRICED)
REPORTED = TokenUsage(10, 5)
ESTIMATED = TokenUsage(10, 5, source=UsageSource.ESTIMATED)


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        ([], "$0 for 0 replies"),
        ([(REPORTED, KNOWN)], "$0.001250000 for 1 reply"),
        ([(REPORTED, KNOWN), (REPORTED, UNPRICED)], "$0.001250000 + 1 unpriced for 2 replies"),
        ([(REPORTED, KNOWN), (TokenUsage(), NOT_KNOWN)], "$0.001250000 + 1 unknown for 2 replies"),
        ([(REPORTED, KNOWN), (ESTIMATED, KNOWN)], "$0.002500000 for 2 replies, 1 with estimated usage"),
        ([(TokenUsage(), NOT_KNOWN)], "unknown for 1 reply"),
        ([(REPORTED, UNPRICED), (TokenUsage(), NOT_KNOWN)], "$0 + 1 unpriced + 1 unknown for 2 replies"),
    ],
)
def test_replies_without_an_amount_are_counted_next_to_the_sum(
    replies: list[tuple[TokenUsage, Cost]], said: str
) -> None:
    """The amount leaves out replies without a price and replies with unknown usage."""
    history = [Message.user("Hi")]
    for usage, cost in replies:
        metadata = MessageMetadata(
            provider="p", model="p:m", usage=usage, cost=cost, stop_reason=StopReason.END_TURN
        )
        history.append(Message(Role.ASSISTANT, "Hello", metadata=metadata))
    assert replies_text(history) == said


def test_warnings_of_the_library_are_short_lines_on_stderr(talkative: Path) -> None:
    """Each line names its source and contains no key. stdout has only the replies."""
    file = talkative / "models.yaml"
    file.write_text(
        file.read_text().replace("adapters:\n", "adapters:\n  x: {type: openai, api_key: sk-secret}\n")
    )
    file.chmod(0o600)
    done = call("chat", home=talkative, said="hello\n")
    assert done.stdout.splitlines() == ["one heard 1 messages, last: hello"]
    (warning,) = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert warning.startswith("warning: engine.config: api_key_in_file file=")
    assert "sk-secret" not in done.stderr


def test_a_preview_shows_the_request_for_another_model(talkative: Path) -> None:
    """The preview lists the losses. It sends nothing, and the conversation keeps its model."""
    said = "hello\n/preview second\n/preview nobody\n/quit\n"
    done = call("chat", home=talkative, said=said, exits=0)
    assert done.stdout.splitlines() == ["one heard 1 messages, last: hello"]
    lines = done.stderr.splitlines()
    assert any(re.fullmatch(r"two:parrot would receive about \d+ tokens, .+", line) for line in lines)
    assert "no losses" in lines
    assert any("unknown model 'nobody'" in line for line in lines)


# -- The parts of a chat that can be tested without one: lines, commands, Tab, and Ctrl-C.


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
def test_three_quotation_marks_enclose_several_lines(text: str, opened: bool, meant: str) -> None:
    """The opening marks are at the start of the message, and the closing marks are at the end of a line."""
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
    assert command_of(line) == command


def test_tab_offers_commands_models_and_files() -> None:
    """The offer depends on the word at the cursor. Within a message, Tab offers nothing."""

    def files(begin: str) -> list[str]:
        return [f"{begin}.png"]

    def offered(text: str) -> list[str]:
        return list(completions(text, ["b", "a"], files))

    assert offered("/mo") == [f"/{name}" for name in HELP]
    assert (offered("/model "), offered("/retry a")) == (["a", "b"], ["a", "b"])
    assert offered("/attach x") == ["x.png"]
    assert (offered("/cost "), offered("hello /m")) == ([], [])
    assert "did you mean /attach?" in unknown("atach")


def test_an_interrupt_during_a_reply_cancels_it_and_a_second_one_ends_the_chat() -> None:
    """A first interrupt cancels the reply, and a second raises KeyboardInterrupt."""
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
    """KeyboardInterrupt is raised once, when the prompt reads. Afterwards the previous handler is restored."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        with interrupts.replying(lambda: None):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.reading():
            raise AssertionError("the prompt must not read")
        with interrupts.reading():
            pass
        with pytest.raises(KeyboardInterrupt), interrupts.reading():
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_message_is_written_in_an_editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The editor is $VISUAL, or else $EDITOR, and opens with the text so far."""
    script = tmp_path / "my editor"
    script.write_text('#!/bin/sh\nprintf " and more\\n" >> "$1"\n')
    script.chmod(0o700)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"'{script}'")
    assert edited("draft") == "draft and more"
    for editor in ("false", "/no/such/editor", "'"):
        monkeypatch.setenv("VISUAL", editor)
        with pytest.raises(CallboardError, match=editor):
            edited()


def test_the_history_is_private_and_never_behind_a_link(tmp_path: Path) -> None:
    """Only the owner can read the history file. If the path is a link, the history stays in memory."""
    pytest.importorskip("prompt_toolkit")
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from callboard.engine.cli.chat_terminal import LARGEST_HISTORY, files, history

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
    about = {"model": "x:m", "provider": "x", "path": "", "body": "", "warnings": ()}
    return RequestPreview(**about, losses=losses, input_tokens=12, input_nano_usd=None, refused=refused)


def test_the_losses_of_a_preview_are_lines_with_their_places() -> None:
    """Positions count messages from 1. A loss that occurs twice is one line."""
    same = RequestLoss(what="thinking", reason="it is x's", message=1, block=0)
    losses = (
        same,
        same,
        RequestLoss(what="image", reason="none", message=2, block=0),
        RequestLoss(what="provider_options.y.z", reason="it is y's", tool="look"),
        RequestLoss(what="parameter_dropped", reason="seed was not sent"),
    )
    assert list(preview_lines(_preview(*losses), messages=2)) == [
        "x:m would receive about 12 tokens, unpriced",
        "message 2, thinking: it is x's (2 times)",
        "the next message, image: none",
        "tool look, provider_options.y.z: it is y's",
        "seed was not sent",
        "5 in total",
    ]
    assert list(preview_lines(_preview(refused="no key"), messages=0)) == ["x:m can't be used: no key"]


@pytest.mark.parametrize("at_terminal", [True, False])
def test_a_chat_at_a_terminal_shows_thinking_apart_from_the_reply(at_terminal: bool) -> None:
    """Thinking is on a separate line. A pipe gets only the reply."""
    shown = io.StringIO()
    plain = {"no_color": True, "width": 60, "highlight": False}
    screen = Screen(console_class()(force_terminal=at_terminal, file=shown, **plain))

    async def feed() -> None:
        writer = ReplyWriter(screen, "m> ")
        for event in (ThinkingDelta("Hm, "), ThinkingDelta("well."), TextDelta("Yes.")):
            writer.feed(event)
        writer.end()

    screen.run(feed)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()).splitlines()
    assert [line.rstrip() for line in lines] == [*(["thinks> Hm, well."] if at_terminal else []), "m> Yes."]
