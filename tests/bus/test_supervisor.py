"""Supervisors: which actors are restarted, and when the supervisor gives up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Awaitable, Callable

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus import (
    Actor,
    ActorContext,
    ActorRef,
    ActorStopped,
    Bus,
    CallboardError,
    ChildSpec,
    RestartPolicy,
    RestartType,
    Strategy,
    Supervisor,
    SupervisorEscalated,
    TaskHandle,
)

from ..support.present import present
from ..support.virtual_time import VirtualLoop, on_both, run_virtual
from .supervised import Boom, World, settle

pytestmark = pytest.mark.anyio
STRATEGIES: tuple[Strategy, ...] = ("one_for_one", "one_for_all", "rest_for_one")
RESTARTS: tuple[RestartType, ...] = ("permanent", "transient", "temporary")


def fail() -> None:
    """Fail to start."""
    raise Boom("no start")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("exit_", ["normal", "crash", "stopped"])
async def test_the_restart_matrix(world: World, strategy: Strategy, restart: RestartType, exit_: str) -> None:
    """Restart type, kind of exit and strategy together decide which children run afterwards, and in which
    order.
    """
    async with world.supervisor(strategy) as supervisor:
        refs = [await supervisor.start_child(world.spec(name, restart=restart)) for name in "abc"]
        world.fresh_log()
        match exit_:
            case "normal":
                refs[1].tell("exit")
            case "crash":
                refs[1].tell("crash")
            case _:
                await supervisor.stop_child("b")
        await settle()
        lives_on = {"normal": ["permanent"], "crash": ["permanent", "transient"], "stopped": []}
        restarted = restart in lives_on[exit_]
        if not restarted:
            assert world.log == ["stop b"]
            assert [ref.running for ref in refs] == [True, False, True]
        else:
            assert all(ref.running for ref in refs)
            assert (
                world.log
                == {
                    "one_for_one": ["stop b", "start b"],
                    "one_for_all": ["stop b", "stop c", "stop a", "start a", "start b", "start c"],
                    "rest_for_one": ["stop b", "stop c", "start b", "start c"],
                }[strategy]
            )


async def test_a_temporary_sibling_does_not_come_back(world: World) -> None:
    """one_for_all also stops a temporary child and does not restart it."""
    async with world.children("a", strategy="one_for_all") as (supervisor, (a,)):
        b = await supervisor.start_child(world.spec("b", restart="temporary"))
        a.tell("crash")
        await settle()
        assert (a.running, b.running, b.tell("x")) == (True, False, False)
        assert world.taken() == [
            "a started",
            "b started",
            "a crashed 1",
            "b stopped: restart of a",
            "a restarted 1",
        ]


async def test_the_statistics_have_the_last_crash(world: World) -> None:
    async with world.children("a", "b") as (supervisor, (a, _)):
        a.tell("crash")
        await settle()
        crashed, healthy = supervisor.statistics().children
        assert (crashed.phase, crashed.restarts) == ("running", 1)
        assert (crashed.last_crash, crashed.crashed_us is not None) == ("Boom: a", True)
        assert (healthy.last_crash, healthy.crashed_us) == (None, None)


async def test_a_stopped_sibling_stays_stopped(world: World) -> None:
    async with world.children("a", "b", strategy="one_for_all") as (supervisor, (a, b)):
        await supervisor.stop_child("b")
        a.tell("crash")
        await settle()
        assert (a.running, b.running) == (True, False)


async def test_the_limit_applies_however_long_the_delays_are(world: World) -> None:
    """After five failures in a row, the supervisor gives up, however long the delays are. Each delay doubles."""
    world.clock.randomness = 1.0 - 1e-12
    starts: list[float] = []
    async with world.supervisor() as supervisor:
        ref = await supervisor.start_child(world.spec("a", on_limit="stop"))
        sibling = await supervisor.start_child(world.spec("b"))
        begin = anyio.current_time()
        world.on_start["a"] = lambda: starts.append(round(anyio.current_time() - begin, 3))
        for _ in range(5):
            ref.tell("crash")
        await anyio.sleep(100)
        assert starts == [0.1, 0.3, 0.7, 1.5]
        assert not ref.running
        assert sibling.running
        with pytest.raises(ActorStopped):
            await ref.ask("anyone?")
        assert world.taken()[-3:] == ["a restarted 4", "a crashed 5", "a stopped: restart limit"]


async def test_a_healthy_run_resets_the_count_of_failures(world: World) -> None:
    """If a child runs for healthy_after between its crashes, it is always restarted."""
    policy = RestartPolicy(max_failures=2, healthy_after=10)
    async with world.children("a", policy=policy) as (supervisor, (ref,)):
        for _ in range(6):
            await anyio.sleep(11)
            ref.tell("crash")
            await settle()
            assert ref.running
        assert supervisor.statistics().children[0].restarts == 6
        assert supervisor.statistics().children[0].failures == 1


async def test_a_start_that_keeps_failing_ends(world: World) -> None:
    """Failed starts count like crashes. At the end, every waiting message is settled."""
    answers: list[Exception] = []

    async def ask(ref: ActorRef) -> None:
        try:
            await ref.ask("hello", timeout=1000)
        except ActorStopped as error:
            answers.append(error)

    async with world.supervisor() as supervisor:
        ref = await supervisor.start_child(world.spec("a", on_limit="stop"))
        world.on_start["a"] = fail
        async with anyio.create_task_group() as group:
            ref.tell("crash")
            group.start_soon(ask, ref)
        assert len(answers) == 1
        assert world.taken() == ["a started", *(f"a crashed {n}" for n in range(1, 6)), "a stopped: restart limit"]
        assert world.log.count("stop a") == 1


async def test_start_child_raises_the_error_of_the_first_start(world: World) -> None:
    """start_child raises the error of started() and adds no child. A second call can succeed."""

    world.on_start["a"] = fail
    async with world.supervisor() as supervisor:
        with pytest.raises(Boom, match="no start"):
            await supervisor.start_child(world.spec("a"))
        with pytest.raises(LookupError, match="none"):
            supervisor.child("a")
        del world.on_start["a"]
        ref = await supervisor.start_child(world.spec("a"))
        assert supervisor.child("a") is ref
        with pytest.raises(ValueError, match="already"):
            await supervisor.start_child(world.spec("a"))


async def test_a_stopped_child_is_restarted_without_its_failures(world: World) -> None:
    """restart_child starts the child under the same ref with no failures counted."""
    policy = RestartPolicy(max_failures=2)
    async with world.supervisor() as supervisor:
        ref = await supervisor.start_child(world.spec("a", policy=policy, on_limit="stop"))
        for _ in range(3):
            ref.tell("crash")
            await settle()
        assert not ref.running
        await supervisor.restart_child("a")
        assert await ref.ask("back?") == "back?"
        ref.tell("crash")
        await settle()
        assert ref.running
        log = world.fresh_log()
        await supervisor.restart_child("a")
        assert world.log == []
        assert log.count("start a") == 4

        await supervisor.stop_child("a")
        world.on_start["a"] = fail
        with pytest.raises(Boom):
            await supervisor.restart_child("a")
        assert not ref.tell("x")


async def test_a_child_can_be_stopped_while_it_waits_for_its_restart(world: World) -> None:
    async with world.children("a") as (supervisor, (ref,)):
        ref.tell("crash")
        await anyio.sleep(0.01)
        assert not ref.running
        await supervisor.stop_child("a")
        await settle()
        assert world.log == ["start a", "stop a"]
        assert world.taken() == ["a started", "a crashed 1", "a stopped: stopped"]


async def test_a_nested_supervisor_that_gives_up_is_restarted_with_its_children(world: World) -> None:
    """For the parent, this is a crash: the nested supervisor's children start again in order, and refs stay
    valid.
    """
    async with world.children("outside") as (root, (outside,)):
        nested = await root.start_supervisor("nested", policy=RestartPolicy(max_failures=2))
        a = await nested.start_child(world.spec("a"))
        b = await nested.start_child(world.spec("b"))
        world.fresh_log()
        a.tell("crash")
        await settle()
        assert world.fresh_log() == ["stop a", "start a"]
        a.tell("crash")
        await settle()
        assert world.fresh_log() == ["stop a", "stop b", "start a", "start b"]
        assert await a.ask("back?") == "back?"
        assert await b.ask("back?") == "back?"
        assert outside.running
        assert "nested restarted 1" in world.taken()
        with pytest.raises(LookupError, match="is a supervisor"):
            root.child("nested")
        statistics = root.statistics().children[1].supervisor
        assert [child.name for child in present(statistics).children] == ["a", "b"]
        await root.stop_child("nested")
        assert not a.running
        assert outside.running


async def test_escalation_climbs_to_the_root(world: World) -> None:
    strict = RestartPolicy(max_failures=1)
    root = Supervisor("root", bus=world.bus, policy=strict)
    with pytest.raises(ExceptionGroup) as caught:
        async with anyio.create_task_group() as group:
            await group.start(root.run)
            nested = await root.start_supervisor("nested")
            a = await nested.start_child(world.spec("a"))
            a.tell("crash")
    assert "nested ended 1 times in a row" in str(caught.value.exceptions[0])
    assert "a ended 1 times" in str(caught.value.exceptions[0])


async def test_two_simultaneous_crashes_cause_one_restart_of_the_group(world: World) -> None:
    """Under one_for_all, a second child that crashes during the restart is restarted once, with the others."""
    async with world.supervisor("one_for_all") as supervisor:
        refs = [await supervisor.start_child(world.spec(name)) for name in "abc"]
        refs[0].tell("crash")
        refs[2].tell("crash")
        await settle()
        assert all(ref.running for ref in refs)
        assert [world.log.count(f"start {name}") for name in "abc"] == [2, 2, 2]


async def test_a_sibling_that_fails_to_restart_starts_the_round_again(world: World) -> None:
    """As in OTP, the failure of the sibling counts for the sibling, and the restart of the group begins again."""
    fails = [True, True, False]

    def fail_twice() -> None:
        if fails.pop(0):
            raise Boom("not yet")

    async with world.children("a", "b", strategy="one_for_all") as (supervisor, (a, b)):
        world.on_start["b"] = fail_twice
        world.fresh_log()
        a.tell("crash")
        await anyio.sleep(5)
        assert (a.running, b.running) == (True, True)
        again = ["stop a", "start a", "start b"]
        assert world.log == ["stop a", "stop b", "start a", "start b", *again, *again]
        failures = [child.failures for child in supervisor.statistics().children]
        assert failures == [1, 2]


async def test_a_supervisor_runs_once_at_a_time(world: World) -> None:
    supervisor = Supervisor("root", bus=world.bus)
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run)
        ref = await supervisor.start_child(world.spec("a"))
        with pytest.raises(RuntimeError, match="already running"):
            await supervisor.run()
        await supervisor.stop()
    assert not ref.running
    async with anyio.create_task_group() as group:
        await group.start(supervisor.run)
        assert await ref.ask("back?") == "back?"
        await supervisor.stop()


async def test_unknown_children_are_named_with_the_known(world: World) -> None:
    async with world.supervisor() as supervisor:
        await supervisor.start_child(world.spec("a"))
        for call in (supervisor.stop_child, supervisor.restart_child):
            with pytest.raises(LookupError, match="'b'; it has: a"):
                await call("b")


async def test_a_crash_on_the_very_first_message_is_restarted(world: World) -> None:
    """A child can crash before its parent's next step. The events and the restart are as for a later crash."""

    class Eager(Actor):
        async def started(self, context: ActorContext) -> None:
            context.ref.tell("crash")
            world.log.append("start")

        async def receive(self, message: object) -> object:
            raise Boom("at once")

    for _ in range(20):  # trio starts ready tasks in random order
        async with world.supervisor() as supervisor:
            ref = await supervisor.start_child(ChildSpec("a", Eager, on_limit="stop"))
            await anyio.sleep(30)
            assert not ref.running
            assert world.fresh_log() == ["start"] * 5
            assert world.taken() == [
                "a started",
                "a crashed 1",
                *(line for n in range(1, 5) for line in (f"a restarted {n}", f"a crashed {n + 1}")),
                "a stopped: restart limit",
            ]


