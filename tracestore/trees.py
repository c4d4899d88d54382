"""Trees of turns, built from the rows of their calls. Sums are computed from rows, so a repricing changes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from callboard.bus.values.usage import CostSum

from .call_columns import CallFilter, CallRow
from .store import Store

MOST_CALLS = 2000
"""The largest number of attempts that are read of one tree."""


class TurnTree(msgspec.Struct, kw_only=True):
    """A turn with the turns and calls that its tools made. A call without a turn is a leaf."""

    id: str
    """The turn, or the request of a call without a turn."""
    calls: list[CallRow]
    """The attempts of its own calls, the earliest first."""
    depth: int = 0
    """The number of turns above."""
    children: list[TurnTree] = []
    """The turns and calls directly below, the earliest first."""

    @property
    def own(self) -> CostSum:
        """The cost of its own calls."""
        return sum((row.sum for row in self.calls), CostSum())

    @property
    def whole(self) -> CostSum:
        """The cost of its own calls and of everything below."""
        return sum((child.whole for child in self.children), self.own)

    def walk(self) -> Iterable[TurnTree]:
        """This and everything below, each parent before its children."""
        yield self
        for child in self.children:
            yield from child.walk()


def trees(rows: Iterable[CallRow]) -> list[TurnTree]:
    """The trees that some attempts belong to, the earliest first.

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


async def trees_of(store: Store, rows: Sequence[CallRow], limit: int) -> list[TurnTree]:
    """The whole trees of some calls, in the order of the calls, up to a maximum number."""
    names = dict.fromkeys(row.root_turn_id or row.turn_id or row.request_id for row in rows)
    found: list[TurnTree] = []
    for name in list(names)[:limit]:
        where = CallFilter(root_turn_id=name) if name.startswith("trn_") else CallFilter(request_id=name)
        found += trees(await store.calls(where, MOST_CALLS))
    return found


def _began(row: CallRow) -> tuple[int, int]:
    return row.started_us or row.finished_us or 0, row.call_id
