"""Replies in four protocols, as a whole and as streams of server-sent events, with text and tool calls."""

from __future__ import annotations

import random

import msgspec

from callboard.bus.values.base import Json, JsonObject
from tests.support.wires import anthropic as messages_wire
from tests.support.wires import chat as chat_wire
from tests.support.wires import gemini as generate_wire
from tests.support.wires import responses as responses_wire

TOOL_NAMES = ("add", "fail", "slow")

_WORDS = ("lorem", "ipsum", "naïve", "☃", "dolor", "\u2028", "sit", "amet", "日本", "\\n", "}", '"quoted"')


class Reply:
    """A reply as JSON, and the events of the same reply as a stream."""

    def __init__(self, whole: JsonObject, streamed: bytes, broken: bytes, error: bytes) -> None:
        self.whole = msgspec.json.encode(whole)
        self.streamed = streamed
        self.broken = broken  # an event that is not JSON
        self.error = error  # an event that ends the stream with an error


def make_reply(path: str, request: JsonObject, chance: random.Random) -> Reply:
    """Make a reply to the request. It may call tools if the request has any, even after tool results."""
    texts = [" ".join(chance.choices(_WORDS, k=chance.randint(1, 4))) + " " for _ in range(chance.randint(1, 12))]
    history: list[Json] = request.get("messages") or request.get("input") or request.get("contents") or []
    last = msgspec.json.encode(history[-1] if history else {})
    after_tool = any(kind in last for kind in (b'"tool', b'"function_call_output"', b'"functionResponse"'))
    weights = (6, 2, 1) if after_tool else (6, 3, 2)
    call_count = chance.choices((0, 1, 2), weights)[0] if request.get("tools") else 0
    calls = [(f"call_{chance.getrandbits(64):x}", chance.choice(TOOL_NAMES)) for _ in range(call_count)]
    if path.endswith("/messages"):
        return _messages(texts, calls, chance)
    if path.endswith("/responses"):
        return _responses(texts, calls)
    if is_generate_content(path):
        return _generate_content(texts, calls, chance)
    return _chat(texts, calls)


def is_generate_content(path: str) -> bool:
    return path.partition("?")[0].endswith((":generateContent", ":streamGenerateContent"))


_ARGUMENTS = ('{"a": 1, ', '"b": 2}')


def _messages(texts: list[str], calls: list[tuple[str, str]], chance: random.Random) -> Reply:
    wire = messages_wire
    blocks: list[Json] = []
    events = [wire.message_start(), wire.PING]
    if chance.random() < 0.3:
        blocks.append({"type": "thinking", "thinking": "hm ☃", "signature": "c2ln"})
        events += [
            wire.start(0, "thinking", thinking="", signature=""),
            wire.delta(0, "thinking_delta", thinking="hm ☃"),
            wire.delta(0, "signature_delta", signature="c2ln"),
            wire.stop(0),
        ]
    events += wire.text(len(blocks), *texts)
    blocks.append({"type": "text", "text": "".join(texts)})
    for call_id, name in calls:
        events += wire.tool(len(blocks), name, call_id, *_ARGUMENTS)
        blocks.append({"type": "tool_use", "id": call_id, "name": name, "input": {"a": 1, "b": 2}})
    reason = "tool_use" if calls else "end_turn"
    events += wire.ending(reason)
    whole = wire.message_start(content=blocks, stop_reason=reason)["message"]
    error = wire.event("error", error={"type": "overloaded_error", "message": "injected"})
    return Reply(whole, wire.body(events), wire.body([b'{"type": oops']), wire.body([error]))


def _responses(texts: list[str], calls: list[tuple[str, str]]) -> Reply:
    wire = responses_wire
    message = wire.message("".join(texts))
    output: list[JsonObject] = [message]
    events = [wire.CREATED, wire.added(0, message)]
    events += [wire.text_delta(0, piece) for piece in texts]
    events.append(wire.done(0, message))
    for number, (call_id, name) in enumerate(calls, 1):
        item = wire.call(name, "".join(_ARGUMENTS), number, call_id=call_id)
        events.append(wire.added(number, item))
        events += [wire.arguments_delta(number, piece, number) for piece in _ARGUMENTS]
        events.append(wire.done(number, item))
        output.append(item)
    items: list[Json] = [*output]
    events.append(wire.ending(output=items))
    failed = wire.event(
        "failed", response=wire.response("failed", error={"code": "server_error", "message": "injected"})
    )
    whole = wire.response(output=items)
    return Reply(whole, wire.body(events), wire.body([b'{"type": oops']), wire.body([failed]))


def _generate_content(texts: list[str], calls: list[tuple[str, str]], chance: random.Random) -> Reply:
    """Tool calls are complete, rarely have an id, and the first one has a signature. Reasoning and the end of the
    text may also have signatures.
    """
    wire = generate_wire
    parts = [wire.text(piece) for piece in texts]
    if chance.random() < 0.3:
        parts = [wire.thought("hm ☃"), wire.thought("then", "c2ln"), *parts]
    if chance.random() < 0.3:
        parts.append(wire.text("", "dGV4dA=="))
    for number, (call_id, name) in enumerate(calls):
        fields: JsonObject = {"id": call_id} if chance.random() < 0.2 else {}
        parts.append(wire.call(name, None if number else "Y2FsbA==", **fields, args={"a": 1, "b": 2}))
    chunks = [wire.chunk(part, usage=wire.USAGE) for part in parts]
    error: JsonObject = {"error": {"code": 503, "message": "injected", "status": "UNAVAILABLE"}}
    whole = wire.chunk(*parts, finish="STOP", usage=wire.USAGE)
    return Reply(whole, wire.body([*chunks, wire.END]), wire.body([b'{"candidates": oops']), wire.body([error]))


def _chat(texts: list[str], calls: list[tuple[str, str]]) -> Reply:
    wire = chat_wire
    events: list[JsonObject | bytes] = [wire.chunk(role="assistant", content="")]
    events += [wire.chunk(content=piece) for piece in texts]
    for index, (call_id, name) in enumerate(calls):
        events.append(wire.tools(wire.tool(index, call_id, name)))
        events += [wire.more(piece, index) for piece in _ARGUMENTS]
    finish = "tool_calls" if calls else "stop"
    events += [wire.chunk(finish), {"choices": [], "usage": wire.USAGE}, wire.DONE]
    fields: JsonObject = {"content": "".join(texts)}
    if calls:
        fields["tool_calls"] = [wire.tool(None, *call, "".join(_ARGUMENTS)) for call in calls]
    error: JsonObject = {"error": {"type": "server_error", "message": "injected", "code": 500}}
    whole = wire.reply(finish, **fields)
    return Reply(whole, wire.body(events), wire.body([b'{"choices": oops']), wire.body([error]))
