"""Keys from a function, keys in a pool, and keys by name."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import (
    AdapterConfig,
    AttemptObserver,
    AttemptReport,
    AttemptStarted,
    KeyFile,
    create_adapter,
)
from callboard.adapters.cassettes import RecordingTransport
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.keys import PAUSE_US, REFUSED_US, TRIAL_US, KeyCooldowns, KeyPool
from callboard.adapters.videos import VideoJob, VideoTerms
from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CancelledError,
    ConfigurationError,
    InvalidRequestError,
    NetworkError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
)

from ...support.fake_http import request
from ...support.virtual_time import FakeClock
from .sources import NEW, OLD, ROWS, Gate, Vault, adapter_of

pytestmark = pytest.mark.anyio


async def ends(
    adapter: HttpAdapter,
    error: type[AdapterError] = InvalidRequestError,
    on_attempt: AttemptObserver | None = None,
    **fields: object,
) -> None:
    """Assert that a call ends with this error. The server refuses the content of a request with a valid key."""
    with pytest.raises(error):
        await adapter.complete(request(model="mine:m", **fields), on_attempt=on_attempt)


async def end_together(adapter: HttpAdapter, count: int, error: type[AdapterError] = InvalidRequestError) -> None:
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(lambda number=number: ends(adapter, error, request_id=f"req_{number}"))


@pytest.mark.parametrize("row", ROWS)
async def test_after_a_refused_key_the_new_key_is_used(row: str) -> None:
    """Every wire with a key does this, even without retries, because a new key is not a retry. A key that stays
    the same is an error: each call requests it once more and sends nothing twice. So is a new key that is
    refused, too, so that a broken vault can't keep a call running.
    """
    kind, ask = ROWS[row]
    vault, gate = Vault(OLD, NEW), Gate(NEW)
    adapter = adapter_of(kind, gate, api_key=vault)
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as raised:
            await ask(adapter)
        assert NEW not in "".join(traceback.format_exception(raised.value))
    assert (gate.sent, vault.asked) == ([OLD, NEW, NEW], 2)
    for keys, sent in ((Vault(OLD), [OLD]), (Vault(OLD, "sk-second", "sk-third", NEW), [OLD, "sk-second"])):
        gate = Gate(NEW)
        with pytest.raises(AuthError):
            await ask(adapter_of(kind, gate, api_key=keys))
        assert (gate.sent, keys.asked) == (sent, 2)


async def test_calls_that_are_refused_together_request_one_key() -> None:
    """Ten calls with the old key are refused at the same time. The result counts for all of them."""
    vault, gate = Vault(OLD, NEW), Gate(NEW)
    await end_together(adapter_of("openai", gate, api_key=vault), 10)
    assert sorted(gate.sent) == sorted([OLD] * 10 + [NEW] * 10)
    assert vault.asked == 2
    unchanged, gate = Vault(OLD), Gate(NEW)
    await end_together(adapter_of("openai", gate, api_key=unchanged), 10, AuthError)
    assert (len(gate.sent), unchanged.asked) == (10, 2)


def _raises() -> str:
    raise ValueError(f"the vault says: {NEW} expired")


async def _raises_later() -> str:
    return _raises()


SOURCES: list[tuple[Callable[[], object], str]] = [
    (_raises, "it raised ValueError"),
    (_raises_later, "it raised ValueError"),
    (lambda: None, "it returned NoneType"),
    (lambda: NEW.encode(), "it returned bytes"),
    (lambda: "  \n", "it is empty"),
    (lambda: f"{NEW}\nsecond", "it has a line break"),
    (KeyFile("/nowhere/key"), "it raised FileNotFoundError"),
]


@pytest.mark.parametrize("row", ["gemini whole", "gemini streamed", "gemini embeddings", "openai videos"])
async def test_a_failed_key_source_names_the_adapter_and_never_the_value(row: str) -> None:
    """Neither the text nor the causes of the error have the key. A named key is named."""
    kind, ask = ROWS[row]
    gate = Gate(NEW)
    for source, why in SOURCES:
        for config, name, key in (
            ({"api_key": source}, "api_key", None),
            ({"keys": {"acme": source}}, "keys['acme']", "acme"),
        ):
            with pytest.raises(AuthError) as raised:
                await ask(adapter_of(kind, gate, **config), key)
            assert str(raised.value).startswith(f"mine: can't get a key from {name}: {why}")
            assert NEW not in "".join(traceback.format_exception(raised.value))
            assert raised.value.__context__ is None
    assert gate.sent == []


async def test_waiting_for_a_key_counts_against_the_call_s_time() -> None:
    """A cancelled call does not wait for the key either."""

    async def never() -> str:
        await anyio.sleep_forever()
        raise AssertionError

    adapter = adapter_of("anthropic", Gate(), api_key=never, timeout_seconds=3.0)
    await ends(adapter, RequestTimeoutError)
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_soon, adapter)
        await ends(adapter, CancelledError)


async def _cancel_soon(adapter: HttpAdapter) -> None:
    await anyio.sleep(1)
    await adapter.cancel("req_1")


async def test_after_a_cancelled_request_for_a_key_the_next_call_requests_it() -> None:
    """No caller waits for a request whose task was cancelled."""
    vault, gate = Vault(NEW), Gate(NEW)
    adapter = adapter_of("anthropic", gate, api_key=vault)

    async def call() -> None:
        await ends(adapter, request_id="req_2")

    async with anyio.create_task_group() as group:
        with anyio.move_on_after(0.005):
            group.start_soon(call)
            await adapter.complete(request(model="mine:m"))
    assert gate.sent == [NEW]


async def test_a_file_is_read_again_when_its_key_is_refused(tmp_path: Path) -> None:
    """A secret that is mounted into a container changes this way. White space around the key is removed."""
    file = tmp_path / "key"
    file.write_text(f"{OLD}\n")
    gate = Gate(OLD)
    adapter = adapter_of("anthropic", gate, api_key=KeyFile(str(file)))
    for taken in (OLD, OLD, NEW, NEW):
        file.write_text(f"{taken}\n")
        gate.taken = {taken}
        await ends(adapter)
    assert gate.sent == [OLD, OLD, OLD, NEW, NEW]


async def test_each_attempt_has_its_reason_and_the_name_of_its_key() -> None:
    """The reports have the name and never the value."""
    reports: list[AttemptReport] = []
    await ends(adapter_of("anthropic", Gate(NEW), api_key=Vault(OLD, NEW)), on_attempt=reports.append)
    assert [report.reason for report in reports if isinstance(report, AttemptStarted)] == ["first", "key"]
    adapter = adapter_of("openai", Gate(ACME, OLD), api_key=OLD, keys=TENANTS)
    for key in ("acme", None):
        await ends(adapter, key=key, on_attempt=reports.append)
    assert [report.key for report in reports if isinstance(report, AttemptStarted)] == [None, None, "acme", None]
    assert not [key for key in (OLD, ACME) if key in repr(reports)]


@pytest.mark.parametrize("kind", ["anthropic", "openai", "gemini", "ollama", "tgi", "openai_compatible"])
async def test_a_health_check_asks_for_the_key_and_for_a_new_one(kind: str) -> None:
    """The finding is about the key that calls would use now."""
    gate = Gate(NEW, status=200)
    adapter = adapter_of(kind, gate, api_key=Vault(OLD, NEW))
    assert await adapter.health_check()
    assert gate.sent == [OLD, NEW]
    await adapter.close()
    adapter = adapter_of(kind, gate, api_key=_raises)
    health = await adapter.health_check()
    assert health.detail == "mine: can't get a key from api_key: it raised ValueError"
    assert health.fix


@pytest.mark.parametrize("row", ROWS)
async def test_a_key_that_is_fetched_later_is_never_visible(
    row: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The key is in no error that repeats it, in no log and on no cassette."""
    caplog.set_level(logging.DEBUG)
    kind, ask = ROWS[row]
    recording = RecordingTransport(Gate(NEW), tmp_path / "cassette.json")
    config = AdapterConfig(api_key=Vault(OLD, NEW), base_url="https://x.test", max_retries=0)
    adapter = create_adapter(kind, config, name="mine", transport=recording)
    assert isinstance(adapter, HttpAdapter)
    with pytest.raises(AdapterError) as raised:
        await ask(adapter)
    await adapter.close()
    error = raised.value
    logging.getLogger("httpcore.http11").debug("receive_response_headers.complete %s" % NEW)  # noqa: UP031
    seen = [str(error), repr(vars(error)), "".join(traceback.format_exception(error)), repr(config)]
    seen += [record.getMessage() for record in caplog.records]
    seen.append((tmp_path / "cassette.json").read_text())
    assert not [text for text in seen if NEW in text or OLD in text]


