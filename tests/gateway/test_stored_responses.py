"""Responses that the gateway stores, and content that it adds to requests of clients that cannot send it back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import msgspec
import pytest

from callboard.adapters import Message, Role, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callboard.bus.errors import OverloadedError
from callboard.engine import Engine
from callboard.engine.gateway import gateway
from callboard.engine.gateway.application import Gateway
from callboard.tracestore import TraceStore
from callboard.tracestore.gateway import Client
from tests.gateway.asking import Asked, ask, post
from tests.gateway.keeping import added, engine_on
from tests.support.engines import requests_of, running
from tests.support.scripted import Say

PATH = "/v1/responses"


@asynccontextmanager
async def serving(*replies: Say) -> AsyncIterator[tuple[Gateway, Engine]]:
    async with running(*replies) as (engine, _):
        yield gateway(engine, keyless=True), engine


async def respond(app: Gateway, text: object, **fields: Any) -> Any:
    answer = await post(app, {"model": "s:m", "input": text, **fields}, path=PATH)
    assert answer.status == 200, answer.data
    return answer.json


async def show(app: Gateway, response_id: str, more: str = "", **how: Any) -> Asked:
    return await ask(app, "GET", f"{PATH}/{response_id}{more}", **how)


def said(engine: Engine) -> list[str]:
    """The texts of the provider's last request."""
    return [message.text for message in requests_of(engine)[-1].messages]


async def test_a_conversation_goes_on_by_the_id_of_its_last_response() -> None:
    async with serving(Say("one"), Say("two"), Say("three")) as (app, engine):
        first = await respond(app, "1")
        second = await respond(app, "2", previous_response_id=first["id"])
        third = await respond(app, "3", previous_response_id=second["id"])
        assert said(engine) == ["1", "one", "2", "two", "3"]
        assert len({request.session_id for request in requests_of(engine)}) == 1
        items = (await show(app, third["id"], "/input_items", query="order=asc")).json["data"]
        assert [item["content"][0]["text"] for item in items] == said(engine)
    assert (second["previous_response_id"], third["previous_response_id"]) == (first["id"], second["id"])


async def test_a_streamed_response_is_stored_as_its_last_event_has_it() -> None:
    async with serving(Say("He", "llo")) as (app, _):
        answer = await post(app, {"model": "s:m", "input": "Hi", "stream": True}, path=PATH)
        last = [line for line in answer.data.splitlines() if line.startswith(b"data: ")][-1]
        completed = msgspec.json.decode(last[6:])["response"]
        assert (await show(app, completed["id"])).json == completed


async def test_a_response_is_shown_until_it_is_deleted() -> None:
    """It is not stored against the client's will."""
    async with serving(Say("one"), Say("two")) as (app, _):
        first = await respond(app, "1")
        assert (await show(app, first["id"])).json == first
        deleted = await ask(app, "DELETE", f"{PATH}/{first['id']}")
        assert deleted.json == {"id": first["id"], "object": "response", "deleted": True}
        for gone in (first, await respond(app, "2", store=False)):
            assert (await show(app, gone["id"])).status == 404


async def test_an_unknown_conversation_is_refused_in_openais_words() -> None:
    async with serving() as (app, _):
        answer = await post(app, {"model": "s:m", "input": "1", "previous_response_id": "resp_x"}, path=PATH)
    assert (answer.status, answer.json["error"]["code"]) == (400, "previous_response_not_found")


async def test_pages_of_input_go_on_where_the_last_one_ended() -> None:
    async with serving(Say("one")) as (app, _):
        items = [{"role": "user", "content": f"{number}"} for number in range(5)]
        first = await respond(app, items)
        page = (await show(app, first["id"], "/input_items", query="limit=2")).json
        rest = (await show(app, first["id"], "/input_items", query=f"after={page['last_id']}")).json
    assert [item["content"] for item in (*page["data"], *rest["data"])] == ["4", "3", "2", "1", "0"]
    assert (page["has_more"], rest["has_more"]) == (True, False)


