"""Sampling, effort and thinking, as far as a model takes them; and what is known of the models."""

from __future__ import annotations

import msgspec
import pytest

from callboard.adapters.config import AdapterConfig
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.providers.anthropic.adapter import AnthropicAdapter
from callboard.adapters.providers.anthropic.data import find_model
from callboard.adapters.providers.anthropic.request import write_request
from callboard.bus.errors import CapabilityError, UnsupportedToolChoiceError
from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ProviderRaw, ThinkingBlock, ToolUseBlock
from callboard.bus.values.messages import Message, ToolChoice, ToolDefinition

from ...support.fake_http import request
from ...support.judges import messages_faults

TOOL = ToolDefinition("read", "Reads.")


def write(model: str, **changes: object) -> WireCall:
    fields: dict[str, object] = {"model": f"anthropic:{model}", "max_output_tokens": 8_000, **changes}
    wire = write_request(request(**fields), provider="anthropic", options={}, stream=False)
    assert messages_faults(wire.body) == []
    return wire


def tuned(wire: WireCall) -> JsonObject:
    """What tunes the reply."""
    body: JsonObject = msgspec.json.decode(wire.body)
    names = ("thinking", "output_config", "temperature", "top_p", "metadata")
    return {name: body[name] for name in names if name in body}


def codes(wire: WireCall) -> list[str]:
    return [warning.code for warning in wire.warnings]


# -- the table


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("claude-opus-4-20250514", "claude-opus-4"),
        ("claude-opus-4-0", "claude-opus-4"),
        ("claude-opus-4-1-20250805", "claude-opus-4-1"),
        ("claude-opus-4-5", "claude-opus-4-5"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
        ("claude-3-5-haiku-20241022", "claude-3-5-haiku"),
        ("claude-opus-4-8@20260528", "claude-opus-4-8"),
        ("claude-sonnet-5", "claude-sonnet-5"),
        ("claude-opus-9-1", "claude-opus-5-5"),
        ("claude-haiku-10", "claude-haiku-5-5"),
        ("claude-mythos-5-3", "claude-mythos-5-2"),
    ],
)
def test_a_model_is_known_by_any_of_its_names_and_a_newer_one_inherits(name: str, row: str) -> None:
    found = find_model(name)
    assert found is not None
    assert found.id == row


@pytest.mark.parametrize("name", ["claude-of-tomorrow", "claude-saga-6", "claude-2.1", "llama-3.3-70b", ""])
def test_what_is_no_such_model_is_not_guessed_at(name: str) -> None:
    assert find_model(name) is None


@pytest.mark.parametrize(
    ("model", "thinks", "structured", "forced", "context", "output"),
    [
        ("claude-3-5-haiku-latest", False, False, True, 200_000, 8_192),
        ("claude-sonnet-4-5", True, True, True, 200_000, 64_000),
        ("claude-opus-4-8", True, True, True, 1_000_000, 128_000),
        ("claude-sonnet-5-5", True, True, False, 1_000_000, 128_000),
        ("claude-of-tomorrow", True, True, True, 200_000, 64_000),
    ],
)
def test_capabilities_are_those_of_the_model(
    model: str, thinks: bool, structured: bool, forced: bool, context: int, output: int
) -> None:
    found = AnthropicAdapter(AdapterConfig()).get_capabilities(f"anthropic:{model}")
    assert (found.supports_thinking, found.supports_structured_output, found.supports_tool_choice) == (
        thinks,
        structured,
        forced,
    )
    assert (found.max_context_tokens, found.max_output_tokens) == (context, output)


# -- sampling and who asks


@pytest.mark.parametrize(
    ("model", "left"),
    [
        ("claude-of-tomorrow", {}),
        ("claude-saga-6", {}),
        ("claude-2.1", {"temperature": 0.5, "top_p": 0.5}),
        ("llama-3.3-70b", {"temperature": 0.5, "top_p": 0.5}),
        ("claude-3-5-sonnet-20241022", {"temperature": 0.5, "top_p": 0.5}),
        ("claude-sonnet-4-5", {"temperature": 0.5}),
        ("claude-opus-4-7", {}),
        ("claude-haiku-5-5", {}),
    ],
)
def test_sampling_is_sent_as_far_as_the_model_takes_it(model: str, left: JsonObject) -> None:
    wire = write(model, temperature=0.5, top_p=0.5)
    assert tuned(wire) == left
    assert codes(wire) == ["parameter_dropped"] * (2 - len(left))


def test_a_model_that_thinks_takes_no_sampling() -> None:
    wire = write("claude-sonnet-4-6", temperature=0.5, reasoning_effort="low")
    assert "temperature" not in tuned(wire)
    assert "while it thinks" in wire.warnings[0].message


def test_the_user_is_named_and_other_settings_dont_exist() -> None:
    wire = write(
        "claude-of-tomorrow", user="u_1", seed=1, frequency_penalty=0.5, presence_penalty=0.5, verbosity="low"
    )
    assert tuned(wire) == {"metadata": {"user_id": "u_1"}}
    assert codes(wire) == ["parameter_dropped"] * 4
    own = write("claude-of-tomorrow", user="u_1", provider_options={"anthropic": {"metadata": {"user_id": "u_2"}}})
    assert tuned(own) == {"metadata": {"user_id": "u_2"}}


