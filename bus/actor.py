"""Actors: one message at a time, a mailbox, and tasks.

An `Actor` defines the behaviour. Other code uses its `ActorRef`, which stays valid over restarts. An `Incarnation`
is one life of one instance, from its start to its end:

    starting ──started() returned──▶ running ──┬─ stop requested ─┬─▶ closing ──▶ ended
       └────────────── failed ─────────────────┴─ crashed ────────┘

    starting   started() runs; messages wait in the mailbox.
    running    receive() gets one message at a time. Tasks made by spawn() run concurrently.
    closing    the tasks are cancelled and awaited; then stopping() runs, shielded, for at most a second.
    ended      no work of this life is running. Only now may the next life start.

A crash is an exception from started() or receive(), or a leaked cancellation. The failure of a single task is not
a crash. The mailbox survives a restart. The current message is not delivered again, because that could repeat a
model call. Its sender gets `ActorStopped`. Every ask returns a reply or raises ActorStopped, MailboxFull or
DeadlineExceeded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal, TypeAlias, TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel
import msgspec

from .backend import Signal, new_signal
from .bus import Bus
from .clock import Clock
from .errors import ActorStopped, DeadlineExceeded, MailboxFull
from .log import Log
from .tasks import TaskHandle, Tasks, current_coroutine, describe, origin, stack_of, unwrapped, without_leak

# --- Messages in transit ---


class MailboxItem:
    """A message, and a future if the sender waits for an answer."""

    __slots__ = ("_done", "_error", "_value", "message")

    def __init__(self, message: object, *, wants_answer: bool) -> None:
        self.message = message
        self._done = anyio.Event() if wants_answer else None
        self._value: object = None
        self._error: Exception | None = None

    @property
    def asked(self) -> bool:
        return self._done is not None

    def answer(self, value: object) -> None:
        """Pass the answer to the sender, if the sender waits. Only the first answer or failure is used."""
        if self._done is not None and not self._done.is_set():
            self._value = value
            self._done.set()

    def fail(self, error: Exception) -> None:
        """Make `result` raise this exception."""
        if self._done is not None and not self._done.is_set():
            self._error = error
            self._done.set()

    async def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the answer or failure. Return whether it has arrived."""
        assert self._done is not None
        with anyio.move_on_after(timeout):
            await self._done.wait()
        return self._done.is_set()

    def result(self) -> object:
        """Return the answer, or raise the exception of the failure."""
        if self._error is not None:
            raise self._error
        return self._value


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_log = Log("bus.actor")

MAILBOX_CAPACITY = 256
STOPPING_SECONDS = 1.0
_MESSAGE_BURST = 16

Phase: TypeAlias = Literal["starting", "running", "closing", "ended"]


class Actor:
    """Base class of actors. A supervisor makes a new instance for every start and restart."""

    async def started(self, context: ActorContext) -> None:
        """Called once, before the first message. If it raises, the start has failed."""

    async def receive(self, message: object) -> object:
        """Handle one message. The return value answers an ask.

        An exception is a crash. The sender gets ActorStopped, with the exception as its cause. Never await long
        work here: spawn a task for it.

        Raises:
            NotImplementedError: The method is not overridden.
        """
        raise NotImplementedError

    async def stopping(self) -> None:
        """Called once after all the actor's tasks have ended, also after a crash. Not called if the start failed.

        Cancellation does not interrupt the method. After one second it is aborted. Its exceptions are logged.
        """


class ActorContext:
    """The services that an actor may use from its start to its next restart or end."""

    def __init__(self, ref: ActorRef, bus: Bus, clock: Clock, stop: Callable[[], None]) -> None:
        self.ref = ref
        """The actor's own ref, which the actor may pass to other code."""
        self.bus = bus
        """The supervisor's bus."""
        self.clock = clock
        """The supervisor's clock."""
        self._stop = stop

    def spawn(self, fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, name: str | None = None) -> TaskHandle[T]:
        """The same as `ActorRef.spawn`."""
        return self.ref.spawn(fn, *args, name=name)

    def stop(self) -> None:
        """End this life normally after the current message. A permanent actor is then restarted."""
        self._stop()


class _WorkFailed(msgspec.Struct, frozen=True):
    error: Exception


class WorkActor(Actor):
    """An actor that runs one long function. If the function fails, the actor crashes.

    Args:
        work: An async function that runs until it is cancelled. It is called once after each start and restart.
        name: The name of the work in the actor's error.
    """

    def __init__(self, work: Callable[[], Awaitable[object]], name: str) -> None:
        self._work = work
        self._name = name

    async def started(self, context: ActorContext) -> None:
        async def run() -> None:
            try:
                await self._work()
            except Exception as error:
                # The failure of a task does not crash its actor. This failure must crash it, so it is sent as a
                # message.
                context.ref.tell(_WorkFailed(error))

        context.spawn(run, name="run")

    async def receive(self, message: object) -> object:
        """Reject every message. Raises TypeError."""
        if isinstance(message, _WorkFailed):
            raise message.error
        raise TypeError(f"the {self._name} does not accept {type(message).__name__}")


