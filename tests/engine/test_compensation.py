"""What the configuration adds to requests for one model's sake, and that it adds nothing unless it is told to."""

from __future__ import annotations

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters import (
    AdapterConfig,
    CanonicalRequest,
    Message,
    RetryPolicy,
    Role,
    ToolChoice,
    ToolDefinition,
    ToolUseBlock,
)
from callboard.engine import Engine, ModelDefaults, Tool, ToolSettings
from callboard.engine.models.entries import ModelInput, model_input
from tests.support.engines import entry, requests_of, serving
from tests.support.engines import model as listed
from tests.support.fake_http import HELLO, FakeTransport, ToyAdapter, failing, request, whole
from tests.support.scripted import CAPABILITIES, Say, scripted_type

pytestmark = pytest.mark.anyio

TOOLS = [Tool(ToolDefinition(name), lambda arguments: "done") for name in ("read", "write", "list", "ask")]


async def asked(
    *replies: Say,
    turns: int = 1,
    adapter: dict[str, object] | None = None,
    model: dict[str, object] | None = None,
    supports_tool_choice: bool = True,
    supports_parallel_tool_calls: bool = True,
    **options: object,
) -> list[CanonicalRequest]:
    """The requests of a conversation under these settings of adapter and model."""
    can = msgspec.structs.replace(
        CAPABILITIES,
        supports_tool_choice=supports_tool_choice,
        supports_parallel_tool_calls=supports_parallel_tool_calls,
    )
    kind = scripted_type(*replies, capabilities=can)
    models = serving(listed("s:m", **(model or {})), s=entry("s", kind, **(adapter or {})))
    async with Engine(models=models, trace=False) as engine:
        session = engine.session("s:m", system_prompt="You are brief.", tools=TOOLS)
        for _ in range(turns):
            await session.send("Hi", **options)
        return requests_of(engine)


async def test_without_configuration_a_request_holds_what_the_host_said() -> None:
    """No addendum, no forcing, no filter, no default: nothing is added of our own accord."""
    (one,) = await asked(Say("hello"))
    assert one.system_prompt == "You are brief."
    assert [tool.name for tool in one.tools] == ["read", "write", "list", "ask"]
    assert {tool.strict for tool in one.tools} == {None}
    unset = (one.tool_choice, one.parallel_tool_calls, one.temperature, one.reasoning_effort)
    assert unset == (None,) * 4
    assert (one.max_retries, one.retry) == (None, None)


async def test_an_addendum_follows_the_system_prompt_and_a_models_own_replaces_its_adapters() -> None:
    """After a blank line; an empty one takes the adapter's away."""
    above = {"prompt_addendum": "Use the tools."}
    assert (await asked(Say("x"), adapter=above))[0].system_prompt == "You are brief.\n\nUse the tools."
    other = await asked(Say("x"), adapter=above, model={"prompt_addendum": "Read first."})
    assert other[0].system_prompt == "You are brief.\n\nRead first."
    assert (await asked(Say("x"), adapter=above, model={"prompt_addendum": ""}))[0].system_prompt == (
        "You are brief."
    )


async def test_a_tool_is_forced_in_the_first_reply_of_a_conversation_only() -> None:
    """Not after the tool's result, not in the second turn."""
    forcing = {"tools": ToolSettings(force_first_turn=True)}
    requests = await asked(Say(calls=[("read", {})]), Say("done"), Say("again"), turns=2, adapter=forcing)
    assert [request.tool_choice for request in requests] == [ToolChoice("required"), None, None]


async def test_nothing_is_forced_against_the_callers_word_or_the_models_ability() -> None:
    """What the caller chose stands; a model that can't be forced isn't."""
    forcing = {"tools": ToolSettings(force_first_turn=True)}
    (one,) = await asked(Say("x"), adapter=forcing, tool_choice=ToolChoice("none"))
    assert one.tool_choice == ToolChoice("none")
    (one,) = await asked(Say("x"), adapter=forcing, supports_tool_choice=False)
    assert one.tool_choice is None
    (one,) = await asked(Say("x"), adapter=forcing, model={"tools": ToolSettings(force_first_turn=False)})
    assert one.tool_choice is None