CHAOS: list[object] = ["crash", "exit", "hello", ("sleep", 0.3), ("sleep", 40.0)]


@settings(max_examples=40, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    script=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([*CHAOS, "stop", "revive", "spawn"]),
            st.sampled_from([0.0, 0.05, 3.0]),
        ),
        max_size=25,
    ),
    restarts=st.tuples(*[st.sampled_from(RESTARTS)] * 3),
    seed=st.integers(0, 1000),
    trio=st.booleans(),
)
def test_every_ask_ends_and_the_stop_is_clean(
    strategy: Strategy,
    script: list[tuple[int, object, float]],
    restarts: tuple[RestartType, RestartType, RestartType],
    seed: int,
    trio: bool,
) -> None:
    """Children crash, exit, stop and restart at random. Every ask and task ends, and at the end no task is
    left.
    """
    world = World()
    world.clock.random = random.Random(seed).random  # type: ignore[method-assign]
    ended: list[bool] = []

    async def settle_all(wait: Callable[[], Awaitable[object]]) -> None:
        with contextlib.suppress(CallboardError):
            await wait()
        ended.append(True)

    async def scenario() -> None:
        asked = 0
        async with anyio.create_task_group() as group, world.supervisor(strategy) as supervisor:
            refs = [
                await supervisor.start_child(world.spec(name, restart=restart, on_limit="stop"))
                for name, restart in zip("abc", restarts, strict=True)
            ]
            for n, action, pause in script:
                ref = refs[n]
                match action:
                    case "stop":
                        group.start_soon(supervisor.stop_child, ref.name)
                    case "revive":
                        group.start_soon(settle_all, lambda name=ref.name: supervisor.restart_child(name))
                        asked += 1
                    case "spawn":
                        if ref.running:
                            handle = ref.spawn(anyio.sleep, 2)
                            group.start_soon(settle_all, handle.wait)
                            asked += 1
                    case _:
                        group.start_soon(settle_all, lambda ref=ref, action=action: ref.ask(action))
                        asked += 1
                await anyio.sleep(pause)
            report = await supervisor.stop(budget=60)
            assert report.clean
        assert len(ended) == asked
        assert sum(line.startswith("start") for line in world.log) == len(world.log) / 2

    run_virtual(scenario, "virtual-trio" if trio else "virtual-asyncio")


