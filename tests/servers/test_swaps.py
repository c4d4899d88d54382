"""Sessions that change their model between servers with special demands. No server refuses a request."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest

from callboard.adapters import AdapterConfig
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.transport.transport import HttpReply, HttpRequest
from callboard.bus.clock import Clock
from callboard.bus.values.base import Json, JsonObject
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, Tool
from labs.servers.rules import RULES, Asked
from tests.support.depth import first_is_quick

from ..conformance.test_swap_matrix import TOOLS, work
from ..support.fake_http import FakeReply
from ..support.scripted import adapter_type
from ..support.virtual_time import run_virtual
from ..support.wires.anthropic import AnthropicWire
from ..support.wires.chat import ChatWire
from ..support.wires.wire import Wire


class Server(NamedTuple):
    """One server, with the rules that its requests obey."""

    name: str
    wire: Wire
    model: str
    rules: Sequence[str]
    changes: Sequence[tuple[bytes, bytes]] = ()
    """Replacements in the replies of the wire's kit."""


_IDS = re.compile(rb'"(?:toolu_|call_)(\d+)"')
"""The ids of calls in the kits' replies. The ids are replaced, so that each reply has its own."""

UNSIGNED = ((b"c2lnbmF0dXJl", b""),)
NAMED_OTHERWISE = ((b'"reasoning_content"', b'"reasoning"'),)
PERPLEXITY = ChatWire()
PERPLEXITY.options = {"quirks": {"user_after_tool": False}}  # type: ignore[dict-item]  # of any JSON
SERVERS = (
    Server("deepseek", ChatWire("deepseek"), "deepseek-v4-pro", ["reasoning_with_tool_calls"]),
    Server("deepseek-messages", AnthropicWire(), "deepseek-v4-pro", ["thinking_with_tool_uses"], UNSIGNED),
    Server("moonshot", ChatWire("moonshot"), "kimi-k2.6", ["reasoning_with_tool_calls_not_empty"]),
    Server("moonshot-messages", AnthropicWire(), "kimi-for-coding",
           ["thinking_with_tool_uses", "blank_tool_result"], UNSIGNED),
    Server("openrouter", ChatWire("openrouter"), "deepseek/deepseek-v4-pro",
           ["reasoning_with_tool_calls_of_deepseek"], NAMED_OTHERWISE),
    Server("gateway", ChatWire(), "kimi-k3", ["reasoning_with_tool_calls_of_deepseek"], NAMED_OTHERWISE),
    Server("mistral", ChatWire("mistral"), "mistral-large-latest", ["user_after_tool", "short_call_ids"]),
    Server("anthropic", AnthropicWire(), "claude-opus-4-6", ["no_foreign_signatures"]),
    Server("groq", ChatWire("groq"), "openai/gpt-oss-120b", ["no_reasoning_fields"]),
    Server("perplexity", PERPLEXITY, "sonar", ["alternating_roles"]),
)  # fmt: skip


class Replies:
    """A server's transport. It sends the next reply of the plan and records the requests."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.plan: list[tuple[str, int, str]] = []
        self.requests: list[tuple[str, JsonObject]] = []

    async def send(self, request: HttpRequest) -> HttpReply:
        body: JsonObject = msgspec.json.decode(request.body)
        self.requests.append((request.url, body))
        text, calls, thought = self.plan.pop(0)
        stop, kit = ("tools" if calls else "end"), self.server.wire
        streamed = body.get("stream") is True
        if streamed:
            said = kit.stream(*[event for _, event in kit.events(text, calls, stop, thought)])
        else:
            said = msgspec.json.encode(kit.body(text, calls, stop, thought))
        form = b'"%08d%s"' if self.server.name == "mistral" else b'"call_%d_%s"'
        said = _IDS.sub(lambda found: form % (len(self.requests), found[1][-1:]), said)
        for old, new in self.server.changes:
            said = said.replace(old, new)
        kind = "text/event-stream" if streamed else "application/json"
        return FakeReply(said, headers={"content-type": kind})

    async def aclose(self) -> None:
        pass

    def faults(self) -> list[str]:
        """The faults for which the server would refuse a request."""
        found = []
        for url, body in self.requests:
            wire = "messages" if url.endswith("/messages") else "chat"
            found += [
                f"{name}: {why}" for name in self.server.rules if (why := RULES[name](Asked(wire, url, body)))
            ]
            found += self.server.wire.faults(msgspec.json.encode(body))
        return found


def entry(server: Server, replies: Replies) -> AdapterEntry:
    """The engine's configuration of a server."""

    def made(config: AdapterConfig, *, name: str, clock: Clock) -> HttpAdapter:
        return server.wire.adapter(config, name=name, clock=clock, transport=replies)

    config = AdapterConfig(api_key="key", base_url="https://server.test", options=server.wire.options)
    return AdapterEntry(name=server.name, type=adapter_type(made), config=config)


