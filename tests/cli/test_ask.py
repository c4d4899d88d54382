"""`callboard ask`: the reply is on stdout and everything else is on stderr, for all kinds of streams."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from callboard.engine.cli.command_line import build_parser
from callboard.engine.keys import change_key
from tests.support.depth import first_is_quick
from tests.support.provider_server import provider_server, refusing_url
from tests.support.reply_server import reply_server

from .running import CHECKOUT, at_terminal, call, call_into, environment, read_until, start

ASK = (sys.executable, "-m", "callboard", "ask")


def test_a_pipe_is_one_prompt_and_comes_before_the_question(talkative: Path) -> None:
    """The prompt has all lines of the pipe. The reply ends with one line break."""
    assert call("ask", home=talkative, said="a\nb\n", exits=0).stdout == "one heard 1 messages, last: a\nb\n"
    done = call("ask", "What", "is it?", home=talkative, said="a diff\n", exits=0)
    assert done.stdout == "one heard 1 messages, last: a diff\n\nWhat is it?\n"
    assert done.stderr == ""


def test_a_missing_question_and_input_that_is_no_text_are_refused(talkative: Path) -> None:
    for words, message in (
        ((), "no question"),
        (("-c", "x"), "no conversation to continue"),
        (("-p", "a", "b"), "-t"),
    ):
        done = call("ask", *words, home=talkative, exits=2)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert message in line
    with start("ask", home=talkative) as process:
        out, err = process.communicate(b"\xff\xfe\0", timeout=40)
    assert (process.returncode, out) == (2, b"")
    assert b"Attach it with -a -" in err


def test_the_last_conversation_continues_with_its_model_and_its_system_prompt(talkative: Path) -> None:
    """Another process continues the conversation."""
    call("ask", "-m", "obedient:m", "-s", "be kind", "what", home=talkative, exits=0)
    assert call("ask", "-c", "what", home=talkative, exits=0).stdout == "TextBlock|be kind|None|\n"
    done = call("ask", "-c", "-m", "first", "go on", home=talkative, exits=0)
    assert done.stdout == "one heard 5 messages, last: go on\n"
    for heard in (1, 3):
        done = call("ask", "--session", "mine", "hello", home=talkative, exits=0)
        assert done.stdout == f"one heard {heard} messages, last: hello\n"
    assert stat.S_IMODE((talkative / "last-session.json").stat().st_mode) == 0o600


def test_no_text_is_stored_with_no_save(talkative: Path) -> None:
    """CALLBOARD_NO_SAVE and --no-save store no text, except for a named or continued session. The trace has the
    call.
    """
    never = {"CALLBOARD_NO_SAVE": "1"}
    call("ask", "my secret", home=talkative, more=never, exits=0)
    assert "there is no" in call("ask", "-c", "more", home=talkative, more=never, exits=2).stderr
    for heard in (1, 3):
        done = call("ask", "--session", "mine", "hello", home=talkative, more=never, exits=0)
        assert done.stdout == f"one heard {heard} messages, last: hello\n"
    call("ask", "--no-save", "my secret", home=talkative, exits=0)
    done = call("ask", "-c", "more", home=talkative, exits=0)
    assert done.stdout == "one heard 5 messages, last: more\n", "the last conversation is the one that was saved"
    assert b"my secret" not in b"".join(file.read_bytes() for file in talkative.glob("trace.db*"))
    assert "5 calls" in call("traces", home=talkative).stdout
    assert "--no-save" in call("ask", "--no-save", "--session", "x", "y", home=talkative, exits=2).stderr


def test_options_the_system_prompt_and_attachments_reach_the_model(talkative: Path, tmp_path: Path) -> None:
    """Attachments come before the prompt. The pipe can be an attachment, and an attachment needs no prompt."""
    image = tmp_path / "picture"
    image.write_bytes(b"\x89PNG\r\n\x1a\n....")
    words = ("-m", "obedient:m", "-s", "short", "-otemperature=0.5", "-a", str(image))
    assert call("ask", *words, home=talkative, exits=0).stdout == "ImageBlock|short|0.5|\n"
    done = call("ask", *words, "-a", "-", "what", home=talkative, said="a note", exits=0)
    assert done.stdout == "ImageBlock TextBlock TextBlock|short|0.5|\n"


def test_an_option_is_two_words_or_one_with_an_equals_sign() -> None:
    for words in ("-o temperature 0.5", "-o temperature=0.5", "-otemperature=0.5", "--option=temperature=0.5"):
        read = build_parser(["ask"]).parse_args(["ask", *words.split(), "what"])
        assert (read.prompt, read.options) == (["what"], [["temperature", "0.5"]])


@pytest.mark.parametrize("stream", [(), ("--no-stream",)])
def test_a_schema_makes_the_reply_json(talkative: Path, stream: tuple[str, ...]) -> None:
    """A valid reply is one line on stdout. An invalid reply is on stderr, and the exit code is 1."""
    ask = ("ask", *stream, "-m", "obedient:m", "--schema", "[name, age int]")
    good = '{"value": [{"name": "Ada", "age": 36}]}'
    assert call(*ask, f"say {good}", home=talkative, exits=0).stdout == '[{"name":"Ada","age":36}]\n'
    bad = call(*ask, "say\nI'd rather not.", home=talkative, exits=1)
    assert bad.stdout == ""
    assert "callboard: the reply does not follow the schema" in bad.stderr


def test_a_block_of_code_is_extracted(talkative: Path) -> None:
    """`-x` prints the first block, and `--extract-last` prints the last one."""
    text = "say Here:\n```python\nx = 1\n```\nand\n```\ny = 2\n```\nBye."
    for option, code in (("-x", "x = 1\n"), ("--extract-last", "y = 2\n")):
        assert call("ask", "-m", "obedient:m", option, text, home=talkative, exits=0).stdout == code
        none = call("ask", "-m", "obedient:m", option, "say rm -rf /", home=talkative, exits=1)
        assert none.stdout == ""
        assert none.stderr.splitlines() == ["callboard: the reply has no code block", "rm -rf /"]


def test_json_has_every_part_of_a_reply(talkative: Path) -> None:
    ask = ("ask", "-m", "obedient:m", "--json")
    reply = msgspec.json.decode(call(*ask, "say hi", home=talkative, exits=0).stdout)
    assert (reply["text"], reply["model"], reply["usage"]["output_tokens"]) == ("hi", "obedient:m", 5)
    reply = msgspec.json.decode(call(*ask, "--schema", "n int", 'say {"n": 1}', home=talkative, exits=0).stdout)
    assert reply["output"] == {"n": 1}
    assert "raw" not in reply
    reply = msgspec.json.decode(call(*ask, "-o", "include_raw", "true", "say hi", home=talkative, exits=0).stdout)
    assert [event["piece"] for event in reply["raw"]["events"] if event["type"] == "said"] == ["hi"]
    (line,) = call("ask", "-u", "hi", home=talkative, exits=0).stderr.splitlines()
    assert re.fullmatch(r"one:parrot: 10 in, 5 out, .*unpriced", line)


INTERRUPTED_EARLY = """
import argparse, signal, sys
from callboard.__main__ import main

