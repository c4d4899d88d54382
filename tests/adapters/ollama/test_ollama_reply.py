"""What Ollama says, whole and in lines, becomes content, a stop reason and usage."""

from __future__ import annotations

import msgspec
import ollama
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.usage.estimate import TokenRates, estimate_tokens
from bus.errors import (
    AdapterError,
    CapabilityError,
    ContextOverflowError,
    NotFoundError,
    OverloadedError,
    ServerError,
    StreamError,
)
from bus.streams.events import ThinkingDelta, ToolUseEnd, ToolUseInputDelta, ToolUseStart
from bus.values.content import ToolUseBlock
from bus.values.json import Json, JsonObject
from bus.values.usage import StopReason, UsageSource

from .wire_lines import METRICS, ask, body, call, last, line, read, read_pieces, read_reply

SHORTEST = estimate_tokens("Hi", TokenRates())


@pytest.mark.parametrize(
    "vector",
    [
        line(thinking="Hm."),
        line(content="Hi"),
        line(tool_calls=[call("look", {"at": 1}), call("clock", {}, "call_1")]),
        last(),
        last("length", {}),
        last(None, content="Hi"),
    ],
)
def test_the_official_client_takes_our_lines_for_its_servers(vector: JsonObject) -> None:
    """They are written by hand, so somebody else must say that they are right."""
    judged = ollama.ChatResponse.model_validate(vector)
    assert judged.message.content == vector["message"]["content"]
    assert judged.done == vector["done"]
    assert judged.eval_count == vector.get("eval_count")
    assert len(judged.message.tool_calls or ()) == len(vector["message"].get("tool_calls", ()))


def test_thinking_then_text_then_calls_then_the_end() -> None:
    """Each in its block, in that order, however the network cuts the lines."""
    outcome = read(
        line(thinking="Let me"),
        line(thinking=" see ☃"),
        line(content="It is "),
        line(content="cold.\u2028"),
        line(tool_calls=[call("look", {"at": "☃\u2028"}, "call_a1")]),
        last(),
    )
    assert outcome.said == [
        ("thinking", "Let me see ☃"),
        "It is cold.\u2028",
        ("call_a1", "look", {"at": "☃\u2028"}),
    ]
    assert outcome.error is None
    assert (outcome.end.stop_reason, outcome.end.raw_stop_reason) == (StopReason.TOOL_USE, "stop")
    assert [event.text for event in outcome.events if isinstance(event, ThinkingDelta)] == ["Let me", " see ☃"]


@pytest.mark.parametrize("together", [True, False])
def test_calls_come_whole_one_or_several_in_a_line(together: bool) -> None:
    """Each is a call of its own, with the very text of its arguments, also twice the same and without an id."""
    calls = [call("look", {"at": 1}), call("look", {"at": 1}), call("clock", {})]
    lines = [line(tool_calls=calls)] if together else [line(tool_calls=[one]) for one in calls]
    outcome = read(*lines, last())
    assert outcome.said == [(None, "look", {"at": 1}), (None, "look", {"at": 1}), (None, "clock", {})]
    assert outcome.end.stop_reason is StopReason.TOOL_USE
    kinds = [type(event) for event in outcome.events]
    assert kinds[1:7] == [ToolUseStart, ToolUseInputDelta, ToolUseEnd] * 2
    ids = [block.id for block in outcome.content if isinstance(block, ToolUseBlock)]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("arguments", "expected", "incomplete"),
    [
        ('{"at":1}', {"at": 1}, False),  # as text, from other implementations
        (None, {}, False),
        ("", {}, False),
        ({}, {}, False),
        ("{at", {}, True),
        ([1], {}, True),
        (7, {}, True),
    ],
)
def test_arguments_of_every_kind(arguments: Json, expected: JsonObject, incomplete: bool) -> None:
    """What is no object is never executed."""
    (block,) = read(line(tool_calls=[call("look", arguments)]), last()).content
    assert isinstance(block, ToolUseBlock)
    assert (block.input, block.incomplete) == (expected, incomplete)


def test_numbers_in_arguments_keep_their_text() -> None:
    """The fragment is the server's own JSON, not ours."""
    raw = b'{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"n": 1.10, "m":1e2}}}]}}\n' + body(
        last()
    )
    (delta,) = (event for event in read(raw=raw).events if isinstance(event, ToolUseInputDelta))
    assert delta.partial_json == '{"n": 1.10, "m":1e2}'


