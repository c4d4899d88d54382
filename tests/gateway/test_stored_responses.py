"""Responses that the gateway stores, for each provider: continued, read, deleted, and in the background."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

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
    async with serving(Say("one")) as (app, _):
        first = await respond(app, "1")
        assert (await show(app, first["id"])).json == first
        deleted = await ask(app, "DELETE", f"{PATH}/{first['id']}")
        assert deleted.json == {"id": first["id"], "object": "response", "deleted": True}
        assert (await show(app, first["id"])).status == 404


async def test_a_response_is_not_stored_against_the_clients_will() -> None:
    async with serving(Say("one")) as (app, _):
        first = await respond(app, "1", store=False)
        assert (await show(app, first["id"])).status == 404


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
