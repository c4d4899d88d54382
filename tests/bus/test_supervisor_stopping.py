"""Supervisors: in which order things stop, and what does not want to."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import anyio
import pytest

from callboard.bus import (
    Actor,
    ActorContext,
    ActorRef,
    ActorStopped,
    Bus,
    ChildSpec,
    RestartPolicy,
    Supervisor,
    SupervisorEscalated,
    TaskHandle,
)
from tests.bus.supervised import World, settle
from tests.support.virtual_time import VirtualLoop, run_virtual

from ..support.virtual_time import on_both

pytestmark = pytest.mark.anyio


async def stubborn(seconds: float) -> None:
    """Doesn't stop for so long, whoever cancels it."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep(seconds)


async def test_children_stop_in_reverse_order(world: World) -> None:
    """What was started last, and may rely on the others, goes first."""
    async with world.supervisor() as supervisor:
        for name in "abc":
            await supervisor.start_child(world.spec(name))
        report = await supervisor.stop()
    assert (report.clean, report.stuck, report.lost) == (True, (), 0)
    assert world.log == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]
    with pytest.raises(ActorStopped, match="not running"):
        await supervisor.start_child(world.spec("d"))
    assert (await supervisor.stop()).clean


async def test_messages_that_nobody_got_to_are_counted(world: World) -> None:
    """A shutdown says how many told messages were lost."""
    async with world.children("a") as (supervisor, (ref,)):
        ref.tell(("sleep", 1.0))
        await anyio.sleep(0.1)
        for n in range(3):
            ref.tell(n)
        report = await supervisor.stop()
    assert (report.clean, report.lost) == (True, 3)


@on_both
async def test_a_cancelled_host_still_stops_in_order(world: World) -> None:
    """Cancelling the host's task group does not tear all children down at once."""

    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.5)
            world.log.append("task done")

    async with anyio.create_task_group() as group:
        supervisor = Supervisor("root", bus=world.bus)
        await group.start(supervisor.run)
        for name in "abc":
            ref = await supervisor.start_child(world.spec(name))
        ref.spawn(slow)
        await settle()
        world.fresh_log()
        group.cancel_scope.cancel()
    assert world.log == ["task done", "stop c", "stop b", "stop a"]


async def test_giving_up_stops_everything_and_is_told(world: World) -> None:
    """At the limit a supervisor stops all its children in reverse order, and run() raises with the reason."""
    supervisor = Supervisor("root", bus=world.bus, policy=RestartPolicy(max_failures=1))
    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as group:
            await group.start(supervisor.run)
            a = await supervisor.start_child(world.spec("a"))
            await supervisor.start_child(world.spec("b"))
            a.tell("crash")
    (error,) = caught.value.exceptions
    assert isinstance(error, SupervisorEscalated)
    assert "a ended 1 times in a row, most recently with Boom: a" in error.reason
    assert world.log == ["start a", "start b", "stop a", "stop b"]
    assert world.taken()[-4:] == [
        "a crashed 1",
        "a escalated",
        "b stopped: supervisor escalated",
        "a stopped: supervisor escalated",
    ]


