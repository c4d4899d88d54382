"""The kit of an adapter: with it, the checks create the adapter and control its provider.

A check plays *scenes* on a *stage*. Each scene is the provider's answer to one request. For an adapter over HTTP,
`HttpKit` converts scenes to replies of the protocol. An adapter without HTTP needs its own subclass of `Kit`.
Checks run in virtual time, which advances only when all tasks wait.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, TypeVarTuple, Unpack

import anyio
import anyio.to_thread
import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContextOverflowError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    ServerError,
)
from callboard.bus.values.base import JsonObject
from callboard.bus.values.messages import Message, ToolDefinition
from callboard.bus.values.usage import StopReason, TokenUsage

from ..contract import AdapterCapabilities, CanonicalRequest, ProviderAdapter
from ..transport.transport import HttpRequest

MARK = "WORKS_IN_THREADS"
"""The name of the module attribute that marks modules whose futures are completed by threads."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the loop's clock to the next timer instead of sleeping."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Without a timer, only a thread or a socket can continue.
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None and timeout > 0:
            if self.loop.threads_at_work():
                ready = super().select(None)
            else:
                self.loop.now += timeout
        self.loop.refuse_untracked_thread()
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time, starting at 0. Not for sockets.

    Time stops while a thread works for the loop, so that thread must not wait for a timer of the loop. The loop
    detects threads of anyio, executors, aiosqlite and plain tools. If any other thread calls the loop, it raises
    RuntimeError.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._awaited: set[asyncio.Future[Any]] = set()
        self._untracked_thread: str | None = None
        self._ending = False
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def threads_at_work(self) -> bool:
        """Whether a thread works for a waiting task."""
        try:
            borrowed = anyio.to_thread.current_default_thread_limiter().borrowed_tokens
        except RuntimeError:  # the loop was not started by anyio
            borrowed = 0
        return bool(self._awaited or borrowed)

    def create_future(self) -> asyncio.Future[Any]:
        """A future. If a thread completes the future, virtual time stops until then."""
        future = super().create_future()
        if _works_in_threads(sys._getframe(1).f_globals):
            self._awaited.add(future)
            future.add_done_callback(self._awaited.discard)
        return future

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function soon. Raises RuntimeError in a thread that the loop can't track."""
        caller = threading.current_thread()
        runs_blocking = caller.name == "AnyIO worker thread" or _works_in_threads(
            getattr(callback, "__globals__", {})
        )
        runs_here = asyncio._get_running_loop() is self
        if self.is_running() and not (runs_blocking or self._ending or runs_here):
            self._untracked_thread = caller.name
        return super().call_soon_threadsafe(callback, *args, context=context)

    def refuse_untracked_thread(self) -> None:
        """Raise RuntimeError, once, if an untracked thread has called."""
        if (name := self._untracked_thread) is not None:
            self._untracked_thread = None
            raise RuntimeError(
                f"the thread {name!r} works for a loop with virtual time, which does not wait for it. "
                f"Run the test in real time, on the backend 'asyncio'"
            )

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads of `to_thread`, which end in real time.

        Args:
            timeout: Seconds, since Python 3.12. There is no limit here.
        """
        self._ending = True
        await super().shutdown_default_executor()


def _works_in_threads(module: Mapping[str, object]) -> bool:
    """Whether a module's futures are completed by a thread, through a function of that module. Callboard's own
    modules are marked.
    """
    return module.get("__name__") in ("asyncio.futures", "aiosqlite.core") or module.get(MARK) is True


class _ClockHeldByThreads:
    """A trio instrument that stops the clock while a thread works."""

    def __init__(self, clock: Any, thread_limiter: Callable[[], Any]) -> None:
        self._clock = clock
        self._thread_limiter = thread_limiter

    def after_task_step(self, task: object) -> None:
        threshold = math.inf if self._thread_limiter().borrowed_tokens else 0.0
        if threshold != self._clock.autojump_threshold:
            self._clock.autojump_threshold = threshold


class FakeClock:
    """A `bus.clock.Clock` for tests. Ids are counted.

    Inside a virtual loop, or with trio's MockClock, the clock follows the loop's time. `advance` adds to it.

    Args:
        randomness: The number that `random` gives, in [0, 1).
        epoch_us: The start time, in microseconds since the epoch.
    """

    def __init__(self, *, randomness: float = 0.5, epoch_us: int = 1_700_000_000_000_000) -> None:
        self.randomness = randomness
        self._epoch_us = epoch_us
        self._advanced_ns = 0
        self._ids = 0

    def advance(self, seconds: float) -> None:
        """Move the clock ahead by a number of seconds, without waiting."""
        self._advanced_ns += round(seconds * 1e9)

    def monotonic_ns(self) -> int:
        try:
            loop_ns = round(anyio.current_time() * 1e9)
        except RuntimeError:  # no loop runs; anyio and sniffio raise subclasses of this
            loop_ns = 0
        return self._advanced_ns + loop_ns

    def now_us(self) -> int:
        return self._epoch_us + self.monotonic_ns() // 1000

    def new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}_{self._ids:026d}"

    def random(self) -> float:
        return self.randomness


Backend = tuple[str, dict[str, object]]

BACKENDS = ("virtual-asyncio", "virtual-trio", "asyncio", "uvloop", "trio")


def backend(name: str) -> Backend:
    """The backend for anyio. Each has a fresh clock."""
    match name:
        case "virtual-asyncio":
            return "asyncio", {"loop_factory": VirtualLoop}
        case "virtual-trio":
            import trio.testing  # not a dependency: only needed on request

            clock = trio.testing.MockClock(autojump_threshold=0)
            limiter = trio.to_thread.current_default_thread_limiter
            return "trio", {"clock": clock, "instruments": [_ClockHeldByThreads(clock, limiter)]}
        case "uvloop":
            return "asyncio", {"use_uvloop": True}
        case "asyncio" | "trio":
            return name, {}
        case _:
            raise ValueError(f"unknown backend {name!r}. Expected {', '.join(BACKENDS)}")


def run_virtual(function: Callable[[], Awaitable[T]], name: str = "virtual-asyncio") -> T:
    """Run an async function on virtual time, for tests that can't be async."""
    kind, options = backend(name)
    return anyio.run(function, backend=kind, backend_options=options)