async def until(app: Gateway, response_id: str, status: str) -> Any:
    with anyio.fail_after(5):
        while (found := (await show(app, response_id)).json)["status"] != status:
            await anyio.lowlevel.checkpoint()
    return found


async def test_a_reply_is_made_in_the_background() -> None:
    async with serving(Say("later"), Say("and then")) as (app, engine):
        queued = await respond(app, "1", background=True)
        assert (queued["status"], queued["output"]) == ("queued", [])
        done = await until(app, queued["id"], "completed")
        assert done["id"] == queued["id"]
        await respond(app, "2", previous_response_id=queued["id"])
        assert said(engine) == ["1", "later", "2"]
        assert (await ask(app, "POST", f"{PATH}/{queued['id']}/cancel")).json == done


async def test_a_reply_in_the_background_can_be_cancelled() -> None:
    async with serving(Say("never", pause=anyio.sleep_forever)) as (app, _):
        queued = await respond(app, "1", background=True)
        assert (await show(app, queued["id"])).json["status"] == "in_progress"
        cancelled = await ask(app, "POST", f"{PATH}/{queued['id']}/cancel")
        assert cancelled.json["status"] == "cancelled"
        assert (await show(app, queued["id"])).json["status"] == "cancelled"


async def test_a_reply_that_fails_in_the_background_has_its_error() -> None:
    async with serving(Say(fails=OverloadedError("busy"))) as (app, _):
        queued = await respond(app, "1", background=True)
        failed = await until(app, queued["id"], "failed")
    assert failed["error"]["message"] == "busy"


async def test_a_refused_request_is_not_started() -> None:
    async with serving() as (app, _):
        answer = await post(app, {"model": "nope", "input": "1", "background": True}, path=PATH)
    assert answer.status == 404


async def test_only_the_own_client_finds_a_response(tmp_path: Path) -> None:
    async with TraceStore(tmp_path / "trace.db") as command:
        keys = [await added(command, Client(name=name)) for name in ("acme", "other")]
    own, foreign = ({"authorization": f"Bearer {key}"} for key in keys)
    async with engine_on(TraceStore(tmp_path / "trace.db"), Say("one"), Say("two")) as engine:
        app = gateway(engine)
        first = (await post(app, {"model": "s:m", "input": "My secret is 42"}, path=PATH, headers=own)).json
        for method, more in [("GET", ""), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel")]:
            answer = await ask(app, method, f"{PATH}/{first['id']}{more}", headers=foreign)
            assert (answer.status, b"42" in answer.data) == (404, False), (method, more)
        body = {"model": "s:m", "input": "2", "previous_response_id": first["id"]}
        assert (await post(app, body, path=PATH, headers=foreign)).status == 400
        assert (await post(app, body, path=PATH, headers=own)).status == 200


@pytest.mark.parametrize(("fields", "param"), [
    ({"background": True, "store": False}, "background"),
    ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id"),
])  # fmt: skip
async def test_fields_that_exclude_each_other_are_refused(fields: dict[str, Any], param: str) -> None:
    """OpenAI refuses them, too. For example, a reply in the background must be stored."""
    async with serving(Say("Hi")) as (app, _):
        answer = await post(app, {"model": "s:m", "input": "Hi", **fields}, path=PATH)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


Items: TypeAlias = list[Any]

SCHEMA = {"type": "object", "properties": {"at": {"type": "integer"}}}
TURNS = 6


def chat_body(items: Items) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    return {"model": "s:m", "messages": [{"role": "user", "content": "Hi"}, *items], "tools": [tool]}


def chat_echo(reply: Any) -> Items:
    message = {name: reply["choices"][0]["message"].get(name) for name in ("role", "content", "tool_calls")}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in message["tool_calls"]]
    return [message, *results]


