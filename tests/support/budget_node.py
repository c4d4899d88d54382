"""A node in a process of its own with concurrent callers that share a budget. Tests kill it during its calls.

It starts its calls when it reads a line. It prints `sent` for each call, and the end of each.
"""

from __future__ import annotations

import asyncio
import sys
from decimal import Decimal
from pathlib import Path

from callboard.bus import StoreError
from callboard.engine import Budget, BudgetExceededError, Engine
from callboard.tracestore import PriceRow, PriceTable
from tests.support.cluster_engines import node_engine
from tests.support.scripted import Say

TABLE = PriceTable([PriceRow(model="s:m", input=1_000_000, output=2_000_000)], label="test")
ONE = 65 * 1000 + 100 * 2000
"""The maximum nano-USD of a call: the upper end of an estimate of 10 tokens, and 100 output tokens."""
COSTS = 10 * 1000 + 5 * 2000
"""The actual cost in nano-USD."""
LIMIT = 10 * ONE
BUDGET = Budget(max_cost_usd=Decimal(LIMIT).scaleb(-9))


async def _run(dsn: str, name: str, folder: Path, callers: int) -> None:
    end = asyncio.Event()

    async def until_it_may_end() -> None:
        _say("sent")
        await end.wait()

    replies = [Say("x", pause=until_it_may_end)] * callers
    async with node_engine(name, dsn, folder, *replies, budgets=[BUDGET], prices=TABLE) as engine:
        _say("ready")
        await asyncio.to_thread(sys.stdin.readline)
        calls = [asyncio.create_task(_call(engine)) for _ in range(callers)]
        await asyncio.to_thread(sys.stdin.readline)
        end.set()
        await asyncio.gather(*calls)
        _say("done")
        await asyncio.to_thread(sys.stdin.readline)


async def _call(engine: Engine) -> None:
    while True:
        try:
            await engine.generate("s:m", "Hi", max_output_tokens=100)
        except BudgetExceededError:
            _say("refused")
        except StoreError:  # the store is unreachable for a moment
            await asyncio.sleep(0.1)
            continue
        else:
            _say("answered")
        return


def _say(*words: str) -> None:
    print(*words, flush=True)  # noqa: T201


def main() -> None:
    """The arguments are the database, the node's name, the folder, and the number of callers."""
    dsn, name, folder, callers = sys.argv[1:]
    asyncio.run(_run(dsn, name, Path(folder), int(callers)))
