"""A host's own fields join what the engine asks for, by one rule on all wires; an unknown effort is an error."""

from __future__ import annotations

import copy
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.requests.host_options import merge_options
from callboard.adapters.requests.settings import EFFORTS
from callboard.bus.errors import InvalidRequestError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.messages import Message

from .test_capabilities_on_the_wire import LOOK, WIRES, adapter_of, asking

NATIVE = [wire for wire in WIRES if wire != "tgi"]
EXTRA: Json = {"type": "web_search", "name": "theirs"}


def body_of(adapter: HttpAdapter, *, stream: bool = False, **fields: object) -> JsonObject:
    asked = asking(Message.user("Hi"), **fields)
    return cast("JsonObject", msgspec.json.decode(adapter.write_request(asked, stream=stream).body))


@pytest.mark.parametrize("wire", NATIVE)
@pytest.mark.parametrize("under", ["protocol", "adapter"])
def test_a_hosts_tool_joins_those_of_the_engine(wire: str, under: str) -> None:
    """Whether it stands under the protocol's name or the adapter's own."""
    name = wire if under == "protocol" else "mine"
    adapter = adapter_of(wire, name)
    tools = body_of(adapter, tools=(LOOK,), provider_options={name: {"tools": [EXTRA]}})["tools"]
    assert isinstance(tools, list)
    assert len(tools) == 2
    assert tools[1] == EXTRA
    assert "look" in str(tools[0])
    alone = body_of(adapter, provider_options={name: {"tools": [EXTRA]}})["tools"]
    assert alone == [EXTRA]


@pytest.mark.parametrize("wire", NATIVE)
def test_tools_that_are_no_list_are_an_error(wire: str) -> None:
    with pytest.raises(InvalidRequestError, match="tools"):
        body_of(adapter_of(wire), tools=(LOOK,), provider_options={wire: {"tools": {"type": "web_search"}}})


@pytest.mark.parametrize("wire", ["openai", "openai_compatible", "anthropic", "ollama"])
@pytest.mark.parametrize("stream", [False, True])
def test_how_the_reply_comes_is_not_the_hosts_to_say(wire: str, stream: bool) -> None:
    """Nor which model gives it; what is the same anyway does no harm."""
    for field, value in (("stream", not stream), ("model", "another")):
        with pytest.raises(InvalidRequestError, match=field):
            body_of(adapter_of(wire), stream=stream, provider_options={wire: {field: value}})
    same: Json = {"stream": stream, "model": "some-model"}
    assert body_of(adapter_of(wire), stream=stream, provider_options={wire: same})["model"] == "some-model"


def test_stream_options_keep_the_usage() -> None:
    """A host may add to them."""
    adapter = adapter_of("openai_compatible")
    options: Json = {"openai_compatible": {"stream_options": {"include_obfuscation": False}}}
    body = body_of(adapter, stream=True, provider_options=options)
    assert body["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    with pytest.raises(InvalidRequestError, match="include_usage"):
        without: Json = {"openai_compatible": {"stream_options": {"include_usage": False}}}
        body_of(adapter, stream=True, provider_options=without)


@pytest.mark.parametrize("wire", WIRES)
def test_an_unknown_effort_is_an_error_that_names_the_known_ones(wire: str) -> None:
    with pytest.raises(
        InvalidRequestError, match="'heroic' is none of none, minimal, low, medium, high, xhigh, max"
    ):
        body_of(adapter_of(wire), reasoning_effort="heroic")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("effort", EFFORTS)
def test_every_known_effort_is_sent_or_its_loss_is_told(wire: str, effort: str) -> None:
    """``none`` to a model that does not reason asks for nothing."""
    adapter = adapter_of(wire)
    plain = adapter.write_request(asking(Message.user("Hi")), stream=False)
    asked = adapter.write_request(asking(Message.user("Hi"), reasoning_effort=effort), stream=False)
    assert asked.body != plain.body or asked.warnings or effort == "none"


_values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
_bodies = st.dictionaries(st.sampled_from("abc"), _values, max_size=3)


@given(_bodies, _bodies)
def test_merging_keeps_ours_where_the_host_says_nothing_and_changes_no_ones_object(
    ours: JsonObject, theirs: JsonObject
) -> None:
    body, before, said = copy.deepcopy(ours), copy.deepcopy(ours), copy.deepcopy(theirs)
    inner = {name: value for name, value in body.items() if isinstance(value, dict)}
    try:
        merge_options(body, theirs)
    except InvalidRequestError:
        return
    assert theirs == said
    assert all(inner[name] == before[name] for name in inner)
    assert body.keys() == ours.keys() | theirs.keys()
    assert all(body[name] == ours[name] for name in ours.keys() - theirs.keys())
    again = copy.deepcopy(body)
    merge_options(again, theirs)
    assert again == body


def test_two_things_of_different_type_are_not_mixed() -> None:
    body: JsonObject = {"thinking": {"type": "enabled", "budget_tokens": 2000}, "meta": {"a": {"b": 1}}}
    merge_options(body, {"thinking": {"type": "disabled"}, "meta": {"a": {"c": 2}}})
    assert body == {"thinking": {"type": "disabled"}, "meta": {"a": {"b": 1, "c": 2}}}
