"""Captured content: stored, shortened and deleted."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from callboard.bus.bus import Bus
from callboard.bus.errors import StoreError
from callboard.bus.events import Envelope, Event, UnknownEvent
from callboard.bus.events.codec import CatalogueEvent, decode_event
from callboard.bus.events.sessions import SessionConfigured, SessionMessageAppended, SessionTurnCompleted
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
from callboard.bus.values.messages import CallSettings, Candidate, Message, MessageMetadata, Role, RoutingDecision
from callboard.bus.values.usage import Cost, CostSource, StopReason, TokenUsage, UsageSource
from callboard.tracestore import Capture, TraceStore, WriterCore, WriterOptions
from callboard.tracestore.codec import KEPT, decode_line, encode_event, encode_line, figures_of
from callboard.tracestore.writing.content import bodies_of, decode_metadata, encode_metadata, message_of
from callboard.tracestore.writing.overflow import SpillFile

from ..support.present import present
from .content_making import METADATA, PICTURE, appended, captured, configured, count, everything
from .trace_making import Maker
from .writer_rig import DISK_FULL, QUICK, FakeSource, Rig, until

# Content in the store: off by default, stored once, redacted before it is stored, and deleted when it expires.


async def test_repeated_content_is_stored_once(store: TraceStore, make: Maker) -> None:
    """Fifty turns with the same picture and the same long text store one picture and one text."""
    long = TextBlock("a manual " * 2000)
    turns = [
        message
        for turn in range(50)
        for message in (
            Message.user([long, ImageBlock(data=PICTURE), TextBlock(f"question {turn}")]),
            Message.tool_result("tu", [ImageBlock(data=PICTURE)]),
            Message.assistant("yes"),
        )
    ]
    for session in ("s", "t"):
        await store.write(captured(configured(make, session), *appended(make, turns, session)))
    assert await store.messages("t") == turns
    # one setup, fifty questions, one result, one answer, the manual and the picture
    assert count(store, "SELECT count(*) FROM content") == 55
    assert count(store, "SELECT sum(length(body)) FROM content") < len(PICTURE) + len(long.text) + 55 * 500


# -- Redaction


async def test_the_hook_selects_the_stored_content(store: TraceStore, make: Maker) -> None:
    """The hook can change or withhold a message, and also receives the system prompt."""

    def redact(message: Message) -> Message | None:
        if "password" in message.text:
            return None
        return Message(message.role, (TextBlock(message.text.replace("Bob", "[name]").replace("brief", "kind")),))

    said = [
        Message(Role.USER, (TextBlock("I am Bob"),), id="msg_1"),
        Message.user("My password is 1234"),
        Message.assistant("Hi, Bob"),
    ]
    envelopes = captured(configured(make), *appended(make, said), capture=Capture(redact))
    await store.write(envelopes)
    saved = await store.saved_session("s")
    assert present(saved.setup).system_prompt == "You are kind."
    assert [message.text for message in saved.messages] == ["I am [name]", "Hi, [name]"]
    assert saved.messages[0].id == "msg_1"
    assert saved.missing == ("message 1 was not stored (redacted)",)
    (row,) = await store.sessions()
    assert (row.messages, row.resumable) == (3, False)
    for secret in (b"Bob", b"1234", b"brief"):
        assert secret not in everything(store)


@pytest.mark.parametrize("answer", [KeyError("My password is 1234"), "no message"])
async def test_a_hook_that_fails_withholds_the_message(store: TraceStore, make: Maker, answer: object) -> None:
    """The message is withheld, without the text of the error. Other content is stored."""

    def redact(message: Message) -> Message:
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[return-value]

    said = [Message.user("My password is 1234"), Message.assistant("Fine")]
    envelopes = captured(configured(make), *appended(make, said), capture=Capture(redact))
    await store.write([*envelopes, make.started()])
    saved = await store.saved_session("s")
    assert saved.messages == ()
    assert saved.withheld is not None
    assert present(saved.setup).system_prompt is None
    assert all("redaction failed" in missing for missing in saved.missing)
    assert len(await store.calls()) == 1
    assert b"1234" not in everything(store)


# -- Expiry


async def test_expired_content_is_deleted_and_used_content_stays(store: TraceStore, make: Maker) -> None:
    old = [Message.user("an old secret " * 300), Message.assistant("shared answer")]
    await store.write([*captured(configured(make), *appended(make, old)), make.completed(session_id="s")])
    now = Maker()
    cut = make.started().ts_us
    for _ in range(20):
        now.started()
    fresh = [Message.user("new question"), Message.assistant("shared answer")]
    await store.write(captured(configured(now, "t"), *appended(now, fresh, "t")))
    assert await store.forget_content(cut) == 2  # the old question and its large block
    assert await store.saved_session("s") is None
    assert await store.messages("t") == fresh
    assert {row.session_id: row.resumable for row in await store.sessions()} == {"s": False, "t": True}
    assert len(await store.calls()) == 1
    await store.close()
    assert b"an old secret" not in everything(store)


def test_events_without_a_session_are_not_captured_as_one() -> None:
    event: Event = SessionConfigured(history=0)
    (envelope,) = captured(Maker()(event))
    assert envelope.data is event


# The writer and content: spilled content, content that is stored later, and the limit of waiting content.

SCREENSHOT = ImageBlock(data=b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8)
SAID = [Message.user([TextBlock("My name is Bob"), SCREENSHOT]), Message.assistant("Hi.\nBob")]


def said(make: Maker, messages: Sequence[Message] = SAID) -> list[Envelope]:
    appended = [SessionMessageAppended(position=place, message=message) for place, message in enumerate(messages)]
    return [make(event, session_id="s") for event in appended]


def spilled_by(folder: Path, capture: Capture | None) -> Path:
    """Return the spill file of a writer whose store always failed."""
    rig = Rig(folder, capture=capture)
    rig.sink.failure = DISK_FULL
    rig.source.put(*said(rig.make))
    anyio.run(rig.core.close)
    return rig.spill


def test_the_spill_file_has_content_only_if_it_is_captured(tmp_path: Path) -> None:
    """Without capture, no content reaches the disk. With capture, the spill file has the hook's result."""
    for name in ("off", "on"):
        (tmp_path / name).mkdir()
    off = spilled_by(tmp_path / "off", None).read_bytes()
    assert off.count(b"\n") == 2
    assert b"Bob" not in off
    seen: list[str] = []

    def redact(message: Message) -> Message:
        seen.append(message.text)
        return Message.user("I am somebody") if message.role == "user" else message

    on = spilled_by(tmp_path / "on", Capture(redact)).read_bytes()
    assert on.count(b"\n") == 2
    assert b"My name" not in on
    assert b"I am somebody" in on
    assert seen == [message.text for message in SAID], "each message was shown to the hook once"


