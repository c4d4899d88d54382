"""`generate`: one conversation in one call, and the errors of wrong arguments. Seed 2, section 8.4."""

from __future__ import annotations

import asyncio
import threading

import pytest

from callboard.adapters import CancelledError, CanonicalRequest, Message, Role, ServerError, TextBlock
from callboard.bus import CallboardError, ConfigurationError, SessionTurnCompleted
from callboard.engine import AbortController, Engine, ModelChoice, ModelRegistry, generate
from callboard.engine.models.configured import registry_from_env
from tests.support.engines import registry, running, topics
from tests.support.scripted import ADD, CALLS_ADD, Say

from ...definition_of_done.rows import row


async def test_a_prompt_is_answered() -> None:
    """8.4: The function and the method return the text, the usage, the stop reason and the conversation."""
    async with running(Say("Hello"), Say("Hello again")) as (engine, _):
        result = await generate("s:m", "Hi", engine=engine, system_prompt="Be brief.")
        again = await engine.generate("s:m", "Hi")
    assert (result.text, result.status, result.stop_reason, result.raw_stop_reason) == (
        *("Hello", "completed"),
        *("end_turn", "end_turn"),
    )
    assert (result.usage.input_tokens, result.total_usage, result.thinking) == (10, result.usage, "")
    assert [(message.role, message.text) for message in result.messages] == [
        ("user", "Hi"),
        ("assistant", "Hello"),
    ]
    assert again.text == "Hello again"