KEY = "sk-conformance-0123456789"
"""The API key that every adapter under test is given."""

CALLS: tuple[tuple[str, JsonObject], ...] = (
    ("read_file", {"path": "a.txt"}),
    ("list_files", {"path": ".", "deep": True, "limit": 3}),
)
"""The tool calls of the provider in every scene, in order: name and arguments."""

TOOLS = tuple(
    ToolDefinition(
        name,
        "A tool",
        {"type": "object", "properties": {key: {} for key in arguments}, "required": list(arguments)},
    )
    for name, arguments in CALLS
)
"""The tools of `CALLS`."""

STOPS = {"end": StopReason.END_TURN, "tools": StopReason.TOOL_USE, "length": StopReason.MAX_TOKENS}
"""The stop reason of each end in a scene."""

CONDITIONS: dict[str, type[AdapterError]] = {
    "rate limit": RateLimitError,
    "overload": OverloadedError,
    "quota": QuotaExceededError,
    "bad key": AuthError,
    "forbidden": AccessDeniedError,
    "no model": NotFoundError,
    "overflow": ContextOverflowError,
    "bad request": InvalidRequestError,
    "server": ServerError,
}
"""The reasons for which a provider rejects a request, each with the adapter's exception."""


class NotShown(Exception):
    """The provider can't do this, or the kit doesn't show it. The text gives the reason. This is not a failure."""


class Says(msgspec.Struct, frozen=True):
    """The provider replies with a thought, a text and the first `calls` of `CALLS`, each in two pieces."""

    text: str = ""
    """The text of the reply."""
    calls: int = 0
    """The number of tool calls in the reply."""
    stop: str = "end"
    """The end of the reply: ``end``, ``tools`` or ``length``."""
    thought: str = ""
    """The text of the reasoning."""
    streamed: bool = True
    """Whether the request asks for a stream."""
    after: int | None = None
    """The number of pieces before `then`; None means all pieces. A piece is one event of the protocol."""
    then: Literal["end", "hang", "break", "error"] = "end"
    """How the scene continues after the pieces. ``end``: the reply ends. ``hang``: nothing follows. ``break``: the
    connection breaks. ``error``: the provider reports an overload.
    """
    pause: float = 0.0
    """The pause before each piece, in virtual seconds."""


