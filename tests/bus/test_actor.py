"""Actors: messages, asks that always end, tasks that fail independently, and the decisions about restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest
import sniffio

from callboard.bus import (
    Actor,
    ActorStopped,
    AuthError,
    ChildSpec,
    DeadlineExceeded,
    MailboxFull,
    RestartPolicy,
    TaskCancelled,
    TaskHandle,
    affected,
)
from callboard.bus.tasks import LeakedCancellation, describe, origin, stack_of

from ..support.virtual_time import on_both, run_virtual
from .supervised import Boom, Obedient, World

pytestmark = pytest.mark.anyio


async def settle() -> None:
    """Let every task run until all of them wait."""
    await anyio.wait_all_tasks_blocked()


async def test_an_ask_is_answered_and_a_tell_is_done_in_order(world: World) -> None:
    got: list[int] = []

    def note(n: int) -> Callable[[], Awaitable[None]]:
        async def handle() -> None:
            await anyio.lowlevel.checkpoint()
            got.append(n)

        return handle

    async with world.children("a") as (_, (ref,)):
        assert all(ref.tell(note(n)) for n in range(40))
        assert await ref.ask("hello") == "hello"
        assert got == list(range(40))
        assert isinstance(ref.actor, Obedient)
        statistics = ref.statistics()
        assert (statistics.phase, statistics.received, statistics.mailbox) == ("running", 41, 0)


async def test_a_full_mailbox_refuses_messages(world: World) -> None:
    """tell() returns False and leaves a dead letter, and ask() raises. The accepted messages are still handled."""
    async with world.children("a") as (_, (ref,)):
        ref.tell(("sleep", 1.0))
        await settle()
        assert all(ref.tell(n) for n in range(256))
        assert not ref.tell("one too many")
        with pytest.raises(MailboxFull, match="256"):
            await ref.ask("one too many")
        assert world.bus.dead_letters[-1].reason == "mailbox full"
        await anyio.sleep(2)
        assert await ref.ask("room again") == "room again"
        assert ref.statistics().received == 258


async def test_an_ask_ends_at_its_deadline(world: World) -> None:
    async with world.children("a") as (_, (ref,)):
        begin = anyio.current_time()
        with pytest.raises(DeadlineExceeded, match="within 3 s"):
            await ref.ask(("sleep", 4.0), timeout=3)
        assert anyio.current_time() - begin == pytest.approx(3)
        assert await ref.ask("and then?") == "and then?"


async def test_a_crash_fails_the_ask_and_keeps_the_queue(world: World) -> None:
    """The message that crashed the actor is not delivered again. The restarted actor handles the queued
    messages.
    """
    answers: list[object] = []

    async def ask(message: object) -> None:
        try:
            answers.append(await ref.ask(message))
        except ActorStopped as error:
            answers.append(error)

    async with world.children("a") as (_, (ref,)):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, "crash")
            await anyio.lowlevel.checkpoint()
            ref.tell("behind")
            group.start_soon(ask, "later")
        error, later = answers
        assert isinstance(error, ActorStopped)
        assert isinstance(error.__cause__, Boom)
        assert later == "later"
        assert world.log.count("start a") == 2
        assert ref.statistics().received == 3


async def test_stopping_ends_every_ask(world: World) -> None:
    """Each ask, running or queued, ends with ActorStopped. Each queued tell becomes a dead letter."""
    answers: list[str] = []

    async def ask(message: object) -> None:
        try:
            await ref.ask(message)
        except ActorStopped as error:
            answers.append(str(error))

    async with world.children("a") as (supervisor, (ref,)):
        async with anyio.create_task_group() as group:
            group.start_soon(ask, ("sleep", 100.0))
            await settle()
            group.start_soon(ask, "queued")
            ref.tell("told")
            await settle()
            await supervisor.stop_child("a")
        assert len(answers) == 2
        assert not ref.tell("too late")
        with pytest.raises(ActorStopped, match="is stopped"):
            await ref.ask("too late")
        assert [letter.message_type for letter in world.bus.dead_letters] == ["str", "str"]
        assert ref.actor is None
        assert not ref.running


async def test_a_task_runs_concurrently_with_its_actor(world: World) -> None:
    """spawn() returns immediately. Several callers can wait for the task, before and after its end."""

    async def work(a: int, b: int) -> int:
        await anyio.sleep(1)
        return a + b

    results: list[int] = []

    async def wait(handle: TaskHandle[int]) -> None:
        results.append(await handle.wait())

    async with world.children("a") as (_, (ref,)):
        handle = ref.spawn(work, 1, 2, name="sum")
        assert (handle.done, handle.name, ref.statistics().tasks) == (False, "a/sum", 1)
        assert await ref.ask("still there?") == "still there?"
        async with anyio.create_task_group() as group:
            group.start_soon(wait, handle)
            group.start_soon(wait, handle)
        assert results == [3, 3]
        assert await handle.wait() == 3
        assert handle.done
        handle.cancel()
        assert await handle.wait() == 3
        assert ref.statistics().tasks == 0


async def test_a_task_fails_alone(world: World) -> None:
    """The handle of a crashed task raises the error. The actor and its other tasks continue."""

    async def fail(error: Exception) -> None:
        await anyio.sleep(0.5)
        raise error

    async def work() -> str:
        await anyio.sleep(1)
        return "done"

    async with world.children("a") as (_, (ref,)):
        sibling = ref.spawn(work)
        for error in (Boom("x"), AuthError("no"), ExceptionGroup("one", [Boom("y")])):
            with pytest.raises((Boom, AuthError)):
                await ref.spawn(fail, error).wait()
        assert await sibling.wait() == "done"
        assert world.log == ["start a"]


def test_a_task_that_asyncio_itself_cancels_ends_alone(world: World) -> None:
    """If asyncio cancels a task, `wait()` raises ActorStopped. The actor and its other tasks continue."""

    async def work() -> str:
        await anyio.sleep(1)
        return "done"

    async def scenario() -> None:
        async with world.children("a") as (_, (ref,)):
            sibling = ref.spawn(work)
            handle = ref.spawn(anyio.sleep_forever, name="alone")
            await settle()
            next(task for task in asyncio.all_tasks() if task.get_name() == "a/alone").cancel()
            with pytest.raises(ActorStopped):
                await handle.wait()
            assert await sibling.wait() == "done"
            assert await ref.ask("alive") == "alive"

    run_virtual(scenario)


@on_both
async def test_a_cancelled_task_raises_task_cancelled(world: World) -> None:
    """A task that is cancelled through its handle raises TaskCancelled."""

    async def polite() -> str:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            return "partial"
        return "never"

    async with world.children("a") as (_, (ref,)):
        rude = ref.spawn(anyio.sleep_forever)
        early = ref.spawn(anyio.sleep_forever)
        early.cancel()
        kind = ref.spawn(polite)
        await settle()
        for handle in (rude, kind):
            handle.cancel()
            handle.cancel()
        for handle in (rude, early):
            with pytest.raises(TaskCancelled):
                await handle.wait()
        assert await kind.wait() == "partial"


async def test_tasks_end_before_their_actor_is_restarted(world: World) -> None:
    """When an actor crashes, its tasks are cancelled and their cleanup is awaited. Then the actor is restarted."""

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(2)
            world.log.append("cleaned up")

    async with world.children("a") as (_, (ref,)):
        handle = ref.spawn(work)
        await settle()
        ref.tell("crash")
        with pytest.raises(ActorStopped, match="stopped before"):
            await handle.wait()
        with pytest.raises(ActorStopped, match="not running"):
            ref.spawn(work)
        assert await ref.ask("alive") == "alive"
        assert world.log == ["start a", "cleaned up", "stop a", "start a"]


async def test_a_task_that_ends_with_its_actor_can_still_return_a_result(world: World) -> None:
    """If a task ends with a result or an exception while its actor stops, the handle returns or raises it."""

    async def last_words() -> str:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            raise AuthError("last words") from None
        return "never"

    async with world.children("a") as (supervisor, (ref,)):
        handle = ref.spawn(last_words)
        await settle()
        await supervisor.stop_child("a")
        with pytest.raises(AuthError, match="last words"):
            await handle.wait()


async def leak() -> None:
    """Raise a cancellation that was not requested, as some libraries do."""
    if sniffio.current_async_library() == "asyncio":
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
    else:
        kept: list[BaseException] = []
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.sleep_forever()
            except BaseException as error:
                kept.append(error)
                raise
        raise kept[0]


@on_both
async def test_a_leaked_cancellation_is_a_crash(world: World) -> None:
    """A cancellation that leaks from a message crashes the actor. One that leaks from a task only fails the
    task.
    """
    async with world.children("a", "b") as (_, (ref, sibling)):
        task = sibling.spawn(anyio.sleep, 5)
        with pytest.raises(LeakedCancellation):
            await sibling.spawn(leak).wait()
        with pytest.raises(ActorStopped, match="escaped its scope"):
            await ref.ask(leak)
        assert await ref.ask("alive") == "alive"
        assert world.log == ["start a", "start b", "stop a", "start a"]
        await task.wait()


async def test_stopping_is_cut_off_after_a_second_and_may_fail(world: World) -> None:
    class Slow(Obedient):
        async def stopping(self) -> None:
            await anyio.sleep(100)

    class Failing(Obedient):
        async def stopping(self) -> None:
            raise Boom("in stopping")

    async with world.supervisor() as supervisor:
        await supervisor.start_child(ChildSpec("slow", lambda: Slow(world, "slow")))
        await supervisor.start_child(ChildSpec("failing", lambda: Failing(world, "failing")))
        begin = anyio.current_time()
        await supervisor.stop_child("slow")
        await supervisor.stop_child("failing")
        assert anyio.current_time() - begin == pytest.approx(1)
        assert world.taken()[-2:] == ["slow stopped: stopped", "failing stopped: stopped"]


async def test_an_actor_needs_only_receive(world: World) -> None:
    """An actor without receive() crashes at its first message. The other two methods are optional."""

    class Bare(Actor):
        pass

    async with world.supervisor() as supervisor:
        ref = await supervisor.start_child(ChildSpec("bare", Bare))
        with pytest.raises(ActorStopped, match="NotImplementedError"):
            await ref.ask("anything")


@on_both
async def test_cancelling_an_ask_or_a_wait_leaves_the_actor_running(world: World) -> None:
    """An ask or a wait can be cancelled at each of its steps. The actor and the task continue."""

    async def work() -> str:
        await anyio.sleep(1)
        return "done"

    async with world.children("a") as (_, (ref,)):
        for steps in range(8):
            handle = ref.spawn(work)
            async with anyio.create_task_group() as group:
                group.start_soon(ref.ask, ("sleep", 0.01))
                group.start_soon(handle.wait)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            assert await handle.wait() == "done"
            assert await ref.ask("alive") == "alive"
        assert world.log == ["start a"]


def test_an_error_is_described_without_its_locals() -> None:
    """The description has the type, the shortened text and the lines of the traceback."""
    secret = "sk-very-secret"
    with pytest.raises(Boom) as caught:
        raise Boom("x" * 600)
    assert len(describe(caught.value)) == 500
    assert describe(ValueError()) == "ValueError"
    assert secret not in "".join(origin(caught.value))
    assert "test_an_error_is_described" in origin(caught.value)[-1]
    assert stack_of(None) == []
    assert stack_of(object()) == []


# -- The decisions about restarts: the delay and the affected children.


def test_a_strategy_selects_the_children_to_restart() -> None:
    """The order is that of starting. A name that no child has raises ValueError."""
    assert affected("rest_for_one", ("a", "b", "c"), "b") == ("b", "c")
    with pytest.raises(ValueError):
        affected("one_for_all", ("a", "b", "c"), "x")


def test_the_backoff_doubles_up_to_its_cap_and_is_full_jitter() -> None:
    """The upper limits are 0.1, 0.2, 0.4 … 5 seconds, and the lower limit is 0."""
    policy = RestartPolicy()
    almost_one = 1 - 2**-53
    most = [round(policy.delay(failures, almost_one), 6) for failures in range(1, 9)]
    assert most == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert policy.delay(7, 0.0) == 0.0
    assert policy.delay(3, 0.5) == 0.2
    assert policy.delay(100_000, almost_one) <= 5.0


def test_a_policy_that_allows_no_failure_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        RestartPolicy(max_failures=0)
