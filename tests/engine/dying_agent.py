"""An agent whose sub-agent's tool kills the process. `test_trees.py` runs it with the folder of the trace."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from callboard import agent_tool, tool
from tests.support.engines import keeping, registry
from tests.support.scripted import Say


@tool
async def act() -> str:
    """Act."""
    os._exit(9)


async def main() -> None:
    agent = agent_tool("agent", model="a:m", tools=[act])
    models = registry(Say(calls=[("agent", {"task": "Do it."})]), a=[Say(calls=[("act", {})])])
    async with keeping(Path(sys.argv[1]) / "t.db", models=models) as engine:
        await engine.session("s:m", tools=[agent], session_id="lead").send("Go.")


if __name__ == "__main__":
    asyncio.run(main())
