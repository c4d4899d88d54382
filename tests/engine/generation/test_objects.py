"""`generate_object`: each way to make a model follow a schema, and each failure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypedDict

import anyio
import msgspec
import pytest

from callboard.adapters import NetworkError, Role, StopReason, ToolChoice, ToolDefinition
from callboard.bus import CallboardError, CapabilityError, Json, JsonObject, RequestTimeoutError
from callboard.engine import (
    Engine,
    NoObjectGeneratedError,
    SchemaError,
    Tool,
    generate_object,
    generate_object_sync,
    run_sync,
    set_default_engine,
    stream_object,
    stream_object_sync,
)
from callboard.tracestore import PriceTable

from ...support.engines import registry
from ...support.present import present
from ...support.scripted import Say
from .object_engines import ADA, NO_SCHEMA, ONLY_WORDS, PERSON, THINKS, Person, Place, ended, running


class Row(TypedDict):
    name: str


class Point(msgspec.Struct):
    x: Annotated[int, msgspec.Meta(ge=0)]


# -- The objects of different schemas.


NULLABLE: JsonObject = {"type": "object", "properties": {"a": {}, "b": {"type": ["string", "null"]}}}
A_REF: JsonObject = {"$ref": "#/definitions/A"}


@pytest.mark.parametrize(
    ("schema", "reply", "output"),
    [
        (Person, ADA, Person("Ada", 36)),
        (Person, '{"name": "Ada", "age": 36, "nickname": null, "tags": null}', Person("Ada", 36)),
        (Place, '{"city": "Bath"}', Place(city="Bath")),
        (Row, '{"name": "Ada"}', {"name": "Ada"}),
        (Point, '{"x": 3}', Point(3)),
        (PERSON, ADA, {"name": "Ada", "age": 36}),
        (NULLABLE, '{"a": null, "b": null}', {"a": None, "b": None}),
        ({"type": "object"}, '{"any": [1]}', {"any": [1]}),
        (list[Place], '{"value": [{"city": "Bath"}]}', [Place(city="Bath")]),
        (list[Person] | None, '{"value": null}', None),
        (list[Place], '[{"city": "Bath"}]', [Place(city="Bath")]),
        (list[Place], 'Here: ```json\n[{"city": "Bath"}]\n```', [Place(city="Bath")]),
        (int, "3", 3),
        (str, '"Bath"', "Bath"),
        (Literal["yes", "no"], "no", "no"),
        (Literal["yes", "no"], '{"value": "no"}', "no"),
        (int, '{"value": 3}', 3),
        ({"type": "array", "items": {"type": "integer"}}, '{"value": [1, 2]}', [1, 2]),
        ({**A_REF, "definitions": {"A": {"type": "object"}}}, "{}", {}),
        ({"type": "array", "items": A_REF, "definitions": {"A": {"type": "integer"}}}, '{"value": [1]}', [1]),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_a_reply_becomes_a_value_of_the_schema(schema: object, reply: str, output: object) -> None:
    """The schema is a type or a JSON Schema, and its value may be no object."""
    said = ended(Say(reply), StopReason.MAX_TOKENS) if reply == ADA else Say(reply)
    async with running(said) as (engine, asked):
        result = await engine.generate_object("s:m", "Who?", schema=schema)
    assert result.output == output
    assert type(result.output) is type(output)
    assert (result.text, len(result.steps), result.status, result.repaired) == (reply, 1, "completed", False)
    assert (result.usage.input_tokens, result.total_usage.output_tokens) == (10, 5)
    assert result.total_cost == result.cost
    assert present(asked[0].output_schema)["type"] == "object"


async def test_tools_run_before_the_object_is_returned() -> None:
    def look_up(arguments: JsonObject) -> Json:
        return {"age": 36}

    tool = Tool(ToolDefinition("look_up"), look_up)
    async with running(Say("Let me {see}.", calls=[("look_up", {})]), Say(ADA)) as (engine, asked):
        result = await engine.generate_object("s:m", "Who?", schema=Person, tools=[tool])
    assert result.output == Person("Ada", 36)
    assert len(result.steps) == 2
    assert [request.output_schema is not None for request in asked] == [True, True]


# -- How the request makes the model follow the schema.


async def test_a_model_without_schemas_is_forced_to_call_a_tool() -> None:
    """The call's arguments are the reply. They are text in the result and in the conversation."""
    reply = Say("I will answer.", calls=[("answer", {"name": "Ada", "age": 36})])
    async with running(reply, can=NO_SCHEMA) as (engine, asked):
        result = await engine.generate_object("s:m", "Who?", schema=PERSON)
    (request,) = asked
    assert request.output_schema is None
    assert [(tool.name, tool.input_schema) for tool in request.tools] == [("answer", PERSON)]
    assert request.tool_choice == ToolChoice("named", "answer")
    assert result.output == {"name": "Ada", "age": 36}
    assert msgspec.json.decode(result.text) == result.output
    assert (result.stop_reason, result.tool_uses) == (StopReason.END_TURN, ())
    assert [message.tool_uses for message in result.messages] == [(), ()]
    assert [warning.code for warning in result.warnings] == ["schema_as_tool"]


