"""A background reply is complete despite lost connections, is requested only once, and can be cancelled."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters import AdapterConfig, AdapterError, CanonicalRequest, Message
from callboard.adapters.contract import (
    AttemptAccepted,
    AttemptFailed,
    AttemptReport,
    AttemptStarted,
    CanonicalResponse,
)
from callboard.adapters.http import fidelity
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.bus.errors import (
    CancelledError,
    NetworkError,
    OutcomeUnknownError,
    RequestTimeoutError,
    ServerError,
)
from callboard.bus.streams.events import MessageComplete, MessageStart, StreamEvent, TextDelta, ThinkingDelta
from callboard.bus.values.messages import RawReply
from callboard.bus.values.usage import StopReason, TokenUsage, UsageSource
from tests.support.background_server import THOUGHT, WORDS, Books, BooksTransport
from tests.support.virtual_time import FakeClock, run_virtual

FAULTS = (
    *("", "refuse", "lose", "busy", "silent", "end", "twice", "no stream", "garbage"),
    *(f"cut {size}" for size in (0, 1, 150, 300, 777, 1500, 2900, 4000)),
)


def adapter_to(books: Books, *faults: str, **config: object) -> tuple[OpenAIAdapter, BooksTransport]:
    transport = BooksTransport(books, list(faults))
    adapter = OpenAIAdapter(
        AdapterConfig(api_key="sk-1", base_url="https://api.openai.com", **config),  # type: ignore[arg-type]
        transport=transport,
        clock=FakeClock(),
    )
    return adapter, transport


def ask(words: str = "the moon?", **more: object) -> CanonicalRequest:
    fields: dict[str, object] = {"background": True, "request_id": "req_1", "message_id": "msg_1", **more}
    return CanonicalRequest(
        model="openai:gpt-5.2",
        messages=(Message.user(words),),
        max_output_tokens=1000,
        **fields,  # type: ignore[arg-type]
    )


class Told:
    """The reports of a call."""

    def __init__(self) -> None:
        self.reports: list[AttemptReport] = []

    def __call__(self, report: AttemptReport) -> None:
        self.reports.append(report)

    @property
    def reasons(self) -> list[str]:
        return [report.reason for report in self.reports if isinstance(report, AttemptStarted)]

    @property
    def accepted(self) -> list[str]:
        return [report.response_id for report in self.reports if isinstance(report, AttemptAccepted)]


async def streamed(
    adapter: OpenAIAdapter, request: CanonicalRequest, told: Told
) -> tuple[list[StreamEvent], object]:
    """Run a stream. Returns its events, and its response or its error."""
    events: list[StreamEvent] = []
    async with adapter.stream(request, on_attempt=told) as stream:
        try:
            async for event in stream:
                events += [event]
        except AdapterError as error:
            return events, error
        return events, stream.response


def check_whole(events: list[StreamEvent], response: CanonicalResponse) -> None:
    """Check that each delta comes once and that the deltas and the response equal the reply."""
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == WORDS
    assert "".join(event.text for event in events if isinstance(event, ThinkingDelta)) == THOUGHT
    assert sum(isinstance(event, MessageStart) for event in events) == 1
    assert isinstance(events[-1], MessageComplete)
    assert events[-1].final_content == response.content
    assert (response.text, response.thinking) == (WORDS, THOUGHT)


def spent(response: CanonicalResponse) -> tuple[int, int]:
    assert response.usage.source is UsageSource.REPORTED
    return response.usage.input_tokens, response.usage.output_tokens


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(FAULTS), max_size=7))
def test_a_stream_is_complete_and_paid_once_under_any_faults(faults: list[str]) -> None:
    """The stream ends with the generated and billed reply, or with an unknown outcome. No reply is generated
    twice.
    """
    books = Books()
    adapter, _ = adapter_to(books, *faults, max_retries=10)
    told = Told()

    async def run() -> None:
        events, end = await streamed(adapter, ask(), told)
        if isinstance(end, OutcomeUnknownError):
            assert not told.accepted
            assert not events
            assert len(books.made) <= 1
            return
        assert isinstance(end, CanonicalResponse)
        check_whole(events, end)
        assert books.bill(anyio.current_time()) == {"resp_1": spent(end)}
        assert told.accepted == ["resp_1"]
        assert set(told.reasons) <= {"first", "retry"}
        assert len(books.made) == 1

    run_virtual(run)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["", "refuse", "lose", "busy"]), max_size=7))
def test_a_plain_reply_is_paid_once_under_any_faults(faults: list[str]) -> None:
    """A plain reply is polled until its end, with the same guarantee."""
    books = Books()
    adapter, transport = adapter_to(books, *faults, max_retries=10)
    told = Told()

    async def run() -> None:
        try:
            response = await adapter.complete(ask(), on_attempt=told)
        except OutcomeUnknownError:
            assert not told.accepted
            assert len(books.made) <= 1
            return
        assert (response.text, response.thinking) == (WORDS, THOUGHT)
        assert books.bill(anyio.current_time()) == {"resp_1": spent(response)}
        assert [asked for asked in transport.asked if asked.startswith("POST")][-1] == "POST responses"
        assert told.accepted == ["resp_1"]

    run_virtual(run)


@pytest.mark.parametrize("made_as_stream", [True, False])
@pytest.mark.parametrize("as_stream", [True, False])
def test_another_process_continues_a_reply(made_as_stream: bool, as_stream: bool) -> None:
    """The reply may be plain or streamed. It can be continued at any time, with or without the request."""

    async def run(seconds: float, bare: bool) -> None:
        books, told = Books(), Told()
        first, _ = adapter_to(books)
        with anyio.move_on_after(seconds + 0.5):
            if made_as_stream:
                await streamed(first, ask(), told)
            else:
                await first.complete(ask(), on_attempt=told)
        (response_id,) = told.accepted
        assert not books.cancels  # a process that dies or disconnects cancels nothing
        second, transport = adapter_to(books)
        again = ask(response_id=response_id, background=None)
        if bare:
            again = msgspec.structs.replace(again, messages=(), max_output_tokens=1)
        told = Told()
        if as_stream:
            events, response = await streamed(second, again, told)
            assert isinstance(response, CanonicalResponse)
            check_whole(events, response)
        else:
            response = await second.complete(again, on_attempt=told)
            assert response.text == WORDS
        assert (told.reasons, told.accepted) == (["taken_up"], [])
        assert not any(asked.startswith("POST") for asked in transport.asked)
        assert books.bill(anyio.current_time()) == {"resp_1": spent(response)}

    for number, seconds in enumerate((0, 4, 9, 14, 400)):
        run_virtual(lambda seconds=seconds, number=number: run(seconds, bool(number % 2)))


@pytest.mark.parametrize("fault", ["", "lose", "busy", "refuse"])
def test_a_cancelled_reply_ends_at_the_provider_with_its_usage(fault: str) -> None:
    """The cancellation is repeated until the provider accepts it. The usage is the provider's own."""
    books = Books()
    adapter, transport = adapter_to(books)

    async def run() -> None:
        request, events = ask(), []
        async with adapter.stream(request) as stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, TextDelta):
                    transport.faults = [fault]
                    assert await adapter.cancel("req_1")
        assert isinstance(events[-1], MessageComplete)
        assert events[-1].stop_reason is StopReason.CANCELLED
        assert stream.response is not None
        billed = books.bill(anyio.current_time())["resp_1"]
        assert (stream.response.usage.input_tokens, stream.response.usage.output_tokens) == billed
        assert books.made["resp_1"].ended is not None
        assert not await adapter.cancel("req_1")

    run_virtual(run)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(FAULTS), max_size=5), st.floats(0, 40), st.booleans())
