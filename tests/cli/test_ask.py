"""`callboard ask`: the reply is on stdout and everything else on stderr, for all kinds of streams."""

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

from tests.support.depth import first_is_quick
from tests.support.provider_server import provider_server, refusing_url
from tests.support.reply_server import reply_server

from .running import CHECKOUT, at_terminal, call, call_into, environment, read_until, start

ASK = (sys.executable, "-m", "callboard", "ask")


def test_a_pipe_is_one_prompt_and_stands_before_what_is_said(talkative: Path) -> None:
    """All its lines; the reply ends with one line break."""
    assert call("ask", home=talkative, said="a\nb\n", exits=0).stdout == "one heard 1 messages, last: a\nb\n"
    done = call("ask", "What", "is it?", home=talkative, said="a diff\n", exits=0)
    assert done.stdout == "one heard 1 messages, last: a diff\n\nWhat is it?\n"
    assert done.stderr == ""


def test_nothing_to_ask_and_what_is_no_text_are_badly_asked(talkative: Path) -> None:
    """One line each, exit code 2, nothing on stdout."""
    for words, said in (
        ((), "no question"),
        (("-c", "x"), "no conversation to continue"),
        (("-p", "a", "b"), "-t"),
    ):
        done = call("ask", *words, home=talkative, exits=2)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert said in line
    with start("ask", home=talkative) as process:
        out, err = process.communicate(b"\xff\xfe\0", timeout=40)
    assert (process.returncode, out) == (2, b"")
    assert b"Attach it with -a -" in err


def test_the_last_conversation_goes_on_with_its_model_and_its_system_prompt(talkative: Path) -> None:
    """From another process; another model may take over; a session may be named by an id of one's own."""
    call("ask", "-m", "obedient:m", "-s", "be kind", "what", home=talkative, exits=0)
    assert call("ask", "-c", "what", home=talkative, exits=0).stdout == "TextBlock|be kind|None|\n"
    done = call("ask", "-c", "-m", "first", "go on", home=talkative, exits=0)
    assert done.stdout == "one heard 5 messages, last: go on\n"
    for heard in (1, 3):
        done = call("ask", "--session", "mine", "hello", home=talkative, exits=0)
        assert done.stdout == f"one heard {heard} messages, last: hello\n"
    assert stat.S_IMODE((talkative / "last-session.json").stat().st_mode) == 0o600


def test_an_option_is_two_words_or_one_with_an_equals_sign(talkative: Path) -> None:
    """The word that follows is the question, and not the option's value."""
    for words in ("-o temperature 0.5", "-o temperature=0.5", "-otemperature=0.5", "--option=temperature=0.5"):
        done = call("ask", "-m", "obedient:m", "-s", "short", *words.split(), "what", home=talkative, exits=0)
        assert done.stdout == "TextBlock|short|0.5|\n"


def test_nothing_of_what_is_said_is_kept_if_that_is_not_wanted(talkative: Path) -> None:
    """Nor ever, by a variable, but for a conversation that is named or goes on; the call is in the trace."""
    never = {"CALLBOARD_NO_SAVE": "1"}
    call("ask", "my secret", home=talkative, more=never, exits=0)
    assert "there is no" in call("ask", "-c", "more", home=talkative, more=never, exits=2).stderr
    for heard in (1, 3):
        done = call("ask", "--session", "mine", "hello", home=talkative, more=never, exits=0)
        assert done.stdout == f"one heard {heard} messages, last: hello\n"
    call("ask", "--no-save", "my secret", home=talkative, exits=0)
    done = call("ask", "-c", "more", home=talkative, exits=0)
    assert done.stdout == "one heard 5 messages, last: more\n", "the last conversation is the one before"
    assert b"my secret" not in b"".join(file.read_bytes() for file in talkative.glob("trace.db*"))
    assert "5 calls" in call("traces", home=talkative).stdout
    assert "--no-save" in call("ask", "--no-save", "--session", "x", "y", home=talkative, exits=2).stderr


def test_options_the_system_prompt_and_attachments_reach_the_model(talkative: Path, tmp_path: Path) -> None:
    """Attachments stand before the prompt; the pipe may be one of them."""
    image = tmp_path / "picture"
    image.write_bytes(b"\x89PNG\r\n\x1a\n....")
    words = ("-m", "obedient:m", "-s", "short", "-o", "temperature", "0.5")
    done = call("ask", *words, "-a", str(image), "-a", "-", "what", home=talkative, said="a note", exits=0)
    assert done.stdout == "ImageBlock TextBlock TextBlock|short|0.5|\n"