argparse.ArgumentParser.parse_args = lambda *_: signal.raise_signal(signal.SIGINT)
sys.exit(main(["ask", "hi"]))
"""

TOOLS = '''
import os

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

def _hidden() -> None: ...
'''


def test_tools_are_the_functions_of_a_file(talkative: Path, tmp_path: Path) -> None:
    """The model receives the results, and `-c` keeps the tools."""
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    ask = ("ask", "-m", "obedient:m", "-T", str(file))
    done = call(*ask, 'call add {"a": 1, "b": 2}', home=talkative, exits=0)
    assert done.stdout == "Let me see.\nThe tool says 3\n"
    assert 'tool add {"a":1,"b":2}' in done.stderr
    assert call("ask", "-c", "what", home=talkative, exits=0).stdout == "TextBlock|None|None|add\n"
    assert call(*ask[:-1], f"{file}:add", "what", home=talkative).stdout == "TextBlock|None|None|add\n"
    denied = call(*ask, "--approve", 'call add {"a": 1, "b": 2}', home=talkative, exits=0)
    assert "no terminal is available" in denied.stderr
    assert "The tool says 3" not in denied.stdout


def test_a_model_without_tools_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text("""
        adapters: {local: {type: openai_compatible, base_url: "http://127.0.0.1:9"}}
        models: {"local:m": {adapter: local, capabilities: {supports_tools: false}}}
    """)
    (tmp_path / "tools.py").write_text(TOOLS)
    done = call("ask", "-m", "local:m", "-T", str(tmp_path / "tools.py"), "hi", home=tmp_path, exits=1)
    (line,) = done.stderr.splitlines()
    assert "can't call tools" in line
    assert "`callboard models`" in line


def test_a_tool_that_cannot_be_loaded_is_refused_with_a_reason(talkative: Path, tmp_path: Path) -> None:
    """The command prints one line with the file and the line of the fault, without a traceback, and exits with
    2.
    """
    file = tmp_path / "mine.py"
    for text, tool, message in (
        ("x = (", f"{file}", f"{file}:1: SyntaxError"),
        ("\nimport nothing_such\n", f"{file}", f"{file}:2: ModuleNotFoundError"),
        ("def f(a): pass", f"{file}", "tool 'f': parameter 'a'"),
        ("x = 1", f"{file}", "has no tool"),
        ("x = 1", f"{file}:f", "has no 'f'"),
        ("", "nothing.such", "no such plugin or module"),
        ("", "/nowhere.py", "/nowhere.py: there is no such file"),
    ):
        file.write_text(text)
        (line,) = call("ask", "-T", tool, "hi", home=talkative, exits=2).stderr.splitlines()
        assert message in line


MCP_SERVER = f"mcp:{sys.executable} {CHECKOUT / 'tests/engine/mcp/old_server.py'} lib"


def test_a_chat_can_use_the_tools_of_an_mcp_server(talkative: Path) -> None:
    """A server that can't be reached gives one line on stderr. A file of servers is in another test."""
    pytest.importorskip("mcp", reason="needs callboard[mcp]")
    said = 'call echo {"text": "hi"}\n'
    assert "lib: hi" in call("chat", "-m", "obedient:m", "-T", MCP_SERVER, home=talkative, said=said).stdout
    wrong = (("false", 1, "can't be reached"), ("", 2, "names no command"), ("'", 2, "quotation"))
    for name, (command, code, words) in zip(("ask", "chat", "ask"), wrong, strict=True):
        done = call(name, "-m", "obedient:m", "-T", f"mcp:{command}", home=talkative, said="hi", exits=code)
        (line,) = done.stderr.splitlines()
        assert words in line


