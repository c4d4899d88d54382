"""What the server says of its models, however old it is."""

from __future__ import annotations

import ollama
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.providers.ollama.models import (
    ASK_AGAIN_SECONDS,
    MAX_MODELS,
    Catalogue,
    ModelFacts,
    full_name,
    read_show,
    read_tags,
)
from callboard.bus.values.base import Json, JsonObject

from ...support.wires.ollama import call, last, line

SHOWN: Json = {
    "modelfile": "FROM x",
    "parameters": "num_ctx 4096",
    "template": "{{ .Prompt }}",
    "details": {"format": "gguf", "family": "qwen3", "families": ["qwen3"], "parameter_size": "8.2B"},
    "model_info": {"general.architecture": "qwen3", "qwen3.block_count": 36, "qwen3.context_length": 40960},
    "capabilities": ["completion", "tools", "thinking"],
}


def test_a_model_as_it_is_shown() -> None:
    """Abilities, window and family; and what the contract makes of them."""
    judged = ollama.ShowResponse.model_validate(SHOWN)
    assert judged.capabilities == ["completion", "tools", "thinking"]
    assert judged.modelinfo is not None
    facts = read_show(SHOWN)
    assert facts == ModelFacts(frozenset({"completion", "tools", "thinking"}), 40960, "qwen3")
    can = facts.capabilities()
    assert (can.supports_tools, can.supports_thinking, can.supports_images) == (True, True, False)
    assert (can.max_context_tokens, can.max_output_tokens) == (40960, 40960)
    assert not can.supports_tool_choice


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({"details": {"family": "llama"}}, ModelFacts(family="llama")),  # of old servers: nothing but that
        ({"capabilities": ["vision"]}, ModelFacts(frozenset({"vision"}))),
        ({"model_info": {"general.architecture": "a", "b.context_length": 5}}, ModelFacts(context_tokens=5)),
        ({"model_info": {"a.context_length": True}, "details": None}, ModelFacts()),
        ({"model_info": {"a.context_length": "x"}, "capabilities": "all"}, ModelFacts()),
        ({"error": "model 'x' not found"}, None),
        ([], None),
        (None, None),
    ],
)
def test_shapes_of_every_age(shown: Json, expected: ModelFacts | None) -> None:
    """What isn't said isn't known."""
    assert read_show(shown) == expected


def test_unsaid_abilities_are_not_denied() -> None:
    """Only a server that lists abilities denies the others."""
    assert ModelFacts(context_tokens=8192).capabilities().supports_tools
    assert not ModelFacts(frozenset({"completion"})).capabilities().supports_tools


NAMES = (
    "models",
    "model",
    "name",
    "details",
    "family",
    "capabilities",
    "model_info",
    "a.context_length",
    "general.architecture",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_no_answer_breaks_anything(answer: Json) -> None:
    """Whatever answers at that address."""
    facts = read_show(answer)
    assert facts is None or facts.capabilities().max_context_tokens > 0
    assert all(isinstance(name, str) for name in read_tags(answer))


def test_the_list_of_models() -> None:
    """By `model`, which older servers call `name`."""
    assert read_tags({"models": [{"name": "a:1", "model": "a:1"}, {"name": "b:2"}, {}, None]}) == ("a:1", "b:2")
    assert read_tags({"models": None}) == ()
    (judged,) = ollama.ListResponse.model_validate({"models": [{"name": "a:1", "model": "a:1"}]}).models
    assert judged.model == "a:1"


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("llama3", "llama3:latest"),
        ("llama3:8b", "llama3:8b"),
        ("hf.co/a/b", "hf.co/a/b:latest"),
        ("host:5000/a", "host:5000/a:latest"),
    ],
)
def test_names_without_a_tag_are_the_latest(name: str, full: str) -> None:
    """As the server reads them."""
    assert full_name(name) == full


def test_a_catalogue_asks_once_and_again_after_a_silence() -> None:
    """Not at once, for each call would pay for it; and known is known."""
    catalogue = Catalogue()
    assert catalogue.wants("a", 0)
    catalogue.learn("a", None, 0)
    assert not catalogue.wants("a", ASK_AGAIN_SECONDS - 1)
    assert catalogue.wants("a:latest", ASK_AGAIN_SECONDS)
    catalogue.learn("a:latest", ModelFacts(family="x"), 70)
    assert not catalogue.wants("a", 1e9)
    assert catalogue.facts("a") == ModelFacts(family="x")


def test_a_catalogue_is_bounded() -> None:
    """The one learned first goes first."""
    catalogue = Catalogue()
    for number in range(MAX_MODELS + 1):
        catalogue.learn(str(number), ModelFacts(), 0)
    assert catalogue.facts("0") is None
    assert catalogue.facts("1") is not None
    assert catalogue.facts(str(MAX_MODELS)) is not None


@pytest.mark.parametrize(
    "vector",
    [
        line(thinking="Hm."),
        line(content="Hi"),
        line(tool_calls=[call("look", {"at": 1}), call("clock", {}, "call_1")]),
        last(),
        last("length", {}),
        last(None, content="Hi"),
    ],
)
def test_the_official_client_takes_our_lines_for_its_servers(vector: JsonObject) -> None:
    """They are written by hand, so somebody else must say that they are right."""
    judged = ollama.ChatResponse.model_validate(vector)
    assert judged.message.content == vector["message"]["content"]
    assert judged.done == vector["done"]
    assert judged.eval_count == vector.get("eval_count")
    assert len(judged.message.tool_calls or ()) == len(vector["message"].get("tool_calls", ()))
