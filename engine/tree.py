"""The tree of turns: the limits, costs and cancellation of the calls that tools make.

While a tool runs, a context variable holds its `Caller`. A call or a turn that starts during that time reads the
variable once, and becomes a child of the turn that runs the tool. Async functions, tasks and threads inherit the
variable. Headers pass it to another process, see `engine.tree_headers`. A turn gets a `TreeNode` when it runs a
tool, has limits, or is a child itself.

A child may run on another event loop than its parent, because a tool in a thread uses the loop of the sync
functions. One lock protects all nodes, and a child is cancelled on its own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from decimal import Decimal
from functools import partial
from types import MappingProxyType
from typing import Protocol
from weakref import ref

import anyio
import msgspec

from callboard.bus import CallboardError
from callboard.bus.errors import CancelledError
from callboard.bus.values.usage import CostSum, TokenUsage, UsageSource

from .budgets.budget import Budget
from .budgets.ledger import Account

GRACE_SECONDS = 10.0
"""Seconds that a turn waits at its end for its cancelled children. A call ends within five seconds."""


PARENT_ENDED = "the turn that made this call with a tool ended, or the engine was closed, while it ran"


class TurnLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one turn together with its descendants: all turns and calls that its tools start.

    A descendant gets the unused part of the limits. A call above a limit raises an exception in the tool that
    makes it: `TurnLimitError`, or BudgetExceededError for money. The model gets it as the tool's error, and the
    turn continues.

    Raises:
        ValueError: A limit is negative.
    """

    max_calls: int | None = None
    """The maximum number of calls of models. A descendant leaves one call for each turn above it, so that those
    turns can answer.
    """
    max_depth: int | None = None
    """The maximum number of levels below the turn. With 0, its tools can make no calls."""
    max_children: int | None = None
    """The maximum number of turns and calls that the tools of one turn may start. The limit applies to each turn
    of the tree.
    """
    max_cost_usd: Decimal | float | str | None = None
    """The maximum cost in US dollars. The maximum cost of a call is reserved before it is sent."""
    timeout_seconds: float | None = None
    """Seconds from the start of the turn. Its descendants have the same deadline."""

    def __post_init__(self) -> None:
        for name in ("max_calls", "max_depth", "max_children", "timeout_seconds"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name}={value}: must not be negative")
        if self.max_cost_usd is not None:
            self.as_budget()  # an invalid amount raises an error here

    def as_budget(self) -> Budget:
        """The limit on money as a budget."""
        return Budget(max_cost_usd=self.max_cost_usd, per="turn")


class TurnLimitError(CallboardError):
    """A turn and its descendants have reached one of their `TurnLimits`.

    Args:
        limit: The name of the limit, a field of `TurnLimits`.
        most: The limit.
        turn_id: The id of the turn that has the limit.
    """

    def __init__(self, limit: str, most: float, turn_id: str) -> None:
        self.limit = limit
        """The name of the limit, a field of `TurnLimits`."""
        self.turn_id = turn_id
        """The id of the turn that has the limit."""
        super().__init__(f"turn {turn_id} has reached its limit {limit}={most}; raise it in its TurnLimits")


class ChildTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that a tool of another turn has started."""

    turn_id: str
    """The turn's id. Its stream has the same id, see `Engine.attach`."""
    model: str
    """The model as requested, as text."""
    tool_use_id: str
    """The id of the tool call that started this turn or call."""
    tool_name: str
    """The name of the tool."""
    depth: int
    """The number of turns above this turn or call."""

    @property
    def stream_id(self) -> str:
        """The id of the turn's stream."""
        return self.turn_id


class RemoteTurn(Protocol):
    """The connection to the node that runs a turn; see `engine.nodes.trees`."""

    async def announced(self) -> None:
        """Wait until the node that runs the turn has been informed that calls are in progress here."""

    def idle(self) -> None:
        """Report that the last call here has ended."""

    def started(self, child: ChildTurn) -> None:
        """Report that a child has started here."""

    def called(self, calls: int) -> None:
        """Report that calls of descendants were counted here, or taken back."""

    def spent(self, part: CostSum, usage: TokenUsage | None) -> None:
        """Report that an attempt of a descendant has ended here."""


MOST_ELSEWHERE = 1024
"""The maximum number of children in other engines whose streams can be found."""

MOST_PARTS = 64
"""The maximum number of attempts that are collected before they are added together, because one addition of many
is fast.
"""