# -- A pool of keys: the next key, the paused keys, and the key of a session.


A, B, C = "sk-a-0123456789", "sk-b-0123456789", "sk-c-0123456789"
KEYS = {"a": A, "b": B, "c": C}
POOL = ("a", "b", "c")


def pooled(gate: Gate, kind: str = "openai", **config: object) -> HttpAdapter:
    return adapter_of(kind, gate, **{"keys": KEYS, "key_pool": POOL, **config})


# -- the state machine


@pytest.mark.parametrize(("error", "model", "rest_us"), [
    (AuthError("x"), "another", REFUSED_US),
    (QuotaExceededError("x"), "another", REFUSED_US),
    (AccessDeniedError("x"), "m", REFUSED_US),
    (RateLimitError("x"), "m", PAUSE_US),
    (RateLimitError("x", retry_after_seconds=3), "m", 3_000_000),
])  # fmt: skip
def test_a_refused_key_is_paused_by_its_kind_of_refusal(error: AdapterError, model: str, rest_us: int) -> None:
    """After the pause, one call tries the key. Its success makes the key available for all calls."""
    cooldowns = KeyCooldowns()
    assert cooldowns.failed("a", "m", error, 1000)
    assert cooldowns.cooldown("a", model, 999 + rest_us) is not None
    assert cooldowns.cooldown("b", model, 1000) is None
    end = 1000 + rest_us
    assert cooldowns.cooldown("a", model, end) is None
    cooldowns.begin("a", model, end)
    assert cooldowns.cooldown("a", model, end) is not None  # for all calls except the one that tries it
    assert cooldowns.cooldown("a", model, end + TRIAL_US) is None
    cooldowns.taken("a", model)
    assert cooldowns.cooldown("a", model, end) is None


