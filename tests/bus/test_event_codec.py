"""Envelopes as JSON, and back: everything of an event, content included, whatever a provider or a host put in."""

from __future__ import annotations

import msgspec
import pytest

from callboard.bus import (
    Envelope,
    Event,
    ImageBlock,
    LlmCallCompleted,
    Message,
    MessageMetadata,
    SessionMessageAppended,
    StopReason,
    TextBlock,
    TokenUsage,
    UnknownEvent,
    decode_as,
    decode_envelope,
    encode_envelope,
)
from callboard.bus.events.codec import decode_event, encode_event
from callboard.bus.values.usage import Cost, CostSource


class Moved(Event, frozen=True, kw_only=True, tag="host.moved"):
    """An event of a host's own."""

    metres: int


def envelope(event: Event) -> Envelope:
    return Envelope(7, "run_a", 1_790_000_000_000_000, 5, event, session_id="s1", attempt=2, tags={"team": "red"})


def raw_usage() -> TokenUsage:
    return TokenUsage(7, 1, raw=msgspec.Raw(b'{"prompt_tokens":7}'))


def completed(usage: TokenUsage) -> LlmCallCompleted:
    return LlmCallCompleted(
        provider="openai",
        model="openai:gpt-5",
        served_model="openai:gpt-5",
        stop_reason=StopReason.END_TURN,
        raw_stop_reason="stop",
        usage=usage,
        cost=Cost(1, CostSource.COMPUTED),
        latency_ms=10,
    )


def test_a_call_comes_back_with_the_providers_own_usage() -> None:
    sent = envelope(completed(raw_usage()))
    assert decode_envelope(encode_envelope(sent)) == sent


@pytest.mark.parametrize(
    "raw", [b'{"raw":{"n":1},"n":2}', b'{"raw":null}', b'"raw"', b"[1]", b'{ "n" : 1 }', b"7"]
)
def test_a_usage_object_may_look_like_anything(raw: bytes) -> None:
    """However the JSON around it is set, too."""
    sent = completed(TokenUsage(7, 1, raw=msgspec.Raw(raw)))
    encoded = encode_event(sent)
    for text in (encoded, encoded.decode(), encoded.replace(b'"raw":', b'"raw" :  ', 1)):
        assert decode_event(sent.topic_of(), text) == sent


def test_a_message_comes_back_with_its_content() -> None:
    """Media as bytes, and the usage object of the reply as it came."""
    metadata = MessageMetadata(
        provider="openai",
        model="openai:gpt-5",
        usage=raw_usage(),
        cost=Cost(1, CostSource.COMPUTED),
        stop_reason=StopReason.END_TURN,
    )
    content = (TextBlock(text="line\nbreak"), ImageBlock(data=b"\x00\xff", media_type="image/png"))
    message = msgspec.structs.replace(Message.user("x"), content=content, metadata=metadata)
    sent = envelope(SessionMessageAppended(position=3, message=message))
    encoded = encode_envelope(sent)
    assert b"\n" not in encoded
    assert decode_envelope(encoded) == sent


def test_a_hosts_own_event_comes_back_as_unknown_and_then_as_its_type() -> None:
    found = decode_envelope(encode_envelope(envelope(Moved(metres=2))))
    assert isinstance(found.data, UnknownEvent)
    assert found.topic == "host.moved"
    assert decode_as(Moved, found.data) == Moved(metres=2)
    assert decode_envelope(encode_envelope(found)) == found


def test_half_a_surrogate_pair_is_no_reason_to_lose_an_envelope() -> None:
    sent = msgspec.structs.replace(envelope(Moved(metres=2)), tags={"team": "\ud800"})
    assert decode_envelope(encode_envelope(sent)).tags == {"team": "\ud800"}


NO_TOPIC = b'{"seq":1,"run_id":"r","ts_us":1,"mono_ns":1,"data":{}}'


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"seq":1}', NO_TOPIC])
def test_what_is_no_envelope_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        decode_envelope(text)