def test_a_cancel_at_any_time_ends_the_reply_at_the_provider(
    faults: list[str], seconds: float, whole: bool
) -> None:
    """If the reply's id is known, the reply is over at the provider, and the usage of the call is the bill."""
    books = Books()
    adapter, _ = adapter_to(books, *faults, max_retries=10)
    told = Told()
    usages: list[TokenUsage | None] = []

    async def ask_it() -> None:
        if whole:
            try:
                usages.append((await adapter.complete(ask(), on_attempt=told)).usage)
            except AdapterError as error:
                usages.append(error.usage)
            return
        _, end = await streamed(adapter, ask(), told)
        assert isinstance(end, CanonicalResponse | AdapterError)
        usages.append(end.usage)

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_it)
            await anyio.sleep(seconds)
            await adapter.cancel("req_1")
        if told.accepted:
            now = anyio.current_time()
            assert books.is_over(books.made[told.accepted[-1]], now)
            (usage,) = usages
            assert usage is not None
            assert books.bill(now) == {"resp_1": (usage.input_tokens, usage.output_tokens)}
        assert len(books.made) <= 1

    run_virtual(run)


def test_a_request_that_is_cancelled_before_its_id_is_not_sent_again() -> None:
    """Without an id, a reply can't be cancelled, and no request is sent."""
    books = Books()
    adapter, transport = adapter_to(books, "silent")

    async def run() -> None:
        async with anyio.create_task_group() as tasks:

            async def cancel_soon() -> None:
                await anyio.sleep(1)
                await adapter.cancel("req_1")

            tasks.start_soon(cancel_soon)
            _, end = await streamed(adapter, ask(), Told())
        assert isinstance(end, CanonicalResponse)
        assert end.stop_reason is StopReason.CANCELLED
        assert transport.asked == ["POST responses"]

    run_virtual(run)


