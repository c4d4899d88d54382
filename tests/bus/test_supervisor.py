"""Supervisors: who is restarted, and when it ends."""

from __future__ import annotations

import contextlib
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
    CallboardError,
    ChildSpec,
    RestartPolicy,
    RestartType,
    Strategy,
    Supervisor,
)
from tests.bus.supervised import Boom, World, settle
from tests.support.present import present
from tests.support.virtual_time import run_virtual

pytestmark = pytest.mark.anyio

STRATEGIES: tuple[Strategy, ...] = ("one_for_one", "one_for_all", "rest_for_one")


RESTARTS: tuple[RestartType, ...] = ("permanent", "transient", "temporary")


def fail() -> None:
    """A start that fails."""
    raise Boom("no start")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("exit_", ["normal", "crash", "stopped"])
async def test_the_restart_matrix(world: World, strategy: Strategy, restart: RestartType, exit_: str) -> None:
    """Restart type, kind of exit and strategy together say who lives on, and in which order."""
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
    """one_for_all stops a temporary child with the others and leaves it so; its ref says it has stopped."""
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


async def test_the_statistics_remember_the_last_crash(world: World) -> None:
    """Its exception and its time stay after the restart; a child that never crashed has none."""
    async with world.children("a", "b") as (supervisor, (a, _)):
        a.tell("crash")
        await settle()
        crashed, healthy = supervisor.statistics().children
        assert (crashed.phase, crashed.restarts) == ("running", 1)
        assert (crashed.last_crash, crashed.crashed_us is not None) == ("Boom: a", True)
        assert (healthy.last_crash, healthy.crashed_us) == (None, None)


async def test_a_stopped_sibling_is_left_in_peace(world: World) -> None:
    """A child that was stopped on purpose is not brought back by another's crash."""
    async with world.children("a", "b", strategy="one_for_all") as (supervisor, (a, b)):
        await supervisor.stop_child("b")
        a.tell("crash")
        await settle()
        assert (a.running, b.running) == (True, False)


async def test_the_limit_trips_although_the_backoff_is_on(world: World) -> None:
    """Five failures in a row are the end, however far the backoff spreads them; the waits double."""
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


async def test_a_healthy_life_starts_a_new_row(world: World) -> None:
    """A child that lives for healthy_after between its crashes is restarted for ever."""
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
    """Failing starts count like crashes, and messages that waited are settled at the end."""
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
        assert world.taken() == [
            "a started",
            *(f"a crashed {n}" for n in range(1, 6)),
            "a stopped: restart limit",
        ]
        assert world.log.count("stop a") == 1


async def test_a_first_start_that_fails_is_the_callers(world: World) -> None:
    """start_child raises what started() raised, adds nothing, and can be called again."""

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


async def test_a_stopped_child_is_revived_afresh(world: World) -> None:
    """restart_child starts it with no failures counted, under the same ref; it leaves a running one alone."""
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
    """The pause before a restart is no hold on the child: stopped is stopped."""
    async with world.children("a") as (supervisor, (ref,)):
        ref.tell("crash")
        await anyio.sleep(0.01)
        assert not ref.running
        await supervisor.stop_child("a")
        await settle()
        assert world.log == ["start a", "stop a"]
        assert world.taken() == ["a started", "a crashed 1", "a stopped: stopped"]


async def test_a_nested_supervisor_that_gives_up_is_restarted_with_its_children(world: World) -> None:
    """Escalation is a crash to the parent: the subtree comes up again in order, and the refs stay valid."""
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
    """A nested supervisor that never comes right brings the root down, with the reason."""
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


async def test_two_crashes_at_once_are_one_restart_of_the_group(world: World) -> None:
    """Under one_for_all a second child that crashes meanwhile is restarted once, with the others."""
    async with world.supervisor("one_for_all") as supervisor:
        refs = [await supervisor.start_child(world.spec(name)) for name in "abc"]
        refs[0].tell("crash")
        refs[2].tell("crash")
        await settle()
        assert all(ref.running for ref in refs)
        assert [world.log.count(f"start {name}") for name in "abc"] == [2, 2, 2]


async def test_a_sibling_that_fails_to_restart_starts_the_round_again(world: World) -> None:
    """OTP's 'other child fails to restart': its failure counts for itself, and the round begins anew."""
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
    """A second run() at the same time is a mistake; one after the other brings the children back."""
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
    """The text of a LookupError helps."""
    async with world.supervisor() as supervisor:
        await supervisor.start_child(world.spec("a"))
        for call in (supervisor.stop_child, supervisor.restart_child):
            with pytest.raises(LookupError, match="'b'; it has: a"):
                await call("b")


async def test_a_crash_on_the_very_first_message_is_restarted(world: World) -> None:
    """A child may crash before whoever started it has looked; events and restarts are the same as later."""

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
def test_whatever_happens_every_ask_ends_and_the_stop_is_clean(
    strategy: Strategy,
    script: list[tuple[int, object, float]],
    restarts: tuple[RestartType, RestartType, RestartType],
    seed: int,
    trio: bool,
) -> None:
    """Random crashes, exits, stops and revivals: each ask and each task ends, and nothing is left running."""
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