# -- Stopping: the order, and tasks that don't stop.


async def stubborn(seconds: float) -> None:
    """Keep running for some seconds, even if the task is cancelled."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep(seconds)


async def test_children_stop_in_reverse_order(world: World) -> None:
    """The last started child stops first, because it may use the others."""
    async with world.supervisor() as supervisor:
        for name in "abc":
            await supervisor.start_child(world.spec(name))
        report = await supervisor.stop()
    assert (report.clean, report.stuck, report.lost) == (True, (), 0)
    assert world.log == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]
    with pytest.raises(ActorStopped, match="not running"):
        await supervisor.start_child(world.spec("d"))
    assert (await supervisor.stop()).clean


async def test_unhandled_messages_are_counted(world: World) -> None:
    async with world.children("a") as (supervisor, (ref,)):
        ref.tell(("sleep", 1.0))
        await anyio.sleep(0.1)
        for n in range(3):
            ref.tell(n)
        report = await supervisor.stop()
    assert (report.clean, report.lost) == (True, 3)


@on_both
async def test_a_cancelled_host_still_stops_in_order(world: World) -> None:
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


async def test_giving_up_stops_all_children_and_raises(world: World) -> None:
    """At the limit, a supervisor stops its children in reverse order. run() raises with the reason."""
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


async def test_a_stubborn_task_is_reported_and_awaited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """stop() returns after 5 s and 1 s with the task's name."""
    from callboard.bus import child as module

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


