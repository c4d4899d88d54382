"""Streamed tool calls: complete or in pieces, in parallel, with arguments of each kind."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.messages import ToolDefinition
from callboard.bus.values.usage import StopReason

from ...support.json_values import json_objects
from ...support.wires import Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires.reading import Reading, read, read_whole, shown
from .cases import CHAT, CLAUDE, GEMINI, OLLAMA, RESPONSES, Case, check, quirky, table

pytestmark = pytest.mark.more("streams arrive byte by byte, too")

TOOL_USE = StopReason.TOOL_USE
FIRST, SECOND = ("look", {"at": 1}, "call_1"), ("hear", {"to": 2}, "call_2")
ONE, TWO = r.call("look", '{"at":1}'), r.call("hear", '{"to":2}', 2)
CALLER: JsonObject = {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}


def claude(*events: JsonObject, stop: str = "tool_use") -> list[JsonObject]:
    return [a.message_start(), *events, *a.ending(stop)]


def begun(index: int, name: str, call_id: str, **fields: Json) -> JsonObject:
    return a.start(index, "tool_use", **{"id": call_id, "name": name, "input": {}, **fields})


def fragment(index: int, text: Json) -> JsonObject:
    return a.delta(index, "input_json_delta", partial_json=text)


def responses(*events: JsonObject, **fields: Json) -> list[JsonObject]:
    return [r.CREATED, *events, r.ending(**fields)]  # type: ignore[arg-type]


def without_index(*events: JsonObject) -> list[JsonObject]:
    indexes = ("output_index", "content_index", "summary_index", "sequence_number")
    return [{name: value for name, value in event.items() if name not in indexes} for event in events]


def chat(*events: JsonObject, finish: str = "tool_calls") -> list[JsonObject | bytes]:
    return [*events, c.chunk(finish), c.DONE]


GOOGLE: Json = {"google": {"thought_signature": "c2ln"}}
EMPTY: Json = {"input": "", "name": ""}
CHAT_FORMS: dict[str, tuple[JsonObject, ...]] = {
    "both-begin-first": (c.tools(c.tool(0, "call_1"), c.tool(1, "call_2", "hear")), c.more('{"at":1}'),
                         c.more('{"to":2}', 1)),
    "index-from-1": (c.tools(c.tool(1, "call_1")), c.more('{"at":1}', 1), c.tools(c.tool(2, "call_2", "hear")),
                     c.more('{"to":2}', 2)),
    "index-0-for-all": (c.tools(c.tool(0, "call_1")), c.more('{"at":1}'), c.tools(c.tool(0, "call_2", "hear")),
                        c.more('{"to":2}')),
    "whole-without-index": (c.tools(c.tool(None, "call_1", arguments='{"at":1}'),
                                    c.tool(None, "call_2", "hear", '{"to":2}')),),
    "last-without-index": (c.tools(c.tool(None, "call_1")), c.more('{"at":1}', None),
                           c.tools(c.tool(None, "call_2", "hear", '{"to":2}'))),
    "position-without-index": (c.tools(c.tool(None, "call_1"), c.tool(None, "call_2", "hear")),
                               c.tools(c.tool(None, None, None, '{"at":1}'), c.tool(None, None, None,
                               '{"to":2}'))),
    "interleaved": (c.tools(c.tool(0, "call_1"), c.tool(1, "call_2", "hear")), c.more('{"to"', 1), c.more('{"at"'),
                    c.more(":2}", 1), c.more(":1}")),
    "one-id-for-both": (c.tools(c.tool(0, "call_1", "look", '{"at":1}')),
                        c.tools(c.tool(1, "call_1", "hear", '{"to":2}'))),
    "fields-of-other-kinds": (c.tools({**c.tool(0, "call_1", arguments='{"at":1}'), "custom": EMPTY},
                                      {**c.tool(1, "call_2", "hear", '{"to":2}'), "custom": EMPTY}),),
    "index-as-text": (c.tools(c.tool("0", "call_1", arguments='{"at":1}'),
                              c.tool("1", "call_2", "hear", '{"to":2}')),),
    "id-without-index": (c.tools(c.tool(None, "call_1"), c.tool(None, "call_2", "hear")),
                         c.tools(c.tool(None, "call_1", None, '{"at":1}')),
                         c.tools(c.tool(None, "call_2", None, '{"to":2}'))),
}  # fmt: skip


@table(
    Case(CLAUDE, "interleaved", claude(begun(0, "look", "call_1"), begun(1, "hear", "call_2"), fragment(0,
         '{"at"'),
         fragment(1, '{"to"'), fragment(0, ":1}"), fragment(1, ":2}"), a.stop(1), a.stop(0)), [FIRST, SECOND]),
    Case(RESPONSES, "interleaved", responses(r.added(0, ONE), r.added(1, TWO), r.arguments_delta(0, '{"at'),
         r.arguments_delta(1, '{"to', 2), r.arguments_delta(1, '":2}', 2), r.arguments_delta(0, '":1}'),
         r.done(1, TWO), r.done(0, ONE)), [FIRST, SECOND], fragments=['{"at', '":1}', '{"to', '":2}']),
    Case(RESPONSES, "ids without indexes", responses(*without_index(
         r.added(0, ONE), r.arguments_delta(0, '{"at":1}'), r.done(0, ONE), r.added(1, TWO),
         r.arguments_delta(1, '{"to":2}', 2), r.done(1, TWO))), [FIRST, SECOND]),
    *[Case(CHAT, name, chat(*events), [FIRST, (*SECOND[:2], "call_1") if name == "one-id-for-both" else SECOND])
      for name, events in CHAT_FORMS.items()],
    Case(CHAT, "one tool, one index and no id", chat(c.tools(c.tool(0, None, "look", '{"at":1}')),
         c.tools(c.tool(0, None, "look", '{"at":2}'))), [("look", {"at": 1}, ""), ("look", {"at": 2}, "")]),
    Case(GEMINI, "in one chunk", [g.chunk(g.call("look", args={"at": 1}, id="call_1"),
         g.call("hear", args={"to": 2}, id="call_2")), g.END], [FIRST, SECOND]),
    Case(OLLAMA, "in one line", [o.line(tool_calls=[o.call("look", {"at": 1}, "call_1"),
         o.call("hear", {"to": 2}, "call_2")]), o.last()], [FIRST, SECOND]),
    Case(OLLAMA, "twice the same, without an id", [o.line(tool_calls=[o.call("look", {"at": 1})] * 2), o.last()],
         [("look", {"at": 1}, None)] * 2),
)  # fmt: skip
def test_two_calls_are_distinguished(case: Case) -> None:
    """For any index and id, each fragment belongs to its call, and each call has its own id."""
    reading = check(case)
    assert reading.last.stop_reason is TOOL_USE
    assert len({block.id for block in reading.content if isinstance(block, ToolUseBlock)}) == 2


@table(
    Case(CLAUDE, "fragments", claude(*a.tool(0, "look", "call_1", '{"at', '": 1}')), [FIRST],
         fragments=['{"at', '": 1}']),
    Case(RESPONSES, "at its end only", responses(r.added(0, ONE), r.event("function_call_arguments.done",
         output_index=0, item_id="fc_1", arguments='{"at":1}'), r.done(0, ONE)), [FIRST], fragments=['{"at":1}']),
    Case(CHAT, "fragments", chat(c.tools(c.tool()), c.more('{"at"'), c.more(": 1}")), [FIRST],
         fragments=['{"at"', ": 1}"]),
    Case(GEMINI, "as they are written", [b'{"candidates":[{"content":{"parts":[{"functionCall":{"name":"look",'
         b'"args":{"at": 1},"id":"call_1"}}]}}]}', g.END], [FIRST], fragments=['{"at": 1}']),
    Case(OLLAMA, "as they are written", [b'{"message":{"tool_calls":[{"id":"call_1","function":{"name":"look",'
         b'"arguments":{"at": 1.0e0}}}]}}', o.last()], [FIRST], fragments=['{"at": 1.0e0}']),
)  # fmt: skip
def test_arguments_are_passed_on_unchanged(case: Case) -> None:
    """Fragments are those of the provider, byte for byte. The call ends with the resulting object."""
    check(case)


CONTINUATIONS: dict[str, JsonObject] = {
    "id-repeated": c.tool(0, "call_1", None, "1}"),
    "id-and-name": c.tool(0, "call_1", "look", "1}"),
    "empty": c.tool(0, "", "", "1}"),
    "new-id-each-chunk": c.tool(0, "call_9", None, "1}"),
    "name-repeated": c.tool(0, None, "look", "1}"),
    "no-index": c.tool(None, None, None, "1}"),
    "id-and-name-no-index": c.tool(None, "call_1", "look", "1}"),
    "name-only": c.tool(None, None, "look", "1}"),
}
OLDER: Json = {"name": "look", "arguments": '{"at":'}
NO_NAME = c.tools(c.tool(0, "call_1", None, "{}"))


@table(
    *[Case(CHAT, f"continued, {name}", chat(c.tools(c.tool(arguments='{"at":')), c.tools(second)), [FIRST])
      for name, second in CONTINUATIONS.items()],
    Case(CLAUDE, "input in its start", claude(begun(0, "look", "call_1", input={"at": 1}, caller=CALLER),
         a.stop(0)),
         [FIRST], kept=[{"id": "call_1", "caller": CALLER}]),
    Case(CLAUDE, "fragments beside an input", claude(begun(0, "look", "call_1", input={"old": 1}),
         fragment(0, '{"at": 1}'), a.stop(0)), [FIRST]),
    Case(RESPONSES, "the name comes last", responses(r.arguments_delta(0, '{"at"'), r.arguments_delta(0, ":1}"),
         r.done(0, ONE)), [FIRST]),
    Case(RESPONSES, "neither indexes nor ids", responses(
         *without_index(r.added(0, {name: value for name, value in ONE.items() if name != "id"})),
         r.event("function_call_arguments.delta", delta='{"at":1}'), *without_index(r.done(0, ONE))), [FIRST]),
    Case(CHAT, "the name comes last", [c.tools(c.tool(0, None, None, '{"at":')),
         c.tools(c.tool(0, "call_1", "look", "1}")), c.STOP, c.DONE], [FIRST]),
    Case(CHAT, "a trailing repeat", chat(c.tools(c.tool()), c.more('{"at":1}'),
         c.tools(c.tool(0, "call_1", None, '{"at":1}'))), [FIRST]),
    Case(CHAT, "the older form", chat(c.chunk(function_call=OLDER), c.chunk(function_call={"arguments": "1}"}),
         finish="function_call"), [("look", {"at": 1}, "")], StopReason.TOOL_USE),
    Case(CHAT, "an empty one of the older form", [c.chunk(content="Hi", function_call={"name": "",
         "arguments": ""}),
         c.STOP, c.DONE], ["Hi"], StopReason.END_TURN),
    Case(CHAT, "no name", [NO_NAME, c.STOP, c.DONE], [], warnings=["nameless_tool_call"]),
    Case(CHAT, "a signature", [c.tools(c.tool(None, "", arguments="{}") | {"extra_content": GOOGLE}), c.STOP,
         c.DONE],
         [("look", {}, "")], kept=[{"id": "", "extra_content": GOOGLE}]),
    Case(GEMINI, "a signature, and no arguments", [g.chunk(g.call("look", "c2ln", id="c1"), g.call("hear")),
         g.END],
         [("look", {}, "c1"), ("hear", {}, None)], TOOL_USE, kept=[{"id": "c1", "thoughtSignature": "c2ln"}, {}]),
    Case(GEMINI, "its own word", [g.chunk(g.call("look", args={"at": 1}), finish="FUNCTION_CALL", usage=g.USAGE)],
         [("look", {"at": 1}, None)], TOOL_USE),
    Case(GEMINI, "of no tool", [g.chunk(g.call("nobody", args={}), finish="UNEXPECTED_TOOL_CALL", usage=g.USAGE)],
         [("nobody", {})], StopReason.PROVIDER_SPECIFIC),
    Case(GEMINI, "a comment on it", [g.chunk(g.call("look"), finish="STOP", finishMessage="Made a call.",
         usage=g.USAGE)], [("look", {}, None)]),
    Case(OLLAMA, "no name", [o.line(content="Hm.", tool_calls=[o.call("", {}), {}]), o.last()], ["Hm."],
         StopReason.END_TURN, warnings=["nameless_tool_call"] * 2),
)  # fmt: skip
def test_a_call_is_one_call_in_every_form(case: Case) -> None:
    """Servers repeat, empty, drop and change fields that a continuation does not need, and lose names and ids."""
    check(case)


def calling(wire: Wire, arguments: Json) -> Reading:
    """A reply with one call with these arguments. They are a text if the wire sends text."""
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    if wire is CLAUDE:
        return read(wire, *claude(begun(0, "look", "call_1"), fragment(0, text), a.stop(0)))
    if wire is RESPONSES:
        item = r.call("look", text)
        return read(wire, *responses(r.added(0, item), r.done(0, item)))
    if wire is GEMINI:
        return read(wire, g.chunk(g.call("look", args=arguments, id="call_1")), g.END)
    if wire is OLLAMA:
        return read(wire, o.line(tool_calls=[o.call("look", arguments, "call_1")]), o.last())
    return read(wire, *chat(c.tools(c.tool(arguments=arguments))))


WIRES = (CLAUDE, RESPONSES, CHAT, GEMINI, OLLAMA)
each_that_calls = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)


@each_that_calls
def test_arguments_that_are_not_an_object_are_never_executed(wire: Wire) -> None:
    """The call is kept with the text of its arguments and marked as incomplete."""
    for arguments in ("[1]", [1], 7, '{"at":', "look!", '{"at":1}{"at":2}', '{"a": 1,, }'):
        (block,) = calling(wire, arguments).content
        assert isinstance(block, ToolUseBlock)
        assert (block.incomplete, block.input) == (True, {}), arguments
        assert block.raw_arguments


@each_that_calls
def test_arguments_may_be_a_text_an_object_or_missing(wire: Wire) -> None:
    """A null counts as an empty object."""
    texts = ["", '{"at": 1}'] if wire is not GEMINI else []
    for arguments in ({}, {"at": 1}, *texts, *([None] if wire in (CHAT, GEMINI, OLLAMA) else [])):
        expected = {"at": 1} if "at" in str(arguments) else {}
        assert calling(wire, arguments).said == [("look", expected, "call_1")], arguments


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(WIRES), json_objects(4))
def test_any_arguments_come_through(wire: Wire, arguments: JsonObject) -> None:
    assert calling(wire, arguments).said == [
        ("look", msgspec.json.decode(msgspec.json.encode(arguments)), "call_1")
    ]


@pytest.mark.parametrize("late", [r.done(0, r.call("f", '{"a":1}', status="incomplete")), r.event("unknown")])
def test_a_call_with_status_incomplete_is_never_run(late: JsonObject) -> None:
    """The status can be at any place, and the partial arguments may be valid JSON."""
    item, hello = r.call("f", '{"a":1}', status="incomplete"), r.message("Hello")
    limit = {"reason": "max_output_tokens"}
    reading = read(RESPONSES, r.CREATED, r.added(0, item), r.arguments_delta(0, '{"a":1}'), late,
                   r.ending("incomplete", incomplete_details=limit))  # fmt: skip
    assert [block.incomplete for block in reading.content if isinstance(block, ToolUseBlock)] == [True]
    assert reading.last.raw_stop_reason == "max_output_tokens"
    before = read(RESPONSES, r.CREATED, r.done(0, item), r.done(1, hello),
                  r.ending("incomplete", incomplete_details={"reason": "content_filter"}))  # fmt: skip
    assert [block.incomplete for block in before.content if isinstance(block, ToolUseBlock)] == [True]


# -- a custom tool of Responses

CUSTOM: JsonObject = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_1", "name": "run_sql"}
SQL = 'select "a"\n-- ☃'


def test_the_text_of_a_custom_tool_is_its_only_argument() -> None:
    """The text can arrive in any form, also only at its end. A call that breaks off is never run."""
    place: JsonObject = {"output_index": 0, "item_id": "ctc_1"}
    ended = r.done(0, {**CUSTOM, "input": SQL})
    begin = r.event("output_item.added", output_index=0, item={**CUSTOM, "input": ""})
    for deltas in (["select ", '"a"\n', "-- ☃"], [SQL], [], ["select "], ["", 'select "a"']):
        moved = [r.event("custom_tool_call_input.delta", **place, delta=delta) for delta in deltas]
        done = r.event("custom_tool_call_input.done", **place, input=SQL)
        reading = read(RESPONSES, *responses(begin, *moved, done, ended))
        assert reading.said == [("run_sql", {"input": SQL}, "call_1")]
        assert reading.kept == [{"id": "call_1", "type": "custom_tool_call"}]
        assert reading.last.stop_reason is TOOL_USE
        assert read(RESPONSES, *responses(ended)).said == reading.said
    cut = r.event("custom_tool_call_input.delta", **place, delta="drop ta")
    end = r.ending("incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert read(RESPONSES, r.CREATED, begin, cut, end).said == [("run_sql", '{"input":"drop ta')]


# -- arguments of Gemini in pieces


def partial(*values: JsonObject, more: bool = True) -> JsonObject:
    return g.chunk({"functionCall": {"partialArgs": list(values), **({"willContinue": True} if more else {})}})


def begin(name: str, **fields: Json) -> JsonObject:
    return g.chunk({"functionCall": {"name": name, "willContinue": True, **fields}})


OVER = g.chunk({"functionCall": {}})
A: JsonObject = {"jsonPath": "$.a", "numberValue": 1}
B: JsonObject = {"jsonPath": "$.b", "numberValue": 1}
PLAN = [
    begin("plan", id="c1"),
    partial({"jsonPath": "$.city", "stringValue": "Bos", "willContinue": True}),
    partial({"jsonPath": "$.city", "stringValue": "ton"}, {"jsonPath": "$.days[0].n", "numberValue": 3}),
    partial({"jsonPath": "$.days[0].ok", "boolValue": True}, {"jsonPath": "$.days[1]", "nullValue": None}),
    partial({"jsonPath": "$['odd key']", "nullValue": "NULL_VALUE"}, {"jsonPath": "$.city"}),
]
PLANNED = {"city": "Boston", "days": [{"n": 3, "ok": True}, None], "odd key": None}
TEXT: JsonObject = {"jsonPath": "$.a", "stringValue": "x"}


@table(
    Case(GEMINI, "an empty call ends it", [*PLAN, OVER, g.chunk(g.call("next", args={})), g.END],
         [("plan", PLANNED, "c1"), ("next", {}, None)]),
    Case(GEMINI, "a new name ends it", [begin("one"), partial(A), begin("two", partialArgs=[A]), partial(B),
         g.END],
         [("one", {"a": 1}, None), ("two", {"a": 1, "b": 1}, None)]),
    Case(GEMINI, "its last piece ends it", [begin("one", partialArgs=[A]), partial(B, more=False),
         g.chunk(g.text("Hi")), g.END], [("one", {"a": 1, "b": 1}, None), "Hi"]),
    Case(GEMINI, "what is said between waits", [begin("one"), g.chunk(g.text("Hi")), partial(TEXT),
         g.chunk(g.thought("Hm")), partial(TEXT), OVER, g.END], [("one", {"a": "xx"}, None), "Hi", ("thinking",
         "Hm")]),
    Case(GEMINI, "no place far beyond a list's end", [begin("one"),
         partial({"jsonPath": "$.a[7]", "numberValue": 2}), OVER, g.END], [("one", {"a": []})]),
    *[Case(GEMINI, f"no place {path!r}", [begin("one"), partial({"jsonPath": "$.x", "numberValue": 1}),
           partial({"jsonPath": path, "numberValue": 2}), OVER, g.END], [("one", {"x": 1})])
      for path in ("city", "$", "$.a..b", "$[0]", "$.a[99999999999]", "$.x.y", "", None)],
)  # fmt: skip
def test_arguments_in_pieces_are_put_together(case: Case) -> None:
    """Strings grow, and every kind of value has its place. A piece without a place makes the call incomplete."""
    reading = check(case)
    if case.name.startswith("no place"):
        assert [block.incomplete for block in reading.content if isinstance(block, ToolUseBlock)] == [True]


# -- nulls of strict mode


def test_nulls_of_strict_mode_are_removed() -> None:
    """A null for an optional parameter means that it was left out. A null that the schema allows stays."""
    number: JsonObject = {"type": "object", "properties": {"b": {"type": "integer"}}}
    allowed: JsonObject = {"type": "object", "properties": {"b": {"type": ["integer", "null"]}}}
    body = {RESPONSES: r.response(output=[r.call("f", '{"b":null}')])}
    strict_chat = quirky("openai")
    body[strict_chat] = c.reply("tool_calls", tool_calls=[c.tool(name="f", arguments='{"b":null}')])
    for wire, reply in body.items():
        for schema, expected in ((number, {}), (allowed, {"b": None})):
            reading = read_whole(wire, reply, tools=(ToolDefinition("f", input_schema=schema),))
            assert reading.said == [("f", expected, "call_1")]
    loose = {
        "config": {"base_url": "https://compatible.test"},
        "tools": (ToolDefinition("f", input_schema=number),),
    }
    assert read_whole(RESPONSES, body[RESPONSES], **loose).said == [("f", {"b": None}, "call_1")]


def test_calls_are_delivered_one_after_the_other() -> None:
    """llama.cpp ends all blocks at the end. Text still streams, and no call waits for the end of another."""
    events = [a.start(0, "thinking", thinking=""), a.delta(0, "thinking_delta", thinking="Hm"),
              a.start(1, "text", text=""), a.delta(1, "text_delta", text="Both:"), begun(2, "look", "call_1"),
              fragment(2, '{"at":'), fragment(2, "1}"), begun(3, "hear", "call_2"), fragment(3, '{"to":2}'),
              a.delta(0, "signature_delta", signature="")]  # fmt: skip
    stops = [a.stop(index) for index in range(4)]
    reading = read(CLAUDE, *claude(*events, *stops))
    assert reading.said == [("thinking", "Hm"), "Both:", FIRST, SECOND]
    assert reading.warnings == []
    assert "text.delta" in [event.type for event in shown(CLAUDE, a.message_start(), *events)]
