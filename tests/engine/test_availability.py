"""When a provider or a model counts as unavailable, and how it comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import Cost, Envelope, LlmCallCompleted, LlmCallFailed, StopReason, TokenUsage
from callboard.bus.events.operation import ProviderAvailabilityChanged
from callboard.bus.values.usage import CostSource
from callboard.engine.routing.availability import MAX_RECORDS, STATES, TRANSITIONS, AvailabilityTable, Changes

SECOND = 1_000_000
MINUTE = 60 * SECOND

KINDS = {
    "ServerError": "server_error",
    "OverloadedError": "rate_limit",
    "NetworkError": "network",
    "RateLimitError": "rate_limit",
    "AuthError": "auth",
    "AccessDeniedError": "auth",
    "QuotaExceededError": "rate_limit",
    "NotFoundError": "invalid_request",
    "InvalidRequestError": "invalid_request",
    "ContextOverflowError": "context_overflow",
    "CancelledError": "cancelled",
    "AdapterError": "other",
}


def failed(
    error_type: str,
    *,
    model: str = "p:m",
    will_retry: bool = False,
    status: int | None = None,
    retry_after: float | None = None,
) -> LlmCallFailed:
    return LlmCallFailed(
        provider="p",
        model=model,
        error_class=KINDS[error_type],
        error_type=error_type,
        message="",
        will_retry=will_retry,
        retry_count=0,
        provider_status=status,
        retry_after_seconds=retry_after,
    )


def succeeded(model: str = "p:m") -> LlmCallCompleted:
    return LlmCallCompleted(
        provider="p",
        model=model,
        served_model=model,
        stop_reason=StopReason.END_TURN,
        raw_stop_reason=None,
        usage=TokenUsage(),
        cost=Cost(0, CostSource.COMPUTED),
        latency_ms=1,
    )


def said(changes: Changes) -> list[tuple[str | None, str, str]]:
    return [(change.model, change.previous, change.current) for change in changes]


def down(table: AvailabilityTable, kind: str = "NetworkError", *, now_us: int = 0) -> None:
    for _ in range(5):
        table.observe(failed(kind), now_us)


def test_the_table_says_for_every_state_and_signal_what_follows() -> None:
    """No pair is missing, whatever happens."""
    signals = {signal for _, signal in TRANSITIONS}
    assert set(TRANSITIONS) == {(state, signal) for state in STATES for signal in signals}
    assert {TRANSITIONS[state, "success"] for state in STATES} == {"available"}


def test_failures_in_a_row_first_degrade_a_provider_then_stop_it() -> None:
    """The third is published as degraded, the fifth as unavailable, a sixth is silent."""
    table = AvailabilityTable()
    changes = [said(table.observe(failed("NetworkError"), 0)) for _ in range(6)]
    assert changes == [
        [],
        [],
        [(None, "available", "degraded")],
        [],
        [(None, "degraded", "unavailable")],
        [],
    ]
    assert table.state("p") == "unavailable"
    (row,) = table.snapshot()
    assert (row.reason, row.retry_at_us) == ("network: NetworkError", 30 * SECOND)


def test_one_success_makes_it_available_again() -> None:
    """A success publishes the return and forgets the failures and the record."""
    table = AvailabilityTable()
    down(table)
    assert said(table.observe(succeeded(), SECOND)) == [(None, "unavailable", "available")]
    assert table.observe(failed("NetworkError"), SECOND) == ()
    assert table.snapshot() == ()


@pytest.mark.parametrize("kind", ["InvalidRequestError", "CancelledError", "ContextOverflowError", "AdapterError"])
def test_what_is_the_requests_own_fault_never_counts(kind: str) -> None:
    """Bad requests and cancelled calls say nothing about the provider."""
    table = AvailabilityTable()
    for _ in range(10):
        assert table.observe(failed(kind, status=400), 0) == ()


@pytest.mark.parametrize(
    ("kind", "reason"), [("AuthError", "key refused"), ("QuotaExceededError", "quota exhausted")]
)
def test_a_refused_key_and_an_empty_account_stop_a_provider_at_once(kind: str, reason: str) -> None:
    """The reason is given, and the cool-down is the long one; a reload allows a probe at once."""
    table = AvailabilityTable()
    (change,) = table.observe(failed(kind), 0)
    assert (change.model, change.current, change.reason) == (None, "unavailable", reason)
    assert change.retry_at_us == 10 * MINUTE
    assert table.standing("p", "p:m", 9 * MINUTE).kind == "closed"
    assert table.reloaded((), (), MINUTE) == ()
    assert table.standing("p", "p:m", MINUTE).kind == "ready"


@pytest.mark.parametrize("kind", ["NotFoundError", "AccessDeniedError"])
def test_a_model_that_is_not_there_counts_against_the_model_only(kind: str) -> None:
    """The provider's other models stay available."""
    table = AvailabilityTable()
    assert said(table.observe(failed(kind, status=404), 0)) == [("p:m", "available", "unavailable")]
    assert (table.state("p", "p:m"), table.state("p", "p:other"), table.state("p")) == (
        "unavailable",
        "available",
        "available",
    )