_lock = threading.Lock()
_elsewhere: OrderedDict[str, tuple[ref[object], asyncio.AbstractEventLoop]] = OrderedDict()
_NO_USAGE = TokenUsage()
_REPORTED = UsageSource.REPORTED


class TreeNode:
    """One turn in the tree of turns. A root has no caller."""

    # Defaults on the class, because most turns never change them.
    limited: tuple[TreeNode, ...] = ()
    """The nodes that have limits: this one and those above it."""
    accounts: tuple[Account, ...] = ()
    """The accounts for the money limits of these nodes."""
    depth = 0
    """The number of turns above this turn."""
    deadline = math.inf
    """The turn's deadline, in the event loop's time."""
    calls = 0
    """The number of calls of the turn and its descendants, if one of `limited` counts them."""
    over = False
    """Whether the turn has ended. Calls that its tools start later are not its children."""
    refusal = ""
    """The reason why the turn's tools may start no more calls: the turn was cancelled, or has failed."""
    remote: RemoteTurn | None = None
    """The connection to the node that runs the turn, if this is another node."""
    remote_above: RemoteTurn | None = None
    """The connection to the node that runs the nearest remote turn above this turn."""
    spends_below = False
    """Whether an attempt of a descendant has ended."""
    _started = 0  # counted only if a node in `limited` needs it
    _below = CostSum()
    _below_usage = _NO_USAGE
    _idle: Callable[[], object] | None = None

    def __init__(self, turn_id: str, caller: Caller | None = None, limits: TurnLimits | None = None) -> None:
        above = None if caller is None else caller.node
        self.turn_id = turn_id
        self.above = above
        self.root_turn_id = turn_id
        self.limits = limits
        if above is not None:
            self.root_turn_id, self.depth = above.root_turn_id, above.depth + 1
            self.limited, self.accounts = above.limited, above.accounts
            self.remote_above = above.remote or above.remote_above
        if limits is not None:
            self.limited = (self, *self.limited)
            if limits.max_cost_usd is not None:
                self.accounts = (Account(limits.as_budget(), turn_id), *self.accounts)
        self.children: list[ChildTurn] = []
        """The turns that the tools of this turn have started."""
        # ended attempts that are not yet added to `below`
        self._ended: list[tuple[CostSum, TokenUsage | None]] = []
        self._open: dict[object, tuple[Caller, Callable[[], object]]] = {}

    @property
    def below(self) -> CostSum:
        self._sum_up()
        return self._below

    @property
    def below_usage(self) -> TokenUsage:
        self._sum_up()
        return self._below_usage

    def _sum_up(self) -> None:
        with _lock:
            if self._ended:
                self._take_parts()

    def _take_parts(self) -> None:
        parts, self._ended = self._ended, []
        nano = calls = estimated = unpriced = unknown = 0
        usage = self._below_usage
        plain, fresh, written, cached, stored, stored_1h = 0, 0, 0, 0, 0, 0
        for part, each in parts:
            nano += part.nano_usd
            calls += part.calls
            estimated += part.estimated
            unpriced += part.unpriced
            unknown += part.unknown
            if each is None:
                pass
            elif (
                each.source is _REPORTED
                and each.reasoning_tokens is None
                and each.details is None
                and each.upstream_cost_nano_usd is None
            ):
                plain += 1
                fresh += each.input_tokens
                written += each.output_tokens
                cached += each.cached_input_tokens
                stored += each.cache_creation_input_tokens
                stored_1h += each.cache_creation_1h_input_tokens
            else:
                usage += each
        if plain:  # plain costs are added without an object for each sum
            usage += TokenUsage(fresh, written, cached, stored, stored_1h)
        self._below += CostSum(nano, calls, estimated, unpriced, unknown)
        self._below_usage = usage

    def seconds(self, timeout: float | None) -> float | None:
        """The turn's time limit in seconds: the shortest of its own limit, its `TurnLimits`, and the remaining
        time of the turn above.
        """
        above = math.inf if self.above is None else self.above.deadline
        if above == math.inf and self.limits is None:
            return timeout
        limits = [timeout, None if self.limits is None else self.limits.timeout_seconds]
        if above < math.inf:
            limits.append(max(above - anyio.current_time(), 0.0))
        return min((each for each in limits if each is not None), default=None)

    def count(self, part: CostSum, usage: TokenUsage | None) -> None:
        """Count a descendant's ended attempt, here and in all turns above."""
        with _lock:
            top: TreeNode | None = None
            node: TreeNode | None = self
            while node is not None:
                node._ended.append((part, usage))
                node.spends_below = True
                top, node = node, node.above
        assert top is not None
        if len(top._ended) >= MOST_PARTS:
            node = self
            while node is not None:
                node._sum_up()
                node = node.above
        if top.remote is not None:
            top.remote.spent(part, usage)

    # --- Limits ---

    def admit_call(self, *, levels: int = 0) -> None:
        """Count a call, `levels` below this turn. Raises TurnLimitError."""
        if not self.limited:
            return
        with _lock:
            for node in self.limited:
                assert node.limits is not None
                most = node.limits.max_calls
                if most is not None and node.calls + 1 + self.depth - node.depth + levels > most:
                    raise TurnLimitError("max_calls", most, node.turn_id)
            self._count_calls(1)

    def take_back_call(self) -> None:
        """Stop counting an admitted call that was not made."""
        with _lock:
            self._count_calls(-1)

    def count_calls_elsewhere(self, calls: int) -> None:
        """Count calls that were admitted on another node."""
        with _lock:
            self._count_calls(calls)

    def _count_calls(self, calls: int) -> None:
        for node in self.limited:
            node.calls += calls
            if node.remote is not None:
                node.remote.called(calls)

    def admit_child(self) -> None:
        """Count a turn or a call that a tool of this turn starts. Raises TurnLimitError."""
        if not self.limited:
            return
        with _lock:
            for node in self.limited:
                limits = node.limits
                assert limits is not None
                if limits.max_depth is not None and self.depth + 1 - node.depth > limits.max_depth:
                    raise TurnLimitError("max_depth", limits.max_depth, node.turn_id)
                if limits.max_children is not None and self._started >= limits.max_children:
                    raise TurnLimitError("max_children", limits.max_children, node.turn_id)
            self._started += 1

    # --- Children in progress ---

    def adopt(self, caller: Caller, child: object, cancel: Callable[[], object]) -> None:
        """Record a child that has started on the running event loop, and the function that cancels it there."""
        with _lock:
            self._open[child] = (
                caller,
                partial(_on_loop, asyncio.get_running_loop(), threading.get_ident(), cancel),
            )

    def release(self, child: object) -> None:
        """Record that a child has ended. A second call does nothing."""
        with _lock:
            was_open = self._open.pop(child, None) is not None
            idle = None if self._open else self._idle
            last = was_open and not self._open
        if idle is not None:
            idle()
        if last and self.remote is not None:
            self.remote.idle()

    def cancel_open(self, caller: Caller | None = None) -> None:
        """Cancel the children in progress, or only the children of one tool run."""
        with _lock:
            found = [cancel for of, cancel in self._open.values() if caller is None or of is caller]
        for cancel in found:
            cancel()

    async def end(self, refusal: str) -> None:
        """Cancel the remaining calls of the turn's tools, and wait for their end."""
        self.over, self.refusal = True, refusal
        if not self._open:
            return
        self.cancel_open()
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self._idle = partial(_on_loop, loop, threading.get_ident(), done.set)
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + GRACE_SECONDS):
            if self._open:
                await done.wait()


