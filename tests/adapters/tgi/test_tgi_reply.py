"""What TGI generates, whole and token by token, becomes text, a stop reason and usage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.providers.tgi.prompt import TEMPLATES
from adapters.providers.tgi.stops import StopTrimmer
from bus.errors import (
    AdapterError,
    ContextOverflowError,
    InvalidRequestError,
    OverloadedError,
    ServerError,
    StreamError,
)
from bus.values.json import Json
from bus.values.usage import StopReason, UsageSource

from .wire_tokens import ask, body, details, end, read, read_reply, token


def test_tokens_are_text_and_special_ones_are_not() -> None:
    """Whatever characters stand in a token; the space before the reply is none of it."""
    outcome = read(
        token(" It"), token(" is ☃\u2028"), token("<s>", special=True), end(" It is ☃\u2028", details())
    )
    assert outcome.text == "It is ☃\u2028"
    assert (outcome.end.stop_reason, outcome.end.raw_stop_reason) == (StopReason.END_TURN, "eos_token")
    usage = outcome.end.usage
    assert (usage.input_tokens, usage.output_tokens, usage.source) == (9, 4, UsageSource.REPORTED)


def test_every_form_of_events() -> None:
    """Without a space after the colon, as old servers write; with comments to keep the connection."""
    events = (token("Hi"), end("Hi", details()))
    assert read(raw=body(*events, colon=b":")).text == "Hi"
    assert read(raw=b": keep-alive\n\n" + body(events[0]) + b":\n\n" + body(events[1]).rstrip()).text == "Hi"


def test_the_last_token_may_be_text() -> None:
    """At the limit it is."""
    outcome = read(token("Once"), end("Once upon", details("length"), " upon", special=False))
    assert outcome.text == "Once upon"
    assert outcome.end.stop_reason is StopReason.MAX_TOKENS


@pytest.mark.parametrize(
    ("asked", "generated", "reason", "text", "expected"),
    [
        ((), "Hi.\nUser:", "stop_sequence", "Hi.", StopReason.END_TURN),  # the template's own stop
        (("END",), "Hi.END", "stop_sequence", "Hi.", StopReason.STOP_SEQUENCE),
        (("END", "DEND"), "Hi.DEND", "stop_sequence", "Hi.", StopReason.STOP_SEQUENCE),
        (("END",), "Hi.END", "length", "Hi.END", StopReason.MAX_TOKENS),  # it was no stop
        (("END",), "Hi.EN", "eos_token", "Hi.EN", StopReason.END_TURN),
        (("END",), "Hi. ENDEAVOUR", "eos_token", "Hi. ENDEAVOUR", StopReason.END_TURN),
        (("END",), "Hi.", "stop_sequence", "Hi.", StopReason.STOP_SEQUENCE),  # cut off by the server already
        ((), "Hi.", "tired", "Hi.", StopReason.PROVIDER_SPECIFIC),
        (("END",), "END", "stop_sequence", "", StopReason.STOP_SEQUENCE),
    ],
)
def test_stop_sequences_are_no_text(
    asked: tuple[str, ...], generated: str, reason: str, text: str, expected: StopReason
) -> None:
    """However the tokens cut them; streamed and whole are the same."""
    request = ask(stop_sequences=asked)
    last = end(generated, details(reason))
    outcomes = [
        read(*map(token, generated), last, request=request),
        read(token(generated), last, request=request),
        read_reply({"generated_text": generated, "details": details(reason)}, request),
    ]
    for outcome in outcomes:
        assert (outcome.text, outcome.end.stop_reason, outcome.end.raw_stop_reason) == (text, expected, reason)


def test_without_details_no_reason_is_made_up() -> None:
    """A stop at the end is still recognised; usage is an estimate and says so."""
    outcome = read(token("Hi"), end("Hi", None))
    assert (outcome.end.stop_reason, outcome.end.raw_stop_reason) == (StopReason.PROVIDER_SPECIFIC, None)
    assert outcome.end.usage.source is UsageSource.ESTIMATED
    assert outcome.warnings == ["no_stop_reason", "usage_estimated"]
    assert read_reply({"generated_text": "Hi\nUser:"}).end.stop_reason is StopReason.END_TURN


def test_a_missing_input_length_is_no_zero() -> None:
    """Whole replies and old servers don't have it."""
    outcome = read_reply({"generated_text": "Hi", "details": details(input_length=None)})
    assert outcome.end.usage.source is UsageSource.ESTIMATED
    assert outcome.end.usage.input_tokens > 0
    assert outcome.end.usage.output_tokens == 4
    prefill: Json = [{"id": 1, "text": "H", "logprob": None}] * 3
    counted = read_reply({"generated_text": "Hi", "details": details(input_length=None, prefill=prefill)})
    assert (counted.end.usage.input_tokens, counted.end.usage.source) == (3, UsageSource.REPORTED)


