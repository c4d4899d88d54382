"""The states of a provider and a model: unavailable, degraded, available again. Also settings of models."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import (
    AdapterConfig,
    CanonicalRequest,
    Message,
    RetryPolicy,
    Role,
    ToolChoice,
    ToolDefinition,
    ToolUseBlock,
)
from callboard.bus import Envelope, LlmCallCompleted, LlmCallFailed, errors
from callboard.bus.events.operation import ProviderAvailabilityChanged
from callboard.engine import Engine, ModelDefaults, Tool, ToolSettings
from callboard.engine.models.entries import ModelInput, model_input
from callboard.engine.routing.availability import MAX_RECORDS, STATES, TRANSITIONS, AvailabilityTable, Changes

from ..support.engines import entry, requests_of, serving
from ..support.engines import model as listed
from ..support.fake_http import HELLO, FakeTransport, ToyAdapter, failing, request, whole
from ..support.scripted import CAPABILITIES, Say, scripted_type
from ..tracestore.trace_making import Maker

SECOND = 1_000_000
MINUTE = 60 * SECOND

KINDS = [
    *("ServerError", "OverloadedError", "NetworkError", "RateLimitError", "AuthError", "AccessDeniedError"),
    *("QuotaExceededError", "NotFoundError", "InvalidRequestError", "ContextOverflowError", "CancelledError"),
    "AdapterError",
]


def failed(
    error_type: str,
    *,
    model: str = "p:m",
    will_retry: bool = False,
    status: int | None = None,
    retry_after: float | None = None,
) -> LlmCallFailed:
    kind = getattr(errors, error_type).error_class
    made = Maker().failed(model=model, error_class=kind, provider_status=status, will_retry=will_retry).data
    return msgspec.structs.replace(made, error_type=error_type, retry_after_seconds=retry_after)


def succeeded(model: str = "p:m") -> LlmCallCompleted:
    return Maker().completed(model=model).data


def said(changes: Changes) -> list[tuple[str | None, str, str]]:
    return [(change.model, change.previous, change.current) for change in changes]


def down(table: AvailabilityTable, kind: str = "NetworkError", *, now_us: int = 0) -> None:
    for _ in range(5):
        table.observe(failed(kind), now_us)


def test_the_table_has_every_state_and_signal() -> None:
    signals = {signal for _, signal in TRANSITIONS}
    assert set(TRANSITIONS) == {(state, signal) for state in STATES for signal in signals}
    assert {TRANSITIONS[state, "success"] for state in STATES} == {"available"}


def test_consecutive_failures_degrade_a_provider_and_then_make_it_unavailable() -> None:
    """The third failure publishes `degraded`, and the fifth publishes `unavailable`."""
    table = AvailabilityTable()
    changes = [said(table.observe(failed("NetworkError"), 0)) for _ in range(6)]
    degraded, stopped = (None, "available", "degraded"), (None, "degraded", "unavailable")
    assert changes == [[], [], [degraded], [], [stopped], []]
    assert table.state("p") == "unavailable"
    (row,) = table.snapshot()
    assert (row.reason, row.retry_at_us) == ("network: NetworkError", 30 * SECOND)
    assert said(table.observe(succeeded(), SECOND)) == [(None, "unavailable", "available")]
    assert (table.observe(failed("NetworkError"), SECOND), table.snapshot()) == ((), ()), "a success resets all"


@pytest.mark.parametrize("kind", ["InvalidRequestError", "CancelledError", "ContextOverflowError", "AdapterError"])
def test_faults_of_the_request_never_count(kind: str) -> None:
    """Bad requests and cancelled calls do not change the state of the provider."""
    table = AvailabilityTable()
    for _ in range(10):
        assert table.observe(failed(kind, status=400), 0) == ()


@pytest.mark.parametrize(
    ("kind", "reason"), [("AuthError", "key refused"), ("QuotaExceededError", "quota exhausted")]
)
def test_a_refused_key_and_an_empty_account_make_a_provider_unavailable(kind: str, reason: str) -> None:
    """The change has the reason and the long cool-down. A reload allows a probe immediately."""
    table = AvailabilityTable()
    (change,) = table.observe(failed(kind), 0)
    assert (change.model, change.current, change.reason) == (None, "unavailable", reason)
    assert change.retry_at_us == 10 * MINUTE
    assert table.readiness("p", "p:m", 9 * MINUTE).kind == "closed"
    assert table.reloaded((), (), MINUTE) == ()
    assert table.readiness("p", "p:m", MINUTE).kind == "ready"


@pytest.mark.parametrize("kind", ["NotFoundError", "AccessDeniedError"])
def test_a_missing_model_counts_only_against_the_model(kind: str) -> None:
    """The provider's other models stay available."""
    table = AvailabilityTable()
    assert said(table.observe(failed(kind, status=404), 0)) == [("p:m", "available", "unavailable")]
    assert table.state("p", "p:m") == "unavailable"
    assert table.state("p", "p:other") == table.state("p") == "available"


