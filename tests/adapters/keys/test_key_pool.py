"""A pool of keys: whose turn it is, which of them rest, and where a session stays."""

from __future__ import annotations

from collections import Counter

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import AttemptReport, AttemptStarted
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.keys import PAUSE_US, REFUSED_US, TRIAL_US, KeyPool, KeyRests
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    InvalidRequestError,
    NetworkError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
)

from ...support.fake_http import request
from ...support.virtual_time import FakeClock
from .sources import ROWS, Gate, Vault, adapter_of

pytestmark = pytest.mark.anyio
A, B, C = "sk-a-0123456789", "sk-b-0123456789", "sk-c-0123456789"
KEYS = {"a": A, "b": B, "c": C}
POOL = ("a", "b", "c")


def pooled(gate: Gate, kind: str = "openai", **config: object) -> HttpAdapter:
    return adapter_of(kind, gate, **{"keys": KEYS, "key_pool": POOL, **config})


# -- the machine


@pytest.mark.parametrize(
    ("error", "model", "rest_us"),
    [
        (AuthError("x"), "another", REFUSED_US),
        (QuotaExceededError("x"), "another", REFUSED_US),
        (AccessDeniedError("x"), "m", REFUSED_US),
        (RateLimitError("x"), "m", PAUSE_US),
        (RateLimitError("x", retry_after_seconds=3), "m", 3_000_000),
    ],
)
def test_a_refused_key_rests_as_long_as_its_kind_of_refusal_says(
    error: AdapterError, model: str, rest_us: int
) -> None:
    """Then one call tries it, and its success makes it ready for all."""
    rests = KeyRests()
    assert rests.failed("a", "m", error, 1000)
    assert rests.rest("a", model, 999 + rest_us) is not None
    assert rests.rest("b", model, 1000) is None
    end = 1000 + rest_us
    assert rests.rest("a", model, end) is None
    rests.begin("a", model, end)
    assert rests.rest("a", model, end) is not None  # for all but the call that tries it
    assert rests.rest("a", model, end + TRIAL_US) is None
    rests.taken("a", model)
    assert rests.rest("a", model, end) is None


@pytest.mark.parametrize("error", [NetworkError("x"), OverloadedError("x"), InvalidRequestError("x")])
def test_what_is_not_the_key_s_fault_rests_no_key(error: AdapterError) -> None:
    """A server in trouble would be in trouble with another key, too."""
    rests = KeyRests()
    assert not rests.failed("a", "m", error, 0)
    assert rests.rest("a", "m", 0) is None


@pytest.mark.parametrize("error", [AccessDeniedError("x"), RateLimitError("x")])
def test_what_is_about_one_model_rests_the_key_for_that_model(error: AdapterError) -> None:
    """Providers count, and allow, for each model."""
    rests = KeyRests()
    rests.failed("a", "m", error, 0)
    assert rests.rest("a", "m", 0) is not None
    assert rests.rest("a", "another", 0) is None


_FAILURES = st.sampled_from((AuthError, AccessDeniedError, RateLimitError, QuotaExceededError))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from(("", "s1", "s2", "s3"))),
        st.tuples(st.just("fail"), st.sampled_from(POOL), _FAILURES),
        st.tuples(st.just("taken"), st.sampled_from(POOL)),
        st.tuples(st.just("wait"), st.integers(1, 700_000_000)),
    ),
    max_size=60,
)


@given(_STEPS)
def test_a_key_is_never_idle_while_another_has_two_turns(steps: list[tuple[object, ...]]) -> None:
    """And a session stays where it is as long as its key is ready; a resting key is used only if all rest."""
    rests = KeyRests()
    pool, now = KeyPool(POOL, rests), 0
    turns: list[str] = []
    at: dict[str, str] = {}
    for step in steps:
        match step:
            case ("call", str(session)):
                ready = [name for name in POOL if rests.rest(name, "m", now) is None]
                name = pool.choose(session, "m", now)
                assert name is not None
                if ready:
                    assert name in ready
                    if at.get(session) in ready:
                        assert name == at[session]
                    else:
                        last = {
                            each: max((i for i, t in enumerate(turns) if t == each), default=-1) for each in ready
                        }
                        assert last[name] == min(last.values())
                turns.append(name)
                if session:
                    at[session] = name
            case ("fail", str(name), kind):
                rests.failed(name, "m", kind("x"), now)  # type: ignore[operator]
            case ("taken", str(name)):
                rests.taken(name, "m")
            case ("wait", int(us)):
                now += us


