"""What stays of an event when its content is erased."""

from __future__ import annotations

import typing

import msgspec
import pytest

from callboard.bus.events.codec import CatalogueEvent, decode_event
from callboard.bus.events.envelope import Event, UnknownEvent
from callboard.bus.events.sessions import SessionConfigured, SessionMessageAppended, SessionTurnCompleted
from callboard.bus.values.messages import CallSettings, Candidate, RoutingDecision
from callboard.bus.values.usage import Cost, CostSource, TokenUsage
from callboard.tracestore.codec import KEPT, encode_event, figures_of

MARK = "Zanzibar"
FULL = {
    CallSettings: CallSettings(server_address="api.example.org", stop_sequences=(MARK,), max_output_tokens=5),
    RoutingDecision: RoutingDecision("m", "p:m", "p", "id", (Candidate("p:m", f"refused: {MARK}"),)),
    TokenUsage: TokenUsage(3, 4, raw=msgspec.Raw(b'{"said":"Zanzibar"}')),
    Cost: Cost(7, CostSource.COMPUTED),
}


def filled(kind: type[Event]) -> Event:
    """An event with the mark in each field that may hold text of somebody's."""
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
    whole = {
        field.name: value
        for field in msgspec.structs.fields(kind)
        for value in [_some(field)]
        if value is not None
    }
    return kind(**{**whole, **values})


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
    return next(
        (each for option in options if isinstance(option, type) for each in option.__members__.values()), None
    )


KINDS = [
    kind for kind in typing.get_args(CatalogueEvent) if kind not in (SessionMessageAppended, SessionConfigured)
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.topic_of())
def test_no_text_stays_of_an_event_unless_it_is_listed(kind: type[Event]) -> None:
    """What stays can be read again, and is the same when it is erased once more."""
    event = filled(kind)
    bare = figures_of(event)
    encoded = encode_event(bare)
    tuples = {field.name for field in msgspec.structs.fields(kind) if MARK in str(getattr(bare, field.name))}
    assert tuples <= {"warnings"}  # codes
    again = decode_event(kind.topic_of(), encoded)
    assert type(again) is kind
    assert figures_of(again) == again == bare


def test_of_the_error_of_a_turn_its_type_stays() -> None:
    """The text behind it may quote the prompt."""
    turn = SessionTurnCompleted(status="failed", calls=1, error=f"InvalidRequestError: {MARK}")
    assert figures_of(turn).error == "InvalidRequestError"  # type: ignore[attr-defined]
    odd = SessionTurnCompleted(status="failed", calls=1, error=f"said {MARK}: no")
    assert figures_of(odd).error == ""  # type: ignore[attr-defined]


def test_of_an_event_of_the_host_s_its_topic_stays() -> None:
    """Nobody but the host knows what it means."""
    own = UnknownEvent(topic="host.note", raw=msgspec.Raw(b'{"type":"host.note","text":"Zanzibar"}'))
    assert bytes(figures_of(own).raw) == b'{"type":"host.note"}'  # type: ignore[attr-defined]
