"""Nodes in processes of their own that share a budget while nodes are killed and PostgreSQL is restarted."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import anyio
import msgspec
import pytest

from callboard.engine import BudgetExceededError
from tests.support.budget_node import BUDGET, COSTS, LIMIT, ONE, TABLE
from tests.support.cluster_engines import node_engine
from tests.support.depth import first_is_quick
from tests.support.postgres_server import own_server, why_not
from tests.support.programs import started
from tests.support.scripted import Say

NODE = "from tests.support.budget_node import main; main()"
CALLERS = (17, 17, 16)

pytestmark = pytest.mark.skipif(why_not(own=True) is not None, reason=str(why_not(own=True)))


class Node:
    """A node in a process of its own, and the lines that it has printed."""

    def __init__(self, process: subprocess.Popen[str], callers: int) -> None:
        self.process = process
        self.callers = callers
        self.said: Counter[str] = Counter()

    async def listen(self, changed: asyncio.Condition) -> None:
        assert self.process.stdout is not None
        while line := await asyncio.to_thread(self.process.stdout.readline):
            async with changed:
                self.said[line.strip()] += 1
                changed.notify_all()

    def go_on(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()


@contextmanager
def nodes_at_work(dsn: str, folder: Path) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        nodes = []
        for number, callers in enumerate(CALLERS):
            process = stack.enter_context(started(NODE, dsn, f"n{number}", folder, callers))
            stack.callback(process.kill)
            nodes.append(Node(process, callers))
        yield nodes


@pytest.mark.parametrize("fault", first_is_quick(["restart", "none"], "the same without a fault"))
async def test_fifty_callers_in_three_processes_make_ten_calls(tmp_path: Path, fault: str) -> None:
    """One node is killed during its calls. The most that those calls can cost stays counted."""
    changed = asyncio.Condition()

    async def until(count: int, *what: str) -> None:
        async with changed:
            await changed.wait_for(lambda: sum(node.said[each] for node in nodes for each in what) >= count)

    with own_server() as server, server.database() as dsn:
        async with asyncio.TaskGroup() as group:
            with nodes_at_work(dsn, tmp_path) as nodes, anyio.fail_after(60):
                for node in nodes:
                    group.create_task(node.listen(changed))
                await until(3, "ready")
                for node in nodes:
                    node.go_on()
                if fault == "restart":
                    await until(3, "sent")
                    await asyncio.to_thread(server.restart, "immediate")
                await until(50, "sent", "refused")
                assert sum(node.said["sent"] for node in nodes) == 10
                killed = max(nodes, key=lambda node: node.said["sent"])
                killed.process.kill()
                others = [node for node in nodes if node is not killed]
                for node in others:
                    node.go_on()
                await until(2, "done")
                spent = sum(node.said["answered"] for node in others) * COSTS
                await has_left(dsn, tmp_path, LIMIT - killed.said["sent"] * ONE - spent)
                for node in others:
                    node.go_on()


async def has_left(dsn: str, folder: Path, left: int) -> None:
    """Check that a new node can spend the unspent amount, except for the reservations of the dead node.

    If the dead node was much quicker than the others, the remaining amount may be too small for one call.
    """
    may_call = left >= ONE
    budget = msgspec.structs.replace(BUDGET, when_full="wait") if may_call else BUDGET
    async with node_engine("late", dsn, folder, Say("x"), budgets=[budget], prices=TABLE) as engine:
        with nullcontext() if may_call else pytest.raises(BudgetExceededError):
            await engine.generate("s:m", "Hi", max_output_tokens=100)
        left -= COSTS if may_call else 0
        for _ in range(100):  # The other nodes release their unused reservations.
            (state,) = await engine.budgets()
            if state.left_nano_usd == left:
                break
            await anyio.sleep(0.2)
        assert state.left_nano_usd == left