async def test_parallel_calls_are_as_configured_where_the_caller_and_the_model_leave_it_open() -> None:
    """The caller's word first; a model that has no such switch is told nothing."""
    off = {"tools": ToolSettings(parallel=False)}
    assert (await asked(Say("x"), adapter=off))[0].parallel_tool_calls is False
    assert (await asked(Say("x"), adapter=off, parallel_tool_calls=True))[0].parallel_tool_calls is True
    assert (await asked(Say("x"), adapter=off, supports_parallel_tool_calls=False))[0].parallel_tool_calls is None


async def test_a_model_is_sent_no_more_tools_than_it_may_have() -> None:
    """With its core among them."""
    limited = {"tools": ToolSettings(max=2, core=("ask",))}
    (one,) = await asked(Say("x"), adapter=limited)
    assert [tool.name for tool in one.tools] == ["read", "ask"]


async def test_retries_of_a_model_go_with_the_request_unless_the_call_has_its_own() -> None:
    """A model's numbers stand in its requests; a call's come before them."""
    own = {"max_retries": 5, "retry": RetryPolicy(base_delay=2)}
    (one,) = await asked(Say("x"), model=own)
    assert (one.max_retries, one.retry) == (5, RetryPolicy(base_delay=2))
    (one,) = await asked(Say("x"), model=own, max_retries=0, retry=RetryPolicy(base_delay=0))
    assert (one.max_retries, one.retry) == (0, RetryPolicy(base_delay=0))


async def test_an_adapters_usual_output_is_asked_for_as_far_as_the_model_goes() -> None:
    """A model's own number comes first; a model that gives less is asked for what it gives."""
    usual = {"defaults": ModelDefaults(max_output_tokens=8192)}
    assert (await asked(Say("x"), adapter=usual))[0].max_output_tokens == 8192
    small = {"capabilities": {"max_output_tokens": 4096}}
    assert (await asked(Say("x"), adapter=usual, model=small))[0].max_output_tokens == 4096
    own = {"max_output_tokens": 100}
    assert (await asked(Say("x"), adapter=usual, model=own))[0].max_output_tokens == 100


def given_to(tools: list[str], settings: ToolSettings, *messages: Message, named: str | None = None) -> ModelInput:
    choice = ToolChoice("named", named) if named else None
    return model_input(
        settings,
        None,
        tools=[ToolDefinition(name) for name in tools],
        system_prompt=None,
        messages=messages,
        choice=choice,
    )


def test_what_stays_of_many_tools_is_the_chosen_then_the_core_then_the_used_then_the_first() -> None:
    """In the order in which they were given; what was left out is named."""
    used = Message(Role.ASSISTANT, (ToolUseBlock("tu_1", "f", {}),))
    made = given_to(list("abcdef"), ToolSettings(max=4, core=("e",)), used, named="d")
    assert [tool.name for tool in made.tools] == ["a", "d", "e", "f"]
    (warning,) = made.warnings
    assert (warning.code, warning.message) == ("tools_left_out", "6 tools for a limit of 4; left out: b, c")


def test_strictness_is_for_tools_that_do_not_say() -> None:
    """A tool's own word is never overruled."""
    tools = [ToolDefinition("a"), ToolDefinition("b", strict=False)]
    made = model_input(ToolSettings(strict=True), None, tools=tools, system_prompt=None, messages=(), choice=None)
    assert [tool.strict for tool in made.tools] == [True, False]


@given(
    names=st.lists(st.sampled_from("abcdefgh"), unique=True),
    core=st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=3),
    limit=st.integers(3, 8),
)
def test_a_filter_keeps_the_limit_the_core_and_the_order(names: list[str], core: list[str], limit: int) -> None:
    """Whatever tools there are, and never fewer than may be."""
    made = given_to(names, ToolSettings(max=limit, core=tuple(core)))
    kept = [tool.name for tool in made.tools]
    assert len(kept) == min(limit, len(names))
    assert kept == [name for name in names if name in kept]
    assert set(core) & set(names) <= set(kept)
    assert bool(made.warnings) == (len(names) > limit)


async def test_a_policy_of_the_request_comes_before_the_adapters() -> None:
    """An HTTP adapter waits between two attempts as the request says."""
    network = FakeTransport(failing(529), whole(*HELLO))
    adapter = ToyAdapter(AdapterConfig(retry=RetryPolicy(base_delay=1, jitter=False)), transport=network)
    began = anyio.current_time()
    await adapter.complete(request(retry=RetryPolicy(base_delay=7, jitter=False)))
    assert anyio.current_time() - began == pytest.approx(7)
    await adapter.close()