def test_the_time_limit_of_the_call_cancels_the_reply() -> None:
    """No caller waits any more, so the reply is cancelled at the provider."""
    books = Books()
    adapter, _ = adapter_to(books)

    async def run() -> None:
        events, end = await streamed(adapter, ask(timeout_seconds=13.0), Told())
        assert isinstance(end, RequestTimeoutError)
        assert books.cancels == ["resp_1"]
        assert end.usage is not None
        billed = books.bill(anyio.current_time())["resp_1"]
        assert end.usage.input_tokens == billed[0]
        assert isinstance(events[-1], MessageComplete)
        assert events[-1].stop_reason is StopReason.ERROR

    run_virtual(run)


@pytest.mark.parametrize("stream", [True, False])
def test_a_reply_that_failed_before_its_first_text_is_retried(stream: bool) -> None:
    """The provider reported the failure, so no reply is in progress."""
    books = Books()
    adapter, _ = adapter_to(books, max_retries=1)

    async def run() -> None:
        told = Told()
        if stream:
            events, end = await streamed(adapter, ask("fail"), told)
            assert any(isinstance(event, TextDelta) for event in events)
            assert told.reasons == ["first"]
        else:
            with pytest.raises(ServerError) as caught:
                await adapter.complete(ask("fail"), on_attempt=told)
            end = caught.value
            assert told.reasons == ["first", "retry"]
            assert told.accepted == ["resp_1", "resp_2"]
            assert sum(isinstance(report, AttemptFailed) for report in told.reports) == 1
        assert isinstance(end, ServerError)
        assert "asleep" in str(end)

    run_virtual(run)


def test_a_reply_at_its_limit_is_incomplete() -> None:
    """The result is that of a call without the background. A server without background replies causes a warning,
    because the reply then depends on its connection.
    """
    adapter, _ = adapter_to(Books())

    async def run() -> None:
        _, end = await streamed(adapter, ask("short"), Told())
        assert isinstance(end, CanonicalResponse)
        assert end.stop_reason is StopReason.MAX_TOKENS

    run_virtual(run)
    adapter = OpenAIAdapter(AdapterConfig(api_key="sk-1", base_url="http://other.example/v1"))
    written = adapter.write_request(ask(), stream=True)
    assert b"background" not in written.body
    assert [str(warning.code) for warning in written.warnings] == ["parameter_dropped"]


def test_a_reply_that_stays_out_of_reach_fails_after_a_quarter_of_an_hour() -> None:
    """The provider may still generate the reply. So the call fails and is not retried."""
    books = Books()
    adapter, transport = adapter_to(books, "cut 700", *["refuse"] * 300, max_retries=5)

    async def run() -> None:
        told = Told()
        _, end = await streamed(adapter, ask(), told)
        assert isinstance(end, NetworkError)
        assert 900 <= anyio.current_time() < 960
        assert told.reasons == ["first"]
        assert transport.asked.count("POST responses") == 1

    run_virtual(run)