def _on_loop(loop: asyncio.AbstractEventLoop, thread: int, function: Callable[[], object]) -> None:
    """Call a function on its event loop. If this is the loop's thread, the call is immediate."""
    if threading.get_ident() == thread:
        function()
    else:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing is in progress there
            loop.call_soon_threadsafe(function)


class Caller:
    """A tool run, as the caller of the calls that the tool makes.

    Args:
        node: The node of the turn that runs the tool.
        call_id: The request whose reply called the tool.
        runtime: The engine's parts, for a sub-agent that the tool runs.
        key: Returns the value of `ToolContext.idempotency_key`.
        tell: Publishes that the tool has started a turn.
        trace_parent: The host's span, if it came from another process.
        internal: Whether the call belongs to the turn itself, such as a summary of its history.
        carry: Returns the data that another node needs to reach this one; see `trace_context`.
        carried: The data that `carry` returned on the other node.
    """

    def __init__(
        self,
        node: TreeNode,
        *,
        call_id: str | None = None,
        tool_use_id: str | None = None,
        tool_name: str = "",
        runtime: object = None,
        key: Callable[[], str] | None = None,
        tell: Callable[[ChildTurn], object] | None = None,
        session_id: str | None = None,
        tags: Mapping[str, str] = MappingProxyType({}),
        streamed: bool = False,
        trace_parent: str | None = None,
        internal: bool = False,
        carry: Callable[[Caller], Mapping[str, str]] | None = None,
        carried: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.node = node
        self.call_id = call_id
        self.tool_use_id = tool_use_id
        self.tool_name = tool_name
        self.runtime = runtime
        self.session_id = session_id
        self.tags = tags
        self.streamed = streamed
        self.trace_parent = trace_parent
        self.internal = internal
        self.counted = node.above if internal else node
        """The lowest node that counts the calls as calls of a descendant."""
        self.carry = carry
        self.carried = carried
        self.beyond: object = None
        """The object that exchanges messages about this tool run with other nodes, if the run was passed to one.
        """
        self._key = key
        self._report = tell
        self._home = None if tell is None else (asyncio.get_running_loop(), threading.get_ident())
        self._refusal = ""

    @property
    def key(self) -> str:
        """The idempotency key of the tool's call; empty if it has none."""
        return "" if self._key is None else self._key()

    @property
    def refusal(self) -> str:
        """The reason why the tool may start no call: the turn or the tool run was cancelled. Empty if it may."""
        return self._refusal or self.node.refusal

    def require(self) -> None:
        """Check that the tool may start a call. Raises CancelledError if the turn or the tool run was
        cancelled.
        """
        if refusal := self.refusal:
            raise CancelledError(refusal)

    def start(self, child: object, cancel: Callable[[], object], turn: ChildTurn | None = None) -> None:
        """Record the start of a turn or a call. Raises TurnLimitError or CancelledError."""
        node = self.node
        if self._refusal or node.refusal:
            self.require()
        node.admit_child()
        node.adopt(self, child, cancel)
        if turn is None:
            return
        self.note(turn)
        if node.remote is not None:
            node.remote.started(turn)

    def lend(self, turn_id: str, streams: object) -> None:
        """Register a child that another engine runs, so that readers of the tree find its stream."""
        if self._home is not None and streams is not getattr(self.runtime, "streams", None):
            with _lock:
                _elsewhere[turn_id] = ref(streams), asyncio.get_running_loop()
                while len(_elsewhere) > MOST_ELSEWHERE:
                    _elsewhere.popitem(last=False)

    def note(self, turn: ChildTurn) -> None:
        """Record and publish a turn that the tool has started, here or on another node."""
        self.node.children.append(turn)
        if self._report is not None and self._home is not None:
            loop, thread = self._home
            if threading.get_ident() == thread:
                self._report(turn)
            else:
                _on_loop(loop, thread, partial(self._publish, turn))

    def _publish(self, turn: ChildTurn) -> None:
        if self._report is not None:
            self._report(turn)

    def end(self, refusal: str = "") -> None:
        """End the tool run. With a refusal, cancel the calls in progress and refuse new calls."""
        self._report = self._key = self.runtime = self.carry = (
            None  # Tasks that the tool did not end keep this object alive.
        )
        if refusal:
            self._refusal = refusal
            self.node.cancel_open(self)


def streams_elsewhere(turn_id: str) -> tuple[object, asyncio.AbstractEventLoop] | None:
    """The streams of the other engine that runs a child, and its event loop; None if there is none."""
    with _lock:
        found = _elsewhere.get(turn_id)
    streams = None if found is None else found[0]()
    return None if found is None or streams is None else (streams, found[1])


current_tool: ContextVar[Caller | None] = ContextVar("callboard tool", default=None)
"""The tool run that contains the current code."""


def caller_here() -> Caller | None:
    """The tool run that owns calls started here; None outside of a tool run, or if its turn has ended."""
    caller = current_tool.get()
    return None if caller is None or (caller.node.over and not caller.node.refusal) else caller


def tags_here(tags: Mapping[str, str] | None = None, *, caller: Caller | None = None) -> dict[str, str] | None:
    """The tags of a call that starts here. They are the tags of the turn whose tool makes the call, overridden by
    the call's own tags.

    None if there are none. Tags are inherited so that a budget for a tag includes the spending of tools.
    """
    caller = caller_here() if caller is None else caller
    if caller is None or not caller.tags:
        return dict(tags) if tags else None
    return {**caller.tags, **(tags or {})}