async def test_a_task_that_delays_a_restart_is_reported(world: World) -> None:
    """A crashed actor waits for its tasks. A task that does not end is reported, and the restart follows its
    end.
    """

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


async def test_all_children_share_one_time_limit(world: World) -> None:
    """The children share the time limit of stop(). When it is over, the remaining children are cancelled
    immediately.
    """
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
    async with world.supervisor() as root:
        nested = await root.start_supervisor("nested")
        ref = await nested.start_child(world.spec("a"))
        ref.spawn(stubborn, 30, name="stubborn")
        await anyio.wait_all_tasks_blocked()
        report = await root.stop()
        assert "a/stubborn" in report.stuck


async def test_stopping_while_a_child_starts(world: World) -> None:
    """A start that hangs does not delay a stop. The caller of start_child gets an error."""
    errors: list[Exception] = []

    async def start(supervisor: Supervisor) -> None:
        try:
            await supervisor.start_child(spec)
        except ActorStopped as error:
            errors.append(error)

    class Hangs(Actor):
        async def started(self, context: ActorContext) -> None:
            await anyio.sleep_forever()

    spec = ChildSpec("hangs", Hangs)
    async with anyio.create_task_group() as group, world.supervisor() as supervisor:
        group.start_soon(start, supervisor)
        await anyio.wait_all_tasks_blocked()
        assert (await supervisor.stop()).clean
    assert len(errors) == 1
    async with world.supervisor() as supervisor:
        with anyio.move_on_after(1) as limit:
            await supervisor.start_child(spec)
        assert limit.cancelled_caught
        assert (await supervisor.stop()).clean


@pytest.mark.parametrize("steps", range(8))
def test_stopping_at_the_time_of_a_restart_is_no_failure(world: World, steps: int) -> None:
    """If a delay ends during a stop, no child is restarted and `run` raises nothing."""

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
    """A caller that waits for the task gets an error. Otherwise the caller would wait forever."""

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
async def test_cancelling_a_start_or_a_stop_leaves_a_working_supervisor(world: World) -> None:
    """Cancelled at any step of start_child, restart_child or stop_child, the next call still works."""
    async with world.supervisor() as supervisor:
        for steps in range(12):
            name = f"a{steps}"
            async with anyio.create_task_group() as group:
                group.start_soon(supervisor.start_child, world.spec(name))
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            with contextlib.suppress(ValueError):  # the child was up before the cancellation
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