def test_a_rate_limit_degrades_a_model_for_the_time_of_the_provider() -> None:
    """Successes of earlier calls do not end this state."""
    table = AvailabilityTable()
    (change,) = table.observe(failed("RateLimitError", retry_after=7, will_retry=True), 0)
    assert (change.model, change.current, change.retry_at_us) == ("p:m", "degraded", 7 * SECOND)
    assert table.observe(succeeded(), SECOND) == ()
    assert table.readiness("p", "p:m", 6 * SECOND).kind == "later"
    assert table.readiness("p", "p:other", 6 * SECOND).kind == "ready"
    assert table.readiness("p", "p:m", 7 * SECOND).kind == "ready"
    assert said(table.observe(succeeded(), 8 * SECOND)) == [("p:m", "degraded", "available")]


def test_a_broken_model_becomes_unavailable_while_its_provider_answers() -> None:
    table = AvailabilityTable()
    for _ in range(5):
        table.observe(failed("ServerError", model="p:bad"), 0)
        table.observe(succeeded("p:good"), 0)
    assert table.state("p", "p:bad") == "unavailable"
    assert table.state("p") == table.state("p", "p:good") == "available"


def test_one_call_probes_and_the_provider_is_closed_for_others() -> None:
    table = AvailabilityTable()
    down(table)
    assert table.readiness("p", "p:m", 29 * SECOND).kind == "closed"
    assert table.readiness("p", "p:m", 30 * SECOND).kind == "ready"
    assert said(table.begin("p", "p:m", "req_1", 30 * SECOND)) == [(None, "unavailable", "probing")]
    assert table.readiness("p", "p:m", 31 * SECOND).kind == "closed"
    assert table.begin("p", "p:m", "req_2", 31 * SECOND) == ()
    assert table.observe(failed("NetworkError"), 31 * SECOND, request_id="req_2") == ()
    assert table.observe(failed("NetworkError", will_retry=True), 32 * SECOND, request_id="req_1") == ()
    assert said(table.observe(succeeded(), 33 * SECOND, request_id="req_1")) == [(None, "probing", "available")]


def test_a_probe_with_a_400_succeeds_and_a_cancelled_one_proves_nothing() -> None:
    """A 400 is a reply, so the provider is available."""
    table = AvailabilityTable()
    down(table)
    table.begin("p", "p:m", "req_1", 30 * SECOND)
    changes = table.observe(failed("CancelledError"), 31 * SECOND, request_id="req_1")
    assert said(changes) == [(None, "probing", "unavailable")]
    assert table.readiness("p", "p:m", 31 * SECOND).kind == "ready"
    table.begin("p", "p:m", "req_2", 31 * SECOND)
    assert said(table.abandon("req_2", 31 * SECOND)) == [(None, "probing", "unavailable")]
    table.begin("p", "p:m", "req_3", 31 * SECOND)
    changes = table.observe(failed("InvalidRequestError", status=400), 31 * SECOND, request_id="req_3")
    assert said(changes) == [(None, "probing", "available")]
    assert table.observe(failed("NetworkError"), 31 * SECOND) == (), "the earlier failures no longer count"


