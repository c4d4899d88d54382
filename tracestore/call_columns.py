"""A call in a trace: the row of each attempt, its columns, and the filter that selects calls.

`CallRow` is the only list of a call's columns. Storing, reading, exports, `callboard traces`, the live view and
`callboard sql --schema` are derived from it. To add a column:

1. Add the field to one event of the call. The event is made in ``engine/calls/events.py``. A value of the reply
   comes from the adapter's `CanonicalResponse`.
2. Add the same field to `CallRow`, with a sentence below it. If people should see the column, add it to `SHOWN`.
   If it is a text that never quotes content, add its name to `codec.KEPT`; otherwise it is erased with content.
3. Add a step to both ``steps.sql`` that adds the column to ``calls`` and creates the view ``call_rows`` again. Run
   ``scripts/make_new_file.py``, and add the hashes of the two steps to ``tests/tracestore/test_schema_steps.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from callboard.bus.clock import to_us
from callboard.bus.values.messages import RoutingDecision
from callboard.bus.values.usage import Cost, CostSum, TokenUsage, usage_is_unknown

CallStatus: TypeAlias = Literal["started", "completed", "failed", "cancelled"]
"""The status of a stored call. A call in progress is ``started``, and so is a call of a dead process."""

DIMENSIONS = (
    *("day", "provider", "model", "session_id", "turn_id", "status"),
    *("served_model", "error_class", "stop_reason", "operation", "key", "root", "origin"),
)
"""The dimensions to group calls by. ``tag:KEY`` groups by the value of that tag. ``root`` is the turn at the root
of the tree; for a call that no tool made, it is the call's own turn. ``origin`` is ``callboard`` for Callboard's
own calls.
"""


class CallRow(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a call. A field is None if its value is unknown or not known yet."""

    call_id: int
    """The number of the row in the trace, in the order of storing."""
    run_id: str
    """The id of the engine's run that made the call."""
    request_id: str
    """The id of the call. All attempts of the call have it."""
    attempt: int
    """The number of the attempt, from 1."""
    status: CallStatus
    """The status: ``started``, ``completed``, ``failed`` or ``cancelled``."""
    provider: str
    """The adapter's name."""
    model: str
    """The model as routed, ``provider:name``."""
    session_id: str | None = None
    """The id of the call's session."""
    turn_id: str | None = None
    """The id of the call's turn."""
    message_id: str | None = None
    """The id of the message that the reply became."""
    caused_by: str | None = None
    """The id of the request that caused this call, such as the request whose reply called a tool."""
    parent_call_id: str | None = None
    """The id of the request whose reply called the tool that made the call; None outside of a tool's run."""
    parent_tool_use_id: str | None = None
    """The id of the tool call that made this call, as in the parent's reply."""
    parent_turn_id: str | None = None
    """The id of the turn that ran the tool."""
    root_turn_id: str | None = None
    """The id of the turn at the root of the tree of turns; None for the root's own calls."""
    depth: int | None = None
    """The number of turns above the call's turn; None outside of a tool's run."""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    """The tags of the call or of its session."""
    started_us: int | None = None
    """The start of the attempt, in microseconds UTC."""
    finished_us: int | None = None
    """The end of the attempt, in microseconds UTC."""
    first_token_ms: int | None = None
    """Milliseconds from the start of the call to its first content, including waits and earlier attempts."""
    latency_ms: int | None = None
    """Milliseconds from the start of the call to the end of the attempt, including waits and earlier attempts."""
    reason: str | None = None
    """Why the attempt was made: ``first``, ``retry``, ``repair``, or ``key`` after a refused key."""
    requested_model: str | None = None
    """The model as the caller named it."""
    served_model: str | None = None
    """The model that ran, as the provider reports it."""
    priced_as: str | None = None
    """The ``provider:name`` that sets the prices, if it differs from `model`."""
    operation: str = "chat"
    """The operation: ``chat``, ``embeddings``, ``image``, ``video_create``, ``video``, ``batch_create`` or
    ``batch``."""
    key: str | None = None
    """The name of the key that was sent; None for the adapter's own key, which has no name."""
    streamed: bool | None = None
    """Whether the reply was requested as a stream."""
    routing: RoutingDecision | None = None
    """How the model was chosen."""
    estimated_input_tokens: int | None = None
    """Callboard's estimate of the input, in tokens, before the request was sent."""
    stop_reason: str | None = None
    """The reason why the reply ended."""
    raw_stop_reason: str | None = None
    """The provider's own word for the stop reason."""
    warnings: tuple[str, ...] = ()
    """The codes of the warnings."""
    response_id: str | None = None
    """The provider's identifier of the response."""
    provider_request_id: str | None = None
    """The provider's identifier of the request."""
    error_class: str | None = None
    """The class of the error that ended a failed attempt."""
    error_type: str | None = None
    """The exception type of the error that ended a failed attempt."""
    error_message: str | None = None
    """The message of the error that ended a failed attempt."""
    provider_status: int | None = None
    """The HTTP status of the provider's error."""
    provider_code: str | None = None
    """The provider's own code of the error."""
    retry_count: int = 0
    """The number of retries before this attempt."""
    resent: bool = False
    """Whether the request was sent twice because the server had closed a kept-alive connection."""
    will_retry: bool | None = None
    """Whether another attempt followed."""
    delay_seconds: float | None = None
    """The wait before the next attempt, in seconds."""
    retry_after_seconds: float | None = None
    """The wait that the provider requested, in seconds."""
    origin: str | None = None
    """The source of an imported call, such as ``claude-code``; None for Callboard's own calls."""
    origin_file: str | None = None
    """The file that contained an imported call."""
    origin_line: int | None = None
    """The line in that file, from 1; 0 in a file without lines."""
    revision: int | None = None
    """The revision of an imported call: a file that corrects the call has a larger one."""
    stated_nano_usd: int | None = None
    """The cost that the file of an imported call states, in nano-USD."""
    usage: TokenUsage | None = None
    """The tokens of the attempt."""
    at_call_time: Cost | None = None
    """The cost when the call was made. None until the call ends, and for a call that ended without a cost."""
    cost: Cost | None = None
    """The cost under the requested price version, or under the current version if none is requested. If there is
    no such cost, the cost at call time.
    """

    @property
    def unknown(self) -> bool:
        """True if even the usage is unknown: the call got no answer, or has not ended."""
        if self.usage is not None or (self.cost is not None and self.cost.nano_usd is not None):
            return False
        return self.status == "started" or usage_is_unknown(self.error_class or "", self.provider_status)

    @property
    def sum(self) -> CostSum:
        return CostSum.of_call(self.usage, self.cost, unknown=self.unknown)


