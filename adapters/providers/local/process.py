"""The life of the child process that serves a local model.

Measured with xllamacpp 2026.10.11549 and SmolLM2-135M (98 MB) on two cores: it starts in 0.8 to 2.5 s and uses 0.5
GB with four slots of 4,096 tokens. It ends 15 ms after its stdin is closed. Too many threads make it ten times
slower, see `child.default_threads`. Llama.cpp splits its context between slots and limits each slot to the length
of the model's training, so `LocalServer.context_tokens` is the real number of tokens of a request.

The process is a `subprocess.Popen`, because anyio's process is bound to an event loop. No await separates its
start from its registration, so a cancelled start can still end it. A finalizer kills a forgotten server. If the
parent dies, the system closes stdin, and the child ends itself.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import weakref
from types import TracebackType
from typing import ClassVar, Self, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from callboard.bus.errors import AdapterError, RequestTimeoutError, ServerError

from .child import HOST, Child, LocalServerSettings, check_before_start

START_SECONDS = 110.0  # less than the adapter's actor waits, so that the error raised here gives the reason
STOP_SECONDS = 2.0
HEALTH_SECONDS = 5.0
REPLY_BYTES = 1 << 20
STOPPED_WHILE_STARTING = "the local model's server was stopped while it was starting"


class LocalServerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    pid: int | None
    """The id of the child process; None if there is none."""
    running: bool
    starts: int
    startup_seconds: float
    """The duration of the last successful start, in seconds."""
    uptime_seconds: float
    """The seconds since the last successful start; 0 if the process doesn't run."""
    exit_code: int | None
    """The exit code of the last process that ended, negative for a signal."""


