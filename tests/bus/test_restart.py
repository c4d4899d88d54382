"""Restart decisions as pure functions: the schedule, the verdicts, who is affected."""

from __future__ import annotations

import pytest

from callboard.bus import RestartPolicy, Strategy, affected
from callboard.bus.actors.restart import verdict

CHILDREN = ("a", "b", "c")


@pytest.mark.parametrize(
    ("strategy", "failed", "restarted"),
    [
        ("one_for_one", "b", ("b",)),
        ("one_for_all", "b", ("a", "b", "c")),
        ("rest_for_one", "a", ("a", "b", "c")),
        ("rest_for_one", "b", ("b", "c")),
        ("rest_for_one", "c", ("c",)),
    ],
)
def test_a_strategy_says_who_is_restarted(strategy: Strategy, failed: str, restarted: tuple[str, ...]) -> None:
    """Alone, all, or those that were started after it; always in the order of starting."""
    assert affected(strategy, CHILDREN, failed) == restarted


def test_an_unknown_child_affects_nobody() -> None:
    """A name that is no child's is a mistake."""
    with pytest.raises(ValueError):
        affected("one_for_all", CHILDREN, "x")


def test_the_backoff_doubles_up_to_its_cap_and_is_full_jitter() -> None:
    """0.1, 0.2, 0.4 ... 5 seconds are the most; the least is nothing; a long row does not overflow."""
    policy = RestartPolicy()
    almost_one = 1 - 2**-53
    most = [round(policy.delay(failures, almost_one), 6) for failures in range(1, 9)]
    assert most == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert policy.delay(7, 0.0) == 0.0
    assert policy.delay(3, 0.5) == 0.2
    assert policy.delay(100_000, almost_one) <= 5.0


@pytest.mark.parametrize(
    ("restart", "crashed", "expected"),
    [
        ("permanent", False, "restart"),
        ("permanent", True, "restart"),
        ("transient", False, "stay"),
        ("transient", True, "restart"),
        ("temporary", False, "stay"),
        ("temporary", True, "stay"),
    ],
)
def test_the_restart_type_decides_below_the_limit(restart: str, crashed: bool, expected: str) -> None:
    """Permanent always, transient after a crash, temporary never."""
    assert verdict(restart, RestartPolicy(), crashed=crashed, failures=1) == expected  # type: ignore[arg-type]


def test_the_limit_is_the_last_failure_in_a_row() -> None:
    """With max_failures=5 four are followed by a restart and the fifth is not."""
    verdicts = [verdict("permanent", RestartPolicy(), crashed=True, failures=n) for n in range(1, 7)]
    assert verdicts == ["restart"] * 4 + ["limit"] * 2


def test_a_policy_that_allows_no_failure_at_all_is_refused() -> None:
    """The first failure has to be allowed to happen."""
    with pytest.raises(ValueError, match="at least 1"):
        RestartPolicy(max_failures=0)