def test_turns_go_round() -> None:
    """In the order in which the pool names its keys."""
    pool = KeyPool(POOL, KeyRests())
    assert [pool.choose("", "m", 0) for _ in range(6)] == ["a", "b", "c"] * 2


# -- on the wires


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("status", [401, 403, 429, 402])
async def test_a_refused_key_rests_and_the_others_go_on(row: str, status: int) -> None:
    """The call itself is repeated with another key at once, with no retry left, on every wire."""
    kind, ask = ROWS[row]
    if row.endswith("job"):
        pytest.skip("a question about a job is asked with the job's own key")
    gate = Gate(B, C, statuses={A: status})
    adapter = pooled(gate, kind)
    for _ in range(3):
        with pytest.raises(InvalidRequestError):
            await ask(adapter)
    assert gate.sent == [A, B, C, B]
    await adapter.close()


async def test_all_keys_refused_is_the_last_one_s_error() -> None:
    """Each was tried once; the next call tries the one whose rest ends first, and no other."""
    gate = Gate()
    adapter = pooled(gate)
    with pytest.raises(AuthError):
        await adapter.complete(request(model="mine:m"))
    assert gate.sent == [A, B, C]
    with pytest.raises(AuthError):
        await adapter.complete(request(model="mine:m"))
    assert gate.sent == [A, B, C, A]
    await adapter.close()


async def test_a_key_comes_back_after_its_rest() -> None:
    """One call tries it; meanwhile the others go on."""
    gate, clock = Gate(B, C, statuses={A: 429}), FakeClock()
    adapter = adapter_of("openai", gate, clock=clock, keys=KEYS, key_pool=POOL)
    for _ in range(4):
        with pytest.raises(InvalidRequestError):
            await adapter.complete(request(model="mine:m"))
    assert gate.sent == [A, B, C, B, C]
    gate.statuses = {A: 400}
    clock.advance(11)
    for _ in range(3):
        with pytest.raises(InvalidRequestError):
            await adapter.complete(request(model="mine:m"))
    assert gate.sent[5:] == [A, B, C]
    await adapter.close()


async def test_a_session_stays_with_its_key_and_leaves_it_at_once_when_it_is_down() -> None:
    """Its prompt is cached for that account; another session's is elsewhere."""
    gate = Gate(A, B, C)
    adapter = pooled(gate)

    async def call(session: str) -> None:
        with pytest.raises(InvalidRequestError):
            await adapter.complete(request(model="mine:m", session_id=session))

    for session in ("s1", "s2", "s1", "s1", "s2", "s3", "s1"):
        await call(session)
    assert gate.sent == [A, B, A, A, B, C, A]
    gate.statuses = {A: 401}
    for session in ("s1", "s2", "s1"):
        await call(session)
    assert gate.sent[7:] == [A, B, B, B]
    await adapter.close()


async def test_many_calls_at_once_are_spread_evenly() -> None:
    """Also while one key of three is limited."""
    gate = Gate(A, B, C)
    adapter = pooled(gate)

    async def call(number: int) -> None:
        with pytest.raises(InvalidRequestError):
            await adapter.complete(request(model="mine:m", request_id=f"req_{number}"))

    async with anyio.create_task_group() as group:
        for number in range(30):
            group.start_soon(call, number)
    assert Counter(gate.sent) == {A: 10, B: 10, C: 10}
    await adapter.close()


async def test_a_vault_in_a_pool_is_asked_again_before_the_next_key_takes_over() -> None:
    """A rotated key is no refused one."""
    gate = Gate("sk-a-new-0123456789", B)
    adapter = adapter_of("openai", gate, keys={"a": Vault(A, "sk-a-new-0123456789"), "b": B}, key_pool=("a", "b"))
    reports: list[AttemptReport] = []
    with pytest.raises(InvalidRequestError):
        await adapter.complete(request(model="mine:m"), on_attempt=reports.append)
    assert gate.sent == [A, "sk-a-new-0123456789"]
    assert [report.key for report in reports if isinstance(report, AttemptStarted)] == ["a", "a"]
    await adapter.close()