def test_a_rate_limit_sets_a_model_back_for_as_long_as_the_provider_says() -> None:
    """It is degraded until then, also when calls that began before succeed meanwhile."""
    table = AvailabilityTable()
    (change,) = table.observe(failed("RateLimitError", retry_after=7, will_retry=True), 0)
    assert (change.model, change.current, change.retry_at_us) == ("p:m", "degraded", 7 * SECOND)
    assert table.observe(succeeded(), SECOND) == ()
    assert table.standing("p", "p:m", 6 * SECOND).kind == "later"
    assert table.standing("p", "p:other", 6 * SECOND).kind == "ready"
    assert table.standing("p", "p:m", 7 * SECOND).kind == "ready"
    assert said(table.observe(succeeded(), 8 * SECOND)) == [("p:m", "degraded", "available")]


def test_a_broken_model_stops_though_its_provider_answers() -> None:
    """Server errors count against both, and another model's successes clear only the provider."""
    table = AvailabilityTable()
    for _ in range(5):
        table.observe(failed("ServerError", model="p:bad"), 0)
        table.observe(succeeded("p:good"), 0)
    assert (table.state("p"), table.state("p", "p:bad"), table.state("p", "p:good")) == (
        "available",
        "unavailable",
        "available",
    )


def test_one_call_probes_and_all_others_keep_away() -> None:
    """When the cool-down is over one call gets through; until it has ended the provider is closed to the rest."""
    table = AvailabilityTable()
    down(table)
    assert table.standing("p", "p:m", 29 * SECOND).kind == "closed"
    assert table.standing("p", "p:m", 30 * SECOND).kind == "ready"
    assert said(table.begin("p", "p:m", "req_1", 30 * SECOND)) == [(None, "unavailable", "probing")]
    assert table.standing("p", "p:m", 31 * SECOND).kind == "closed"
    assert table.begin("p", "p:m", "req_2", 31 * SECOND) == ()
    assert table.observe(failed("NetworkError"), 31 * SECOND, request_id="req_2") == ()
    assert table.observe(failed("NetworkError", will_retry=True), 32 * SECOND, request_id="req_1") == ()
    assert said(table.observe(succeeded(), 33 * SECOND, request_id="req_1")) == [(None, "probing", "available")]


def test_a_probe_that_gets_a_400_has_found_the_provider_alive() -> None:
    """An answer is an answer, even if it is no."""
    table = AvailabilityTable()
    down(table)
    table.begin("p", "p:m", "req_1", 30 * SECOND)
    changes = table.observe(failed("InvalidRequestError", status=400), 30 * SECOND, request_id="req_1")
    assert said(changes) == [(None, "probing", "available")]
    assert table.observe(failed("NetworkError"), 31 * SECOND) == (), "the old row of failures is forgotten"


def test_a_cancelled_probe_leaves_room_for_the_next() -> None:
    """It proves nothing: unavailable as before, and the next call may probe at once."""
    table = AvailabilityTable()
    down(table)
    table.begin("p", "p:m", "req_1", 30 * SECOND)
    changes = table.observe(failed("CancelledError"), 31 * SECOND, request_id="req_1")
    assert said(changes) == [(None, "probing", "unavailable")]
    assert table.standing("p", "p:m", 31 * SECOND).kind == "ready"
    table.begin("p", "p:m", "req_2", 31 * SECOND)
    assert said(table.abandon("req_2", 31 * SECOND)) == [(None, "probing", "unavailable")]