@pytest.mark.parametrize("stream", [(), ("--no-stream",)])
def test_a_schema_makes_the_reply_json(talkative: Path, stream: tuple[str, ...]) -> None:
    """One line in a pipe, checked; a reply that doesn't follow is on stderr, and the exit code is 1."""
    ask = ("ask", *stream, "-m", "obedient:m", "--schema", "[name, age int]")
    good = '{"value": [{"name": "Ada", "age": 36}]}'
    assert call(*ask, f"say {good}", home=talkative, exits=0).stdout == '[{"name":"Ada","age":36}]\n'
    bad = call(*ask, "say\nI'd rather not.", home=talkative, exits=1)
    assert bad.stdout == ""
    assert "callboard: the reply does not follow the schema" in bad.stderr


def test_a_block_of_code_is_extracted(talkative: Path) -> None:
    """The first or the last; without any, stdout stays empty, so that nothing else is run by mistake."""
    text = "say Here:\n```python\nx = 1\n```\nand\n```\ny = 2\n```\nBye."
    for option, code in (("-x", "x = 1\n"), ("--extract-last", "y = 2\n")):
        assert call("ask", "-m", "obedient:m", option, text, home=talkative, exits=0).stdout == code
        none = call("ask", "-m", "obedient:m", option, "say rm -rf /", home=talkative, exits=1)
        assert none.stdout == ""
        assert none.stderr.splitlines() == ["callboard: the reply has no code block", "rm -rf /"]


def test_all_that_is_known_of_a_reply_comes_as_json(talkative: Path) -> None:
    """Text, model, usage, cost; with a schema, the object, too; the line of usage comes on request, on stderr."""
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
    """They run, the model goes on, and -c knows them again; texts before and after stand on lines of their own."""
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


def test_a_model_that_cannot_call_tools_is_told_with_what_to_do(tmp_path: Path) -> None:
    """One line, nothing is sent, and the command that shows which models can."""
    (tmp_path / "models.yaml").write_text("""
        adapters: {local: {type: openai_compatible, base_url: "http://127.0.0.1:9"}}
        models: {"local:m": {adapter: local, capabilities: {supports_tools: false}}}
    """)
    (tmp_path / "tools.py").write_text(TOOLS)
    done = call("ask", "-m", "local:m", "-T", str(tmp_path / "tools.py"), "hi", home=tmp_path, exits=1)
    (line,) = done.stderr.splitlines()
    assert "can't call tools" in line
    assert "`callboard models`" in line


def test_a_tool_that_cannot_be_had_says_why(talkative: Path, tmp_path: Path) -> None:
    """One line with the file and its line, no frames of the library, exit code 2."""
    file = tmp_path / "mine.py"
    for text, tool, said in (
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
        assert said in line


MCP_SERVER = f"mcp:{sys.executable} {CHECKOUT / 'tests/engine/mcp/old_server.py'} lib"


def test_tools_of_an_mcp_server_are_there_for_a_question_and_a_chat(talkative: Path) -> None:
    """It is started with the command, and ends with it; one that can't be reached is one line."""
    pytest.importorskip("mcp", reason="needs callboard[mcp]")
    said = 'call echo {"text": "hi"}'
    done = call("ask", "-m", "obedient:m", "-T", MCP_SERVER, said, home=talkative, exits=0)
    assert "lib: hi" in done.stdout
    done = call("chat", "-m", "obedient:m", "-T", MCP_SERVER, home=talkative, said=f"{said}\n", exits=0)
    assert "lib: hi" in done.stdout
    for command, code, words in (
        ("false", 1, "can't be reached"),
        ("", 2, "names no command"),
        ("'", 2, "quotation"),
    ):
        for name in ("ask", "chat"):
            done = call(name, "-m", "obedient:m", "-T", f"mcp:{command}", home=talkative, said="hi", exits=code)
            (line,) = done.stderr.splitlines()
            assert words in line


def test_a_template_is_kept_and_asked_by(talkative: Path) -> None:
    """What the command line says stands over what the template says."""
    save = ("--save", "sum", "-m", "obedient:m", "-s", "in $language", "-o", "temperature", "1", "what $input")
    assert "ask -t sum" in call("ask", *save, home=talkative, exits=0).stderr
    ask = ("ask", "-t", "sum", "-p", "language", "French")
    assert call(*ask, "is it", home=talkative, exits=0).stdout == "TextBlock|in French|1.0|\n"
    done = call(*ask, "-s", "mine", "-o", "temperature", "0", home=talkative, exits=0)
    assert done.stdout == "TextBlock|mine|0.0|\n"
    assert "-p language VALUE" in call("ask", "-t", "sum", "x", home=talkative, exits=2).stderr


def test_a_failure_is_one_line_with_a_fitting_exit_code(talkative: Path) -> None:
    """2 for what the person mends: a model that isn't there, a key that isn't set; 1 for a provider that fails."""
    for model, code, said in (
        ("frist", 2, "did you mean first?"),
        ("locked:m", 2, "A_KEY_THAT_IS_NOT_SET"),
        ("broken:m", 1, "ServerError of broken: the provider is on fire"),
    ):
        done = call("ask", "-m", model, "hi", home=talkative, exits=code)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        assert said in line


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.deep("another signal"))],
)
def test_a_signal_ends_it_in_order_with_what_had_arrived(talkative: Path, number: int, code: int) -> None:
    """The partial reply stays on stdout, the exit code is the signal's, and the call is in the trace."""
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