class ActorStatistics(msgspec.Struct, frozen=True):
    """A snapshot of an actor."""

    name: str
    """The actor's name in the supervision tree."""
    phase: Phase
    """``starting``, ``running``, ``closing`` or ``ended``."""
    mailbox: int
    """The number of messages that wait."""
    capacity: int
    """The largest number of messages that may wait."""
    received: int
    """The number of messages that were received in all lives."""
    rejected: int
    """The number of messages that were rejected in all lives, because the actor had stopped or its mailbox was
    full.
    """
    tasks: int
    """The number of tasks that run in the current life."""


class ActorRef:
    """The handle of an actor. It stays valid over restarts, until the actor's supervisor ends.

    Use it only on the thread of its bus: `tell`, `ask` and `spawn` raise WrongLoop in any other thread.
    """

    def __init__(self, name: str, bus: Bus) -> None:
        self.name = name
        """The actor's name in the supervision tree."""
        self._bus = bus
        self._mailbox: deque[MailboxItem] = deque()
        self._signal: Signal | None = None
        self._open = False
        self._life: Incarnation | None = None
        self._received = 0
        self._rejected = 0

    @property
    def actor(self) -> Actor | None:
        """The current instance; None if there is none now."""
        life = self._life
        return life.actor if life is not None and life.phase == "running" else None

    @property
    def running(self) -> bool:
        """True while an instance accepts messages and tasks."""
        return self._life is not None and self._life.phase == "running"

    @property
    def coming_up(self) -> bool:
        """True while the actor is starting or about to restart."""
        return self._open and not self.running

    def tell(self, message: object) -> bool:
        """Send a message without waiting for an answer.

        Returns:
            True if the message is in the mailbox, which holds 256 messages. The actor may still stop before it
            handles the message. False if the actor has stopped or its mailbox is full. The message is then a dead
            letter.

        Raises:
            WrongLoop: The bus belongs to another thread.
        """
        reason = self._post(MailboxItem(message, wants_answer=False))
        if reason is not None:
            self._bus.dead_letter(self.name, message, reason)
        return reason is None

    async def ask(self, message: object, *, timeout: float = 30.0) -> object:
        """Send a message and wait for the answer.

        The message may still be handled after this call timed out or was cancelled.

        Args:
            message: The message.
            timeout: Seconds to wait at most.

        Raises:
            ActorStopped: The actor has stopped, or it stops or crashes before it answers.
            MailboxFull: The mailbox is full.
            DeadlineExceeded: No answer arrived in time.
            WrongLoop: The bus belongs to another thread.
        """
        letter = MailboxItem(message, wants_answer=True)
        reason = self._post(letter)
        if reason == "stopped":
            raise ActorStopped(f"actor {self.name} is stopped")
        if reason is not None:
            raise MailboxFull(f"the mailbox of actor {self.name} is full ({MAILBOX_CAPACITY} messages)")
        if not await letter.wait(timeout):
            raise DeadlineExceeded(f"actor {self.name} did not answer within {timeout:g} s")
        return letter.result()

    def spawn(self, fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, name: str | None = None) -> TaskHandle[T]:
        """Run ``fn(*args)`` as a task of the current life, without waiting for it.

        If the task raises, it fails alone, and the handle has the exception. When the actor stops or crashes, the
        task is cancelled and awaited.

        Args:
            fn: An async function.
            args: Its arguments.
            name: A name for logs; defaults to the function's name.

        Raises:
            ActorStopped: The actor is not running.
            WrongLoop: The bus belongs to another thread.
        """
        name = name or str(getattr(fn, "__name__", "task"))
        return self._running_tasks().spawn(partial(fn, *args), f"{self.name}/{name}")

    def hold(self, fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, name: str) -> TaskHandle[T]:
        """Prepare ``fn(*args)`` to run inside the task that awaits the handle's `run_here`.

        This saves a task. Call `run_here` soon. Use this method only for work that ends when it is cancelled. In
        all other respects it works like `spawn`.

        Raises:
            ActorStopped: The actor is not running.
            WrongLoop: The bus belongs to another thread.
        """
        return self._running_tasks().hold(partial(fn, *args), f"{self.name}/{name}")

    def _running_tasks(self) -> Tasks:
        self._bus.check_thread()
        life = self._life
        if life is None or life.phase not in ("starting", "running"):
            raise ActorStopped(f"actor {self.name} is not running and can't start a task")
        return life.tasks

    def statistics(self) -> ActorStatistics:
        """A snapshot of the actor."""
        life = self._life
        return ActorStatistics(
            name=self.name,
            phase="ended" if life is None else life.phase,
            mailbox=len(self._mailbox),
            capacity=MAILBOX_CAPACITY,
            received=self._received,
            rejected=self._rejected,
            tasks=0 if life is None else len(life.tasks),
        )

    def _post(self, letter: MailboxItem) -> str | None:
        self._bus.check_thread()
        if not self._open:
            self._rejected += 1
            return "stopped"
        if len(self._mailbox) >= MAILBOX_CAPACITY:
            self._rejected += 1
            return "mailbox full"
        self._mailbox.append(letter)
        self._wake()
        return None

    def _wake(self) -> None:
        signal, self._signal = self._signal, None
        if signal is not None:
            signal.set()

    async def _arrival(self) -> None:
        self._signal = new_signal()
        await self._signal.wait()

    def _close(self) -> int:
        """Reject new messages and fail the waiting messages. Return the number of failed messages."""
        self._open = False
        lost = 0
        while self._mailbox:
            letter = self._mailbox.popleft()
            if letter.asked:
                letter.fail(ActorStopped(f"actor {self.name} stopped before it handled the message"))
            else:
                lost += 1
                self._bus.dead_letter(self.name, letter.message, "stopped")
        return lost


