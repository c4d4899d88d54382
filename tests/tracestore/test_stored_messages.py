"""Messages of any blocks come back from their bodies, and from a line, as they were."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from callboard.bus.events.sessions import SessionMessageAppended
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Candidate, Message, MessageMetadata, Role, RoutingDecision
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage, UsageSource
from callboard.tracestore.codec import decode_line, encode_line
from callboard.tracestore.writing.captured import bodies_of, decode_metadata, encode_metadata, message_of

from .content_making import METADATA, PICTURE, captured
from .trace_making import Maker

pytestmark = pytest.mark.anyio

texts = st.text(max_size=20) | st.sampled_from(["x" * 3000, "half a pair: \ud800", "\n", "\0"])


numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)


json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


json_objects = st.dictionaries(texts, json_values, max_size=3)


raws = st.builds(ProviderRaw, texts, json_objects, st.none() | texts)


maybe_raws = st.none() | raws


data = st.binary(min_size=1, max_size=40) | st.sampled_from([PICTURE, b"x" * 1024])


def media(kind: type[ImageBlock] | type[AudioBlock] | type[DocumentBlock]) -> st.SearchStrategy[ContentBlock]:
    by_data = st.builds(lambda body: kind(data=body, media_type="application/x-test"), data)
    return by_data | st.builds(lambda url: kind(url=url), texts)


text_blocks = st.builds(TextBlock, texts, maybe_raws)


images, documents = media(ImageBlock), media(DocumentBlock)


results = st.builds(
    ToolResultBlock,
    texts,
    texts | st.lists(text_blocks | images | documents, max_size=3).map(tuple),
    st.booleans(),
)


said_by_user = text_blocks | images | media(AudioBlock) | documents


said_by_assistant = (
    text_blocks
    | images
    | st.builds(ToolUseBlock, texts, texts, json_objects, st.none() | texts, st.booleans(), maybe_raws)
    | st.builds(ThinkingBlock, texts, st.none() | texts, maybe_raws)
    | st.builds(RedactedThinkingBlock, texts, maybe_raws)
    | st.builds(OpaqueBlock, texts, raws)
)


counts = st.integers(0, 2**40)


usages = st.builds(
    TokenUsage,
    counts,
    counts,
    counts,
    counts,
    counts,
    st.none() | counts,
    st.sampled_from(UsageSource),
    st.none() | st.sampled_from([b'{"prompt_tokens":10.50,"x":[1, 2]}', b"[]", b'"x"']).map(msgspec.Raw),
    st.none() | counts,
)


words = st.text(st.characters(codec="utf-8"), max_size=20)


metadatas = st.builds(
    MessageMetadata,
    provider=words,
    model=words,
    usage=usages,
    cost=st.builds(Cost, st.none() | counts, st.sampled_from(CostSource), st.none() | words, st.none() | words),
    stop_reason=st.sampled_from(StopReason),
    raw_stop_reason=st.none() | words,
    routing=st.none()
    | st.builds(
        RoutingDecision,
        words,
        words,
        words,
        words,
        st.lists(st.builds(Candidate, words, st.none() | words, st.none() | words), max_size=2).map(tuple),
    ),
    request_id=st.none() | words,
    latency_ms=st.none() | counts,
)


def messages_of(role: Role, blocks: st.SearchStrategy[ContentBlock]) -> st.SearchStrategy[Message]:
    content = st.lists(blocks, max_size=4).map(tuple)
    return st.builds(Message, st.just(role), content, st.none() | words, st.none() | texts, st.none() | metadatas)


messages = (
    messages_of(Role.SYSTEM, text_blocks)
    | messages_of(Role.DEVELOPER, text_blocks)
    | messages_of(Role.USER, said_by_user)
    | messages_of(Role.ASSISTANT, said_by_assistant)
    | messages_of(Role.TOOL, results)
)


@settings(max_examples=150)
@given(messages)
def test_a_message_of_any_blocks_comes_back_from_its_bodies_as_it_was(message: Message) -> None:
    """Signatures, opaque data, numbers of any size, media and half surrogate pairs included."""
    digest, bodies = bodies_of(message)
    found = message_of(bodies[digest], bodies.__getitem__)
    assert found == msgspec.structs.replace(message, id=None, metadata=None)
    if message.metadata is not None:
        assert decode_metadata(encode_metadata(message.metadata)) == message.metadata


@settings(max_examples=100)
@given(messages)
def test_a_captured_message_comes_back_from_a_line_as_it_was(message: Message) -> None:
    """One line in a spill file, whatever is in it."""
    (envelope,) = captured(Maker()(SessionMessageAppended(position=3, message=message), session_id="s"))
    line = encode_line(envelope)
    assert line.count(b"\n") == 1
    assert decode_line(line) == envelope


def test_fields_of_a_later_version_are_skipped() -> None:
    """A newer Callboard may add fields to messages, blocks and metadata."""
    body = b'{"role":"user","mood":"good","content":[{"type":"text","text":"Hi","colour":{"r":1}}]}'
    assert message_of(body, {}.__getitem__) == Message.user("Hi")
    metadata = msgspec.json.decode(encode_metadata(METADATA))
    metadata["usage"]["imagined_tokens"] = 4
    metadata["planet"] = "Mars"
    assert decode_metadata(msgspec.json.encode(metadata)) == METADATA