async def silent(arguments: dict[str, Json]) -> str:
    """A tool that returns a blank text."""
    return " "


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("field", "changes"),
    [("reasoning_content", ()), ("reasoning", NAMED_OTHERWISE)],
    ids=["reasoning_content", "reasoning"],
)
def test_an_unknown_server_gets_reasoning_in_the_field_in_which_it_sent_it(
    field: str, changes: Sequence[tuple[bytes, bytes]], streamed: bool
) -> None:
    """Plain and streamed replies keep the name of the field. The reply without tool calls is sent back without
    it.
    """
    server = Server("unknown", ChatWire(), "some-model", [], changes)
    replies = Replies(server)
    models = {"unknown:m": ModelEntry(id="unknown:m", adapter="unknown", wire_name="some-model")}

    async def go() -> None:
        async with Engine(
            models=ModelRegistry({"unknown": entry(server, replies)}, models), trace=False
        ) as engine:
            session = engine.session("unknown:m", tools=[Tool(TOOLS[0], work)])  # type: ignore[arg-type]
            for plan in ([("", 1, "Thinking."), ("Done.", 0, "Done thinking.")], [("Yes.", 0, "")]):
                replies.plan = list(plan)
                if streamed:
                    async with session.stream("Go on") as running:
                        async for _ in running:
                            pass
                else:
                    await session.send("Go on")

    run_virtual(go)
    said = [message for message in replies.requests[-1][1]["messages"] if message["role"] == "assistant"]
    kept = [
        {key: message[key] for key in ("reasoning", "reasoning_content") if key in message} for message in said
    ]
    assert kept == [{field: "Thinking."}, {}]


OTHER_PAIRS = [
    pytest.param(home, abroad, marks=pytest.mark.deep("all pairs of servers"))
    for home, abroad in itertools.permutations(SERVERS, 2)
    if SERVERS.index(abroad) != (SERVERS.index(home) + 1) % len(SERVERS)
]
"""The pairs of servers that only a deep run swaps. A quick run swaps from each server to the next one."""


@pytest.mark.parametrize(
    "streamed", first_is_quick([True, False], "the same over whole replies"), ids=["streamed", "whole"]
)
@pytest.mark.parametrize(
    ("home", "abroad"),
    [*itertools.pairwise([*SERVERS, SERVERS[0]]), *OTHER_PAIRS],
    ids=lambda server: getattr(server, "name", None),
)
def test_after_a_swap_no_server_refuses_a_request(home: Server, abroad: Server, streamed: bool) -> None:
    """Both servers reason, call tools, and leave calls that were not run. All requests obey the servers' rules."""
    wires = {server.name: Replies(server) for server in (home, abroad)}
    models = {
        f"{server.name}:m": ModelEntry(id=f"{server.name}:m", adapter=server.name, wire_name=server.model)
        for server in (home, abroad)
    }
    registry = ModelRegistry({server.name: entry(server, wires[server.name]) for server in (home, abroad)}, models)

    async def go() -> None:
        async with Engine(models=registry, trace=False) as engine:
            tools = [Tool(TOOLS[0], work), Tool(TOOLS[1], silent)]  # type: ignore[arg-type]
            session = engine.session(f"{home.name}:m", tools=tools, system_prompt="You are brief.")

            async def turn(server: Server, *plan: tuple[str, int, str], rounds: int = 9) -> None:
                session.model = f"{server.name}:m"
                wires[server.name].plan = list(plan)
                if streamed:
                    async with session.stream("Go on", max_tool_rounds=rounds) as running:
                        async for _ in running:
                            pass
                else:
                    await session.send("Go on", max_tool_rounds=rounds)
                assert not wires[server.name].plan

            for server in (home, abroad, home, abroad):
                await turn(server, ("", 2, "Thinking."), ("Wait.", 1, ""), ("Done.", 0, "It is done."))
                await turn(server, ("Plain.", 0, "Hm."))
                await turn(server, ("", 1, "More."), rounds=0)
            await turn(home, ("At home.", 0, ""))

    run_virtual(go)
    for server in (home, abroad):
        assert wires[server.name].faults() == []
