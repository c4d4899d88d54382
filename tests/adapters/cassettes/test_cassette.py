"""Recorded HTTP is replayed exactly, contains no secret, reports differences, and can be a configured provider."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.adapters import create_adapter
from callboard.adapters.cassettes import (
    VOLATILE_FIELDS,
    CassetteMiss,
    CassetteTransport,
    RecordingTransport,
    load_cassette,
    number_ids,
)
from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalResponse
from callboard.adapters.transport.transport import HttpReply, HttpRequest, Transport, read_body
from callboard.bus.errors import ConfigurationError, ContextOverflowError, ErrorClass, StreamError
from callboard.bus.streams.events import MessageComplete
from callboard.bus.values.base import Json
from callboard.bus.values.usage import StopReason
from callboard.engine.models.configured import read_models_yaml
from cassettes.record import CONVERSATIONS, FOLDER, Replies, replaying_adapter
from examples.adding_a_provider.kit import PARLEY
from examples.adding_a_provider.parley import ParleyAdapter

from ...support.fake_http import (
    EVERYTHING,
    HELLO,
    TEXT,
    FakeReply,
    FakeTransport,
    ToyAdapter,
    failing,
    pieces,
    request,
    sse,
    whole,
)
from ...support.invariants import check_stream
from ...support.virtual_time import FakeClock, run_virtual

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret-0123456789"


def post(body: object = None, path: str = "/v1/talk", host: str = "https://a.test", **headers: str) -> HttpRequest:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return HttpRequest("POST", host + path, named, json.dumps(body or {"a": 1}).encode())


async def read(reply: HttpReply) -> list[bytes]:
    chunks = []
    while (chunk := await reply.chunk()) is not None:
        chunks.append(chunk)
    await reply.aclose()
    return chunks


async def record(path: Path, *exchanges: tuple[HttpRequest, FakeReply], secrets: tuple[str, ...] = ()) -> None:
    via = RecordingTransport(
        FakeTransport(*[reply for _, reply in exchanges]), path, scenario="a test", secrets=secrets
    )
    for asked, _ in exchanges:
        await read(await via.send(asked))
    await via.aclose()


async def test_a_call_is_replayed_exactly(tmp_path: Path) -> None:
    """The adapter gives the same response and the same events from the file alone."""
    path = tmp_path / "toy.json"
    transport: Transport = RecordingTransport(
        FakeTransport(whole(*EVERYTHING), FakeReply(*pieces(sse(*EVERYTHING), [5, 90, 91, 200]))), path
    )
    config = AdapterConfig(api_key=KEY)
    results = []
    for _ in range(2):
        toy = ToyAdapter(config, transport=transport, clock=FakeClock())
        response = await toy.complete(request())
        events = [event async for event in toy.stream(request())]
        check_stream(events)
        results.append((response, events))
        await toy.close()
        transport = CassetteTransport(path)
    assert results[0] == results[1]
    assert KEY not in path.read_text()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(st.binary(min_size=1), max_size=5), st.integers(200, 599))
def test_replies_have_the_same_bytes_and_pieces(tmp_path: Path, chunks: list[bytes], status: int) -> None:
    """A recording keeps bytes of any value, in the pieces that the network delivered."""

    async def there_and_back() -> None:
        path = tmp_path / "any.json"
        await record(path, (post(), FakeReply(*chunks, status=status)))
        reply = await CassetteTransport(path).send(post())
        assert reply.status == status
        assert await read(reply) == chunks

    run_virtual(there_and_back)


async def test_no_secret_is_written(tmp_path: Path) -> None:
    """Headers, address, body and reply have no secret, not even in two pieces. The pieces keep their length."""
    path = tmp_path / "c.json"
    other = "another-secret"
    asked = post(
        {"note": f"my key is {KEY}"},
        f"/v1/talk?key={KEY}&x=1",
        authorization=f"Bearer {KEY}",
        x_goog_api_key="goog-secret",
        cookie="session=cookie-secret",
        content_type="application/json",
        x_mine="not on the list",
    )
    reply = FakeReply(f"you sent {KEY[:9]}".encode(), f"{KEY[9:]} goog-secret {other}".encode())
    reply.headers = {**reply.headers, "set-cookie": "s=1", "x-request-id": KEY, "server": "x"}
    await record(path, (asked, reply), secrets=(other,))
    text = path.read_text()
    for secret in (KEY, KEY[9:], "goog-secret", "cookie-secret", other, "not on the list", "set-cookie"):
        assert secret not in text
    (exchange,) = load_cassette(path).exchanges
    assert exchange.request.headers == {"content-type": "application/json"}
    assert exchange.request.path == "/v1/talk?key=***&x=1"
    assert exchange.reply.headers == {"content-type": "text/event-stream", "x-request-id": "***"}
    replayed = await read(await CassetteTransport(path).send(asked))
    assert [len(chunk) for chunk in replayed] == [len(step) for step in reply.steps if isinstance(step, bytes)]


async def test_requests_are_matched_by_path_and_body(tmp_path: Path) -> None:
    """Host, headers, order of fields and user agent are ignored. Path and body must match."""
    path = tmp_path / "c.json"
    await record(path, (post({"a": 1, "b": [True, None]}, authorization="Bearer x"), FakeReply(b"yes")))
    volatile = dict.fromkeys(VOLATILE_FIELDS, "someone")
    same = post({"b": [True, None], "a": 1, **volatile}, host="http://other.test:1")
    assert await read(await CassetteTransport(path).send(same)) == [b"yes"]
    for other in (
        post({"a": 1, "b": [True, None]}, "/v2/talk"),
        post({"a": 2, "b": [True, None]}),
        post({"a": 1, "b": [1, None]}),
        post({"a": 1.5, "b": [True, None]}),
        post({"a": 1}),
    ):
        with pytest.raises(CassetteMiss):
            await CassetteTransport(path).send(other)


async def test_equal_requests_are_replayed_in_order(tmp_path: Path) -> None:
    """Retries get the failures first. For concurrent calls, the order does not matter. A miss names the nearest
    recording and whether it was played, and is not retried by an adapter.
    """
    path = tmp_path / "c.json"
    asked = [(post({"q": q}), FakeReply(reply)) for q, reply in (("one", b"1a"), ("two", b"2"), ("one", b"1b"))]
    await record(path, *asked)
    via = CassetteTransport(path)
    answers = []
    for question in ("two", "one", "one"):
        with pytest.raises(CassetteMiss, match=r"exchange \d \(/v1/talk\); it"):
            await via.send(post({"q": "three"}))
        answers += await read(await via.send(post({"q": question})))
    assert answers == [b"2", b"1a", b"1b"]
    assert via.unplayed == 0
    with pytest.raises(CassetteMiss, match=r"sent more often than it was recorded \(2\)"):
        await via.send(post({"q": "one"}))
    with pytest.raises(CassetteMiss, match=r"exchange \d \(/v1/talk, already played\); it"):
        await via.send(post({"q": "three"}))
    await record(path)
    toy = ToyAdapter(AdapterConfig(), transport=CassetteTransport(path), clock=FakeClock())
    with pytest.raises(CassetteMiss, match="the cassette is empty"):
        await toy.complete(request())


async def test_a_miss_names_the_nearest_recording_and_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    recorded = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    await record(path, (post(recorded), FakeReply(b"1")), (post({"wholly": "different"}), FakeReply(b"2")))
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hullo"}, {}], "top": 1}
    with pytest.raises(CassetteMiss) as raised:
        await CassetteTransport(path).send(post(asked))
    error = raised.value
    assert (error.error_class, error.retryable) == (ErrorClass.OTHER, False)
    for part in (
        str(path),
        "nearest is exchange 0",
        'messages[0].content was "Hello" and now is "Hullo"',
        "messages had length 1 and now has length 2",
        "stream was recorded (true) and is not sent",
        "top is sent (1) and was not recorded",
    ):
        assert part in str(error)


def turns(*texts: str) -> HttpRequest:
    return post({"model": "m", "messages": [{"role": "user", "content": text} for text in texts]})


@pytest.mark.parametrize(("asked", "nearest"), [
    (("What is it?", "It is a longer story.", "And then?!"), 1),
    (("What is it??", "It is a long story!", "And then!"), 1),
    (("What is that?",), 0),
    (("Entirely", "different"), 0),
    (("What is it?", "It is a long story.", "And then?", "The end, with all that belongs to it.", "More?"), 2),
])  # fmt: skip
async def test_the_nearest_is_the_recording_with_the_least_that_differs(
    tmp_path: Path, asked: tuple[str, ...], nearest: int
) -> None:
    """A changed word in every message is nearer than a missing message, although the latter is only one
    difference.
    """
    path = tmp_path / "c.json"
    talk = ("What is it?", "It is a long story.", "And then?", "The end, with all that belongs to it.")
    await record(path, *((turns(*talk[:length]), FakeReply(b"1")) for length in (1, 3, 4)))
    with pytest.raises(CassetteMiss, match=rf"nearest is exchange {nearest} \("):
        await CassetteTransport(path).send(turns(*asked))


async def test_random_ids_match_by_their_order(tmp_path: Path) -> None:
    """A conversation with tool calls has different ids in every run."""
    assert number_ids("tu_01HZZZZZZZZZZZZZZZZZZZZZZZ tu_x") == "tu_1 tu_x"
    path = tmp_path / "c.json"

    def asked(first: str, second: str) -> HttpRequest:
        return post({"calls": [f"tu_{first * 26}", f"tu_{second * 26}"], "answers": [f"tu_{first * 26}"]})

    await record(path, (asked("A", "B"), FakeReply(b"1")))
    assert '"tu_2"' in path.read_text()
    assert await read(await CassetteTransport(path).send(asked("C", "D"))) == [b"1"]
    crossed = post({"calls": ["tu_" + "C" * 26, "tu_" + "D" * 26], "answers": ["tu_" + "D" * 26]})
    with pytest.raises(CassetteMiss):
        await CassetteTransport(path).send(crossed)


async def test_broken_and_abandoned_replies_end_at_the_same_place(tmp_path: Path) -> None:
    """An error is replayed as an error. Reading beyond the recorded bytes is an error, too."""
    path = tmp_path / "c.json"
    via = RecordingTransport(FakeTransport(FakeReply(b"a", StreamError("reset")), FakeReply(b"b", b"c")), path)
    reply = await via.send(post({"n": 1}))
    assert await reply.chunk() == b"a"
    with pytest.raises(StreamError):
        await reply.chunk()
    reply = await via.send(post({"n": 2}))
    assert await reply.chunk() == b"b"
    await reply.aclose()
    await via.aclose()
    replay = CassetteTransport(path)
    for number, first, said in ((1, b"a", "reset"), (2, b"b", "reader left")):
        reply = await replay.send(post({"n": number}))
        assert await reply.chunk() == first
        with pytest.raises(StreamError, match=said):
            await reply.chunk()


async def test_failures_replay_with_their_hints(tmp_path: Path) -> None:
    """Status and the headers for a retry are replayed."""
    path = tmp_path / "c.json"
    await record(path, (post(), failing(429, b"{}", retry_after="7", x_ratelimit_limit_requests="9")))
    reply = await CassetteTransport(path).send(post())
    assert reply.status == 429
    assert (reply.headers["retry-after"], reply.headers["x-ratelimit-limit-requests"]) == ("7", "9")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99, "scenario": "", "exchanges": []}', "\xff"])
def test_a_file_that_is_no_cassette_is_named(tmp_path: Path, text: str) -> None:
    """The error comes when the file is opened, not at the first request."""
    path = tmp_path / "c.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigurationError, match=r"c\.json"):
        CassetteTransport(path)
    with pytest.raises(FileNotFoundError):
        CassetteTransport(tmp_path / "none.json")


# -- A provider that is a cassette, by configuration alone.


PARLEY_TYPE = "examples.adding_a_provider.parley:ParleyAdapter"


@pytest.fixture
async def cassette(tmp_path: Path) -> Path:
    """A cassette with a stream and a plain reply of Parley."""
    file = tmp_path / "parley.json"
    network = RecordingTransport(FakeTransport(PARLEY.streamed("Hello."), PARLEY.whole("Again.")), file)
    adapter = ParleyAdapter(AdapterConfig(), transport=network, clock=FakeClock())
    assert [event async for event in adapter.stream(request())]
    await adapter.complete(request())
    await adapter.close()
    return file


async def test_models_yaml_can_name_a_cassette(cassette: Path, tmp_path: Path) -> None:
    """Plain and streamed calls are replayed. A call that was not recorded gets an error that names this."""
    file = tmp_path / "models.yaml"
    options = {"type": PARLEY_TYPE, "file": str(cassette)}
    adapters = {"demo": {"type": "cassette", "options": options}}
    models = {"demo:one": {"adapter": "demo", "wire_name": "one"}}
    file.write_bytes(msgspec.json.encode({"adapters": adapters, "models": models}))  # JSON is YAML
    entry = read_models_yaml(file, {}).adapters["demo"]
    adapter = create_adapter(entry.type, entry.config, name="demo", clock=FakeClock())
    last = check_stream([event async for event in adapter.stream(request())])
    assert [block.text for block in last.final_content if hasattr(block, "text")] == ["Hello."]
    assert (await adapter.complete(request())).text == "Again."
    with pytest.raises(CassetteMiss):
        await adapter.complete(request())


@pytest.mark.parametrize(("options", "said"), [
    ({"type": PARLEY_TYPE}, "missing required field `file`"),
    ({"type": PARLEY_TYPE, "file": "no-such-file.json"}, "set `record: true`"),
    ({"type": "no_such_type", "file": "x", "record": True}, "no_such_type"),
])  # fmt: skip
async def test_a_wrong_configuration_is_named(options: dict[str, Json], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        create_adapter("cassette", AdapterConfig(options=options), name="demo")
    assert said in str(raised.value)


async def test_recording_is_an_option(tmp_path: Path) -> None:
    """The file is written when the adapter is closed, or saved before. It is indented JSON with its scenario."""
    file = tmp_path / "new.json"
    options: dict[str, Json] = {"type": PARLEY_TYPE, "file": str(file), "record": True}
    adapter = create_adapter("cassette", AdapterConfig(options=options), name="demo")
    assert isinstance(adapter, ParleyAdapter)
    await adapter.close()
    assert file.exists()
    via = RecordingTransport(FakeTransport(FakeReply(sse(*HELLO)), FakeReply(sse(TEXT))), file, scenario="a test")
    await read_body(await via.send(post({"text": "☃"})))
    via.save()
    assert len(load_cassette(file).exchanges) == 1
    text = file.read_text()
    assert (text.endswith("}\n"), '"scenario": "a test"' in text, '"text": "☃"' in text) == (True, True, True)
    assert text.count("\n") > 20


# -- Recorded replies of the local model, through all three protocols, from the files alone.


PROTOCOLS = ("chat", "messages", "responses")


async def replay(name: str) -> Replies:
    _, options, talk = CONVERSATIONS[name]
    adapter, transport = replaying_adapter(FOLDER / f"{name}.json", options)
    replies = await talk(adapter)
    assert transport.unplayed == 0, "the cassette holds more than the conversation asks for: record again"
    await adapter.close()
    return replies


def response(replies: Replies, step: str) -> CanonicalResponse:
    reply = replies[step]
    assert isinstance(reply, CanonicalResponse)
    return reply


@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_every_conversation_replays(name: str) -> None:
    """Each request equals the recorded one, and each stream keeps the invariants."""
    replies = await replay(name)
    for step, events in replies.events.items():
        last = check_stream(events)
        assert last.final_content == response(replies, step).content


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_a_streamed_reply_equals_a_plain_one(name: str) -> None:
    """Text, stop reason and usage are the same. Chat Completions enforces a schema in llama.cpp."""
    replies = await replay(name)
    for step in ("plain", "second turn", "limit"):
        one = response(replies, step)
        other = response(replies, "streamed" if step == "plain" else f"{step} streamed")
        assert (one.text, one.stop_reason) == (other.text, other.stop_reason)
        assert one.usage.total_input_tokens == other.usage.total_input_tokens
        assert one.usage.output_tokens == other.usage.output_tokens
    for step in ("object", "object streamed") if name == "chat" else ():
        assert set(msgspec.json.decode(response(replies, step).text)) == {"city", "country"}


async def test_the_protocols_agree() -> None:
    """One model behind three wires, at temperature 0, gives the same text, stop reason and input tokens."""
    played = [await replay(name) for name in PROTOCOLS]
    for step in ("plain", "second turn", "system prompt", "limit"):
        said = {(reply.text, reply.stop_reason, reply.usage.total_input_tokens) for reply in
                (response(replies, step) for replies in played)}  # fmt: skip
        assert len(said) == 1, said
    assert "Paris" in response(played[0], "plain").text
    assert response(played[0], "limit").stop_reason is StopReason.MAX_TOKENS
    for replies in played:
        assert isinstance(replies["too long"], ContextOverflowError)


async def test_an_emulated_tool_is_called() -> None:
    """The call has Callboard's id, is streamed as a call, and sets the stop reason."""
    replies = await replay("tools")
    for step in ("call", "call streamed"):
        reply = response(replies, step)
        assert [(call.name, call.input) for call in reply.tool_uses] == [("get_weather", {"city": "Paris"})]
        assert reply.stop_reason is StopReason.TOOL_USE
    assert isinstance(replies.events["call streamed"][-1], MessageComplete)
    assert response(replies, "answer").stop_reason is StopReason.END_TURN


@pytest.mark.parametrize("path", sorted(FOLDER.parent.rglob("*.json")), ids=lambda path: path.name)
def test_no_cassette_has_a_secret(path: Path) -> None:
    """Every file can be read, has a description, and has no header that could contain a key."""
    cassette = load_cassette(path)
    assert cassette.scenario
    assert cassette.exchanges
    text = path.read_text()
    for word in ("Bearer", "x-api-key", "authorization", "cookie", "sk-"):
        assert word not in text
