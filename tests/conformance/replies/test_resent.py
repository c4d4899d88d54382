"""What servers send more than once: arguments, calls, and marks that belong to no name. The same on each wire."""

from __future__ import annotations

import json
from itertools import accumulate

import pytest

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ToolUseBlock
from callboard.bus.values.usage import StopReason

from ...support.wires import ChatWire, Wire
from ...support.wires import anthropic as a
from ...support.wires import chat as c
from ...support.wires import gemini as g
from ...support.wires import ollama as o
from ...support.wires import responses as r
from ...support.wires.reading import Reading, read, read_whole
from ...support.wires.wire import Event
from .cases import CHAT, CLAUDE, GEMINI, OLLAMA, RESPONSES

WIRES = (CLAUDE, RESPONSES, CHAT, GEMINI, OLLAMA)
IN_PIECES = (CLAUDE, RESPONSES, CHAT)
each = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
each_in_pieces = pytest.mark.parametrize("wire", IN_PIECES, ids=lambda wire: wire.name)

Call = tuple[str, str, list[str]]
"""A call's id, its tool, and the fragments of its arguments."""


def streamed(wire: Wire, *calls: Call) -> Reading:
    """A stream of calls whose fragments take turns."""
    rounds = max(len(fragments) for _, _, fragments in calls)
    turns = [
        (at, fragments[n])
        for n in range(rounds)
        for at, (_, _, fragments) in enumerate(calls)
        if n < len(fragments)
    ]
    if wire is CLAUDE:
        starts = [
            a.start(at, "tool_use", id=name, name=tool, input={}) for at, (name, tool, _) in enumerate(calls)
        ]
        deltas = [a.delta(at, "input_json_delta", partial_json=text) for at, text in turns]
        return read(
            wire, a.message_start(), *starts, *deltas, *map(a.stop, range(len(calls))), *a.ending("tool_use")
        )
    if wire is RESPONSES:
        items = [item(at, call) for at, call in enumerate(calls)]
        begun = [
            r.event("output_item.added", output_index=at, item={**each, "arguments": ""})
            for at, each in enumerate(items)
        ]
        moved = [r.arguments_delta(at, text, at + 1) for at, text in turns]
        ended = [r.done(at, each) for at, each in enumerate(items)]
        return read(wire, r.CREATED, *begun, *moved, *ended, r.ending())
    if wire is CHAT:
        begins = [c.tools(c.tool(at, name, tool)) for at, (name, tool, _) in enumerate(calls)]
        return read(wire, *begins, *[c.more(text, at) for at, text in turns], c.chunk("tool_calls"), c.DONE)
    return read(wire, *whole_events(wire, *calls))


def item(at: int, call: Call) -> JsonObject:
    """The item of a call, with what came last as its arguments."""
    name, tool, fragments = call
    return {
        "type": "function_call",
        "id": f"fc_{at + 1}",
        "call_id": name,
        "name": tool,
        "arguments": fragments[-1],
    }


def whole_events(wire: Wire, *calls: Call) -> list[Event]:
    """The calls where they come whole."""
    if wire is GEMINI:
        parts = [g.call(tool, args=json.loads(texts[-1]), id=name) for name, tool, texts in calls]
        return [g.chunk(*parts), g.END]
    found = [o.call(tool, json.loads(texts[-1]), name) for name, tool, texts in calls]
    return [o.line(tool_calls=found), o.last()]


def so_far(*pieces: str) -> list[str]:
    """All of the pieces so far, for each of them."""
    return list(accumulate(pieces))


@each_in_pieces
def test_arguments_resent_in_every_chunk_are_the_last_ones(wire: Wire) -> None:
    """Of one call, and of two side by side, and the deltas add up to them."""
    first, second = so_far('{"com', 'mand": "ls', ' -a"}'), so_far("{", '"to": {"to"', ": 2}", "}")
    assert streamed(wire, ("call_1", "shell", first)).said == [("shell", {"command": "ls -a"}, "call_1")]
    both = streamed(wire, ("call_1", "shell", first), ("call_2", "hear", second))
    assert both.said == [("shell", {"command": "ls -a"}, "call_1"), ("hear", {"to": {"to": 2}}, "call_2")]
    assert "".join(both.fragments) == first[-1] + second[-1]
    assert both.warnings == []


@each_in_pieces
def test_a_quirk_or_the_json_decides_what_a_fragment_means(wire: Wire) -> None:
    """Pieces of an object within an object stay pieces."""
    reading = streamed(wire, ("call_1", "look", ['{"a":', '{"a":', "1}}", ""]))
    if wire is not RESPONSES:  # where the end says the arguments again
        assert reading.said == [("look", {"a": {"a": 1}}, "call_1")]


@pytest.mark.parametrize(("meaning", "expected"), [("pieces", '{"a":{"a":1}'), ("so_far", {"a": 1})])
def test_a_quirk_forces_the_meaning(meaning: str, expected: Json) -> None:
    """For a server of which it is known."""
    wire = ChatWire("default")
    wire.options = {"quirks": {"tool_arguments": meaning}}
    events = [c.tools(c.tool()), c.more('{"a":'), c.more('{"a":1}'), c.chunk("tool_calls"), c.DONE]
    (block,) = read(wire, *events).content
    assert isinstance(block, ToolUseBlock)
    assert (block.raw_arguments or block.input) == expected