@pytest.mark.parametrize("case", ["no_tools", "own_tools", "own_choice", "reasons"])
async def test_without_a_forced_call_the_schema_is_in_the_system_prompt(case: str) -> None:
    """The model has no tools, reasons, or must be free to call the caller's tools."""
    tool = Tool(ToolDefinition("look_up"), lambda arguments: None)
    can = {"no_tools": ONLY_WORDS, "reasons": THINKS}.get(case, NO_SCHEMA)
    async with running(Say(f"```json\n{ADA}\n```"), can=can) as (engine, asked):
        result = await engine.generate_object(
            "s:m",
            "Who?",
            schema=PERSON,
            system_prompt="Be brief.",
            tools=[tool] if case.startswith("own") else [],
            tool_choice=ToolChoice("auto") if case == "own_choice" else None,
            reasoning_effort="high" if case == "reasons" else None,
        )
    (request,) = asked
    assert request.output_schema is None
    assert "answer" not in {tool.name for tool in request.tools}
    assert request.system_prompt.startswith("Be brief.\n\n")
    assert msgspec.json.encode(PERSON).decode() in request.system_prompt
    assert result.output == {"name": "Ada", "age": 36}
    assert [warning.code for warning in result.warnings] == ["schema_as_instruction"]


async def test_a_fallback_gets_the_schema_in_its_own_way() -> None:
    replies = [Say(fails=NetworkError("down")), Say(calls=[("answer", {"name": "Ada", "age": 36})])]
    async with running(*replies, and_then=NO_SCHEMA) as (engine, asked):
        result = await engine.generate_object("s:m", "Who?", schema=PERSON, fallback=["t:m"])
    assert [request.output_schema for request in asked] == [PERSON, None]
    assert [len(request.tools) for request in asked] == [0, 1]
    assert result.output == {"name": "Ada", "age": 36}


async def test_native_mode_accepts_only_models_with_schemas() -> None:
    async with running(Say(ADA), can=NO_SCHEMA) as (engine, asked):
        with pytest.raises(CapabilityError, match="does not support output schemas"):
            await engine.generate_object("s:m", "Who?", schema=PERSON, schema_mode="native")
    assert asked == []


async def test_a_turn_of_a_session_can_also_choose_the_mode() -> None:
    """The forced call becomes text, so the history has no open call."""
    replies = [Say(calls=[("answer", {"name": "Ada", "age": 36})]), Say("You're welcome.")]
    async with running(*replies, can=NO_SCHEMA) as (engine, asked):
        session = engine.session("s:m")
        message = await session.send("Who?", output_schema=PERSON, schema_mode="auto")
        await session.send("Thanks")
    assert msgspec.json.decode(message.text) == {"name": "Ada", "age": 36}
    assert [message.role for message in asked[1].messages] == [Role.USER, Role.ASSISTANT, Role.USER]
    assert asked[1].tools == ()


# -- Replies without an object.