def test_a_template_is_saved_and_used(talkative: Path) -> None:
    """Options of the command line take precedence over those of the template."""
    save = ("--save", "sum", "-m", "obedient:m", "-s", "in $language", "-o", "temperature", "1", "what $input")
    assert "ask -t sum" in call("ask", *save, home=talkative, exits=0).stderr
    ask = ("ask", "-t", "sum", "-p", "language", "French")
    assert call(*ask, "is it", home=talkative, exits=0).stdout == "TextBlock|in French|1.0|\n"
    done = call(*ask, "-s", "mine", "-o", "temperature", "0", home=talkative, exits=0)
    assert done.stdout == "TextBlock|mine|0.0|\n"
    assert "-p language VALUE" in call("ask", "-t", "sum", "x", home=talkative, exits=2).stderr


def test_a_failure_is_one_line_with_a_fitting_exit_code(talkative: Path) -> None:
    """The code is 2 if the user must change something, such as a model's name or a key. It is 1 for a failure of
    the provider.
    """
    for model, code, message in (
        ("frist", 2, "did you mean first?"),
        ("locked:m", 2, "A_KEY_THAT_IS_NOT_SET"),
        ("broken:m", 1, "ServerError of broken: the provider is on fire"),
    ):
        done = call("ask", "-m", model, "hi", home=talkative, exits=code)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert message in line
    (talkative / "trace.db").write_text("somebody's letter, and a rather long one at that " * 20)
    (line,) = call("ask", "hi", home=talkative, exits=1).stderr.splitlines()
    assert "is not a database" in line


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.deep("another signal"))],
)
def test_a_signal_ends_the_command_in_order_with_the_partial_reply(
    talkative: Path, number: int, code: int
) -> None:
    """The partial reply stays on stdout, the exit code is that of the signal, and the trace has the cancelled
    call.
    """
    with start("ask", "-m", "endless:m", "Tell me a story.", home=talkative) as process:
        process.stdin.close()
        process.stdin = None
        seen = read_until(process, "Once upon a time")
        process.send_signal(number)
        out, err = process.communicate(timeout=40)
    assert process.returncode == code, err
    assert seen.encode() + out == b"Once upon a time\n"
    assert err.splitlines()[-1].startswith(b"stopped; ")
    assert b"Traceback" not in err
    row = msgspec.json.decode(call("traces", "--json", home=talkative, exits=0).stdout)
    assert row["status"] == "cancelled"