class Fails(msgspec.Struct, frozen=True):
    """The provider rejects the request."""

    condition: str
    """The reason, a name of `CONDITIONS`."""
    retry_after: float | None = None
    """The wait that the provider requests, in seconds."""
    says: str = ""
    """A text in the provider's message."""


class Unreachable(msgspec.Struct, frozen=True):
    """There is no connection to the provider."""


class Silent(msgspec.Struct, frozen=True):
    """The provider accepts the request and never answers."""


Scene: TypeAlias = Says | Fails | Unreachable | Silent
"""The provider's answer to one request."""


@dataclass
class Stage:
    """An adapter that is connected to a simulated provider."""

    adapter: ProviderAdapter
    """The adapter under test."""
    clock: FakeClock
    """The adapter's clock."""
    model: str
    """The model of the requests, with its prefix."""
    asked: Callable[[], int]
    """A function that returns the number of requests to the provider."""
    released: Callable[[], bool]
    """A function that returns whether every connection of the adapter was returned."""
    requests: Sequence[HttpRequest] | None = None
    """The requests that went over HTTP; None for an adapter without HTTP."""
    patience: float = 0.0
    """The time in seconds that real sockets may take to close."""

    @property
    def capabilities(self) -> AdapterCapabilities:
        """The capabilities of the stage's model."""
        return self.adapter.get_capabilities(self.model.partition(":")[2])

    async def must_release(self, message: str) -> None:
        """Fail unless every connection was returned.

        Args:
            message: The text of the error.

        Raises:
            AssertionError: The adapter still holds a connection.
        """
        deadline = anyio.current_time() + self.patience
        while not self.released():
            if anyio.current_time() >= deadline:
                raise AssertionError(message)
            await anyio.sleep(self.patience / 50)

    def request(self, *messages: Message, **changes: object) -> CanonicalRequest:
        """A request to the model of this stage, with the tools of `CALLS` if the model supports tools.

        Args:
            messages: The messages of the request. Without any, the user says hello.
            changes: Other fields of the request, by name.
        """
        fields: dict[str, object] = {
            "request_id": "req_1",
            "messages": messages or (Message.user("Hello"),),
            "model": self.model,
            "max_output_tokens": 64,
            "tools": TOOLS if self.capabilities.supports_tools else (),
            "message_id": "msg_1",
            **changes,
        }
        return CanonicalRequest(**fields)  # type: ignore[arg-type]  # a check names its own fields


class Kit(ABC):
    """One adapter for the checks."""

    name: str
    """The adapter's name, equal to `adapter.name`."""
    model = "some-model"
    """The name of a model, without its prefix."""
    streams = True
    """Whether the provider streams.

    If False, `stream()` yields whole blocks, and `streamed` of a scene is ignored.
    """
    real_time = False
    """Whether the adapter uses real sockets. Checks that would take minutes are then skipped."""

    takes_key = True
    """Whether the provider uses keys."""

    names_model = True
    """Whether requests name a model. False for a provider with one model."""

    moment = 1.0
    """The time in seconds, real or virtual, in which all pending work completes."""
    usage: TokenUsage | None = TokenUsage(8, 7, cached_input_tokens=4)
    """The usage in every reply; None if the provider reports none, so that the adapter estimates it."""

    @abstractmethod
    def stage(self, *scenes: Scene, **config: object) -> AbstractAsyncContextManager[Stage]:
        """The adapter in front of a provider that plays scenes. The adapter is closed at the end.

        The adapter is made with a fake clock and with `KEY`.

        Args:
            scenes: The scenes, one for each request.
            config: Fields of `AdapterConfig`, by name.

        Raises:
            NotShown: The provider can't play a scene. The context manager raises it when it is entered.
        """

    @asynccontextmanager
    async def stage_or_none(self, *scenes: Scene, **config: object) -> AsyncIterator[Stage | None]:
        """Like `stage`, with None in place of the stage if the provider can't play a scene."""
        async with AsyncExitStack() as stack:
            try:
                at = await stack.enter_async_context(self.stage(*scenes, **config))
            except NotShown:
                at = None
            yield at

    @abstractmethod
    def pieces(self, scene: Says) -> int:
        """The number of pieces of the reply in a scene."""