@pytest.mark.parametrize(
    ("reply", "reason", "detail"),
    [
        (Say("I am not sure."), "not_json", "the text has no JSON"),
        (Say('{"name": "Ada", "age": }'), "not_json", "expected a value, at character 23"),
        (Say('{"name": "Ada", "age": NaN}'), "not_json", "expected a value, at character 23"),
        (Say(""), "not_json", "the text has no JSON"),
        (Say('{"name": "Ada", "age": "old"}'), "invalid", "$.age: 'old' is not of type 'integer'"),
        (Say('{"name": "Ada"}'), "invalid", "$: 'age' is a required property"),
        (ended(Say('{"name": "Ada", "a'), StopReason.MAX_TOKENS), "truncated", "the text ends before the end of"),
        (ended(Say("Well, let me think."), StopReason.MAX_TOKENS), "truncated", "the text has no JSON"),
        (ended(Say('{"name": x, "a'), StopReason.MAX_TOKENS), "not_json", "expected a value, at character 9"),
        (ended(Say("{}"), StopReason.MAX_TOKENS), "invalid", "$: 'name' is a required property"),
        (ended(Say("I can't help with that."), StopReason.REFUSAL), "refused", "I can't help with that."),
        (ended(Say(""), StopReason.CONTENT_FILTER), "refused", "content_filter"),
    ],
)
async def test_a_reply_without_an_object_is_an_error_with_its_reason(reply: Say, reason: str, detail: str) -> None:
    async with running(reply) as (engine, _):
        with pytest.raises(NoObjectGeneratedError) as none:
            await engine.generate_object("s:m", "Who?", schema=Person)
    error = none.value
    assert error.reason == reason
    assert detail in error.detail
    assert error.detail in str(error)
    assert (error.text, error.response.text) == ("".join(reply.reply.text), error.text)
    assert (error.usage.input_tokens, error.usage.output_tokens) == (10, 5)
    assert error.cost == error.steps[0].cost


async def test_a_value_that_only_the_type_refuses_is_invalid() -> None:
    """The constraint is not in the JSON Schema."""

    class Even(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            if self.number % 2:
                raise ValueError("must be even")

    async with running(Say('{"number": 3}')) as (engine, _):
        with pytest.raises(NoObjectGeneratedError, match="must be even") as none:
            await engine.generate_object("s:m", "Which?", schema=Even)
    assert none.value.reason == "invalid"


async def test_calls_for_the_caller_are_no_object() -> None:
    tool = Tool(ToolDefinition("ask_user"))
    async with running(Say(calls=[("ask_user", {})])) as (engine, _):
        with pytest.raises(NoObjectGeneratedError, match="it calls ask_user, and the turn ended with awaiting"):
            await engine.generate_object("s:m", "Who?", schema=Person, tools=[tool], max_reasks=1)


async def test_an_invalid_schema_is_refused_without_a_call() -> None:
    ref: JsonObject = {"$ref": "#/$defs/A", "$defs": 1}
    async with running() as (engine, asked):
        for schema in (complex, {"name": "string"}, {"type": 3}, ref, {"type": "array", "items": {"$ref": "#"}}):
            with pytest.raises(SchemaError):
                await engine.generate_object("s:m", "Who?", schema=schema)
        with pytest.raises(CallboardError, match="schema="):
            await engine.generate_object("s:m", "Who?", schema=Person, output_schema=PERSON)
    assert asked == []


# -- Requests after a wrong reply.


async def test_a_wrong_reply_is_returned_to_the_model_with_its_fault() -> None:
    wrong = '{"name": "Ada", "age": "old"}'
    async with running(Say(wrong), Say("Sorry!"), Say(ADA)) as (engine, asked):
        result = await engine.generate_object("s:m", "Who?", schema=Person, max_reasks=2)
    assert result.output == Person("Ada", 36)
    assert [len(request.messages) for request in asked] == [1, 3, 5]
    assert asked[1].messages[1].text == wrong
    assert "does not follow the schema: $.age: 'old' is not of type 'integer'" in asked[1].messages[2].text
    assert "is not JSON" in asked[2].messages[4].text
    assert (len(result.steps), result.total_usage.input_tokens, result.usage.input_tokens) == (3, 30, 10)
    assert result.total_cost == result.steps[0].cost + result.steps[1].cost + result.steps[2].cost
    assert len(result.messages) == 6


async def test_a_wrong_forced_call_is_forced_again() -> None:
    replies = [Say(calls=[("answer", {"name": "Ada"})]), Say(calls=[("answer", {"name": "Ada", "age": 36})])]
    async with running(*replies, can=NO_SCHEMA) as (engine, asked):
        result = await engine.generate_object("s:m", "Who?", schema=Person, max_reasks=1)
    assert result.output == Person("Ada", 36)
    assert [request.tool_choice for request in asked] == [ToolChoice("named", "answer")] * 2
    assert asked[1].messages[1].text == '{"name":"Ada"}'


async def test_after_an_empty_reply_the_request_repeats_the_question() -> None:
    async with running(Say(""), Say(ADA)) as (engine, asked):
        result = await engine.generate_object("s:m", "Who?", schema=Person, max_reasks=1)
    assert result.output == Person("Ada", 36)
    assert [f"{message.role} {message.text[:4]}" for message in asked[1].messages] == ["user Who?", "user Your"]


async def test_all_requests_for_an_object_share_one_time_limit() -> None:
    async def slowly() -> None:
        await anyio.sleep(1)

    async with running(*[Say("no", pause=slowly)] * 9) as (engine, asked):
        with pytest.raises(RequestTimeoutError):
            await engine.generate_object("s:m", "Who?", schema=Person, max_reasks=8, timeout=5)
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("reply", "reasks", "calls"),
    [
        (Say("no"), 1, 2),
        (ended(Say('{"na'), StopReason.REFUSAL), 3, 1),
        (ended(Say('{"na'), StopReason.MAX_TOKENS), 3, 1),
    ],
    ids=["limit", "refusal", "truncation"],
)
async def test_the_number_of_requests_is_limited(reply: Say, reasks: int, calls: int) -> None:
    """After a refusal or a truncation there is no further request."""
    async with running(*[reply] * calls, Say(ADA)) as (engine, asked):
        with pytest.raises(NoObjectGeneratedError) as none:
            await engine.generate_object("s:m", "Who?", schema=Person, max_reasks=reasks)
    assert len(asked) == len(none.value.steps) == calls
    assert none.value.usage.input_tokens == 10 * calls