def test_the_cool_down_doubles_up_to_ten_minutes() -> None:
    table = AvailabilityTable()
    down(table)
    now, waits = 0, []
    for probe in range(7):
        (row,) = table.snapshot()
        waits.append((row.retry_at_us - now) // SECOND)
        now = row.retry_at_us
        table.begin("p", "p:m", f"req_{probe}", now)
        table.observe(failed("NetworkError"), now, request_id=f"req_{probe}")
    assert waits == [30, 60, 120, 240, 480, 600, 600]


def test_a_call_within_the_cool_down_does_not_lengthen_it() -> None:
    """A session with one model can always call that model."""
    table = AvailabilityTable()
    down(table)
    for probe in range(5):
        table.begin("p", "p:m", f"req_{probe}", 10 * SECOND)
        table.observe(failed("NetworkError"), 11 * SECOND, request_id=f"req_{probe}")
    assert table.snapshot()[0].retry_at_us == 30 * SECOND


def envelope(change: ProviderAvailabilityChanged, at_us: int) -> Envelope:
    return Envelope(seq=1, run_id="run_1", ts_us=at_us, mono_ns=0, data=change)


def test_a_restarted_table_has_the_published_state() -> None:
    """The last event of each record counts. After a probe without an end, a new probe can start immediately."""
    old = AvailabilityTable()
    changes = [envelope(change, 0) for change in old.observe(failed("AuthError"), 0)]
    changes += [envelope(change, 0) for change in old.observe(failed("NotFoundError", model="p:x"), 0)]
    changes += [envelope(change, SECOND) for change in old.observe(succeeded("p:x"), SECOND)]
    new = AvailabilityTable()
    new.restore(changes, MINUTE)
    assert new.snapshot() == old.snapshot()
    new.restore([envelope(change, 0) for change in old.begin("p", "p:m", "req_1", 10 * MINUTE)], 11 * MINUTE)
    assert new.state("p") == "available", "the success of p:x has cleared the provider, so nothing was probed"
    down(old)
    restored = AvailabilityTable()
    restored.restore([envelope(change, 0) for change in old.begin("p", "p:m", "req_1", MINUTE)], 2 * MINUTE)
    assert restored.state("p") == "unavailable"
    assert restored.readiness("p", "p:m", 2 * MINUTE).kind == "ready"


def test_the_number_of_records_is_bounded() -> None:
    """The oldest records are dropped first."""
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
def test_published_changes_always_match_the_table(steps: list[tuple[str, int, str, bool]]) -> None:
    """Changes have no gap, and one call probes at a time. A success always makes a provider available."""
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
                assert before <= {r.probe for r in table._records.values()}, "a probe is never replaced"
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
            assert table.readiness("p", model, now).kind in ("ready", "later")
        if step == "change":
            assert table.snapshot() == ()
    table.observe(succeeded("p:a"), now + 24 * 60 * MINUTE)
    assert table.state("p", "p:a") == "available"


# Settings that the configuration adds to requests for a model. Without configuration nothing is added.

TOOLS = [Tool(ToolDefinition(name), lambda arguments: "done") for name in ("read", "write", "list", "ask")]


async def asked(
    *replies: Say,
    turns: int = 1,
    adapter: dict[str, object] | None = None,
    model: dict[str, object] | None = None,
    can: dict[str, bool] | None = None,
    **options: object,
) -> list[CanonicalRequest]:
    """The requests of a session with these settings of the adapter and the model."""
    kind = scripted_type(*replies, capabilities=msgspec.structs.replace(CAPABILITIES, **(can or {})))
    models = serving(listed("s:m", **(model or {})), s=entry("s", kind, **(adapter or {})))
    async with Engine(models=models, trace=False) as engine:
        session = engine.session("s:m", system_prompt="You are brief.", tools=TOOLS)
        for _ in range(turns):
            await session.send("Hi", **options)
        return requests_of(engine)


ADDENDUM, FORCING = {"prompt_addendum": "Use the tools."}, {"tools": ToolSettings(force_first_turn=True)}
OFF, USUAL = {"tools": ToolSettings(parallel=False)}, {"defaults": ModelDefaults(max_output_tokens=8192)}
TRIES: dict[str, object] = {"max_retries": 5, "retry": RetryPolicy(base_delay=2)}
ONCE: dict[str, object] = {"max_retries": 0, "retry": RetryPolicy(base_delay=0)}


@pytest.mark.parametrize(("settings", "options", "sent"), [
    ({"adapter": ADDENDUM}, {}, {"system_prompt": "You are brief.\n\nUse the tools."}),
    ({"adapter": ADDENDUM, "model": {"prompt_addendum": "Ask."}}, {}, {"system_prompt": "You are brief.\n\nAsk."}),
    ({"adapter": ADDENDUM, "model": {"prompt_addendum": ""}}, {}, {"system_prompt": "You are brief."}),
    ({"adapter": FORCING}, {"tool_choice": ToolChoice("none")}, {"tool_choice": ToolChoice("none")}),
    ({"adapter": FORCING, "can": {"supports_tool_choice": False}}, {}, {"tool_choice": None}),
    ({"adapter": FORCING, "model": {"tools": ToolSettings(force_first_turn=False)}}, {}, {"tool_choice": None}),
    ({"adapter": OFF}, {}, {"parallel_tool_calls": False}),
    ({"adapter": OFF}, {"parallel_tool_calls": True}, {"parallel_tool_calls": True}),
    ({"adapter": OFF, "can": {"supports_parallel_tool_calls": False}}, {}, {"parallel_tool_calls": None}),
    ({"model": TRIES}, {}, TRIES),
    ({"model": TRIES}, ONCE, ONCE),
    ({"adapter": USUAL}, {}, {"max_output_tokens": 8192}),
    ({"adapter": USUAL, "model": {"capabilities": {"max_output_tokens": 4096}}}, {}, {"max_output_tokens": 4096}),
    ({"adapter": USUAL, "model": {"max_output_tokens": 100}}, {}, {"max_output_tokens": 100}),
])  # fmt: skip
async def test_the_caller_comes_before_the_model_and_the_model_before_its_adapter(
    settings: dict[str, Any], options: dict[str, Any], sent: dict[str, object]
) -> None:
    """A model without an option gets no value of it. An adapter's default output is cut to the model's limit."""
    (one,) = await asked(Say("x"), **settings, **options)
    assert {name: getattr(one, name) for name in sent} == sent


async def test_a_tool_is_forced_only_in_the_first_reply_of_a_conversation() -> None:
    requests = await asked(Say(calls=[("read", {})]), Say("done"), Say("again"), turns=2, adapter=FORCING)
    assert [request.tool_choice for request in requests] == [ToolChoice("required"), None, None]


def given_to(tools: list[str], settings: ToolSettings, *messages: Message, named: str | None = None) -> ModelInput:
    choice = ToolChoice("named", named) if named else None
    offered = [ToolDefinition(name) for name in tools]
    return model_input(settings, None, tools=offered, system_prompt=None, messages=messages, choice=choice)


def test_a_limit_keeps_the_chosen_tool_then_core_then_used_then_first_tools() -> None:
    """The tools keep their order, and a warning names the tools that were left out."""
    used = Message(Role.ASSISTANT, (ToolUseBlock("tu_1", "f", {}),))
    made = given_to(list("abcdef"), ToolSettings(max=4, core=("e",)), used, named="d")
    assert [tool.name for tool in made.tools] == ["a", "d", "e", "f"]
    (warning,) = made.warnings
    assert (warning.code, warning.message) == ("tools_left_out", "6 tools exceed the limit of 4. Left out: b, c")


def test_the_strict_setting_is_for_tools_without_one() -> None:
    """The tool's own value does not change."""
    tools = [ToolDefinition("a"), ToolDefinition("b", strict=False)]
    made = model_input(ToolSettings(strict=True), None, tools=tools, system_prompt=None, messages=(), choice=None)
    assert [tool.strict for tool in made.tools] == [True, False]


@given(
    names=st.lists(st.sampled_from("abcdefgh"), unique=True),
    core=st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=3),
    limit=st.integers(3, 8),
)
def test_a_filter_keeps_the_limit_the_core_and_the_order(names: list[str], core: list[str], limit: int) -> None:
    made = given_to(names, ToolSettings(max=limit, core=tuple(core)))
    kept = [tool.name for tool in made.tools]
    assert len(kept) == min(limit, len(names))
    assert kept == [name for name in names if name in kept]
    assert set(core) & set(names) <= set(kept)
    assert bool(made.warnings) == (len(names) > limit)


async def test_a_retry_policy_of_the_request_replaces_the_adapters() -> None:
    """The request's policy decides how long the adapter waits between two attempts."""
    network = FakeTransport(failing(529), whole(*HELLO))
    adapter = ToyAdapter(AdapterConfig(retry=RetryPolicy(base_delay=1, jitter=False)), transport=network)
    began = anyio.current_time()
    await adapter.complete(request(retry=RetryPolicy(base_delay=7, jitter=False)))
    assert anyio.current_time() - began == pytest.approx(7)
    await adapter.close()
