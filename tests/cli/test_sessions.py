"""`callboard sessions`, and chats that are saved and resumed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .running import call


def test_a_saved_chat_is_listed_printed_and_resumed(talkative: Path) -> None:
    """Each command says what the next one needs."""
    saved = call("chat", "--save", "--system", "Be kind.", home=talkative, said="hello\nagain\n", exits=0)
    (session,) = re.findall(r"chat --resume (ses_\w+)", saved.stderr)

    listed = call("sessions", home=talkative, exits=0)
    (line,) = [line for line in listed.stdout.splitlines() if session in line]
    assert re.search(r"first +2 +2 +.* 4 +yes$", line.rstrip()), line

    shown = call("sessions", session, home=talkative)
    assert shown.stdout.splitlines() == [
        "system> Be kind.",
        "user> hello",
        "one:parrot> one heard 1 messages, last: hello",
        "user> again",
        "one:parrot> one heard 3 messages, last: again",
    ]

    resumed = call(
        "chat", "--resume", session, "--model", "second", home=talkative, said="still there?\n", exits=0
    )
    assert resumed.stdout.splitlines() == ["two heard 5 messages, last: still there?"]
    assert "4 messages so far" in resumed.stderr
    again = call("sessions", session, "--json", home=talkative)
    messages = [json.loads(line) for line in again.stdout.splitlines()]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 3
    assert messages[-1]["metadata"]["model"] == "two:parrot"


def test_a_chat_is_not_kept_unless_asked(talkative: Path) -> None:
    """Its session is listed, as one that can't be resumed; to print or resume it is one line of error."""
    call("chat", home=talkative, said="a secret\n")
    listed = call("sessions", "--json", home=talkative)
    (row,) = [json.loads(line) for line in listed.stdout.splitlines()]
    assert (row["turns"], row["messages"], row["resumable"]) == (1, 0, False)
    for command in (("sessions", row["session_id"]), ("chat", "--resume", row["session_id"])):
        refused = call(*command, home=talkative, exits=1)
        assert "capture_content=True" in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert b"a secret" not in (talkative / "trace.db").read_bytes()


def test_a_transcript_can_not_steer_the_terminal(talkative: Path) -> None:
    """What a model wrote is shown without control characters."""
    saved = call("chat", "--save", "--model", "rude:m", home=talkative, said="hello\n")
    (session,) = re.findall(r"chat --resume (ses_\w+)", saved.stderr)
    shown = call("sessions", session, home=talkative)
    assert shown.stdout.splitlines()[-1] == "rude:m> a[2Jbc31md"


def test_a_saved_chat_is_exported_and_deleted(talkative: Path, tmp_path: Path) -> None:
    """The document has what was said; afterwards the trace has not, but still what it cost."""
    saved = call("chat", "--save", home=talkative, said="a secret\n")
    (session,) = re.findall(r"chat --resume (ses_\w+)", saved.stderr)
    document = tmp_path / "session.json"
    call("sessions", session, "--export", str(document), home=talkative, exits=0)
    assert json.loads(document.read_bytes())["messages"][0]["content"][0]["text"] == "a secret"
    deleted = call("sessions", session, "--delete", home=talkative, exits=0)
    assert "costs of its calls stay" in deleted.stdout
    call("sessions", session, home=talkative, exits=1)
    assert len(call("traces", "--json", home=talkative).stdout.splitlines()) == 1
    call("sessions", session, "--delete", home=talkative, exits=1)


def test_what_to_export_or_delete_must_be_named(talkative: Path) -> None:
    """The error shows how."""
    refused = call("sessions", "--delete", home=talkative, exits=1)
    assert "callboard sessions SESSION" in refused.stderr


def test_a_session_that_there_isnt_and_one_whose_words_were_not_kept_are_told_apart(
    talkative: Path, tmp_path: Path
) -> None:
    """And an export that can't be written is one line."""
    call("chat", home=talkative, said="hello\n")
    (known,) = [
        json.loads(line)["session_id"] for line in call("sessions", "--json", home=talkative).stdout.splitlines()
    ]
    unknown, unkept = call("sessions", "ses_x", home=talkative), call("sessions", known, home=talkative)
    assert (unknown.returncode, unkept.returncode) == (1, 1)
    assert "has no session 'ses_x'" in unknown.stderr
    assert "chat --save" in unkept.stderr
    saved = call("chat", "--save", home=talkative, said="hello\n")
    (session,) = re.findall(r"chat --resume (ses_\w+)", saved.stderr)
    refused = call("sessions", session, "--export", str(tmp_path / "no" / "file"), home=talkative, exits=1)
    assert "Traceback" not in refused.stderr