def test_a_whole_reply_may_stand_in_a_list() -> None:
    """As hosted inference wraps it."""
    assert read_reply([{"generated_text": " Hi"}]).text == "Hi"


def test_a_server_that_says_all_at_its_end() -> None:
    """Its last event is enough."""
    assert read(end("Hi there", details())).text == "Hi there"


def test_templates_keep_the_space_that_chat_models_write() -> None:
    """Only the plain one asks for a reply after a colon."""
    assert read(token(" Hi"), end(" Hi", details()), template=TEMPLATES["chatml"]).text == " Hi"


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        ("Input validation error: `temperature` must be strictly positive", "validation", InvalidRequestError),
        ("`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 9000", "validation", ContextOverflowError),
        ("`inputs` must have less than 1000 tokens. Given: 1500", "validation", ContextOverflowError),
        ("Model is overloaded", "overloaded", OverloadedError),
        ("Request failed during generation: Server error: CUDA", "generation", ServerError),
        ("Incomplete generation", "incomplete_generation", ServerError),
        ("Incomplete generation stream", "incomplete_generation_stream", ServerError),
        ("Template error: x", "template_error", InvalidRequestError),
        ("Tool error: x", "tool_error", InvalidRequestError),
        ("something else", None, AdapterError),
    ],
)
def test_errors_come_as_events_of_a_reply_of_status_200(
    said: str, kind: str | None, expected: type[AdapterError]
) -> None:
    """At once, or after text."""
    event: Json = {"error": said, "error_type": kind}
    for events in ([event], [token("Hi"), event]):
        outcome = read(*events)
        assert type(outcome.error) is expected
        assert (outcome.error.provider_message, outcome.error.provider_code) == (said, kind)
        assert outcome.complete is None


def test_a_body_that_ends_before_its_last_event_is_broken() -> None:
    """Whatever it has said; and what is none of the protocol is told apart from silence."""
    for events in ([], [token("Hi")]):
        assert isinstance(read(*events).error, StreamError)
    for raw in (b"data: {\n\n", b"data: [1]\n\n", b"data: null\n\n", b'data: {"token": 1}\n\n'):
        assert isinstance(read(raw=raw).error, StreamError)
    with pytest.raises(StreamError, match="no generated text"):
        read_reply({})


@given(
    st.lists(st.text(alphabet="abX\n", max_size=4), max_size=8),
    st.lists(st.text(alphabet="abX\n", min_size=1, max_size=4), max_size=4),
    st.booleans(),
)
def test_trimming_loses_nothing_but_the_stop(parts: list[str], stops: list[str], stopped: bool) -> None:
    """What is shown, and the stop, are the text; and no stop is left at its end."""
    trimmer = StopTrimmer(stops)
    shown = "".join(trimmer.feed(part) for part in parts)
    rest, stop = trimmer.finish(stopped=stopped)
    text = "".join(parts)
    assert shown + rest + (stop or "") == text
    ends = [one for one in stops if text.endswith(one)]
    assert stop == (max(ends, key=len) if stopped and ends else None)