async def test_spilled_content_is_stored_when_the_store_recovers(store: TraceStore, tmp_path: Path) -> None:
    asked = 0

    def redact(message: Message) -> Message:
        nonlocal asked
        asked += 1
        return message

    class Flaky:
        failing = True

        async def write(self, envelopes: Sequence[Envelope], /) -> None:
            if self.failing:
                raise StoreError("disk full")
            await store.write(envelopes)

    sink, source = Flaky(), FakeSource()
    core = WriterCore(sink, source, spill_path=tmp_path / "x.jsonl", options=QUICK, capture=Capture(redact))
    async with anyio.create_task_group() as group:
        group.start_soon(core.run)
        source.put(*said(Maker()))
        await until(lambda: core.state == "spilling" and core.statistics().spilled == 2)
        sink.failing = False
        await until(lambda: core.state == "ok")
        group.cancel_scope.cancel()
    assert await store.messages("s") == SAID
    assert asked == len(SAID)


async def test_a_process_without_capture_adopts_the_content_of_a_dead_one(store: TraceStore, make: Maker) -> None:
    dead = SpillFile(store.path.with_name("trace.db.spill-run_dead.jsonl"), 10**6)
    dead.append([Capture().apply(envelope) for envelope in said(make)])
    dead.close()
    core = WriterCore.for_bus(store, bus := Bus())
    bus.close()
    with anyio.fail_after(5):
        await core.run()
    assert await store.messages("s") == SAID


