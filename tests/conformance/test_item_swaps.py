"""Each kind of content that a provider's replies know goes to every other provider and back.

The kinds are those of the vendors' own types: what a new release of an SDK adds is swapped, too. Abroad, what an
item said is in the request or in the loss report; at home again it is sent as it was.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from callboard.adapters import create_adapter
from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.http.wire_call import WireCall
from callboard.bus.errors import InvalidRequestError
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
from ..support.fake_http import ask
from ..support.wires import WIRES, Wire

MODELS: Mapping[str, str] = {
    "anthropic": "claude-opus-5-5",
    "openai": "gpt-5.6",
    "openai_compatible": "gpt-5.6",
    "gemini": "gemini-3-pro",
    "interactions": "gemini-3-pro",
}


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
        """What a request says of the conversation."""
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
    """All texts in a value, in no order."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(inner)


def is_said(block: ContentBlock, body: str, provider: str) -> bool:
    """Whether a request says what a block says: to any model, or to its own provider."""
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
    """A conversation in which a model replied that."""
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


@pytest.mark.parametrize("home", PROVIDERS)
def test_any_conversation_of_several_providers_is_accounted_for_and_at_home_as_it_was(home: str) -> None:
    @given(conversations({name: [model] for name, model in MODELS.items()}))
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def check(history: tuple[Message, ...]) -> None:
        swap(home, history)

    check()


def swap(home: str, history: tuple[Message, ...]) -> int:
    """Go to each other provider and come back.

    Returns:
        How many providers took the conversation. One may refuse a host's own field that it can't take.
    """
    here, took = SIDES[home], 0
    asked = (*history, Message.user("And now?"))
    for there in (here, *others(home)):
        try:
            sent = there.written(asked)
        except InvalidRequestError:
            continue
        took += 1
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
