"""Keys from a function, keys in a pool, and keys by name."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
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
    """A call ends so; with a key that is taken, the server finds fault with the request."""
    with pytest.raises(error):
        await adapter.complete(request(model="mine:m", **fields), on_attempt=on_attempt)


async def end_together(adapter: HttpAdapter, count: int, error: type[AdapterError] = InvalidRequestError) -> None:
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(lambda number=number: ends(adapter, error, request_id=f"req_{number}"))


@pytest.mark.parametrize("row", ROWS)
async def test_a_refused_key_is_asked_for_again_and_the_attempt_repeated(row: str) -> None:
    """On every wire that sends a key, and with no retry left: a new key is no retry."""
    kind, ask = ROWS[row]
    vault, gate = Vault(OLD, NEW), Gate(NEW)
    adapter = adapter_of(kind, gate, api_key=vault)
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as raised:
            await ask(adapter)
        assert NEW not in "".join(traceback.format_exception(raised.value))
    assert gate.sent == [OLD, NEW, NEW]
    assert vault.asked == 2


@pytest.mark.parametrize("row", ROWS)
async def test_a_key_that_stays_the_same_is_refused_for_good(row: str) -> None:
    """It is asked for once more in each call, and nothing is sent twice."""
    kind, ask = ROWS[row]
    vault, gate = Vault(OLD), Gate(NEW)
    adapter = adapter_of(kind, gate, api_key=vault)
    with pytest.raises(AuthError):
        await ask(adapter)
    assert (gate.sent, vault.asked) == ([OLD], 2)


@pytest.mark.parametrize("row", ["anthropic whole", "anthropic streamed", "voyage embeddings"])
async def test_a_new_key_that_is_refused_too_ends_the_call(row: str) -> None:
    """A call looks for a new key once, so that a broken vault can't keep it going."""
    kind, ask = ROWS[row]
    vault, gate = Vault(OLD, "sk-second", "sk-third", NEW), Gate(NEW)
    adapter = adapter_of(kind, gate, api_key=vault)
    with pytest.raises(AuthError):
        await ask(adapter)
    assert gate.sent == [OLD, "sk-second"]


async def test_calls_that_are_refused_together_ask_once() -> None:
    """Ten calls with the old key, refused at the same moment."""
    vault, gate = Vault(OLD, NEW), Gate(NEW)
    adapter = adapter_of("openai", gate, api_key=vault)

    await end_together(adapter, 10)
    assert sorted(gate.sent) == sorted([OLD] * 10 + [NEW] * 10)
    assert vault.asked == 2


async def test_calls_that_are_refused_together_ask_once_also_where_the_key_stays_the_same() -> None:
    """The answer counts for all of them, whatever it is."""
    vault, gate = Vault(OLD), Gate(NEW)
    adapter = adapter_of("openai", gate, api_key=vault)

    await end_together(adapter, 10, AuthError)
    assert (len(gate.sent), vault.asked) == (10, 2)


def _raises() -> str:
    raise ValueError(f"the vault says: {NEW} expired")


async def _raises_later() -> str:
    return _raises()


@pytest.mark.parametrize(("source", "why"), [
    (_raises, "it raised ValueError"),
    (_raises_later, "it raised ValueError"),
    (lambda: None, "it returned NoneType"),
    (lambda: NEW.encode(), "it returned bytes"),
    (lambda: "  \n", "it is empty"),
    (lambda: f"{NEW}\nsecond", "it has a line break"),
    (KeyFile("/nowhere/key"), "it raised FileNotFoundError"),
])  # fmt: skip
@pytest.mark.parametrize("row", ["gemini whole", "gemini streamed", "gemini embeddings", "openai videos"])
async def test_what_keeps_a_key_from_coming_names_the_adapter_and_never_the_value(
    row: str, source: Callable[[], str], why: str
) -> None:
    """Neither in the text nor in what the exception drags along."""
    kind, ask = ROWS[row]
    gate = Gate(NEW)
    adapter = adapter_of(kind, gate, api_key=source)
    with pytest.raises(AuthError) as raised:
        await ask(adapter)
    assert str(raised.value).startswith(f"mine: can't get a key from api_key: {why}")
    assert gate.sent == []
    assert NEW not in "".join(traceback.format_exception(raised.value))
    assert raised.value.__context__ is None