async def test_waiting_content_is_limited_in_bytes(tmp_path: Path) -> None:
    large = [Message.user(str(number) * 100_000) for number in range(6)]
    options = WriterOptions(first_retry=60.0, memory_bytes=250_000, spill_bytes=250_000)
    rig = Rig(tmp_path, options, Capture())
    rig.sink.failure = DISK_FULL
    for event in said(rig.make, large):
        rig.source.put(event)
        with pytest.raises(StoreError):
            await rig.core.flush()
    statistics = rig.core.statistics()
    assert (statistics.state, statistics.spilled, statistics.lost) == ("dropping", 2, 2)
    assert (statistics.lost_first_seq, statistics.lost_last_seq) == (5, 6)
    assert statistics.waiting_bytes <= 250_000


def test_large_events_are_read_back_in_small_batches(tmp_path: Path, make: Maker) -> None:
    spill = SpillFile(tmp_path / "x.jsonl", 10**8)
    large = [Message.user(str(n) * 3_000_000) for n in range(4)]
    spill.append([Capture().apply(event) for event in said(make, large)])
    found: list[int] = []
    while spill.waiting:
        batch, size = spill.peek(256)
        assert 0 < len(batch) <= 2
        found += [envelope.seq for envelope in batch]
        spill.discard(len(batch), size)
    assert found == [1, 2, 3, 4]


# Messages of any blocks are read back unchanged from their bodies and from a line.

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
raw_usages = st.sampled_from([b'{"prompt_tokens":10.50,"x":[1, 2]}', b"[]", b'"x"']).map(msgspec.Raw)
usages = st.builds(
    TokenUsage,
    *[counts] * 5,
    *(st.none() | counts, st.sampled_from(UsageSource), st.none() | raw_usages, st.none() | counts),
)