def test_a_call_without_a_name_is_dropped_with_a_warning() -> None:
    """There is nothing to call."""
    outcome = read(line(content="Hm.", tool_calls=[call("", {}), {}]), last())
    assert outcome.said == ["Hm."]
    assert outcome.warnings == ["nameless_tool_call"] * 2
    assert outcome.end.stop_reason is StopReason.END_TURN


@pytest.mark.parametrize(
    ("reason", "metrics", "expected"),
    [
        ("stop", METRICS, StopReason.END_TURN),
        ("length", METRICS, StopReason.MAX_TOKENS),
        ("load", {}, StopReason.PROVIDER_SPECIFIC),
        ("unload", {}, StopReason.PROVIDER_SPECIFIC),
        ("something new", METRICS, StopReason.PROVIDER_SPECIFIC),
        (None, METRICS, StopReason.END_TURN),
        (None, {**METRICS, "eval_count": 64}, StopReason.MAX_TOKENS),
        ("", {**METRICS, "eval_count": 64}, StopReason.MAX_TOKENS),
    ],
)
def test_reasons_to_stop(reason: str | None, metrics: JsonObject, expected: StopReason) -> None:
    """Where there is none, from older servers, the count of tokens tells whether the limit (64) was reached."""
    for outcome in (
        read(line(content="Hi"), last(reason, metrics)),
        read_reply(last(reason, metrics, content="Hi")),
    ):
        assert outcome.end.stop_reason is expected
        assert outcome.end.raw_stop_reason == (reason or None)


def test_a_call_at_the_limit_is_not_to_be_executed() -> None:
    """It may be whole, and nobody knows."""
    outcome = read(line(tool_calls=[call("look", {"at": 1})]), last("length"))
    (block,) = outcome.content
    assert isinstance(block, ToolUseBlock)
    assert block.incomplete
    assert outcome.end.stop_reason is StopReason.MAX_TOKENS


def test_usage_as_reported() -> None:
    """With all durations in `raw`, for prices by time."""
    usage = read(line(content="Hi"), last()).end.usage
    assert (usage.input_tokens, usage.output_tokens, usage.source) == (11, 18, UsageSource.REPORTED)
    assert usage.raw is not None
    assert msgspec.json.decode(usage.raw) == METRICS


@pytest.mark.parametrize(
    ("metrics", "source", "output"),
    [
        ({"eval_count": 18}, UsageSource.ESTIMATED, 18),  # all of the prompt was cached, and older servers say 0
        ({"prompt_eval_count": 0, "eval_count": 18}, UsageSource.ESTIMATED, 18),
        ({"prompt_eval_count": 11}, UsageSource.ESTIMATED, SHORTEST),
        ({"prompt_eval_count": None, "eval_count": True}, UsageSource.ESTIMATED, 1),
        ({}, UsageSource.ESTIMATED, 1),
    ],
)
def test_missing_counts_are_no_zeros(metrics: JsonObject, source: UsageSource, output: int) -> None:
    """They are estimated, and the usage and a warning say so."""
    outcome = read(line(content="Hi"), last("stop", metrics))
    usage = outcome.end.usage
    assert (usage.source, usage.output_tokens) == (source, output)
    assert usage.input_tokens > 0
    assert outcome.warnings == ["usage_estimated"]


def test_no_output_and_no_count_of_it_is_zero() -> None:
    """Zeros are left out of the wire."""
    usage = read(last("stop", {"prompt_eval_count": 11})).end.usage
    assert (usage.input_tokens, usage.output_tokens, usage.source) == (11, 0, UsageSource.REPORTED)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("server busy, please try again.  maximum pending requests exceeded", OverloadedError),
        ("an error was encountered while running the model: CUDA error", AdapterError),
        ("llama runner process has terminated: exit status 2", ServerError),
        ("the prompt is longer than the context length currently available to the model", ContextOverflowError),
        ('"qwen" does not support tools', CapabilityError),
        ("model 'x' not found", NotFoundError),
    ],
)
def test_an_error_is_a_line_of_a_reply_of_status_200(said: str, kind: type[AdapterError]) -> None:
    """Alone, after text, and in a whole reply."""
    for lines in ([{"error": said}], [line(content="Hi"), {"error": said}]):
        outcome = read(*lines)
        assert type(outcome.error) is kind
        assert outcome.error.provider_message == said
        assert outcome.complete is None
    with pytest.raises(kind) as raised:
        read_reply({"error": said})
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    "lines",
    [[], [line(content="Hi")], [line(thinking="Hm")], [line(tool_calls=[call("look", {})])]],
    ids=["nothing", "text", "thinking", "call"],
)
def test_a_body_that_ends_before_its_last_line_is_broken(lines: list[Json]) -> None:
    """Whatever it has said."""
    outcome = read(*lines)
    assert isinstance(outcome.error, StreamError)
    assert outcome.complete is None