class Column(NamedTuple):
    """A column of the table ``calls`` that is a field of `CallRow` with the same name."""

    kind: Literal["text", "int", "seconds", "bool", "json"]
    """How the value is stored. A bool is 1 or 0."""
    type: Any
    """The type in Python, without None."""
    default: object
    """The value that a NULL becomes in Python."""


def _columns() -> dict[str, Column]:
    kinds: dict[object, Any] = {str: "text", CallStatus: "text", int: "int", float: "seconds", bool: "bool"}
    found = {}
    for field in msgspec.structs.fields(CallRow):
        if field.name not in _SEVERAL_COLUMNS:
            args = [each for each in get_args(field.type) if each is not NoneType]
            kind = args[0] if len(args) < len(get_args(field.type)) else field.type
            unset = {} if kind == dict[str, str] else None if field.required else field.default
            found[field.name] = Column(kinds.get(kind, "json"), kind, unset)
    return found


_SEVERAL_COLUMNS = frozenset(("call_id", "usage", "at_call_time", "cost"))
"""The fields of `CallRow` that are stored in several columns or under another name."""

COLUMNS: Mapping[str, Column] = _columns()
"""The columns by name, in the order of `CallRow`."""


class Shown(NamedTuple):
    """How a column with a value is shown to people."""

    label: str
    """The label on the call's page in the live view, and the heading in lower case in `callboard traces`."""
    in_lists: bool = True
    """Whether `callboard traces` shows the column."""


SHOWN: Mapping[str, Shown] = {
    "provider_request_id": Shown("Provider's id", in_lists=False),
    "key": Shown("Key"),
    "origin": Shown("Imported from"),
    "origin_file": Shown("Imported file", in_lists=False),
    "origin_line": Shown("Imported line", in_lists=False),
}
"""The columns that the live view and `callboard traces` show unchanged, in a common list."""