@pytest.mark.parametrize(
    ("stream", "faults"), [(True, ["cut 700"]), (True, []), (False, [])], ids=["broken", "stream", "whole"]
)
@pytest.mark.parametrize("cancels", [True, False])
def test_a_key_that_changes_during_the_reply_is_fetched_again(
    stream: bool, faults: list[str], cancels: bool
) -> None:
    """The reply is continued and cancelled with the new key."""
    keys = ["old", "new"]
    books = Books()
    transport = BooksTransport(books, faults)
    config = AdapterConfig(api_key=lambda: keys.pop(0), base_url="https://api.openai.com")
    adapter = OpenAIAdapter(config, transport=transport, clock=FakeClock())

    async def run() -> None:
        async def change() -> None:
            await anyio.sleep(2)
            transport.key = "new"
            await anyio.sleep(10)
            if cancels:
                await adapter.cancel("req_1")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(change)
            text = ""
            if stream:
                _, end = await streamed(adapter, ask(), Told())
                assert isinstance(end, CanonicalResponse)
                text = end.text
            else:
                with contextlib.suppress(CancelledError):
                    text = (await adapter.complete(ask())).text
        assert (text == WORDS) is not cancels
        assert books.cancels == (["resp_1"] if cancels else [])
        assert len(books.made) == 1

    run_virtual(run)


def test_a_reply_that_is_gone_has_an_unknown_outcome() -> None:
    """The provider stores a reply only for a while. After that, its bill is unknown."""
    adapter, _ = adapter_to(Books())

    async def run() -> None:
        again = ask(response_id="resp_9")
        _, end = await streamed(adapter, again, Told())
        with pytest.raises(OutcomeUnknownError, match="resp_9"):
            await adapter.complete(again)
        assert isinstance(end, OutcomeUnknownError)
        assert "resp_9" in str(end)

    run_virtual(run)


def test_the_request_of_a_background_reply() -> None:
    """A reply is requested by the option or by the protocol's own field. It is stored unless the host forbids
    it.
    """
    adapter, _ = adapter_to(Books())
    import json

    for request, stored in (
        (ask(), True),
        (ask(background=None, provider_options={"openai": {"background": True}}), True),
        (ask(provider_options={"openai": {"store": False}}), False),
        (ask(background=False), False),
    ):
        body = json.loads(adapter.write_request(request, stream=True).body)
        assert body["store"] is stored
        assert body.get("background", False) is (request.background is not False)


def test_a_repeated_event_of_a_large_reply_does_not_count_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "MAX_RAW_BYTES", 5)

    async def run() -> None:
        left_out = []
        for faults in ([], ["cut 1500", "twice"]):
            adapter, _ = adapter_to(Books(), *faults)
            _, response = await streamed(adapter, ask(include_raw=True), Told())
            assert isinstance(response, CanonicalResponse)
            assert response.raw is not None
            left_out.append(response.raw.left_out)
        assert left_out[0] == left_out[1] > 0

    run_virtual(run)


@pytest.mark.parametrize(
    "faults", [[], ["cut 1500"], ["cut 300", "refuse", "cut 777"], ["cut 777", "no stream"], ["cut 1500", "twice"]]
)
def test_the_raw_reply_has_the_events_of_all_connections(faults: list[str]) -> None:
    """The raw reply has each event once. For a plain reply, it has the last poll."""
    books = Books()
    adapter, _ = adapter_to(books, *faults)

    async def run() -> None:
        _, response = await streamed(adapter, ask(include_raw=True), Told())
        assert isinstance(response, CanonicalResponse)
        assert response.raw is not None
        events: list[Any] = list(response.raw.events)
        if "no stream" in faults:
            assert isinstance(response.raw.body, dict)
            assert response.raw.body["status"] == "completed"
        else:
            said = [each["delta"] for each in events if each["type"] == "response.output_text.delta"]
            assert "".join(said) == WORDS
            numbers = [each["sequence_number"] for each in events]
            assert numbers == sorted(set(numbers))
        whole = await adapter.complete(ask(include_raw=True, request_id="req_2"))
        assert isinstance(whole.raw, RawReply)
        assert isinstance(whole.raw.body, dict)
        assert whole.raw.body["status"] == "completed"

    run_virtual(run)
