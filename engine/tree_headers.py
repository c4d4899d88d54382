"""Functions to leave the tree of turns, and to join a tree in another process.

The headers of `trace_context` have the tool run, and the unused part of its turn's limits. `attach_trace_context`
makes a `Caller` from them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from contextvars import Token
from decimal import Decimal
from types import TracebackType
from typing import Self
from urllib.parse import quote, unquote

from callboard.bus.events.calls import current_trace

from .tree import Caller, TreeNode, TurnLimits, current_tool

_PREFIX = "callboard-"


@contextlib.contextmanager
def detached() -> Iterator[None]:
    """Start the calls of this block outside of the tree, even in a tool.

    These calls have no parent. They are not part of the turn's costs and limits, and continue when the turn ends.
    Use this for work that outlives the turn.
    """
    token = current_tool.set(None)
    try:
        yield
    finally:
        current_tool.reset(token)


def trace_context() -> dict[str, str]:
    """The current position in the tree of turns, for `attach_trace_context` in another process.

    Returns:
        The headers ``traceparent`` and ``baggage``, as W3C defines them; empty outside of a turn. They include a
        parent's remaining limits.
    """
    caller = current_tool.get()
    carried: dict[str, str] = {}
    if (trace := current_trace() or (None if caller is None else caller.trace_parent)) is not None:
        carried["traceparent"] = trace
    if caller is not None and not caller.node.over:
        members = {**_place(caller), **_remaining(caller.node)}
        if caller.carry is not None:
            members.update(caller.carry(caller))
        carried["baggage"] = ",".join(
            f"{_PREFIX}{name}={quote(value, safe='')}" for name, value in members.items()
        )
    return carried


def _place(caller: Caller) -> dict[str, str]:
    node = caller.node
    place = {
        "turn": node.turn_id,
        "root": node.root_turn_id,
        "depth": str(node.depth),
        "call": caller.call_id or "",
        "tool": caller.tool_use_id or "",
    }
    return {name: value for name, value in place.items() if value}


def _remaining(node: TreeNode) -> dict[str, str]:
    """The unused part of the turn's limits, which applies to the calls of its tools."""
    found: list[tuple[str, int | None]] = []
    for each in node.limited:
        limits, levels = each.limits, node.depth + 1 - each.depth
        assert limits is not None
        found += [
            ("max-calls", None if limits.max_calls is None else limits.max_calls - each.calls - levels),
            ("max-depth", None if limits.max_depth is None else limits.max_depth - levels),
            ("max-children", limits.max_children),
        ]
    found += [("max-nano-usd", account.state(0).left_nano_usd) for account in node.accounts]
    tightest: dict[str, int] = {}
    for name, value in found:
        if value is not None:
            tightest[name] = min(value, tightest.get(name, value))
    carried = {name: str(max(value, -1)) for name, value in tightest.items()}
    if node.deadline < math.inf:
        carried["seconds"] = f"{max(node.deadline - _now(), 0):.3f}"
    return carried


class attach_trace_context:
    """Make the calls of this process children of a tool run in another process.

    The effect is immediate, for this task and all tasks that it starts. As a context manager, the effect ends with
    the block.

    Args:
        carried: The result of `trace_context`, as headers or as environment variables. You can pass ``os.environ``
            with ``TRACEPARENT`` and ``BAGGAGE``. Without them, nothing happens.
    """

    def __init__(self, carried: Mapping[str, str]) -> None:
        headers = {
            name.lower(): value for name, value in carried.items() if name.lower() in ("traceparent", "baggage")
        }
        self._token: Token[Caller | None] | None = None
        caller = _caller_in(headers)
        if caller is not None:
            self._token = current_tool.set(caller)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current_tool.reset(self._token)
            self._token = None


def _caller_in(headers: Mapping[str, str]) -> Caller | None:
    members = {}
    for member in headers.get("baggage", "").split(","):
        name, _, value = member.partition(";")[0].strip().partition("=")
        if name.startswith(_PREFIX):
            members[name.removeprefix(_PREFIX)] = unquote(value)
    turn_id = members.get("turn")
    if not turn_id:
        return None
    node = TreeNode(turn_id, limits=_limits_in(members))
    node.root_turn_id, node.depth = members.get("root", turn_id), _number(members.get("depth")) or 0
    if node.limits is not None and node.limits.timeout_seconds is not None:
        node.deadline = _now() + node.limits.timeout_seconds
    return Caller(
        node,
        call_id=members.get("call"),
        tool_use_id=members.get("tool"),
        trace_parent=headers.get("traceparent"),
        carried=members,
    )


def _limits_in(members: Mapping[str, str]) -> TurnLimits | None:
    calls, depth, children, nano, seconds = (
        _number(members.get(name))
        for name in ("max-calls", "max-depth", "max-children", "max-nano-usd", "seconds")
    )
    if calls is depth is children is nano is seconds is None:
        return None
    return TurnLimits(
        # The data is for a child. This node represents the child's parent, one level higher.
        max_calls=None if calls is None else calls + 1,
        max_depth=None if depth is None else depth + 1,
        max_children=None if children is None else max(children, 0),
        max_cost_usd=None if nano is None else Decimal(max(nano, 0)).scaleb(-9),
        timeout_seconds=None if seconds is None else float(members["seconds"]),
    )


def _now() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()  # as event loops do


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else max(int(float(text)), -1)
    except (ValueError, OverflowError):
        return None