class LocalServer:
    """One child process with one model, from `start()` to `stop()`.

    A server belongs to the event loop that uses it. `url`, `api_key` and `pid` change with every start. For a
    server that several users share, see `shared`.
    """

    def __init__(self, settings: LocalServerSettings, *, start_timeout: float = START_SECONDS) -> None:
        self.settings = settings
        self._start_timeout = start_timeout
        self._lock = anyio.Lock()
        self._process: Child | None = None
        self._starting: anyio.CancelScope | None = None
        self._url = ""
        self._api_key = ""
        self._context_tokens = settings.context_tokens
        self._starts = 0
        self._startup_seconds = 0.0
        self._started_at = 0.0
        self._exit_code: int | None = None
        self._stops = 0
        self._finalizer: weakref.finalize[..., LocalServer] | None = None

    @staticmethod
    def shared(settings: LocalServerSettings, *, start_timeout: float = START_SECONDS) -> SharedServer:
        """A handle to the only server with these settings on this event loop; see `SharedServer`."""
        return SharedServer(settings, start_timeout)

    @property
    def running(self) -> bool:
        """Whether the process is running and was not asked to stop. `health` checks whether it answers."""
        return bool(self._url) and self._process is not None and self._process.running

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``, without a version suffix; empty before the first start."""
        return self._url

    @property
    def api_key(self) -> str:
        """The server's key, random for each start; empty before the first."""
        return self._api_key

    @property
    def pid(self) -> int | None:
        """The child's process id; None if there is none."""
        return self._process.pid if self._process is not None and self._process.running else None

    @property
    def context_tokens(self) -> int:
        """The tokens of one request, prompt and reply together. After the start, this is the number that the
        server reports.
        """
        return self._context_tokens

    def statistics(self) -> LocalServerStatistics:
        """The statistics, without a request to the server."""
        running = self.running
        return LocalServerStatistics(
            pid=self.pid,
            running=running,
            starts=self._starts,
            startup_seconds=self._startup_seconds,
            uptime_seconds=time.monotonic() - self._started_at if running else 0.0,
            exit_code=self._exit_code if self._process is None else self._process.exit_code,
        )

    async def start(self) -> None:
        """Start the server and wait until it answers. A running server is kept; a dead server is restarted.

        Raises:
            ConfigurationError: The settings or the installation are wrong.
            ServerError: The child ended instead of answering. The text contains the child's last output.
            RequestTimeoutError: The start takes too long.
        """
        stops = self._stops
        async with self._lock:
            if self.running:
                return
            if stops != self._stops:
                raise ServerError(STOPPED_WHILE_STARTING)
            with anyio.CancelScope() as self._starting:
                try:
                    await self._start()
                finally:
                    self._starting = None
                return
            raise ServerError(STOPPED_WHILE_STARTING)

    async def stop(self) -> None:
        """Stop the server and wait until its process is gone, for some seconds at most. Idempotent.

        Replies in progress break off. A start in progress in another task fails.
        """
        self._stops += 1
        if self._starting is not None:
            self._starting.cancel()
        if self._process is not None:
            self._process.dismiss()
        with anyio.CancelScope(shield=True):
            async with self._lock:
                await self._end(grace=STOP_SECONDS)

    async def health(self) -> bool:
        """Whether the server answers within 5 s. Raises only cancellation."""
        if not self.running:
            return False
        with anyio.move_on_after(HEALTH_SECONDS):
            try:
                status, _ = await self._get("/health")
            except (OSError, AdapterError, anyio.BrokenResourceError):
                return False
            return status == 200
        return False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start(self) -> None:
        await self._end(grace=0)  # end a process that died or was not stopped completely
        await anyio.to_thread.run_sync(check_before_start, self.settings)
        began = time.monotonic()
        api_key = secrets.token_urlsafe(32)
        try:
            # There must be no await in this line: a cancelled start would leave a process behind.
            child = self._process = Child(self.settings, api_key)
            self._finalizer = weakref.finalize(self, child.abandon)
            with anyio.fail_after(self._start_timeout):
                self._url = await child.wait_ready()
                self._api_key = api_key
                self._context_tokens = await self._ask_context()
        except TimeoutError:
            await self._end(grace=0)
            raise RequestTimeoutError(
                f"the local model's server did not answer within {self._start_timeout:g} s of its start "
                f"({self.settings.model_path})"
            ) from None
        except BaseException:
            await self._end(grace=0)
            raise
        self._starts += 1
        self._started_at = time.monotonic()
        self._startup_seconds = self._started_at - began

    async def _end(self, *, grace: float) -> None:
        child = self._process
        if child is None:
            return
        self._url = self._api_key = ""
        with anyio.CancelScope(shield=True):
            if await child.end(grace):
                self._exit_code = child.exit_code
                self._process = None
                if self._finalizer is not None:
                    self._finalizer.detach()

    async def _ask_context(self) -> int:
        """Request the real number of tokens per request. This also proves that the server answers and accepts the
        key.
        """
        try:
            status, body = await self._get("/v1/models")
        except (OSError, anyio.BrokenResourceError) as error:
            raise ServerError(f"the local model's server can't be reached at {self._url}: {error}") from error
        if status != 200:
            raise ServerError(f"the local model's server rejects its own key with status {status}")
        try:
            meta = msgspec.json.decode(body, type=_Models).data[0].meta
        except (msgspec.DecodeError, IndexError):
            return self.settings.context_tokens  # another build of llama.cpp has another format; ignore it
        return meta.n_ctx or self.settings.context_tokens

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Send one GET over a separate connection, so that health is independent of pools.

        Raises OSError or BrokenResourceError if the connection fails, ServerError if the answer isn't HTTP.
        """
        port = int(self._url.rpartition(":")[2])
        request = f"GET {path} HTTP/1.0\r\nHost: {HOST}\r\nAuthorization: Bearer {self._api_key}\r\n\r\n"
        reply = b""
        async with await anyio.connect_tcp(HOST, port) as connection:
            await connection.send(request.encode())
            with contextlib.suppress(anyio.EndOfStream):
                while len(reply) < REPLY_BYTES:
                    reply += await connection.receive()
        head, _, body = reply.partition(b"\r\n\r\n")
        fields = head.split(b" ", 2)
        if len(fields) < 2 or not fields[1].isdigit():
            raise ServerError(f"the local model's server answered {path} with something that is not HTTP")
        return int(fields[1]), body


class SharedServer:
    """A handle to a server that all users with equal settings on one event loop share.

    The first `acquire` starts it, the last `release` stops it. More `acquire` calls on one handle have no effect.
    Call `acquire` again to restart a dead server.
    """

    def __init__(self, settings: LocalServerSettings, start_timeout: float = START_SECONDS) -> None:
        self.settings = settings
        self._start_timeout = start_timeout
        self._claim: _Shared | None = None
        self._pending = 0  # acquires in progress on this handle
        self._is_claimed = False

    @property
    def server(self) -> LocalServer | None:
        """The server, between `acquire` and `release`; otherwise None. The server may have stopped."""
        return self._claim.server if self._claim is not None and self._is_claimed else None

    async def acquire(self) -> LocalServer:
        """Return the running server. Raises the errors of `LocalServer.start`, and ServerError if the handle is
        released during the wait. A failed `acquire` does not change the handle.
        """
        if self._claim is None:
            self._claim = _Shared.claim(self.settings, self._start_timeout)
        shared = self._claim
        self._pending += 1
        try:
            await shared.server.start()
            if self._claim is not shared:
                raise ServerError("the local model's server was released while it was starting")
            self._is_claimed = True
        finally:
            self._pending -= 1
            # Other tasks may wait for the start on this handle. A cancelled task must not release the server for
            # them.
            if self._claim is shared and not self._is_claimed and not self._pending:
                self._claim = None
                shared.users -= 1
                shared.forget_if_unused()
        return shared.server

    async def release(self) -> None:
        """Release the server. The last handle waits until the server has stopped. Idempotent."""
        shared, self._claim, self._is_claimed = self._claim, None, False
        if shared is None:
            return
        shared.users -= 1
        try:
            if not shared.users:
                await shared.server.stop()
        finally:
            shared.forget_if_unused()

    async def __aenter__(self) -> LocalServer:
        return await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()


class _Shared:
    """A server and the number of handles with a claim, in the table of its event loop.

    The table is a RunVar, so it exists as long as the event loop. If a loop is dropped, the server's finalizer
    ends the server. An entry stays while its server stops, so that a new user waits for the stop and a fixed port
    is free again. The table has one entry for each set of settings in use.
    """

    _table: ClassVar[anyio.lowlevel.RunVar[dict[LocalServerSettings, _Shared]]] = anyio.lowlevel.RunVar(
        "callboard_local_servers"
    )

    def __init__(self, settings: LocalServerSettings, start_timeout: float, table: _Table) -> None:
        self.server = LocalServer(settings, start_timeout=start_timeout)
        self.users = 0
        self._in_table = table

    @classmethod
    def claim(cls, settings: LocalServerSettings, start_timeout: float) -> _Shared:
        """The loop's entry for the settings, with one more user."""
        table = cls._table.get(None)
        if table is None:
            table = {}
            cls._table.set(table)
        shared = table.get(settings)
        if shared is None:
            shared = table[settings] = cls(settings, start_timeout, table)
        shared.users += 1
        return shared

    def forget_if_unused(self) -> None:
        if not self.users and self._in_table.get(self.server.settings) is self:
            del self._in_table[self.server.settings]


_Table: TypeAlias = dict[LocalServerSettings, _Shared]


class _ModelMeta(msgspec.Struct):
    n_ctx: int | None = None


class _ModelEntry(msgspec.Struct):
    meta: _ModelMeta = msgspec.field(default_factory=_ModelMeta)


class _Models(msgspec.Struct):
    """The fields of llama.cpp's ``/v1/models``; n_ctx is for each slot."""

    data: list[_ModelEntry] = msgspec.field(default_factory=list)
