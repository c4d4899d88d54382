"""The routes of the browser. Each request acts for the tenant of its key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Literal, TypeAlias

import msgspec
from fastapi import APIRouter, Cookie, Depends, Header, HTTPException, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field

from callboard import Json, Session, StreamReader, TurnEvent

from .agents import Agents
from .settings import Settings, is_same

routes = APIRouter(prefix="/api")


# -- tenants


def tenant_of(
    request: Request, key: Annotated[str, Cookie()] = "", authorization: Annotated[str, Header()] = ""
) -> str:
    """The tenant of a request. Programs send their key as a bearer token, browsers as a cookie."""
    settings: Settings = request.app.state.settings
    tenant = settings.tenant_of(authorization.removeprefix("Bearer ") or key)
    if tenant is None:
        raise HTTPException(401, "a tenant's key is wanted")
    return tenant


def agents_of(request: Request) -> Agents:
    """The agents of the running application."""
    agents: Agents = request.app.state.agents
    return agents


Tenant: TypeAlias = Annotated[str, Depends(tenant_of)]
TheAgents: TypeAlias = Annotated[Agents, Depends(agents_of)]
Chat: TypeAlias = Annotated[str, Path(pattern=r"^[\w-]{1,64}$")]


class SignIn(BaseModel):
    """A key, from the page's one field."""

    key: str


@routes.post("/sign-in", status_code=204)
async def sign_in(given: SignIn, request: Request, response: Response) -> None:
    """Store the key in a cookie, for requests from the page's own origin only. A wrong key gets 401."""
    settings: Settings = request.app.state.settings
    if settings.tenant_of(given.key) is None and not is_same(given.key, settings.operator_key):
        raise HTTPException(401, "no tenant has this key")
    response.set_cookie("key", given.key, httponly=True, samesite="strict")


# -- chats


class Said(BaseModel):
    """The user's text."""

    text: str = Field(min_length=1, max_length=4000)


class Decision(BaseModel):
    """The user's decision on pending calls. It repeats the calls, so only calls that the user saw can run."""

    id: str
    input: dict[str, object]
    approved: bool
    why: str = ""


@routes.get("/chats")
async def chats(tenant: Tenant, agents: TheAgents) -> list[str]:
    """The tenant's chats, newest first."""
    return await agents.chats(tenant)


@routes.get("/chats/{chat}")
async def show(tenant: Tenant, chat: Chat, agents: TheAgents) -> dict[str, object]:
    """A chat's messages, its calls that wait for an approval, and the stream of its running turn."""
    session = await agents.chat(tenant, chat)
    return {
        "messages": [{"role": message.role, "text": message.text} for message in session.messages],
        "waiting": [{"id": call.id, "name": call.name, "input": call.input} for call in session.pending_calls],
        "turn": agents.turn_under_way(session),
    }


@routes.post("/chats/{chat}/turns", status_code=202)
async def say(tenant: Tenant, chat: Chat, said: Said, agents: TheAgents) -> dict[str, str]:
    """Begin a turn. The response waits for the model's first event, so a refusal has its own HTTP status."""
    session = await agents.opened(tenant, chat)
    return {"turn": await agents.say(session, said.text)}


@routes.post("/chats/{chat}/decisions", status_code=202)
async def decide(tenant: Tenant, chat: Chat, decision: Decision, agents: TheAgents) -> dict[str, str]:
    """Approve or deny the pending calls. The turn continues."""
    session = await agents.chat(tenant, chat)
    shown = [call for call in session.pending_calls if (call.id, call.input) == (decision.id, decision.input)]
    if not shown:
        raise HTTPException(409, "no such call waits")
    return {"turn": await agents.answer(session, shown, None if decision.approved else decision.why)}


@routes.delete("/chats/{chat}/turns", status_code=204)
async def stop(tenant: Tenant, chat: Chat, agents: TheAgents) -> None:
    """Cancel the running turn."""
    session: Session = await agents.chat(tenant, chat)
    await session.cancel()


# -- streams


def reader_of(
    tenant: Tenant, chat: Chat, turn: str, agents: TheAgents, last_event_id: Annotated[str, Header()] = ""
) -> StreamReader[TurnEvent]:
    """A reader of a turn's events after the browser's last one."""
    try:
        return agents.events(tenant, chat, turn, last_event_id)
    except ValueError:
        raise HTTPException(400, "no event of this turn has that id") from None


@routes.get("/chats/{chat}/turns/{turn}", response_class=EventSourceResponse)
async def events(reader: Annotated[StreamReader[TurnEvent], Depends(reader_of)]) -> AsyncIterator[ServerSentEvent]:
    """The events of a turn. FastAPI sends a comment every 15 quiet seconds, so proxies stay connected."""
    async with reader:
        async for event in reader:
            data = msgspec.json.encode(event).decode()
            yield ServerSentEvent(id=reader.frame_id, event=event.type, raw_data=data)


# -- money


Dimension: TypeAlias = Literal["day", "model", "session_id", "operation", "status", "root"]


@routes.get("/costs")
async def costs(
    tenant: Tenant,
    agents: TheAgents,
    by: Dimension = "model",
    since: Annotated[str, Query(pattern=r"^\d{1,4}[mhdw]$")] = "30d",
) -> list[dict[str, Json]]:
    """The costs of the tenant's calls, one row for each value of a dimension, the largest first."""
    rows = await agents.costs(tenant, by, since)
    return [
        {
            by: row[by],
            "calls": row.calls,
            "usd": str(row.usd),
            "input_tokens": row.total_input_tokens,
            "output_tokens": row.output_tokens,
        }
        for row in rows
    ]


@routes.get("/account")
async def account(tenant: Tenant, agents: TheAgents) -> dict[str, object]:
    """The rest of the tenant's budget today, and its refunds."""
    return {"tenant": tenant, "left_usd": await agents.left_usd(tenant), "refunds": agents.refunds(tenant)}