async def test_a_key_that_does_not_come_counts_against_the_call_s_time() -> None:
    """And a cancelled call doesn't wait for it either."""

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


async def test_a_call_that_leaves_while_it_asks_lets_the_next_one_ask() -> None:
    """No waiter hangs on a question whose asker was cancelled."""
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
    """As a secret that is mounted into a container is replaced. White space around the key is taken off."""
    file = tmp_path / "key"
    file.write_text(f"{OLD}\n")
    gate = Gate(OLD)
    adapter = adapter_of("anthropic", gate, api_key=KeyFile(str(file)))
    for taken in (OLD, OLD, NEW, NEW):
        file.write_text(f"{taken}\n")
        gate.taken = {taken}
        await ends(adapter)
    assert gate.sent == [OLD, OLD, OLD, NEW, NEW]


async def test_the_attempt_with_a_new_key_says_so() -> None:
    """An observer sees the refused attempt end, and the next one begin for its reason."""
    reports: list[AttemptReport] = []
    adapter = adapter_of("anthropic", Gate(NEW), api_key=Vault(OLD, NEW))
    await ends(adapter, on_attempt=reports.append)
    assert [report.reason for report in reports if isinstance(report, AttemptStarted)] == ["first", "key"]
    assert OLD not in repr(reports)


@pytest.mark.parametrize("kind", ["anthropic", "openai", "gemini", "ollama", "tgi", "openai_compatible"])
async def test_a_health_check_asks_for_the_key_and_for_a_new_one(kind: str) -> None:
    """Its finding is about the key that calls would use now."""
    gate = Gate(NEW, status=200)
    adapter = adapter_of(kind, gate, api_key=Vault(OLD, NEW))
    assert await adapter.health_check()
    assert gate.sent == [OLD, NEW]
    await adapter.close()
    adapter = adapter_of(kind, gate, api_key=_raises)
    health = await adapter.health_check()
    assert health.detail == "mine: can't get a key from api_key: it raised ValueError"
    assert health.fix


async def test_a_download_asks_for_a_new_key() -> None:
    """The file of a job is fetched with the key as it is now."""
    gate = Gate(NEW)
    adapter = adapter_of("openai", gate, api_key=Vault(OLD, NEW))
    job = VideoJob(id="video_1", model="mine:sora-2", provider="mine", status="completed")
    with pytest.raises(InvalidRequestError) as raised:
        await adapter.open_video(job)
    assert gate.sent == [OLD, NEW]
    assert NEW not in str(raised.value)