def responses_body(items: Items) -> dict[str, Any]:
    tool = {"type": "function", "name": "look", "parameters": SCHEMA}
    return {"model": "s:m", "store": False, "input": [{"role": "user", "content": "Hi"}, *items], "tools": [tool]}


def responses_echo(reply: Any) -> Items:
    items = [item for item in reply["output"] if item["type"] in ("message", "function_call")]
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    return [*items, *({"type": "function_call_output", "call_id": each, "output": "x"} for each in calls)]


def messages_body(items: Items) -> dict[str, Any]:
    sent = [{"role": "user", "content": "Hi"}, *items]
    return {
        "model": "s:m", "max_tokens": 100, "messages": sent, "tools": [{"name": "look", "input_schema": SCHEMA}],
    }  # fmt: skip


def messages_echo(reply: Any) -> Items:
    blocks = [block for block in reply["content"] if block["type"] in ("text", "tool_use")]
    calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": each, "content": "x"} for each in calls]
    return [{"role": "assistant", "content": blocks}, {"role": "user", "content": results}]


def gemini_body(items: Items) -> dict[str, Any]:
    tool = {"functionDeclarations": [{"name": "look", "parameters": SCHEMA}]}
    return {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}, *items], "tools": [tool]}


def gemini_echo(reply: Any) -> Items:
    parts = [
        {name: value for name, value in part.items() if name != "thoughtSignature"}
        for part in reply["candidates"][0]["content"]["parts"]
        if not part.get("thought")
    ]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    results = [
        {
            "functionResponse": {
                **{name: call[name] for name in ("name", "id") if name in call},
                "response": {"r": "x"},
            }
        }
        for call in calls
    ]
    return [{"role": "model", "parts": parts}, {"role": "user", "parts": results}]


Wire: TypeAlias = tuple[str, Callable[[Items], dict[str, Any]], Callable[[Any], Items]]

WIRES: dict[str, Wire] = {
    "chat": ("/v1/chat/completions", chat_body, chat_echo),
    "responses": ("/v1/responses", responses_body, responses_echo),
    "messages": ("/v1/messages", messages_body, messages_echo),
    "gemini": ("/v1beta/models/s:m:generateContent", gemini_body, gemini_echo),
}
"""For each wire: its address, a request, and the messages that a client adds to its history after a reply."""


@pytest.mark.parametrize("wire", WIRES)
async def test_a_long_conversation_is_as_complete_as_one_without_a_gateway(tmp_path: Path, wire: str) -> None:
    """Each reply has reasoning, a text and two calls. The client sends back only the text and the calls."""
    path, body, echo = WIRES[wire]
    replies = [
        Say(f"Step {turn}. ", thinking=f"Thought {turn}.", calls=[("look", {"at": turn}), ("look", {"at": 7})])
        for turn in range(TURNS)
    ]
    store = TraceStore(tmp_path / "trace.db")
    async with engine_on(store, *replies, capture_content=True) as engine:
        items: Items = []
        for _ in range(TURNS):
            # a new gateway each time, as after a restart
            answer = await post(gateway(engine, keyless=True), body(items), path)
            assert answer.status == 200, answer.data
            items += echo(answer.json)
        requests = requests_of(engine)
        assert len({request.session_id for request in requests}) == 1
        history = requests[-1].messages
    said = [each.content for each in history if each.role is Role.ASSISTANT]
    assert [[type(block) for block in content] for content in said] == [
        [ThinkingBlock, TextBlock, ToolUseBlock, ToolUseBlock]
    ] * (TURNS - 1)
    assert [_thinking(each) for each in history if each.role is Role.ASSISTANT] == [
        f"Thought {turn}." for turn in range(TURNS - 1)
    ]
    calls = [call.id for each in history for call in each.tool_uses]
    results = [
        block.tool_use_id for each in history for block in each.content if isinstance(block, ToolResultBlock)
    ]
    assert calls == results
    assert len(set(calls)) == 2 * (TURNS - 1)


def _thinking(message: Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, ThinkingBlock))