class CallFilter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A filter for calls. Every field that is not None must match."""

    since: int | datetime | None = None
    """The earliest start of an attempt: microseconds UTC, or an aware datetime."""
    until: int | datetime | None = None
    """The time before which an attempt started: microseconds UTC, or an aware datetime."""
    provider: str | None = None
    """The adapter's name."""
    model: str | None = None
    """The model as routed: ``provider:name``, or the name alone. ``*`` at the end matches any text."""
    session_id: str | None = None
    """The id of the call's session."""
    request_id: str | None = None
    """The id of the call, for all its attempts."""
    status: CallStatus | None = None
    """``started``, ``completed``, ``failed`` or ``cancelled``."""
    tags: dict[str, str] | None = None
    """Tags that the call must have, with their values."""
    turn_id: str | None = None
    """The id of the call's turn. The trace has no index on turns, so set the session too if the trace is large."""
    root_turn_id: str | None = None
    """The id of a root turn. The filter selects its calls and the calls of all turns below. If the trace is large,
    set `since` too.
    """
    error_class: str | None = None
    """A value of `ErrorClass`."""
    unpriced: bool = False
    """True: only calls with usage and without a cost under the current or the requested price version."""
    min_cost_nano_usd: int | None = None
    """The least cost in nano-USD under the current or the requested price version."""
    operation: str | None = None
    """``chat``, ``embeddings``, ``image``, ``video_create``, ``video``, ``batch_create`` or ``batch``."""
    key: str | None = None
    """The name of the key that was sent."""
    unknown: bool = False
    """True: only calls of unknown usage, see `CostRow`."""
    origin: str | None = None
    """The source of imported calls. ``callboard`` selects Callboard's own calls, and ``imported`` all others."""

    def __post_init__(self) -> None:
        for moment in (self.since, self.until):
            if moment is not None:
                # Raises ValueError for a datetime without a time zone now, instead of in a later query.
                to_us(moment)


OWN = "callboard"
"""The origin of Callboard's own calls in a filter and in reports. In the trace it is NULL."""
IMPORTED = "imported"
"""The value of a filter that selects every other origin."""


class SearchFilter(msgspec.Struct, frozen=True, kw_only=True):
    text: str | None = None
    """The words, which must all occur; ``"a phrase"``, ``start*`` and ``-not`` are possible. None means any."""
    session_id: str | None = None
    since_us: int | None = None
    """The time from which messages are found, in microseconds UTC."""
    until_us: int | None = None
    """The time before which messages are found, in microseconds UTC."""
    limit: int = 20
    """The largest number of messages, the latest first."""


# --- Trees of turns: sums are computed from rows, so a repricing changes them ---

MOST_CALLS = 2000
"""The largest number of attempts of one tree that are read."""


class TurnTree(msgspec.Struct, kw_only=True):
    """A turn, or a call outside of any turn, with the turns and calls that its tools made."""

    id: str
    """The id of the turn, or of the request if the call has no turn."""
    calls: list[CallRow]
    """The attempts of the turn's own calls, the earliest first."""
    depth: int = 0
    """The number of turns above this node."""
    children: list[TurnTree] = []
    """The turns and calls directly below this node, the earliest first."""

    @property
    def own(self) -> CostSum:
        """The cost of the node's own calls."""
        return sum((row.sum for row in self.calls), CostSum())

    @property
    def whole(self) -> CostSum:
        """The cost of the node's own calls and of all nodes below."""
        return sum((child.whole for child in self.children), self.own)

    def walk(self) -> Iterable[TurnTree]:
        """Yield this node and all nodes below, each parent before its children."""
        yield self
        for child in self.children:
            yield from child.walk()


def trees(rows: Iterable[CallRow]) -> list[TurnTree]:
    """Build the trees of some attempts, the earliest first.

    If a parent turn is not among the rows, its children form separate trees.
    """
    found: dict[str, TurnTree] = {}
    for row in sorted(rows, key=_began):
        name = row.turn_id or row.request_id
        node = found.get(name)
        if node is None:
            node = found[name] = TurnTree(id=name, calls=[], depth=row.depth or 0, children=[])
        node.calls.append(row)
    roots: list[TurnTree] = []
    for node in found.values():
        parent = found.get(node.calls[0].parent_turn_id or "")
        (roots if parent is None or parent is node else parent.children).append(node)
    return roots


async def trees_of(
    calls: Callable[[CallFilter, int], Awaitable[Sequence[CallRow]]], rows: Sequence[CallRow], limit: int
) -> list[TurnTree]:
    """Read the trees of some calls, in the order of the calls: at most `limit` trees with at most `MOST_CALLS`
    attempts each.

    `calls` reads the calls of a store, as `Store.calls` does.
    """
    names = dict.fromkeys(row.root_turn_id or row.turn_id or row.request_id for row in rows)
    found: list[TurnTree] = []
    for name in list(names)[:limit]:
        where = CallFilter(root_turn_id=name) if name.startswith("trn_") else CallFilter(request_id=name)
        found += trees(await calls(where, MOST_CALLS))
    return found


def _began(row: CallRow) -> tuple[int, int]:
    return row.started_us or row.finished_us or 0, row.call_id
