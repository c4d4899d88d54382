"""What `bus` offers, and that it is the `bus` it should be."""

from __future__ import annotations

import importlib

import pytest

from callboard import bus
from callboard.bus.events.codec import CatalogueEvent


def test_everything_offered_exists_and_is_offered_once() -> None:
    """__all__ is true."""
    assert len(set(bus.__all__)) == len(bus.__all__)
    assert [name for name in bus.__all__ if not hasattr(bus, name)] == []


INTERNAL = {"CallSettings", "ErrorRow"}
"""Public classes of these modules that only our own rooms pass to each other."""


@pytest.mark.parametrize("module", [
    "errors", "events.calls", "events.envelope", "events.operation", "events.sessions", "streams.events",
    "values.content", "values.messages", "values.usage",
])  # fmt: skip
def test_every_value_is_offered(module: str) -> None:
    """Every public class of the vocabulary can be imported from `bus` itself, with one documented exception."""
    source = importlib.import_module(f"{bus.__name__}.{module}")
    public = {
        name: value
        for name, value in vars(source).items()
        if isinstance(value, type) and value.__module__ == source.__name__ and not name.startswith("_")
    }
    offered = [getattr(bus, name, None) for name in bus.__all__]
    missing = {name for name, value in public.items() if not any(value is other for other in offered)}
    assert missing - INTERNAL == set()


def test_the_exception_and_the_event_of_one_name_are_told_apart() -> None:
    """ActorStopped is raised; ActorStoppedEvent is published."""
    assert issubclass(bus.ActorStopped, bus.CallboardError)
    assert issubclass(bus.ActorStoppedEvent, bus.Event)


def test_topics_are_unique() -> None:
    """Two events of one topic could not be told apart in a store."""
    topics = [event.topic_of() for event in (*CatalogueEvent.__args__, bus.Gap)]
    assert len(set(topics)) == len(topics)