async def test_plain_mappings_are_messages() -> None:
    """A mapping has a role, and a text or a list of texts and blocks."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ["1+1", {"type": "text", "text": "?"}]},
        Message.assistant("2"),
        {"role": "user", "content": [TextBlock("And 1 more?")]},
    ]
    async with running(Say("3")) as (engine, _):
        result = await engine.generate("s:m", messages=messages)
    texts = [f"{message.role}: {message.text}" for message in result.messages]
    assert texts == ["system: Be brief.", "user: 1+1?", "assistant: 2", "user: And 1 more?", "assistant: 3"]


async def test_a_plain_function_is_a_tool() -> None:
    """The tool is the same as with @tool. It can be passed again, and to a session."""

    async def plus(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    calls = Say("Let me see.", calls=[("plus", {"a": 1, "b": 2})])
    async with running(calls, Say("It is 3."), calls, Say("It is 3."), calls, Say("3")) as (engine, _):
        for _again in range(2):
            result = await engine.generate("s:m", "1+2?", tools=[plus])
            assert [answer.text for answer in result.steps[0].tool_results] == ["3"]
        session = engine.session("s:m", tools=[plus])
        assert (await session.send("1+2?")).text == "3"
        (plain,) = session.tools
        assert (plain.name, plain.definition.description) == ("plus", "Adds two numbers.")
        with pytest.raises(ConfigurationError, match="two tools are named 'plus'"):
            session.tools = [plus, plus]


async def test_tools_run_and_the_result_has_every_step() -> None:
    """8.7: The result has the steps with calls and results, the sums of all steps, and the conversation."""
    async with running(CALLS_ADD, Say("It is 3."), Say("You are welcome.")) as (engine, _):
        result = await engine.generate("s:m", "1+2?", tools=[ADD])
        assert [step.text for step in result.steps] == ["Let me see.", "It is 3."]
        assert [call.name for call in result.steps[0].tool_uses] == ["add"]
        assert [answer.text for answer in result.steps[0].tool_results] == ["3"]
        assert (result.total_usage.input_tokens, result.usage.input_tokens) == (20, 10)
        more = await engine.generate("s:m", messages=[*result.messages, Message.user("Thanks")])
    assert more.text == "You are welcome."
    assert [message.role for message in more.messages] == [
        *(Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT),
        *(Role.USER, Role.ASSISTANT),
    ]


async def test_a_failure_has_the_steps_before_it() -> None:
    """`.turn` has the previous steps, and the error has the part of the reply that arrived."""
    async with running(CALLS_ADD, Say("It", " is", fails=ServerError("down"))) as (engine, _):
        with pytest.raises(ServerError) as raised:
            await engine.stream("s:m", "1+2?", tools=[ADD]).result()
    turn = raised.value.turn  # type: ignore[attr-defined]
    assert [step.text for step in turn.steps] == ["Let me see."]
    assert [message.role for message in turn.messages] == [Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT]
    assert [block.text for block in raised.value.content if isinstance(block, TextBlock)] == ["It is"]


# -- The choice of the model.


@pytest.mark.parametrize(
    ("model", "provider", "meant"),
    [
        ("m", "t", "t:m"),
        ("t:m", "t", "t:m"),
        ("anything-new", "t", "t:anything-new"),
        (("m", "other"), "t", "t:m"),
    ],
)
@row("8.1.3")
async def test_the_provider_decides_between_models_of_one_name(
    model: str | tuple[str, ...], provider: str, meant: str
) -> None:
    """8.1: Two providers or none may list the name. A prefix in the name does the same as `provider=`."""
    async with running(t=[Say("from t")]) as (engine, _):
        result = await engine.generate(model, "Hi", provider=provider)
        assert (result.text, result.response.model) == ("from t", meant)


async def test_without_a_model_the_default_model_is_called() -> None:
    """C10: `default_model` can have the name of its provider. Without a default, the error has advice."""
    plain = registry(Say("Hello"), Say("Hello"))
    models = ModelRegistry(plain.adapters, plain.models, default_model="s:m")
    async with Engine(models=models, trace=False) as engine:
        assert (await engine.generate(prompt="Hi")).response.model == "s:m"
        assert (await engine.generate(prompt="Hi", provider="s")).response.model == "s:m"
    async with running() as (engine, _):
        with pytest.raises(ConfigurationError, match="no model given"):
            await engine.generate(prompt="Hi")


async def test_an_error_of_configuration_has_few_frames_of_ours() -> None:
    """The traceback ends near the host's line, and leaves out the engine's frames."""
    async with Engine(models=registry_from_env({}), trace=False) as engine:
        with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY") as raised:
            await engine.generate("claude-haiku-4-5", "Hi")
        with pytest.raises(ConfigurationError) as streamed:
            await engine.stream("claude-haiku-4-5", "Hi").response()
    for each in (raised, streamed):
        assert "step.py" not in {frame.path.name for frame in each.traceback}
        assert str(each.traceback[0].path) == __file__


# -- Cancellation.


@row("8.4.9")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # Virtual time would run out while the thread runs.
async def test_a_signal_from_another_thread_ends_the_call() -> None:
    """C04: CancelledError has the reason and the turn. The signal keeps no reference to the turn."""
    controller, started = AbortController(), asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    async with running(Say("never", pause=wait)) as (engine, events):
        asking = asyncio.create_task(engine.generate("s:m", "Hi", signal=controller.signal))
        await started.wait()
        thread = threading.Thread(target=controller.abort, args=("the user left",))
        thread.start()
        thread.join()
        with pytest.raises(CancelledError, match="the turn was aborted: the user left") as raised:
            await asking
        ends = [each.data for each in events.take() if isinstance(each.data, SessionTurnCompleted)]
    assert [end.status for end in ends] == ["cancelled"]
    assert raised.value.turn.status == "cancelled"  # type: ignore[attr-defined]
    assert not controller.signal._watchers


async def test_an_aborted_signal_prevents_the_call() -> None:
    controller = AbortController()
    controller.abort()
    async with running(Say("never")) as (engine, events):
        with pytest.raises(CancelledError, match="the caller cancelled the call"):
            await engine.generate("s:m", "Hi", signal=controller.signal)
        assert topics(events.take(), "llm.") == []
        assert (await engine.generate("s:m", "Hi", signal=AbortController().signal)).text == "never"


async def test_cancelling_the_waiting_task_cancels_the_call() -> None:
    started = asyncio.Event()

    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    async with running(Say("never", pause=wait)) as (engine, events):
        asking = asyncio.create_task(engine.generate("s:m", "Hi"))
        await started.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        ends = [each.data for each in events.take() if isinstance(each.data, SessionTurnCompleted)]
    assert [end.status for end in ends] == ["cancelled"]


# -- Wrong arguments: the error says what to do.

MISUSED: list[tuple[dict[str, object], str]] = [
    ({"prompt": "Hi", "messages": [Message.user("Hi")]}, r"pass only one.*messages=\[\*messages, Message.user"),
    ({}, "pass a prompt or messages"),
    ({"messages": []}, "messages is empty.*at least one message"),
    ({"prompt": "Hi", "model": ModelChoice(), "provider": "s"}, r"Limit a ModelChoice with among="),
    ({"model": "What is 1+1?"}, r"first argument is the model, here 'What is 1\+1\?'.*prompt="),
    ({"prompt": "Hi", "model": "m", "provider": "x"}, r"'x' is not an adapter in .*adapters there: s"),
    ({"prompt": "Hi", "model": None, "provider": "s"}, "name one of its models"),
]


@pytest.mark.parametrize(("arguments", "advice"), MISUSED)
@row("8.4.3")
async def test_wrong_arguments_are_refused(arguments: dict[str, object], advice: str) -> None:
    """8.4: Examples are `prompt` together with `messages`, and neither of them. No request is sent."""
    async with running(Say("never")) as (engine, events):
        for ask in (engine.generate, engine.stream):
            with pytest.raises(CallboardError, match=advice):
                await ask(**{"model": "s:m", **arguments})  # type: ignore[operator]
        assert topics(events.take(), "llm.") == []


async def test_an_unknown_argument_is_a_type_error() -> None:
    """M32: For an argument of another library, the error names the argument of Callboard. No turn starts."""
    shared = {"max_tokens": "max_output_tokens=", "temprature": "did you mean temperature="}
    generating = {
        "n": "Make n calls",
        "system": "system_prompt=",
        "schema": "generate_object",
        "xyzzy": "TurnOptions",
    }
    async with running() as (engine, _):
        session = engine.session("s:m")
        for name, advice in {**shared, **generating}.items():
            with pytest.raises(TypeError, match=advice):
                await engine.generate("s:m", "Hi", **{name: 2})  # type: ignore[misc]
        for name, advice in {**shared, "system_prompt": r"session\.system_prompt ="}.items():
            with pytest.raises(TypeError, match=advice):
                await session.send("Hi", **{name: 2})  # type: ignore[arg-type]
        assert session.messages == ()


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"messages": [{"role": "tool", "content": "Hi"}]}, r"role is 'tool'; .* Message\.tool_result"),
        ({"messages": [{"role": "user", "content": 3}]}, "content is int; expected text or a list of blocks"),
        ({"messages": [{"role": "user", "text": "Hi"}]}, "has only role and content, not 'text'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "a block of type 'image_url'"),
        ({"messages": [{"role": "user", "content": [3]}]}, "content holds int"),
        ({"messages": "Hi"}, r"not str. Use Message.user"),
        ({"prompt": [Message.user("Hi")]}, r"Use messages=\[...\]"),
        ({"prompt": Message.user("Hi")}, r"Use messages=\[...\]"),
        ({"prompt": 3}, "text or content blocks, not int"),
        ({"prompt": "Hi", "model": 3}, "a name, several names or a ModelChoice, not int"),
        ({"prompt": "Hi", "tools": [3]}, "only Tool objects and functions, not int"),
        ({"prompt": "Hi", "tools": [dict]}, "only Tool objects and functions, not the class dict"),
        ({"prompt": "Hi", "stop_sequences": "END"}, r"stop_sequences=\['...'\]"),
        ({"prompt": "Hi", "signal": AbortController()}, r"signal=controller\.signal"),
        (
            {"model": CanonicalRequest(request_id="", messages=(), model="s:m", max_output_tokens=1)},
            r"engine\.complete\(\)",
        ),
    ],
)
async def test_an_argument_of_a_wrong_type_starts_no_turn(arguments: dict[str, object], advice: str) -> None:
    async with running() as (engine, events):
        with pytest.raises(TypeError, match=advice):
            await engine.generate(**{"model": "s:m", **arguments})  # type: ignore[arg-type]
        assert topics(events.take(), "session.") == []
