"""The agents: one engine, and the sessions of all tenants on it.

A session's id begins with its tenant's name. The tenant comes from the request's key, so no request reaches
another tenant's session.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard import (
    AdapterConfig,
    Approved,
    Budget,
    CallFilter,
    CostRow,
    Denied,
    Engine,
    LocalAdapter,
    McpServers,
    Session,
    StreamReader,
    Tool,
    ToolUseBlock,
    TurnEvent,
    TurnLimits,
    TurnStream,
    agent_tool,
    costs,
)

from .refunds import Refunds, refund_tool
from .settings import Settings
from .understudy import Understudy

SYSTEM_PROMPT = "You are the brief and friendly agent of a music shop."


def make_engine(settings: Settings) -> Engine:
    """The engine. It writes to the settings' folder, and each tenant has a budget."""
    on_this_machine = AdapterConfig(options={"protocol": "chat", "tools": "emulate"})
    return Engine(
        store=settings.folder / "trace.db",
        capture_content=True,
        prices=settings.prices,
        budgets=[
            Budget(max_cost_usd=settings.daily_usd, per="tag:tenant", window="day"),
            Budget(max_cost_usd=settings.turn_usd, per="root"),
        ],
        providers={"local": LocalAdapter(on_this_machine), "understudy": Understudy()},
    )


FILES = ("list_files", "read_file")


def researchers(model: str, servers: McpServers) -> list[Tool]:
    """Two agents that the shop's agent can ask, also both at the same time.

    They read the shop's files.
    """
    limits = TurnLimits(max_calls=3, max_depth=0)
    return [
        agent_tool(
            f"research_{subject}",
            model=model,
            system_prompt=f"You research the {subject} of musical instruments. Answer in two sentences.",
            tools=[tool for tool in servers if tool.name in FILES],
            max_output_tokens=200,
            limits=limits,
        )
        for subject in ("prices", "reviews")
    ]


class NoSuchChat(Exception):
    """The tenant has no such chat, or no such turn."""


class Agents:
    """The engine's operations for the routes, each on behalf of one tenant.

    Args:
        engine: The engine, running.
        settings: The host's settings.
        servers: The MCP servers.
    """

    def __init__(self, engine: Engine, settings: Settings, servers: McpServers) -> None:
        self._engine = engine
        self._settings = settings
        self._servers = servers
        self._refunds = Refunds(settings.folder / "refunds.db")

    # -- chats

    async def chats(self, tenant: str) -> list[str]:
        """The names of a tenant's chats, newest first."""
        found = await self._engine.sessions(limit=None, tags={"tenant": tenant})
        return [each.session_id.split("/", 1)[1] for each in found]

    async def chat(self, tenant: str, chat: str) -> Session:
        """An existing chat.

        Raises:
            NoSuchChat: There is none.
        """
        store = self._engine.store
        if store is None or await store.saved_session(f"{tenant}/{chat}") is None:
            raise NoSuchChat(chat)
        return await self.opened(tenant, chat)

    async def opened(self, tenant: str, chat: str) -> Session:
        """The chat of that name, also from before a restart. A new one if there is none."""
        model = self._settings.model
        return await self._engine.open_session(
            f"{tenant}/{chat}",
            model=model,
            system_prompt=SYSTEM_PROMPT,
            tools=[self._servers, refund_tool(self._refunds, tenant), *researchers(model, self._servers)],
            tags={"tenant": tenant, "owner": f"{tenant}/{chat}"},
        )

    # -- turns

    async def say(self, session: Session, text: str) -> str:
        """Start a turn. Returns the id of its stream."""
        return await self._begun(session, session.stream(text, max_output_tokens=400, max_tool_rounds=4))

    async def answer(self, session: Session, shown: Sequence[ToolUseBlock], why_not: str | None) -> str:
        """Approve the calls that were shown, or deny them with a reason. Returns the id of the turn's stream."""
        answer = Approved() if why_not is None else Denied(why_not)
        answers = {call.id: answer for call in shown}
        return await self._begun(session, session.submit_stream(answers, max_output_tokens=400, max_tool_rounds=4))

    async def _begun(self, session: Session, stream: TurnStream) -> str:
        """Start a turn in the background, after its first event. A refusal before that is raised here."""
        async with stream as turn:
            turn.detach()
            await turn.take()
            if turn.status == "failed":
                await turn.message()  # raises the turn's error
        return turn.stream_id

    def turn_under_way(self, session: Session) -> str | None:
        """The stream id of the session's running turn, if any."""
        found = (each.id for each in self._engine.in_progress().items if each.session_id == session.id)
        return next(found, None)

    def events(self, tenant: str, chat: str, stream_id: str, after: str | None) -> StreamReader[TurnEvent]:
        """The events of a turn: all of them, or those after the browser's last one.

        Raises:
            UnknownStream: It is not a turn of that chat, it ended too long ago, or its process has ended.
            ValueError: There is no such event.
        """
        seq = (after or "").rpartition(":")[2]
        return self._engine.attach(stream_id, from_seq=int(seq) + 1 if seq else 0, owner=f"{tenant}/{chat}")

    # -- money

    async def costs(self, tenant: str, by: str, since: str) -> list[CostRow]:
        """The costs of a tenant's calls, one row for each value of a dimension."""
        where = CallFilter(tags={"tenant": tenant})
        return await costs(by=by, since=since, where=where, trace=self._engine.store)

    async def left_usd(self, tenant: str) -> str:
        """The US dollars that a tenant may still spend today."""
        for account in await self._engine.budgets():
            if account.scope == tenant and account.left_usd is not None:
                return f"{account.left_usd:.6f}"
        return self._settings.daily_usd

    def refunds(self, tenant: str) -> list[str]:
        """The receipts of a tenant's refunds."""
        return self._refunds.of(tenant)