@pytest.mark.parametrize("row", ROWS)
async def test_a_key_that_came_while_it_worked_is_seen_nowhere(
    row: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Neither in an error that repeats it, nor in a log, nor on a cassette."""
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


# -- A pool of keys: whose turn it is, which of them rest, and where a session stays.


A, B, C = "sk-a-0123456789", "sk-b-0123456789", "sk-c-0123456789"
KEYS = {"a": A, "b": B, "c": C}
POOL = ("a", "b", "c")


def pooled(gate: Gate, kind: str = "openai", **config: object) -> HttpAdapter:
    return adapter_of(kind, gate, **{"keys": KEYS, "key_pool": POOL, **config})


# -- the machine


@pytest.mark.parametrize(("error", "model", "rest_us"), [
    (AuthError("x"), "another", REFUSED_US),
    (QuotaExceededError("x"), "another", REFUSED_US),
    (AccessDeniedError("x"), "m", REFUSED_US),
    (RateLimitError("x"), "m", PAUSE_US),
    (RateLimitError("x", retry_after_seconds=3), "m", 3_000_000),
])  # fmt: skip
def test_a_refused_key_rests_as_long_as_its_kind_of_refusal_says(
    error: AdapterError, model: str, rest_us: int
) -> None:
    """Then one call tries it, and its success makes it ready for all."""
    cooldowns = KeyCooldowns()
    assert cooldowns.failed("a", "m", error, 1000)
    assert cooldowns.cooldown("a", model, 999 + rest_us) is not None
    assert cooldowns.cooldown("b", model, 1000) is None
    end = 1000 + rest_us
    assert cooldowns.cooldown("a", model, end) is None
    cooldowns.begin("a", model, end)
    assert cooldowns.cooldown("a", model, end) is not None  # for all but the call that tries it
    assert cooldowns.cooldown("a", model, end + TRIAL_US) is None
    cooldowns.taken("a", model)
    assert cooldowns.cooldown("a", model, end) is None


@pytest.mark.parametrize("error", [NetworkError("x"), OverloadedError("x"), InvalidRequestError("x")])
def test_what_is_not_the_key_s_fault_rests_no_key(error: AdapterError) -> None:
    """A server in trouble would be in trouble with another key, too."""
    cooldowns = KeyCooldowns()
    assert not cooldowns.failed("a", "m", error, 0)
    assert cooldowns.cooldown("a", "m", 0) is None


@pytest.mark.parametrize("error", [AccessDeniedError("x"), RateLimitError("x")])
def test_what_is_about_one_model_rests_the_key_for_that_model(error: AdapterError) -> None:
    """Providers count, and allow, for each model."""
    cooldowns = KeyCooldowns()
    cooldowns.failed("a", "m", error, 0)
    assert cooldowns.cooldown("a", "m", 0) is not None
    assert cooldowns.cooldown("a", "another", 0) is None


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


def test_turns_go_round() -> None:
    """In the order in which the pool names its keys."""
    pool = KeyPool(POOL, KeyCooldowns())
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


async def test_all_keys_refused_is_the_last_one_s_error() -> None:
    """Each was tried once; the next call tries the one whose rest ends first, and no other."""
    gate = Gate()
    adapter = pooled(gate)
    await ends(adapter, AuthError)
    assert gate.sent == [A, B, C]
    await ends(adapter, AuthError)
    assert gate.sent == [A, B, C, A]


async def test_a_key_comes_back_after_its_rest() -> None:
    """One call tries it; meanwhile the others go on."""
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


async def test_a_session_stays_with_its_key_and_leaves_it_at_once_when_it_is_down() -> None:
    """Its prompt is cached for that account; another session's is elsewhere."""
    gate = Gate(A, B, C)
    adapter = pooled(gate)

    for session in ("s1", "s2", "s1", "s1", "s2", "s3", "s1"):
        await ends(adapter, session_id=session)
    assert gate.sent == [A, B, A, A, B, C, A]
    gate.statuses = {A: 401}
    for session in ("s1", "s2", "s1"):
        await ends(adapter, session_id=session)
    assert gate.sent[7:] == [A, B, B, B]


async def test_many_calls_at_once_are_spread_evenly() -> None:
    """Also while one key of three is limited."""
    gate = Gate(A, B, C)
    adapter = pooled(gate)

    await end_together(adapter, 30)
    assert Counter(gate.sent) == {A: 10, B: 10, C: 10}


async def test_a_vault_in_a_pool_is_asked_again_before_the_next_key_takes_over() -> None:
    """A rotated key is no refused one."""
    gate = Gate("sk-a-new-0123456789", B)
    adapter = adapter_of("openai", gate, keys={"a": Vault(A, "sk-a-new-0123456789"), "b": B}, key_pool=("a", "b"))
    reports: list[AttemptReport] = []
    await ends(adapter, on_attempt=reports.append)
    assert gate.sent == [A, "sk-a-new-0123456789"]
    assert [report.key for report in reports if isinstance(report, AttemptStarted)] == ["a", "a"]


# -- Keys by name: a call that names one is sent with that one, and with no other.


ACME, BETA = "sk-of-acme-0123456789", "sk-of-beta-0123456789"
TENANTS = {"acme": ACME, "beta": BETA}


@pytest.mark.parametrize("row", ROWS)
async def test_a_call_is_sent_with_the_key_that_it_names(row: str) -> None:
    """On every wire that sends a key, and with the adapter's own key where it names none."""
    kind, ask = ROWS[row]
    gate = Gate(ACME, BETA, OLD)
    adapter = adapter_of(kind, gate, api_key=OLD, keys=TENANTS)
    for key in ("acme", "beta", None, "acme"):
        with pytest.raises(InvalidRequestError):
            await ask(adapter, key)
    assert gate.sent == [ACME, BETA, OLD, ACME]


@pytest.mark.parametrize("row", ROWS)
async def test_an_unknown_name_is_told_with_those_that_there_are(row: str) -> None:
    """Before anything is sent."""
    kind, ask = ROWS[row]
    gate = Gate(ACME)
    adapter = adapter_of(kind, gate, api_key=OLD, keys=TENANTS)
    with pytest.raises(ConfigurationError) as raised:
        await ask(adapter, "gamma")
    assert str(raised.value) == "mine has no key 'gamma': its keys are acme, beta"
    assert gate.sent == []


@pytest.mark.parametrize("row", ["anthropic whole", "gemini streamed", "cohere embeddings", "openai images"])
async def test_a_refused_tenant_is_not_served_with_another_s_key(row: str) -> None:
    """Whatever other keys there are, and whether or not they stand in a pool."""
    kind, ask = ROWS[row]
    gate = Gate(BETA, OLD)
    adapter = adapter_of(kind, gate, api_key=OLD, keys=TENANTS, key_pool=("beta", "acme"))
    for _ in range(2):
        with pytest.raises(AuthError):
            await ask(adapter, "acme")
    assert gate.sent == [ACME, ACME]


async def test_where_all_keys_have_names_a_call_must_say_one() -> None:
    """No tenant's key serves a call that is nobody's."""
    gate = Gate(ACME)
    adapter = adapter_of("anthropic", gate, keys=TENANTS)
    with pytest.raises(ConfigurationError, match="pass key=; its keys are acme, beta"):
        await adapter.complete(request(model="mine:m"))
    assert gate.sent == []


def test_a_pool_of_keys_that_are_not_there_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="mine has no key 'gamma': its keys are acme, beta"):
        adapter_of("anthropic", Gate(), keys=TENANTS, key_pool=("acme", "gamma"))