def test_a_closed_pipe_ends_the_command_quietly(talkative: Path) -> None:
    """The call is cancelled, and nothing is printed about the closed pipe. `head` closes a pipe in this way."""
    reads, writes = os.pipe()
    os.close(reads)
    done = call_into(writes, "ask", "-m", "endless:m", "Tell me a story.", home=talkative)
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")
    row = msgspec.json.decode(call("traces", "--json", home=talkative, exits=0).stdout)
    assert row["status"] == "cancelled"


def test_a_pipe_gets_the_raw_reply_and_a_terminal_gets_no_control_characters(talkative: Path) -> None:
    """Control characters are removed at a terminal."""
    assert call("ask", "-m", "rude:m", "hi", home=talkative, exits=0).stdout == "a\x1b[2Jb\x07c\x9b31md\n"
    code, shown, err = at_terminal("ask", "-m", "rude:m", "hi", home=talkative, on="stdin stdout")
    assert (code, err, shown) == (0, "", "a[2Jbc31md\r\n")


@pytest.mark.parametrize("hidden", [(), ("-R",)])
def test_a_terminal_shows_the_models_thinking_and_stdout_never_does(home: Path, hidden: tuple[str, ...]) -> None:
    """Thinking is on a separate line, without control characters. A pipe for stderr gets no thinking."""
    reply = r'{thinking: "Hm\e[2J, well.", text: "Yes.", usage: {input_tokens: 1, output_tokens: 1}}'
    (home / "models.yaml").write_text(f"""
        adapters: {{toy: {{type: scripted, options: {{repeat: true, replies: [{reply}]}}}}}}
        models: {{"toy:m": {{adapter: toy}}}}
    """)
    code, shown, out = at_terminal("ask", "-m", "toy:m", *hidden, "hi", home=home, on="stderr", NO_COLOR="1")
    assert (code, out) == (0, "Yes.\n")
    assert shown == ("" if hidden else "Hm[2J, well.\r\n")
    assert call("ask", "-m", "toy:m", "hi", home=home, exits=0).stderr == ""


def test_an_interrupt_while_the_command_starts_is_quiet(talkative: Path) -> None:
    with start(home=talkative, program=INTERRUPTED_EARLY) as process:
        assert process.communicate() == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize("stream", first_is_quick([1, 0, 2], "more closed streams"))
