"""Each kind of content in a provider's replies is sent to each other provider and back.

The kinds come from the vendors' own types, so a new kind in an SDK release is swapped, too. At another provider,
an item is in the request or in the loss report. Back at its own provider, it is sent unchanged.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.adapters import create_adapter
from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import CanonicalRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.requests.history_target import WireCall
from callboard.bus.errors import AdapterError, InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callboard.bus.values.messages import Message, Role
from callboard.engine.watching.preview import Reader, RequestLoss, report

from ..support.conversations import PROVIDERS, conversations, item_bodies, read_content
from ..support.depth import examples
from ..support.fake_http import FakeReply, FakeTransport, ask
from ..support.virtual_time import FakeClock, run_virtual
from ..support.wires import WIRES, Wire

pytestmark = pytest.mark.filterwarnings("ignore:.* is not a valid:UserWarning")  # google.genai, of made-up words

MODELS: Mapping[str, str] = {
    "anthropic": "claude-opus-5-5", "openai": "gpt-5.6", "openai_compatible": "gpt-5.6", "gemini": "gemini-3-pro",
    "interactions": "gemini-3-pro",
}  # fmt: skip


class Side(NamedTuple):
    """One provider of a swap."""

    wire: Wire
    adapter: HttpAdapter

    @property
    def model(self) -> str:
        return f"{self.wire.name}:{MODELS.get(self.wire.name, 'some-model')}"

    def written(self, history: tuple[Message, ...]) -> WireCall:
        can = self.adapter.get_capabilities(self.model)
        return self.adapter.write_request(ask(*history, model=self.model, capabilities=can), stream=False)

    def history_of(self, call: WireCall) -> list[Json]:
        """The entries of the conversation in a request."""
        body: JsonObject = msgspec.json.decode(call.body)
        said = body[self.wire.history]
        assert isinstance(said, list)
        return said

    def told(self, history: tuple[Message, ...], call: WireCall) -> tuple[RequestLoss, ...]:
        """The loss report of a request."""
        wire = self.adapter.wire
        reader = Reader(wire.name, (wire.name, wire.default_name), wire.media_fields)
        return report(history, ask(*history, model=self.model), reader, call.losses, call.warnings)


def side(wire: Wire) -> Side:
    config = AdapterConfig(base_url=wire.base_url, options=wire.options)
    adapter = create_adapter(wire.type_name, config, name=wire.name)
    assert isinstance(adapter, HttpAdapter)
    return Side(wire, adapter)


SIDES: Mapping[str, Side] = {wire.name: side(wire) for wire in WIRES}


def others(home: str) -> Iterator[Side]:
    return (each for name, each in SIDES.items() if name != home)


def strings(value: Json) -> Iterator[str]:
    """All texts in a value, in any order."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(inner)


def is_said(block: ContentBlock, body: str, provider: str) -> bool:
    """Whether a request has the content of a block, in a form for any model or for its own provider."""
    raw = block.provider_raw
    match block:
        case TextBlock():
            return block.text.strip() in body
        case ToolUseBlock():
            return block.name in body
        case ToolResultBlock():
            return block.text in body
        case ThinkingBlock() | RedactedThinkingBlock() | OpaqueBlock():
            if raw is None or raw.provider != provider:
                return False
            said = [*strings(raw.data), getattr(block, "text", ""), getattr(block, "data", "")]
            return not any(said) or any(text in body for text in said if text)
        case ImageBlock() | AudioBlock() | DocumentBlock():
            return any(form in body for form in _forms(block))
    raise AssertionError(block)


def _forms(media: ImageBlock | AudioBlock | DocumentBlock) -> Iterator[str]:
    """The forms in which a request may have media."""
    if media.url is not None:
        yield media.url.rpartition(",")[2] if media.url.startswith("data:") else media.url
    if media.data:
        yield b64encode(media.data).decode()
        yield media.data.decode("utf-8", "replace")


def unaccounted(history: tuple[Message, ...], there: Side, call: WireCall) -> list[tuple[int, ContentBlock]]:
    """The blocks that are neither in a request nor in its loss report."""
    body = "\n".join(strings(msgspec.json.decode(call.body)))
    told = {(loss.message, loss.block) for loss in there.told(history, call)}
    return [
        (number, block)
        for number, message in enumerate(history)
        for position, block in enumerate(message.content)
        if (number, position) not in told and not is_said(block, body, there.wire.name)
    ]


def answered(content: tuple[ContentBlock, ...]) -> tuple[Message, ...]:
    """A conversation with that reply of a model."""
    calls = [block for block in content if isinstance(block, ToolUseBlock)]
    results = Message(Role.TOOL, tuple(ToolResultBlock(call.id, "Here you are.") for call in calls))
    return (
        Message.user("Do it."),
        Message.assistant(content),
        *([results] if calls else []),
        Message.assistant("Done."),
    )


ITEMS = [(provider, kind, body) for provider in PROVIDERS for kind, body in item_bodies(provider)]