@pytest.mark.parametrize("broken", [b'{"message":{"con', b"<html>", b"[1]", b'{"message":"text"}', b"null"])
def test_a_line_that_is_none_is_a_stream_error(broken: bytes) -> None:
    """After what came before it."""
    outcome = read(raw=body(line(content="Hi")) + broken + b"\n")
    assert isinstance(outcome.error, StreamError)
    with pytest.raises((StreamError, msgspec.DecodeError)):
        read_reply(msgspec.Raw(broken) if broken.startswith((b"[", b"n")) else {"message": "text"})


def test_what_follows_the_last_line_is_ignored() -> None:
    """The reply is whole."""
    outcome = read(line(content="Hi"), last(), line(content=" there"), {"error": "late"})
    assert outcome.said == ["Hi"]
    assert outcome.error is None


def test_line_ends_and_blank_lines() -> None:
    """Also none at the very end."""
    for raw in (
        body(line(content="Hi"), last(), end=b"\r\n"),
        body(line(content="Hi"), last(), end=b"\n\n"),
        body(line(content="Hi"), last()).rstrip(),
    ):
        assert read(raw=raw).said == ["Hi"]


def test_the_last_line_may_say_something_too() -> None:
    """A whole reply is such a line; and a text in the last line of a stream is not lost."""
    whole = read_reply(last(content="Hi", thinking="Hm", tool_calls=[call("look", {"at": 1}, "call_1")]))
    assert whole.said == [("thinking", "Hm"), "Hi", ("call_1", "look", {"at": 1})]
    assert read(line(content="Hi"), last(content=" there")).said == ["Hi there"]


def test_a_reply_that_was_streamed_without_having_been_asked() -> None:
    """Streaming is the server's default, and a proxy may lose the wish for the other."""
    assert read_reply(msgspec.Raw(body(line(content="Hi"), last(content=" there")))).said == ["Hi there"]
    with pytest.raises(StreamError, match="not done"):
        read_reply(line(content="Hi"))


FRAGMENT = st.one_of(
    st.text(min_size=1, max_size=5).map(lambda text: line(content=text)),
    st.text(min_size=1, max_size=5).map(lambda text: line(thinking=text)),
    st.dictionaries(st.text(max_size=3), st.integers(-9, 9) | st.text(max_size=3) | st.none(), max_size=2).map(
        lambda given: line(tool_calls=[call("look", given)])
    ),
)


@settings(max_examples=60)
@given(st.lists(FRAGMENT, max_size=5), st.data())
def test_any_lines_are_the_same_in_any_pieces(lines: list[Json], data: st.DataObject) -> None:
    """And nothing of what was said is lost."""
    raw = body(*lines, last())
    size = data.draw(st.integers(1, len(raw)))
    whole, cut = read_pieces([raw]), read_pieces([raw[at : at + size] for at in range(0, len(raw), size)])
    assert cut.events == whole.events
    messages = [one["message"] for one in lines]  # type: ignore[call-overload, index]
    texts = [block for block in whole.said if isinstance(block, str)]
    assert "".join(texts) == "".join(message["content"] for message in messages)
    calls = [message["tool_calls"][0]["function"]["arguments"] for message in messages if "tool_calls" in message]
    assert [block.input for block in whole.content if isinstance(block, ToolUseBlock)] == calls


def test_the_served_model_is_the_replys() -> None:
    """As the server names it."""
    response = read_reply(last(content="Hi"), ask(model="ollama:qwen3"))
    assert response.events[0].model == "qwen3:8b"  # type: ignore[union-attr]