def test_other_errors_pause_no_key_and_those_of_one_model_only_pause_it_for_that_model() -> None:
    """Another key would have the same problem with a failing server. Limits and permissions are per model."""
    for error in (NetworkError("x"), OverloadedError("x"), InvalidRequestError("x")):
        cooldowns = KeyCooldowns()
        assert not cooldowns.failed("a", "m", error, 0)
        assert cooldowns.cooldown("a", "m", 0) is None
    for refused in (AccessDeniedError("x"), RateLimitError("x")):
        cooldowns.failed("a", "m", refused, 0)
        assert cooldowns.cooldown("a", "m", 0) is not None
        assert cooldowns.cooldown("a", "another", 0) is None
        cooldowns = KeyCooldowns()


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
def test_no_key_is_unused_while_another_is_used_twice(steps: list[tuple[object, ...]]) -> None:
    """A session keeps its key while the key is available. A paused key is used only if all are paused."""
    cooldowns = KeyCooldowns()
    pool, now = KeyPool(POOL, cooldowns), 0
    turns: list[str] = []
    at: dict[str, str] = {}
    for step in steps:
        match step:
            case ("call", str(session)):
                ready = [name for name in POOL if cooldowns.cooldown(name, "m", now) is None]
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
                cooldowns.failed(name, "m", kind("x"), now)
            case ("taken", str(name)):
                cooldowns.taken(name, "m")
            case ("wait", int(us)):
                now += us


# -- with real wires


@pytest.mark.parametrize("row", [row for row in ROWS if not row.endswith("job")])
async def test_a_refused_key_is_paused_and_others_are_used(row: str) -> None:
    """The call is immediately repeated with another key, without a retry, on every wire. A question about a job
    is asked with the job's own key.
    """
    kind, ask = ROWS[row]
    for status in (401, 403, 429, 402):
        gate = Gate(B, C, statuses={A: status})
        adapter = pooled(gate, kind)
        for _ in range(3):
            with pytest.raises(InvalidRequestError):
                await ask(adapter)
        assert gate.sent == [A, B, C, B], status


async def test_if_all_keys_are_refused_the_last_error_is_raised() -> None:
    """Each key is tried once. The next call only tries the key whose pause ends first. While all are good, many
    calls are spread evenly.
    """
    gate = Gate()
    adapter = pooled(gate)
    await ends(adapter, AuthError)
    assert gate.sent == [A, B, C]
    await ends(adapter, AuthError)
    assert gate.sent == [A, B, C, A]
    gate = Gate(A, B, C)
    await end_together(pooled(gate), 30)
    assert Counter(gate.sent) == {A: 10, B: 10, C: 10}


async def test_a_key_is_used_again_after_its_pause() -> None:
    """One call tries the key. Meanwhile, the others are used."""
    gate, clock = Gate(B, C, statuses={A: 429}), FakeClock()
    adapter = adapter_of("openai", gate, clock=clock, keys=KEYS, key_pool=POOL)
    for _ in range(4):
        await ends(adapter)
    assert gate.sent == [A, B, C, B, C]
    gate.statuses = {A: 400}
    clock.advance(11)
    for _ in range(3):
        await ends(adapter)
    assert gate.sent[5:] == [A, B, C]