@pytest.mark.parametrize(
    ("home", "body"), [(home, body) for home, _, body in ITEMS], ids=[f"{h}-{k}" for h, k, _ in ITEMS]
)
def test_each_kind_of_content_goes_abroad_with_its_loss_report_and_is_at_home_as_it_was(
    home: str, body: JsonObject
) -> None:
    content = read_content(home, body, MODELS[home])
    assert content
    assert swap(home, answered(content)) == len(SIDES)


@pytest.mark.more("more examples")
@pytest.mark.parametrize("home", PROVIDERS)
def test_any_conversation_of_several_providers_is_accounted_for_and_at_home_as_it_was(home: str) -> None:
    @given(conversations({name: [model] for name, model in MODELS.items()}))
    @settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def check(history: tuple[Message, ...]) -> None:
        swap(home, history)

    check()


def swap(home: str, history: tuple[Message, ...]) -> int:
    """Send a history to each other provider and back."""
    here, took = SIDES[home], 0
    asked = (*history, Message.user("And now?"))
    for there in (here, *others(home)):
        try:
            sent = there.written(asked)
        except InvalidRequestError:
            continue
        took += 1
        assert there.wire.faults(sent.body) + there.wire.judged(sent.body) == []
        assert unaccounted(asked, there, sent) == []
    try:
        before = here.history_of(here.written(asked))
    except InvalidRequestError:
        return took
    for there in others(home):
        elsewhere = Message.assistant(read_content(there.wire.name, there.wire.body("Hello.", 0, "end"), "m"))
        back = here.history_of(here.written((*asked, elsewhere, Message.user("Welcome back."))))
        assert back[: len(before)] == before
    return took


# -- Any error of a provider or a proxy is an AdapterError.


each = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)

ASKED = CanonicalRequest(
    request_id="req_1",
    messages=(Message.user("Hello"),),
    model="x:some-model",
    max_output_tokens=64,
    message_id="msg_1",
    max_retries=0,
)

NONSENSE = st.sampled_from([
    None, True, 0, -1, 7, 1.5, 2**40, "", "x", "\u2028", "{", [], {}, [None], [{}], {"type": "x"},
    {"text": 1}, [[]],
])  # fmt: skip


def places(value: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place inside a JSON value."""
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from places(inner, (*path, number))


def changed(value: Json, path: tuple[str | int, ...], new: Json, *, leave_out: bool) -> Json:
    """A copy with another value at one place, or without that place."""
    if not path:
        return new
    copy = msgspec.json.decode(msgspec.json.encode(value))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    if leave_out:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return copy


def mutate(value: Json, draw: st.DataObject) -> Json:
    path = draw.draw(st.sampled_from(list(places(value))))
    return changed(value, path, draw.draw(NONSENSE), leave_out=draw.draw(st.booleans()))


@each
@settings(max_examples=60)
@given(draw=st.data())
def test_an_error_with_invalid_values(wire: Wire, draw: st.DataObject) -> None:
    """The result is always an AdapterError with a text."""
    status, body = wire.error_body(draw.draw(st.sampled_from(["overload", "bad request"])))
    body = mutate(body, draw)

    async def ask() -> None:
        reply = FakeReply(msgspec.json.encode(body), status=status, headers={"content-type": "application/json"})
        with pytest.raises(AdapterError) as raised:
            await wire.make(FakeTransport(reply), FakeClock()).complete(ASKED)
        assert str(raised.value)

    run_virtual(ask)


# -- Odd provider data in a block, from a proxy or a host.
#
# Each provider's request is still written, or refused with advice.


ODD: tuple[Json, ...] = (None, 7, [], {})


def spoiled(content: tuple[ContentBlock, ...]) -> Iterator[tuple[tuple[ContentBlock, ...], ContentBlock]]:
    """Yield copies of the content in which one block's provider data has an odd or a missing value, with that
    block.
    """
    for number, block in enumerate(content):
        raw = block.provider_raw
        for path in places(raw.data) if raw is not None else ():
            for value, leave_out in [*((each, False) for each in ODD), (None, True)] if path else ():
                data = changed(raw.data, path, value, leave_out=leave_out)
                odd = msgspec.structs.replace(block, provider_raw=msgspec.structs.replace(raw, data=data))
                yield (*content[:number], odd, *content[number + 1 :]), odd


def histories(body: JsonObject, home: str) -> Iterator[tuple[Message, ...]]:
    for content, odd in spoiled(read_content(home, body, MODELS[home])):
        yield answered(content)
        if isinstance(odd, OpaqueBlock | ImageBlock | TextBlock):  # a host can also write this
            yield (Message(Role.USER, (odd,)), Message.assistant("Done."))


@pytest.mark.deep("every field of every recorded item, with every value that is wrong there")
@pytest.mark.parametrize("home", PROVIDERS)
def test_odd_things_that_a_block_keeps_break_no_request(home: str) -> None:
    written = 0
    for _, body in item_bodies(home):
        for history in histories(body, home):
            for there in SIDES.values():
                try:
                    call = there.written((*history, Message.user("And now?")))
                except AdapterError:
                    continue
                there.told(history, call)
                written += isinstance(msgspec.json.decode(call.body), dict)
    assert written > 300
