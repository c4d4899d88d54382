"""When a provider counts as unavailable, and how it comes back."""

from __future__ import annotations

from bus import Cost, LlmCallCompleted, LlmCallFailed, StopReason, TokenUsage
from bus.usage import CostSource
from engine.availability import AvailabilityTable

SECOND = 1_000_000


def failed(error_class: str, error_type: str) -> LlmCallFailed:
    return LlmCallFailed(
        provider="p",
        model="p:m",
        error_class=error_class,
        error_type=error_type,
        message="",
        will_retry=False,
        retry_count=0,
    )


SUCCESS = LlmCallCompleted(
    provider="p",
    model="p:m",
    served_model="p:m",
    stop_reason=StopReason.END_TURN,
    raw_stop_reason=None,
    usage=TokenUsage(),
    cost=Cost(0, CostSource.COMPUTED),
    latency_ms=1,
)


def test_five_server_errors_in_a_row_make_a_provider_unavailable_once() -> None:
    """Four do nothing, the fifth publishes the change, a sixth within the cool-down is silent."""
    table = AvailabilityTable()
    changes = [table.observe(failed("server_error", "ServerError"), 0) for _ in range(6)]
    assert [change is not None for change in changes] == [False, False, False, False, True, False]
    assert changes[4] is not None
    assert (changes[4].current, changes[4].retry_at_us) == ("unavailable", 30 * SECOND)


def test_one_success_makes_it_available_again() -> None:
    """A success publishes the return and forgets the failures."""
    table = AvailabilityTable()
    for _ in range(5):
        table.observe(failed("network", "NetworkError"), 0)
    change = table.observe(SUCCESS, SECOND)
    assert change is not None
    assert (change.previous, change.current) == ("unavailable", "available")
    assert table.observe(failed("network", "NetworkError"), SECOND) is None


def test_a_refused_key_counts_at_once_and_a_bad_request_never() -> None:
    """Auth and quota make a provider unavailable at the first; the request's own faults and rate limits don't."""
    table = AvailabilityTable()
    for error_class, error_type in (
        ("invalid_request", "InvalidRequestError"),
        ("rate_limit", "RateLimitError"),
        ("cancelled", "CancelledError"),
        ("context_overflow", "ContextOverflowError"),
    ):
        for _ in range(10):
            assert table.observe(failed(error_class, error_type), 0) is None
    assert table.observe(failed("auth", "AuthError"), 0) is not None


def test_the_cool_down_doubles_up_to_ten_minutes() -> None:
    """Each failure after a cool-down doubles the next one."""
    table = AvailabilityTable()
    now = 0
    waits = []
    for _ in range(5):
        table.observe(failed("server_error", "ServerError"), now)
    for _ in range(7):
        retry_at = table.providers["p"].retry_at_us
        assert retry_at is not None
        waits.append((retry_at - now) // SECOND)
        now = retry_at
        table.observe(failed("server_error", "ServerError"), now)
    assert waits == [30, 60, 120, 240, 480, 600, 600]
