"""Engines that are nodes of one cluster, each with a trace file of its own."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any

import anyio

from callboard.engine import Cluster, Engine, ModelRegistry
from callboard.engine.nodes.node import Node
from tests.support.engines import keeping
from tests.support.scripted import Say


def node_engine(
    name: str, dsn: str, folder: Path, *replies: Say, models: ModelRegistry | None = None, **options: Any
) -> Engine:
    """A node with that name. `cluster` may contain fields of `Cluster`."""
    cluster = Cluster(store=dsn, node=name, **{"lease_seconds": 5.0, **options.pop("cluster", {})})
    return keeping(folder / f"{name}.db", *replies, models=models, cluster=cluster, **options)


def node_of(engine: Engine) -> Node:
    """The node of an engine in its cluster."""
    node = engine._runtime.cluster
    assert isinstance(node, Node)
    return node


async def until(condition: Callable[[], object]) -> None:
    """Return when a condition, plain or async, is true. No event reports some states of other nodes.

    Raises:
        TimeoutError: It is false for ten seconds.
    """
    with anyio.fail_after(10):
        while True:
            found = condition()
            if await found if isawaitable(found) else found:
                return
            await anyio.sleep(0.005)
