"""The content of a message, and costs."""

from __future__ import annotations

import importlib
from typing import get_args

import msgspec
import pytest

from callboard import bus
from callboard.bus import ContentBlock, Cost, CostSource, ImageBlock, Message, ProviderRaw, Role, TextBlock
from callboard.bus.events.codec import CatalogueEvent


@pytest.mark.parametrize("text", ["hello", " hello\n", "grüß dich", "\U0001f600"])
def test_one_text_block_is_plain_text(text: str) -> None:
    for role in (Role.SYSTEM, Role.DEVELOPER, Role.USER, Role.ASSISTANT):
        assert Message(role, (TextBlock(text),)).plain_text == text


@pytest.mark.parametrize("content", [
    (),
    (TextBlock(""),),
    (TextBlock(" \n"),),
    (TextBlock("half \ud83d"),),
    (TextBlock("one"), TextBlock("two")),
    (TextBlock("signed", provider_raw=ProviderRaw("gemini", {})),),
    (ImageBlock(url="https://example.org/a.png"),),
])  # fmt: skip
def test_a_message_that_adapters_may_change_is_not_plain_text(content: tuple[TextBlock | ImageBlock, ...]) -> None:
    """An empty text, a blank, half a surrogate pair, several blocks, a provider's data and a picture
    are not plain text.
    """
    assert Message(Role.USER, content).plain_text is None


def test_a_changed_copy_of_a_message_is_examined_again() -> None:
    """The result that was cached for one message is not used for its copy."""
    message = Message.user("hello")
    assert message.plain_text == "hello"
    assert msgspec.structs.replace(message, content=(TextBlock("bye"),)).plain_text == "bye"
    assert message == Message.user("hello")


@pytest.mark.parametrize("kind", get_args(ContentBlock))
def test_a_block_of_a_message_cannot_be_changed(kind: type[msgspec.Struct]) -> None:
    """Several messages and requests share a block, and hosts use blocks as keys."""
    assert kind.__struct_config__.frozen


# -- Costs: exact, or unknown.


@pytest.mark.parametrize(
    ("nano_usd", "text"), [(0, "0"), (1, "1E-9"), (1_000_000, "0.001000000"), (2_500_000_000, "2.500000000")]
)
def test_a_cost_in_dollars_is_exact_and_zero_is_printed_as_0(nano_usd: int, text: str) -> None:
    assert str(Cost(nano_usd, CostSource.COMPUTED).usd) == text


def test_a_sum_of_costs_is_known_only_if_all_are() -> None:
    """If one call has an unknown cost, the sum is unknown, for the same reason."""
    one, two = Cost(1, CostSource.COMPUTED, "v1"), Cost(2, CostSource.PROVIDER, "v1")
    assert one + two == Cost(3, CostSource.COMPUTED, "v1")
    assert two + two == Cost(4, CostSource.PROVIDER, "v1")
    assert one + Cost(5, CostSource.COMPUTED, "v2") == Cost(6, CostSource.COMPUTED)
    unknown = Cost(None, CostSource.UNPRICED, reason="no price")
    assert one + unknown == unknown + one == Cost(None, CostSource.UNPRICED, reason="no price")


# -- The names that `bus` exports.


INTERNAL = {"Beginning", "CallSettings"}
"""Public classes of these modules that only other rooms of Callboard use."""


@pytest.mark.parametrize("module", [
    "errors", "events.calls", "events", "events.operation", "events.sessions", "streams.events",
    "values.content", "values.messages", "values.usage",
])  # fmt: skip
def test_every_public_class_can_be_imported_from_bus(module: str) -> None:
    source = importlib.import_module(f"{bus.__name__}.{module}")
    public = {
        name: value
        for name, value in vars(source).items()
        if isinstance(value, type) and value.__module__ == source.__name__ and not name.startswith("_")
    }
    offered = [getattr(bus, name, None) for name in bus.__all__]
    missing = {name for name, value in public.items() if not any(value is other for other in offered)}
    assert missing - INTERNAL == set()


def test_topics_are_unique() -> None:
    """A store could not distinguish two events with the same topic."""
    topics = [event.topic_of() for event in (*CatalogueEvent.__args__, bus.Gap)]
    assert len(set(topics)) == len(topics)