# -- Repair of nearly valid JSON.


@pytest.mark.parametrize(
    ("reply", "output"),
    [
        (Say('{"name": "Ada", "age": 36,}'), Person("Ada", 36)),
        (Say('Here: {"name": "Ada\nL.", "age": 36'), Person("Ada\nL.", 36)),
        (ended(Say('{"name": "A", "age": 3, "tags": ["b'), StopReason.MAX_TOKENS), Person("A", 3, "", ["b"])),
    ],
    ids=["comma", "line", "truncated"],
)
async def test_repair_reads_nearly_valid_json(reply: Say, output: Person) -> None:
    async with running(reply, reply) as (engine, _):
        with pytest.raises(NoObjectGeneratedError):
            await engine.generate_object("s:m", "Who?", schema=Person)
        result = await engine.generate_object("s:m", "Who?", schema=Person, repair=True)
    assert result.output == output
    assert result.repaired


# The sync functions for objects have the same results, in a thread without an event loop.


@contextmanager
def default(*replies: Say) -> Iterator[Engine]:
    """A default engine with these replies."""
    engine = Engine(models=registry(*replies), trace=False, prices=PriceTable.default())
    set_default_engine(engine)
    try:
        yield engine
    finally:
        set_default_engine(None)
        run_sync(engine.aclose())


def test_an_object_is_generated_without_a_loop() -> None:
    with default(Say(ADA), Say("no")):
        assert generate_object_sync("s:m", "Who?", schema=Person).output == Person("Ada", 36)
        with pytest.raises(NoObjectGeneratedError):
            generate_object_sync("s:m", "Who?", schema=Person)


def test_an_object_grows_without_a_loop() -> None:
    with default(Say('{"name": "Ada", ', '"age": 36}')):
        with stream_object_sync("s:m", "Who?", schema=Person) as stream:
            partials = list(stream)
            assert stream.object() == Person("Ada", 36)
            assert "".join(stream.text_stream) == stream.result().text
            assert not stream.cancel()
        assert partials[-1] == json.loads(ADA)


def test_leaving_a_stream_early_cancels_its_call_without_a_loop() -> None:
    with default(Say(ADA), Say(ADA)) as engine:
        with stream_object_sync("s:m", "Who?", schema=Person) as stream:
            next(iter(stream))
        assert [provider.in_flight for provider in engine.statistics().providers] == [0]


def test_the_functions_use_the_default_engine_unless_one_is_passed() -> None:
    async def ask(**engine: Any) -> None:
        assert (await generate_object("s:m", "Who?", schema=Person, **engine)).output == Person("Ada", 36)
        async with stream_object("s:m", "Who?", schema={"type": "object"}, **engine) as stream:
            assert await stream.object() == json.loads(ADA)
        with pytest.raises(CallboardError, match="prompt"):
            await generate_object("s:m", schema=Person, **engine)

    with default(Say(ADA), Say(ADA)):
        run_sync(ask())
    with Engine(models=registry(Say(ADA), Say(ADA)), trace=False) as other:
        run_sync(ask(engine=other))