words = st.text(st.characters(codec="utf-8"), max_size=20)
candidates = st.lists(st.builds(Candidate, words, st.none() | words, st.none() | words), max_size=2).map(tuple)
metadatas = st.builds(
    MessageMetadata,
    provider=words,
    model=words,
    usage=usages,
    cost=st.builds(Cost, st.none() | counts, st.sampled_from(CostSource), st.none() | words, st.none() | words),
    stop_reason=st.sampled_from(StopReason),
    raw_stop_reason=st.none() | words,
    routing=st.none() | st.builds(RoutingDecision, *[words] * 4, candidates),
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


def without_raw_usage(envelope: Envelope) -> Envelope:
    data, replace = envelope.data, msgspec.structs.replace
    assert isinstance(data, SessionMessageAppended)
    metadata = data.message.metadata
    if metadata is None:
        return envelope
    metadata = replace(metadata, usage=replace(metadata.usage, raw=None))
    return replace(envelope, data=replace(data, message=replace(data.message, metadata=metadata)))


@settings(max_examples=100)
@given(messages)
def test_a_message_of_any_blocks_is_read_back_unchanged(message: Message) -> None:
    """Signatures, opaque data, large numbers, media and half pairs are included."""
    digest, bodies = bodies_of(message)
    found = message_of(bodies[digest], bodies.__getitem__)
    assert found == msgspec.structs.replace(message, id=None, metadata=None)
    if message.metadata is not None:
        assert decode_metadata(encode_metadata(message.metadata)) == message.metadata
    (envelope,) = captured(Maker()(SessionMessageAppended(position=3, message=message), session_id="s"))
    line = encode_line(envelope)
    assert line.count(b"\n") == 1
    found_line = decode_line(line)
    if b"\\ud8" in line:  # half a pair: Python's json module writes the line, and raw numbers in its own form
        found_line, envelope = without_raw_usage(found_line), without_raw_usage(envelope)
    assert found_line == envelope


def test_fields_of_a_later_version_are_ignored() -> None:
    body = b'{"role":"user","mood":"good","content":[{"type":"text","text":"Hi","colour":{"r":1}}]}'
    assert message_of(body, {}.__getitem__) == Message.user("Hi")
    metadata = msgspec.json.decode(encode_metadata(METADATA))
    metadata["usage"]["imagined_tokens"] = 4
    metadata["planet"] = "Mars"
    assert decode_metadata(msgspec.json.encode(metadata)) == METADATA


# The parts of an event that stay after its content is deleted.

MARK = "Zanzibar"
FULL = {
    CallSettings: CallSettings(server_address="api.example.org", stop_sequences=(MARK,), max_output_tokens=5),
    RoutingDecision: RoutingDecision("m", "p:m", "p", "id", (Candidate("p:m", f"refused: {MARK}"),)),
    TokenUsage: TokenUsage(3, 4, raw=msgspec.Raw(b'{"said":"Zanzibar"}')),
    Cost: Cost(7, CostSource.COMPUTED),
}


def filled(kind: type[Event]) -> Event:
    """An event with the mark in each field that may have text of a user."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        options = typing.get_args(field.type) or (field.type,)
        known = next((each for each in options if each in FULL), None)
        if known is not None:
            values[field.name] = FULL[known]
        elif dict in (field.type, typing.get_origin(field.type)):
            values[field.name] = {MARK: MARK}
        elif typing.get_origin(field.type) is tuple:
            values[field.name] = (MARK,) if str in options else (1,)
        elif str in (field.type, *options) and field.name not in KEPT:
            values[field.name] = f"ValueError: {MARK}" if field.name == "error" else MARK
    whole = {field.name: _some(field) for field in msgspec.structs.fields(kind)}
    return kind(**{**{name: value for name, value in whole.items() if value is not None}, **values})


def _some(field: msgspec.structs.FieldInfo) -> object:
    if not field.required:
        return None
    options = (field.type, *typing.get_args(field.type))
    if any(option in FULL for option in options):
        return None
    if typing.get_origin(field.type) is typing.Literal:
        return options[1]
    for option, value in ((str, "word"), (bool, True), (int, 3), (float, 0.5)):
        if option in options:
            return value
    enums = (option for option in options if isinstance(option, type))
    return next((each for option in enums for each in option.__members__.values()), None)


KINDS = [
    kind for kind in typing.get_args(CatalogueEvent) if kind not in (SessionMessageAppended, SessionConfigured)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.topic_of())
def test_no_text_stays_of_an_event_unless_it_is_listed(kind: type[Event]) -> None:
    """The remaining event can be read, and does not change when its content is deleted again."""
    event = filled(kind)
    bare = figures_of(event)
    encoded = encode_event(bare)
    tuples = {field.name for field in msgspec.structs.fields(kind) if MARK in str(getattr(bare, field.name))}
    assert tuples <= {"warnings"}  # codes
    again = decode_event(kind.topic_of(), encoded)
    assert type(again) is kind
    assert figures_of(again) == again == bare


def test_only_the_type_of_a_turn_s_error_stays() -> None:
    """The rest of the error's text may quote the prompt. Only the topic of a host's event stays."""
    for error, stays in ((f"InvalidRequestError: {MARK}", "InvalidRequestError"), (f"said {MARK}: no", "")):
        turn = SessionTurnCompleted(status="failed", calls=1, error=error)
        assert figures_of(turn).error == stays  # type: ignore[attr-defined]
    own = UnknownEvent(topic="host.note", raw=msgspec.Raw(b'{"type":"host.note","text":"Zanzibar"}'))
    assert bytes(figures_of(own).raw) == b'{"type":"host.note"}'  # type: ignore[attr-defined]
