"""The operating system's side of a local server: one process, its three pipes, and how it ended.

`server.py` is what runs in it, and describes what is said over the pipes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from callboard.bus.errors import ConfigurationError, ServerError

from .settings import INSTALL_RUNTIME, LocalServerSettings, default_threads

EXIT_SECONDS = 2.0
KILL_SECONDS = 5.0
LAST_WORDS_BYTES = 4096
LAST_WORDS_LINES = 8
STAMP = re.compile(r"^\d+\.\d+\.\d+\.\d+ [A-Z] ")


class Child:
    """One process. Belongs to no event loop."""

    def __init__(self, settings: LocalServerSettings, api_key: str) -> None:
        """Start the process; takes 1 to 2 ms and waits for nothing. Raises ServerError when there can be none."""
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
                # A Ctrl-C in the terminal is the parent's to answer; it stops us in its own order.
                start_new_session=True,
            )
        except OSError as error:
            raise ServerError(f"the local model's process can't be started: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._stdin, self._stdout, self._stderr = self._process.stdin, self._process.stdout, self._process.stderr
        self._reading = threading.Lock()  # of stdout
        self._owner = os.getpid()
        self._last_words = b""
        # A thread, because a task would need an owner for as long as the process lives. It ends with the process.
        self._listener = threading.Thread(target=self._listen, name="callboard-local-stderr", daemon=True)
        self._listener.start()
        with contextlib.suppress(OSError):  # dead already: reading its answer will say so
            self._stdin.write(msgspec.json.encode(configuration) + b"\n")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        """Alive, and not told to end."""
        return not self._stdin.closed and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it lives; negative for a signal."""
        return self._process.poll()

    async def wait_ready(self) -> str:
        """The server's address, once it answers. Raises ConfigurationError or ServerError when it won't."""
        # Abandoned when cancelled: the process is killed then, and the thread reads the end of its pipe.
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
        words = await self._hear_last_words()
        if answer.kind == "init":
            # The same file and settings will fail again.
            raise ServerError(f"llama.cpp refused to serve the model: {words or answer.error}", retryable=False)
        raise ServerError(
            f"the local model's process {describe_exit(self.exit_code)} before it answered"
            + (f"; its last words: {words}" if words else "")
        )

    def dismiss(self) -> None:
        """Tell the process to end, and don't wait. Idempotent."""
        if self._stdin.closed:
            return
        with contextlib.suppress(OSError):
            self._stdin.write(b"\n")  # heard even if a forked copy of us keeps the pipe open
        self._stdin.close()

    async def end(self, grace: float) -> bool:
        """End the process: `grace` seconds to go by itself, then by force. True when it is gone and reaped."""
        self.dismiss()
        if grace <= 0 or not await self._wait_exit(grace):
            self._process.kill()
        gone = await self._wait_exit(KILL_SECONDS)
        if gone:
            await self._listened()
        self._close_stdout()
        return gone

    def abandon(self) -> None:
        """Kill and reap it now; for finalizers. A forked copy of the parent leaves it alone."""
        if os.getpid() != self._owner:
            return
        self.dismiss()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._close_stdout()

    async def _wait_exit(self, seconds: float) -> bool:
        """Whether it is gone, after at most that long.

        By looking again and again: a thread can't be started in an interpreter that shuts down, where we are
        stopped too, and a child watcher belongs to an event loop. It takes 15 ms, so it is few looks.
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
        """Wait, not for long, until the thread has read the end of the pipe and is gone."""
        for _ in range(50):
            if not self._listener.is_alive():
                return
            await anyio.sleep(0.01)

    async def _hear_last_words(self) -> str:
        """What llama.cpp said last, once its pipe has ended: each line once, without its time stamp."""
        await self._listened()
        lines = self._last_words.decode(errors="replace").splitlines()
        words = dict.fromkeys(STAMP.sub("", line).strip() for line in lines)
        return "; ".join(line for line in list(words)[-LAST_WORDS_LINES:] if line)

    def _read_answer(self) -> bytes:
        """In a thread. A start that is cancelled early never comes here; then `end` closes the pipe."""
        with self._reading:
            if self._stdout.closed:
                return b""
            with self._stdout:
                return self._stdout.readline()

    def _close_stdout(self) -> None:
        """Unless a thread still reads: only that one can close it safely, and does."""
        if self._reading.acquire(blocking=False):
            self._stdout.close()
            self._reading.release()

    def _listen(self) -> None:
        with self._stderr:
            while chunk := self._stderr.read(65_536):
                self._last_words = (self._last_words + chunk)[-LAST_WORDS_BYTES:]


class Answer(msgspec.Struct):
    """The child's one line."""

    url: str = ""
    error: str = ""
    kind: str = ""


def describe_exit(code: int | None) -> str:
    if code is None:
        return "closed its output"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