class Incarnation:
    """One life of one actor, started, watched and stopped by a supervisor."""

    def __init__(self, ref: ActorRef, factory: Callable[[], Actor], bus: Bus, clock: Clock) -> None:
        self.ref = ref
        self.actor: Actor | None = None
        self.phase: Phase = "starting"
        self.tasks = Tasks()
        self.error: Exception | None = None
        self.cancelled = False  # The event loop cancelled this life.
        self.was_started = False
        self.started_ns = 0
        # Shielded, so that the supervisor can stop its children one after the other if the host is cancelled.
        self.scope = anyio.CancelScope(shield=True)
        self.stop_reason: str | None = None  # the reason of a request to stop, once there is one
        self.on_up: Callable[[], None] | None = None  # called when the actor is running, before its first message
        self.on_closing: Callable[[], None] | None = None  # called before the actor's tasks are cancelled
        self.up = anyio.Event()  # started() has returned or failed
        self.ended = anyio.Event()
        self.hook_running = False
        self._factory = factory
        self._bus = bus
        self._clock = clock
        self._stop_asked = False
        self._coroutine: object = None

    def ask_to_stop(self) -> None:
        """End after the current message."""
        self._stop_asked = True
        self.ref._wake()

    async def run(self) -> None:
        """Run all phases.

        Only KeyboardInterrupt and SystemExit are raised; `error` is set after a crash.
        """
        self._coroutine = current_coroutine()
        self.ref._life = self
        try:
            with self.scope:
                await self._live()
        except anyio.get_cancelled_exc_class():
            # No scope can cancel through the shield. So asyncio is cancelling all tasks because its loop is
            # closing, and this task returns.
            self.cancelled = True
        except Exception as error:
            self.error = unwrapped(error)
            _log.error("actor.crashed", actor=self.ref.name, error=describe(self.error), where=origin(self.error))
        finally:
            self.phase = "ended"
            self._coroutine = None
            self.tasks.settle()
            self.up.set()

    def stacks(self) -> dict[str, list[str]]:
        """The stacks of all running tasks, by name."""
        found = {task.name: task.stack() for task in self.tasks.running}
        if self._coroutine is not None:
            found[self.ref.name] = stack_of(self._coroutine)
        return found

    async def _live(self) -> None:
        context = ActorContext(self.ref, self._bus, self._clock, self.ask_to_stop)
        try:
            async with self.tasks:
                try:
                    self.actor = actor = self._factory()
                    await without_leak(actor.started(context))
                    self.was_started = True
                    self.started_ns = self._clock.monotonic_ns()
                    self.phase = "running"
                    if self.on_up is not None:
                        self.on_up()
                    self.up.set()
                    await self._serve(actor)
                finally:
                    self.phase = "closing"
                    if self.on_closing is not None:
                        self.on_closing()
        finally:
            if self.was_started:
                await self._stopping()

    async def _serve(self, actor: Actor) -> None:
        ref = self.ref
        burst = 0
        while not self._stop_asked:
            if not ref._mailbox:
                burst = 0
                await ref._arrival()
                continue
            if burst >= _MESSAGE_BURST:
                burst = 0
                await anyio.lowlevel.checkpoint()
                continue
            burst += 1
            letter = ref._mailbox.popleft()
            ref._received += 1
            try:
                letter.answer(await without_leak(actor.receive(letter.message)))
            except Exception as error:
                stopped = ActorStopped(f"actor {ref.name} crashed on the message: {describe(error)}")
                stopped.__cause__ = error
                letter.fail(stopped)
                raise
            finally:
                letter.fail(ActorStopped(f"actor {ref.name} was stopped while it handled the message"))

    async def _stopping(self) -> None:
        assert self.actor is not None
        self.hook_running = True
        try:
            with anyio.move_on_after(STOPPING_SECONDS, shield=True) as limit:
                await without_leak(self.actor.stopping())
            if limit.cancelled_caught:
                _log.warning("actor.stopping_cut_off", actor=self.ref.name, after_seconds=STOPPING_SECONDS)
        except Exception as error:
            _log.error("actor.stopping_failed", actor=self.ref.name, error=describe(error), where=origin(error))
        finally:
            self.hook_running = False
