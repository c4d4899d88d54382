"""Restart decisions for a child that has ended, as pure functions of values.

    how it ended    permanent   transient   temporary
    crashed         restart     restart     stay
    normally        restart     stay        stay

A child that failed `max_failures` times in a row is not restarted. A normal end of a permanent child is a failure
too. A child that lives for `healthy_after` starts a new row. Failures in a row are counted, not failures in a
period: with waits of seconds between restarts, five failures within five seconds never happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

RestartType: TypeAlias = Literal["permanent", "transient", "temporary"]
"""The ends that lead to a restart: ``permanent`` all, ``transient`` crashes only, ``temporary`` none."""

Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""The children that restart together: only the failed one, all, or those started after it."""

OnLimit: TypeAlias = Literal["escalate", "stop"]
"""The reaction to too many failures in a row: the supervisor gives up, or the child stays stopped."""

Verdict: TypeAlias = Literal["stay", "restart", "limit"]


class RestartPolicy(msgspec.Struct, frozen=True):
    """The patience of a supervisor.

    Raises:
        ValueError: `max_failures` is below 1.
    """

    max_failures: int = 5
    """The number of failures in a row that is one too many; 1 means no restart. A failing start counts."""
    healthy_after: float = 30.0
    """Seconds after which a child that still lives starts a new row."""
    backoff_base: float = 0.1
    """Seconds that bound the wait before the first restart in a row. Before the n-th restart a random time below
    ``min(backoff_cap, backoff_base * 2 ** (n - 1))`` passes."""
    backoff_cap: float = 5.0
    """Seconds that bound every wait."""

    def __post_init__(self) -> None:
        if self.max_failures < 1:
            raise ValueError(f"RestartPolicy(max_failures={self.max_failures}): must be at least 1")

    def delay(self, failures: int, randomness: float) -> float:
        """The seconds to wait before the next restart.

        Args:
            failures: The number of failures in a row.
            randomness: A number in [0, 1).
        """
        exponent = min(max(failures - 1, 0), 60)  # beyond that the power only overflows
        return float(min(self.backoff_cap, self.backoff_base * 2**exponent) * randomness)


def verdict(restart: RestartType, policy: RestartPolicy, *, crashed: bool, failures: int) -> Verdict:
    """Decide about a child that ended by itself; `failures` counts this end."""
    if restart == "temporary" or (restart == "transient" and not crashed):
        return "stay"
    return "limit" if failures >= policy.max_failures else "restart"


def affected(strategy: Strategy, children: Sequence[str], failed: str) -> tuple[str, ...]:
    """The children to restart when one has ended, in their order of starting.

    Args:
        strategy: The supervisor's strategy.
        children: The names of all children, in their order of starting.
        failed: The name of the child that has ended.

    Raises:
        ValueError: `failed` is not among the children.
    """
    position = children.index(failed)
    match strategy:
        case "one_for_one":
            return (failed,)
        case "one_for_all":
            return tuple(children)
        case "rest_for_one":
            return tuple(children[position:])