def test_a_reader_that_goes_ends_it_quietly(talkative: Path) -> None:
    """As `head` does; the call is cancelled, and nothing is said of the pipe."""
    reads, writes = os.pipe()
    os.close(reads)
    done = call_into(writes, "ask", "-m", "endless:m", "Tell me a story.", home=talkative)
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")
    row = msgspec.json.decode(call("traces", "--json", home=talkative, exits=0).stdout)
    assert row["status"] == "cancelled"


def test_a_pipe_gets_the_reply_as_it_came_and_a_terminal_what_cannot_steer_it(talkative: Path) -> None:
    """The reply ends with a line break in both; at a terminal nothing is read from the keyboard."""
    assert call("ask", "-m", "rude:m", "hi", home=talkative, exits=0).stdout == "a\x1b[2Jb\x07c\x9b31md\n"
    code, shown, err = at_terminal("ask", "-m", "rude:m", "hi", home=talkative, on="stdin stdout")
    assert (code, err, shown) == (0, "", "a[2Jbc31md\r\n")


@pytest.mark.parametrize("hidden", [(), ("-R",)])
def test_a_terminal_shows_what_the_model_thinks_and_stdout_never_does(home: Path, hidden: tuple[str, ...]) -> None:
    """On a line of its own, without what could steer the terminal; a pipe for stderr gets none of it."""
    reply = r'{thinking: "Hm\e[2J, well.", text: "Yes.", usage: {input_tokens: 1, output_tokens: 1}}'
    (home / "models.yaml").write_text(f"""
        adapters: {{toy: {{type: scripted, options: {{repeat: true, replies: [{reply}]}}}}}}
        models: {{"toy:m": {{adapter: toy}}}}
    """)
    code, shown, out = at_terminal("ask", "-m", "toy:m", *hidden, "hi", home=home, on="stderr", NO_COLOR="1")
    assert (code, out) == (0, "Yes.\n")
    assert shown == ("" if hidden else "Hm[2J, well.\r\n")
    assert call("ask", "-m", "toy:m", "hi", home=home, exits=0).stderr == ""


def test_an_interrupt_while_it_starts_is_quiet(talkative: Path) -> None:
    """No frames, although nothing of the command has begun."""
    with start(home=talkative, program=INTERRUPTED_EARLY) as process:
        assert process.communicate() == (b"", b"")
    assert process.returncode == 130


@pytest.mark.parametrize("stream", first_is_quick([1, 0, 2], "more closed streams"))
def test_a_stream_may_be_closed_from_the_start(talkative: Path, stream: int) -> None:
    """As a shell does with >&-: what would be written there is lost, and nothing else happens."""
    program = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
    words = [sys.executable, "-c", program, str(stream), *ASK, "hi"]
    done = subprocess.run(words, capture_output=True, env=environment(talkative), cwd=CHECKOUT, input=b"")
    said = b"" if stream == 1 else b"one heard 1 messages, last: hi\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, b"")


def test_it_needs_no_library_for_terminals(talkative: Path) -> None:
    """Neither rich nor prompt_toolkit, nor does help."""
    for missing in ("rich", "prompt_toolkit"):
        done = call("ask", "-u", "hi", home=talkative, without=missing, exits=0)
        assert done.stdout == "one heard 1 messages, last: hi\n"


# -- `callboard ask` over HTTP: real providers' protocols, served by a process of its own, or refused.

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
    more = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": f"{server}/v1", "ANTHROPIC_API_KEY": "x"}
    for model in ("anthropic:claude-opus-5-5", "openai:gpt-5.4"):
        chosen = {"ANTHROPIC_BASE_URL": server, "CALLBOARD_MODEL": model}
        done = call("ask", "--json", "hi", home=home, more={**more, **chosen}, exits=0)
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
def test_a_refusal_is_one_line_that_says_what_to_do(
    home: Path, status: int, kind: str, message: str, code: int, said: str
) -> None:
    """No key in it, no frames; 2 for what the person mends."""
    with provider_server(status, msgspec.json.encode({"error": {"type": kind, "message": message}})) as server:
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