async def test_a_session_keeps_its_key_until_the_key_is_paused() -> None:
    """The session's prompt is cached for that account. Another session may use another key."""
    gate = Gate(A, B, C)
    adapter = pooled(gate)

    for session in ("s1", "s2", "s1", "s1", "s2", "s3", "s1"):
        await ends(adapter, session_id=session)
    assert gate.sent == [A, B, A, A, B, C, A]
    gate.statuses = {A: 401}
    for session in ("s1", "s2", "s1"):
        await ends(adapter, session_id=session)
    assert gate.sent[7:] == [A, B, B, B]


async def test_a_vault_in_a_pool_is_asked_again_before_the_next_key_is_used() -> None:
    """A rotated key does not count as a refused one."""
    gate = Gate("sk-a-new-0123456789", B)
    adapter = adapter_of("openai", gate, keys={"a": Vault(A, "sk-a-new-0123456789"), "b": B}, key_pool=("a", "b"))
    reports: list[AttemptReport] = []
    await ends(adapter, on_attempt=reports.append)
    assert gate.sent == [A, "sk-a-new-0123456789"]
    assert [report.key for report in reports if isinstance(report, AttemptStarted)] == ["a", "a"]


# -- Keys by name: a call that names a key is only sent with that key.


ACME, BETA = "sk-of-acme-0123456789", "sk-of-beta-0123456789"
TENANTS = {"acme": ACME, "beta": BETA}


@pytest.mark.parametrize("row", ROWS)
async def test_a_call_is_sent_with_the_key_that_it_names(row: str) -> None:
    """Every wire with a key does this. Without a name, the adapter's own key is used. An unknown name is an error
    before the request is sent.
    """
    kind, ask = ROWS[row]
    gate = Gate(ACME, BETA, OLD)
    adapter = adapter_of(kind, gate, api_key=OLD, keys=TENANTS)
    with pytest.raises(ConfigurationError) as raised:
        await ask(adapter, "gamma")
    assert str(raised.value) == "mine has no key 'gamma': its keys are acme, beta"
    for key in ("acme", "beta", None, "acme"):
        with pytest.raises(InvalidRequestError):
            await ask(adapter, key)
    assert gate.sent == [ACME, BETA, OLD, ACME]


@pytest.mark.parametrize("row", ["anthropic whole", "gemini streamed", "cohere embeddings", "openai images"])
async def test_a_refused_tenant_is_not_served_with_another_s_key(row: str) -> None:
    """The adapter may have other keys, and may have a pool."""
    kind, ask = ROWS[row]
    gate = Gate(BETA, OLD)
    adapter = adapter_of(kind, gate, api_key=OLD, keys=TENANTS, key_pool=("beta", "acme"))
    for _ in range(2):
        with pytest.raises(AuthError):
            await ask(adapter, "acme")
    assert gate.sent == [ACME, ACME]


async def test_if_all_keys_have_names_a_call_must_name_one() -> None:
    """No tenant's key is used for a call without a tenant. A pool's keys must be there."""
    gate = Gate(ACME)
    adapter = adapter_of("anthropic", gate, keys=TENANTS)
    with pytest.raises(ConfigurationError, match="pass key=; its keys are acme, beta"):
        await adapter.complete(request(model="mine:m"))
    assert gate.sent == []
    with pytest.raises(ConfigurationError, match="mine has no key 'gamma': its keys are acme, beta"):
        adapter_of("anthropic", gate, keys=TENANTS, key_pool=("acme", "gamma"))


async def test_a_job_is_fetched_with_the_key_that_it_was_created_with() -> None:
    """The job's file belongs to that account. Without a name, the current key is used."""
    job = VideoJob(id="video_1", model="mine:sora-2", provider="mine", status="completed")
    named = msgspec.structs.replace(job, terms=VideoTerms(key="acme"))
    for asked, taken, key, sent in ((named, ACME, OLD, [ACME]), (job, NEW, Vault(OLD, NEW), [OLD, NEW])):
        gate = Gate(taken)
        adapter = adapter_of("openai", gate, api_key=key, keys=TENANTS)
        with pytest.raises(InvalidRequestError) as raised:
            await adapter.open_video(asked)
        assert gate.sent == sent
        assert taken not in str(raised.value)
        await adapter.close()