def test_the_cool_down_doubles_up_to_ten_minutes() -> None:
    """Each probe that fails doubles the next cool-down."""
    table = AvailabilityTable()
    down(table)
    now, waits = 0, []
    for probe in range(7):
        (row,) = table.snapshot()
        assert row.retry_at_us is not None
        waits.append((row.retry_at_us - now) // SECOND)
        now = row.retry_at_us
        table.begin("p", "p:m", f"req_{probe}", now)
        table.observe(failed("NetworkError"), now, request_id=f"req_{probe}")
    assert waits == [30, 60, 120, 240, 480, 600, 600]


def test_a_call_that_did_not_wait_for_the_cool_down_does_not_lengthen_it() -> None:
    """A session with one model may try at any time; its failures before the cool-down's end change nothing."""
    table = AvailabilityTable()
    down(table)
    for probe in range(5):
        table.begin("p", "p:m", f"req_{probe}", 10 * SECOND)
        table.observe(failed("NetworkError"), 11 * SECOND, request_id=f"req_{probe}")
    assert table.snapshot()[0].retry_at_us == 30 * SECOND


def test_an_adapter_that_cannot_live_makes_its_provider_unavailable() -> None:
    """Reason adapter_crashed, 30 seconds, and a changed configuration begins afresh."""
    table = AvailabilityTable()
    (change,) = table.crashed("p", 0)
    assert (change.current, change.reason, change.retry_at_us) == ("unavailable", "adapter_crashed", 30 * SECOND)
    assert said(table.reloaded(["p"], (), SECOND)) == [(None, "unavailable", "available")]


def envelope(change: ProviderAvailabilityChanged, at_us: int) -> Envelope:
    return Envelope(seq=1, run_id="run_1", ts_us=at_us, mono_ns=0, data=change)


def test_a_restarted_table_knows_what_the_last_one_published() -> None:
    """The last event of each record counts; a probe that nobody runs any more may be run at once."""
    old = AvailabilityTable()
    changes = [envelope(change, 0) for change in old.observe(failed("AuthError"), 0)]
    changes += [envelope(change, 0) for change in old.observe(failed("NotFoundError", model="p:x"), 0)]
    changes += [envelope(change, SECOND) for change in old.observe(succeeded("p:x"), SECOND)]
    new = AvailabilityTable()
    new.restore(changes, MINUTE)
    assert new.snapshot() == old.snapshot()
    probing = [envelope(change, 0) for change in old.begin("p", "p:m", "req_1", 10 * MINUTE)]
    new.restore(probing, 11 * MINUTE)
    assert new.state("p") == "available", "p:x's success has cleared the provider, so nothing was probed"
    down(old)
    restored = AvailabilityTable()
    restored.restore([envelope(change, 0) for change in old.begin("p", "p:m", "req_1", MINUTE)], 2 * MINUTE)
    assert restored.state("p") == "unavailable"
    assert restored.standing("p", "p:m", 2 * MINUTE).kind == "ready"


def test_the_number_of_records_is_bounded() -> None:
    """However many names are tried, the oldest trouble is forgotten first."""
    table = AvailabilityTable()
    for number in range(MAX_RECORDS + 10):
        table.observe(failed("NotFoundError", model=f"p:{number}"), 0)
    assert len(table.snapshot()) == MAX_RECORDS
    assert table.state("p", "p:0") == "available"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "success", "wait", "crash", "reload", "change", "abandon", *KINDS]),
        st.integers(0, 4),
        st.sampled_from(["p:a", "p:b"]),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_the_published_changes_tell_the_tables_states(
    steps: list[tuple[str, int, str, bool]],
) -> None:
    """Changes chain without a gap and match the table; one probe at most; a success always makes available."""
    table, now, published = AvailabilityTable(), 0, dict[str | None, str]()
    for step, number, model, flag in steps:
        request = f"req_{number}"
        changes: Changes = ()
        match step:
            case "wait":
                now += 20 * SECOND * (number + 1)
            case "begin":
                before = {r.probe for r in table._records.values() if r.probe is not None}
                changes = table.begin("p", model, request, now)
                assert all(change.current == "probing" for change in changes)
                assert before <= {r.probe for r in table._records.values()}, "a probe is never taken over"
            case "abandon":
                changes = table.abandon(request, now)
            case "crash":
                changes = table.crashed("p", now)
            case "reload":
                changes = table.reloaded((), (), now)
            case "change":
                changes = table.reloaded(["p"], (), now)
            case "success":
                changes = table.observe(succeeded(model), now, request_id=request)
            case kind:
                event = failed(kind, model=model, will_retry=flag, status=400 if flag else None)
                changes = table.observe(event, now, request_id=request)
        for change in changes:
            assert published.get(change.model, "available") == change.previous != change.current
            published[change.model] = change.current
        for place in (None, "p:a", "p:b"):
            record = table._records.get(("p", place))
            assert (record.state if record is not None else "available") == published.get(place, "available")
            if record is not None:
                assert (record.probe is not None) == (record.state == "probing")
                assert record.state != "unavailable" or record.retry_at_us is not None
        if step == "success":
            assert table.state("p", model) in ("available", "degraded")
            assert table.standing("p", model, now).kind in ("ready", "later")
        if step == "change":
            assert table.snapshot() == ()
    table.observe(succeeded("p:a"), now + 24 * 60 * MINUTE)
    assert table.state("p", "p:a") == "available"