@each_in_pieces
def test_arguments_in_a_json_string_are_unwrapped_once(wire: Wire) -> None:
    """With a warning, streamed in pieces and resent; a string within a string is no object."""
    for fragments in (['"{\\"at', '\\": 1}"'], so_far('"{\\"at', '\\": 1}"')):
        reading = streamed(wire, ("call_1", "look", [*fragments[:-1], fragments[-1]]))
        if wire is RESPONSES and fragments[-1] == '\\": 1}"':
            continue  # its end would say a piece
        assert reading.said == [("look", {"at": 1}, "call_1")]
        assert reading.warnings == ["arguments_unwrapped"]
    (twice,) = streamed(wire, ("call_1", "look", ['"\\"{}\\""'])).content
    assert isinstance(twice, ToolUseBlock)
    assert twice.incomplete


@each
def test_a_call_that_comes_twice_under_one_id_counts_once(wire: Wire) -> None:
    """If tool and arguments are the same; a warning says so. Others are calls of their own."""
    again = streamed(wire, ("call_1", "look", ['{"at": 1}']), ("call_1", "look", ['{"at":1}']))
    assert again.said == [("look", {"at": 1}, "call_1")]
    assert again.warnings == ["repeated_call"]
    assert again.last.stop_reason is StopReason.TOOL_USE
    others = streamed(
        wire, ("x", "look", ['{"at": 1}']), ("x", "look", ['{"at": 2}']), ("x", "hear", ['{"at": 1}'])
    )
    assert sorted(str(said) for said in others.said) == sorted(
        str(call) for call in [("look", {"at": 1}, "x"), ("look", {"at": 2}, "x"), ("hear", {"at": 1}, "x")]
    )


@each
def test_marks_of_a_chat_template_are_no_part_of_a_tools_name(wire: Wire) -> None:
    """They are cut off with a warning; a name that is nothing else stays."""
    reading = streamed(wire, ("call_1", "look<|channel|>commentary", ['{"at": 1}']))
    assert reading.said == [("look", {"at": 1}, "call_1")]
    assert reading.warnings == ["tool_name_mended"]
    assert streamed(wire, ("call_1", "<|x|>", ["{}"])).said == [("<|x|>", {}, "call_1")]


def test_arguments_at_the_end_of_a_call_stand_over_its_deltas() -> None:
    """A warning says that they differ; an end without arguments changes nothing."""
    one = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look"}
    for last, expected, warnings in (('{"at":2}', 2, ["arguments_replaced"]), ('{ "at": 1 }', 1, []), ("", 1, [])):
        done = r.event("function_call_arguments.done", output_index=0, item_id="fc_1", arguments=last)
        ended = r.done(0, {**one, "arguments": last})
        begun = r.event("output_item.added", output_index=0, item={**one, "arguments": ""})
        delta = r.arguments_delta(0, '{"at":1}')
        reading = read(RESPONSES, r.CREATED, begun, delta, done, ended, r.ending())
        assert reading.said == [("look", {"at": expected}, "call_1")]
        assert reading.warnings == warnings


@pytest.mark.parametrize("first", ["message", "call"])
@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "in turn"])
def test_items_that_share_an_output_index_are_told_apart(first: str, ids: bool, interleaved: bool) -> None:
    """By their kind and ids; nothing is said or called twice."""
    message, call = r.message("Wait."), r.call("look", '{"at":1}')
    if not ids:
        message, call = ({name: value for name, value in each.items() if name != "id"} for each in (message, call))
    parts: dict[str, list[JsonObject]] = {
        "message": [r.added(0, message), r.text_delta(0, "Wait."), r.done(0, message)],
        "call": [r.added(0, call), r.arguments_delta(0, '{"at":1}'), r.done(0, call)],
    }
    one, two = parts.pop(first), next(iter(parts.values()))
    events = [*one[:2], *two[:2], one[2], two[2]] if interleaved else [*one, *two]
    output = [message, call] if first == "message" else [call, message]
    reading = read(RESPONSES, r.CREATED, *events, r.ending(output=output))
    assert sorted(map(str, reading.said)) == sorted(map(str, ["Wait.", ("look", {"at": 1}, "call_1")]))


def test_an_item_that_is_twice_in_the_output_counts_once() -> None:
    """Of a whole reply; its text comes once, too."""
    message, call = r.message("Wait."), r.call("look", '{"at":1}')
    assert read_whole(RESPONSES, r.response(output=[message, message, call, call])).said == [
        "Wait.", ("look", {"at": 1}, "call_1")]  # fmt: skip


def test_items_without_an_end_are_ended_by_their_copies_in_the_response() -> None:
    """Found by their ids, though the response has them in another order, or more of them."""
    one, two = r.call("look", '{"at":1}'), r.call("hear", '{"to":2}', 2)
    begun = [r.added(0, one), r.added(1, two)]
    for output in ([two, one], [two, r.message("Wait."), one]):
        reading = read(RESPONSES, r.CREATED, *begun, r.ending(output=output))
        assert reading.said == [("look", {"at": 1}, "call_1"), ("hear", {"to": 2}, "call_2")]