async def test_what_keeps_a_named_key_from_coming_says_its_name() -> None:
    """So that whoever reads it knows which entry to mend."""

    def broken() -> str:
        raise OSError(ACME)

    adapter = adapter_of("openai", Gate(), keys={"acme": broken})
    with pytest.raises(
        AuthError, match=r"^mine: can't get a key from keys\['acme'\]: it raised OSError"
    ) as raised:
        await adapter.complete(request(model="mine:m", key="acme"))
    assert ACME not in "".join(traceback.format_exception(raised.value))


async def test_each_attempt_tells_the_name_of_its_key() -> None:
    """The name, and never the value."""
    reports: list[AttemptReport] = []
    adapter = adapter_of("openai", Gate(ACME, OLD), api_key=OLD, keys=TENANTS)
    for key in ("acme", None):
        await ends(adapter, key=key, on_attempt=reports.append)
    assert [report.key for report in reports if isinstance(report, AttemptStarted)] == ["acme", None]
    assert ACME not in repr(reports)


async def test_a_job_is_fetched_with_the_key_that_it_was_created_with() -> None:
    """Its file belongs to that account."""
    gate = Gate(ACME)
    adapter = adapter_of("openai", gate, api_key=OLD, keys=TENANTS)
    job = VideoJob(
        id="video_1", model="mine:sora-2", provider="mine", status="completed", terms=VideoTerms(key="acme")
    )
    with pytest.raises(InvalidRequestError):
        await adapter.open_video(job)
    assert gate.sent == [ACME]
    await adapter.close()