def test_a_stream_can_be_closed_from_the_start(talkative: Path, stream: int) -> None:
    """A shell closes a stream with `>&-`. The output for a closed stream is lost."""
    program = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
    words = [sys.executable, "-c", program, str(stream), *ASK, "hi"]
    done = subprocess.run(words, capture_output=True, env=environment(talkative), cwd=CHECKOUT, input=b"")
    expected = b"" if stream == 1 else b"one heard 1 messages, last: hi\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, b"")


def test_ask_needs_no_library_for_terminals(talkative: Path) -> None:
    for missing in ("rich", "prompt_toolkit"):
        done = call("ask", "-u", "hi", home=talkative, without=missing, exits=0)
        assert done.stdout == "one heard 1 messages, last: hi\n"


# -- `callboard ask` over HTTP: another process serves the protocols of real providers, or refuses calls.

KEY = {"ANTHROPIC_API_KEY": "sk-wrong"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with reply_server(20) as url:
        yield url


def test_a_key_is_enough_for_a_reply_over_http(home: Path, server: str) -> None:
    """The command needs no models.yaml. CALLBOARD_MODEL chooses the model. A streamed reply also has its pace."""
    more = {"OPENAI_BASE_URL": f"{server}/v1", "ANTHROPIC_BASE_URL": server}
    for name, stream in (("openai", ()), ("anthropic", ("--no-stream",))):
        done = call("ask", "-u", *stream, "hi", home=home, more={**more, f"{name.upper()}_API_KEY": "x"}, exits=0)
        assert len(done.stdout) > 20
        assert done.stdout.endswith("\n")
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"{name}:")
        assert ("tokens a second" in line) is (stream == ())
    more |= {"OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x"}
    for model in ("anthropic:claude-opus-5-5", "openai:gpt-5.4"):
        done = call("ask", "--json", "hi", home=home, more={**more, "CALLBOARD_MODEL": model}, exits=0)
        assert json.loads(done.stdout)["model"].partition(":")[0] == model.partition(":")[0]


@pytest.mark.parametrize(
    ("status", "kind", "message", "code", "said"),
    [
        (401, "authentication_error", "invalid x-api-key", 2, "ANTHROPIC_API_KEY"),
        (404, "not_found_error", "model: nope", 2, "callboard models"),
        (403, "permission_error", "no", 1, "--key"),
        (400, "invalid_request_error", "bad", 1, "bad"),
    ],
)
def test_a_refusal_is_one_line_with_advice(
    home: Path, status: int, kind: str, message: str, code: int, said: str
) -> None:
    """The line has no key. The exit code is 2 if the user must change something."""
    with provider_server(status, msgspec.json.encode({"error": {"type": kind, "message": message}})) as server:
        more = {**KEY, "ANTHROPIC_BASE_URL": server.url}
        done = call("ask", "-m", "anthropic:claude-nope", "hi", home=home, more=more, exits=code)
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert said in line
    assert "sk-wrong" not in line


def test_a_stored_key_that_is_wrong_is_changed_where_it_is_stored(home: Path) -> None:
    change_key(home / "keys.json", "ANTHROPIC_API_KEY", "sk-kept")
    with provider_server(401, b'{"error": {"type": "authentication_error", "message": "no"}}') as server:
        done = call("ask", "hi", home=home, more={"ANTHROPIC_BASE_URL": server.url}, exits=2)
    assert "callboard keys set anthropic" in done.stderr


def test_a_provider_that_cannot_be_reached_is_one_line(home: Path) -> None:
    file = home / "models.yaml"
    file.write_text(
        f'adapters: {{openai: {{type: openai, base_url: "{refusing_url()}", api_key_env: K, max_retries: 0}}}}\n'
        'default_model: "openai:m"\n'
    )
    done = call("ask", "hi", home=home, more={"K": "x"}, exits=1)
    (line,) = done.stderr.splitlines()
    assert "callboard doctor" in line