# -- effort and thinking


@pytest.mark.parametrize(
    ("model", "asked", "sent", "warned"),
    [
        ("claude-of-tomorrow", "high", {"output_config": {"effort": "high"}}, []),
        ("claude-of-tomorrow", "none", {"output_config": {"effort": "low"}}, ["parameter_changed"]),
        ("claude-3-5-haiku-latest", "high", {}, ["parameter_dropped"]),
        ("claude-3-5-haiku-latest", "none", {}, []),
        ("claude-sonnet-4-5", "none", {}, []),
        ("claude-sonnet-4-5", "minimal", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, []),
        ("claude-sonnet-4-5", "medium", {"thinking": {"type": "enabled", "budget_tokens": 4000}}, []),
        (
            "claude-opus-4-5",
            "max",
            {"output_config": {"effort": "high"}, "thinking": {"type": "enabled", "budget_tokens": 4000}},
            ["parameter_changed"],
        ),
        (
            "claude-opus-4-6",
            "xhigh",
            {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}},
            ["parameter_changed"],
        ),
        (
            "claude-opus-4-8",
            "xhigh",
            {"output_config": {"effort": "xhigh"}, "thinking": {"type": "adaptive"}},
            [],
        ),
        ("claude-sonnet-5", "low", {"output_config": {"effort": "low"}}, []),
        ("claude-sonnet-5", "none", {"thinking": {"type": "disabled"}}, []),
        ("claude-opus-5-5", "none", {"output_config": {"effort": "low"}}, ["parameter_changed"]),
    ],
)
def test_an_effort_becomes_what_the_model_has_for_it(
    model: str, asked: str, sent: JsonObject, warned: list[str]
) -> None:
    """A budget is at most half of the reply's limit, which is 8,000 here."""
    wire = write(model, reasoning_effort=asked)
    assert (tuned(wire), codes(wire)) == (sent, warned)


def test_the_hosts_own_thinking_goes_first() -> None:
    own: Json = {"type": "enabled", "budget_tokens": 2000}
    wire = write("claude-sonnet-4-5", reasoning_effort="high", provider_options={"anthropic": {"thinking": own}})
    assert tuned(wire) == {"thinking": own}


def test_no_budget_is_asked_for_that_would_be_refused() -> None:
    """With too little output, a demanded call, or in a tool loop that began without the model's own thinking."""
    small = write("claude-sonnet-4-5", reasoning_effort="high", max_output_tokens=1024)
    forced = write("claude-sonnet-4-5", reasoning_effort="high", tools=(TOOL,), tool_choice=ToolChoice("required"))
    call = ToolUseBlock("tu_1", "read", {})
    foreign = write(
        "claude-sonnet-4-5",
        reasoning_effort="high",
        messages=(Message.user("Go"), Message.assistant((call,)), Message.tool_result("tu_1", "x")),
    )
    for wire in (small, forced, foreign):
        assert (tuned(wire), codes(wire)) == ({}, ["parameter_dropped"])
    thought = ThinkingBlock("Hm", "sig", ProviderRaw("anthropic", {}))
    own = write(
        "claude-sonnet-4-5",
        reasoning_effort="low",
        messages=(Message.user("Go"), Message.assistant((thought, call)), Message.tool_result("tu_1", "x")),
    )
    assert tuned(own) == {"thinking": {"type": "enabled", "budget_tokens": 4000}}


# -- what can't be left out


def test_a_demanded_call_is_refused_where_the_model_refuses_it() -> None:
    demand = {"tools": (TOOL,), "tool_choice": ToolChoice("named", "read")}
    with pytest.raises(UnsupportedToolChoiceError, match="can't be made to call a tool"):
        write("claude-opus-5-5", **demand)
    with pytest.raises(UnsupportedToolChoiceError, match="while it thinks with a budget"):
        thinking: Json = {"type": "enabled", "budget_tokens": 2000}
        write("claude-sonnet-4-5", **demand, provider_options={"anthropic": {"thinking": thinking}})
    for choice in (None, ToolChoice("auto"), ToolChoice("none")):
        write("claude-opus-5-5", tools=(TOOL,), tool_choice=choice)
    assert msgspec.json.decode(write("claude-opus-4-8", **demand).body)["tool_choice"]["name"] == "read"


def test_a_schema_is_refused_where_the_model_has_no_structured_output() -> None:
    with pytest.raises(CapabilityError, match="no structured output"):
        write("claude-sonnet-4-20250514", output_schema={"type": "object"})


def test_more_output_than_the_model_gives_is_lowered() -> None:
    wire = write("claude-opus-4-1", max_output_tokens=64_000)
    assert msgspec.json.decode(wire.body)["max_tokens"] == 32_000
    assert codes(wire) == ["parameter_changed"]
    assert (
        msgspec.json.decode(write("claude-of-tomorrow", max_output_tokens=999_999).body)["max_tokens"] == 999_999
    )