async def test_a_task_that_will_not_stop_is_named_and_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 5 s and 1 s stop() returns with its name; its stack is logged every 5 s; run() waits for it."""
    from callboard.bus.actors import child as module

    logged: list[tuple[float, object, str]] = []

    def note(event: str, **fields: object) -> None:
        logged.append((anyio.current_time(), fields.get("task"), str(fields.get("where"))))

    monkeypatch.setattr(module._log, "error", note)

    begin = anyio.current_time()
    async with world.children("a") as (supervisor, (ref,)):
        await supervisor.start_child(world.spec("b"))
        ref.spawn(stubborn, 20, name="stubborn")
        await anyio.wait_all_tasks_blocked()
        report = await supervisor.stop()
        assert anyio.current_time() - begin == pytest.approx(6)
        assert not report.clean
        assert set(report.stuck) == {"a", "a/stubborn"}
        assert set(supervisor.statistics().stuck) == {"a", "a/stubborn"}
    assert anyio.current_time() - begin == pytest.approx(20)
    mine = [(round(at - begin), stack) for at, task, stack in logged if task == "a/stubborn"]
    assert [at for at, _ in mine] == [6, 11, 16]
    assert "stubborn" in mine[0][1]
    assert world.log == ["start a", "start b", "stop b", "stop a"]


async def test_a_task_that_holds_up_a_restart_is_named(world: World) -> None:
    """A crashed actor waits for its tasks; one that does not end is reported, and the restart follows its end."""

    async with world.children("a") as (supervisor, (ref,)):
        ref.spawn(stubborn, 20, name="stubborn")
        await anyio.wait_all_tasks_blocked()
        ref.tell("crash")
        await anyio.sleep(10)
        assert not ref.running
        assert "a/stubborn" in supervisor.statistics().stuck
        await anyio.sleep(15)
        assert ref.running
        assert supervisor.statistics().stuck == ()


async def test_the_budget_is_for_all_of_them_together(world: World) -> None:
    """When the budget of stop() is over, the rest is cancelled without grace."""
    async with world.supervisor() as supervisor:
        for name in "abc":
            ref = await supervisor.start_child(world.spec(name))
            ref.tell(("sleep", 1000.0))
        await anyio.wait_all_tasks_blocked()
        begin = anyio.current_time()
        report = await supervisor.stop(budget=7)
        assert report.clean
        assert anyio.current_time() - begin == pytest.approx(7)


async def test_a_nested_stuck_task_reaches_the_roots_report(world: World) -> None:
    """What is stuck below a nested supervisor is in the report of the one that was stopped."""

    async with world.supervisor() as root:
        nested = await root.start_supervisor("nested")
        ref = await nested.start_child(world.spec("a"))
        ref.spawn(stubborn, 30, name="stubborn")
        await anyio.wait_all_tasks_blocked()
        report = await root.stop()
        assert "a/stubborn" in report.stuck


async def test_stopping_while_a_child_starts(world: World) -> None:
    """A start that hangs does not hold up a stop, and whoever waited for it is told."""
    told: list[Exception] = []

    async def start(supervisor: Supervisor) -> None:
        try:
            await supervisor.start_child(spec)
        except ActorStopped as error:
            told.append(error)

    class Hangs(Actor):
        async def started(self, context: ActorContext) -> None:
            await anyio.sleep_forever()

    spec = ChildSpec("hangs", Hangs)
    async with anyio.create_task_group() as group, world.supervisor() as supervisor:
        group.start_soon(start, supervisor)
        await anyio.wait_all_tasks_blocked()
        assert (await supervisor.stop()).clean
    assert len(told) == 1
    async with world.supervisor() as supervisor:
        with anyio.move_on_after(1) as limit:
            await supervisor.start_child(spec)
        assert limit.cancelled_caught
        assert (await supervisor.stop()).clean


@pytest.mark.parametrize("steps", range(8))
def test_stopping_in_the_moment_of_a_restart_is_no_failure(world: World, steps: int) -> None:
    """However far a stop has come when a backoff ends, nothing is restarted any more and `run` raises nothing."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        async with world.children("a", policy=RestartPolicy(backoff_base=1.0)) as (supervisor, (ref,)):
            ref.tell("crash")
            await anyio.sleep(0.1)
            async with anyio.create_task_group() as group:
                group.start_soon(supervisor.stop)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                loop.now += 1.0  # the backoff is over
        assert not ref.running

    run_virtual(scenario)


def test_a_task_that_an_ending_loop_cancels_before_its_first_step_is_settled(world: World) -> None:
    """Whoever waits for it learns that it will not come; else a program whose loop ends would wait for ever."""

    async def host() -> TaskHandle[None]:
        supervisor = Supervisor("root", bus=world.bus, clock=world.clock)
        asyncio.create_task(supervisor.run())  # noqa: RUF006 (it ends below)
        await asyncio.sleep(0)
        ref = await supervisor.start_child(world.spec("a"))
        handle = ref.spawn(anyio.sleep_forever)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()  # as asyncio.run does in the end
        await asyncio.gather(*others, return_exceptions=True)
        return handle

    assert asyncio.run(host()).done
    gc.collect()


@on_both
async def test_cancelling_whoever_starts_or_stops_leaves_a_working_supervisor(world: World) -> None:
    """Cancelled at any step of start_child, restart_child or stop_child, the next call still works."""
    async with world.supervisor() as supervisor:
        for steps in range(12):
            name = f"a{steps}"
            async with anyio.create_task_group() as group:
                group.start_soon(supervisor.start_child, world.spec(name))
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            with contextlib.suppress(ValueError):  # it was up before the cancellation
                await supervisor.start_child(world.spec(name))
            assert await supervisor.child(name).ask("up") == "up"
            for call in (supervisor.stop_child, supervisor.restart_child):
                async with anyio.create_task_group() as group:
                    group.start_soon(call, name)
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    group.cancel_scope.cancel()
            await supervisor.restart_child(name)
            assert await supervisor.child(name).ask("up") == "up"
        report = await supervisor.stop()
        assert report.clean
    starts = sum(line.startswith("start") for line in world.log)
    assert starts == sum(line.startswith("stop") for line in world.log)


def test_a_loop_that_ends_under_a_supervisor_takes_it_down_quietly(world: World) -> None:
    """asyncio.run cancels every task itself when the program is over: no restart, no hang, no error."""

    async def program() -> ActorRef:
        bus = Bus(run_id="run_1")
        supervisor = Supervisor("root", bus=bus)
        running = asyncio.create_task(supervisor.run())
        await asyncio.sleep(0.01)
        ref = await supervisor.start_child(world.spec("a"))
        ref.spawn(anyio.sleep_forever)
        await asyncio.sleep(0.01)
        assert not running.done()
        return ref

    ref = asyncio.run(program())
    assert not ref.running
    assert world.log == ["start a", "stop a"]
