"""A tool that a vendor trained its models on and the host runs, through the engine and the real adapters."""

from __future__ import annotations

import msgspec

from callboard.adapters import AdapterConfig, AnthropicAdapter
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.providers.openai.adapter import OpenAIAdapter
from callboard.bus.clock import Clock
from callboard.bus.values.base import Json, JsonObject
from callboard.engine import AdapterEntry, Engine, ModelEntry, ModelRegistry, tool

from ..support.fake_http import FakeReply, FakeTransport
from ..support.judges import messages_faults, responses_faults
from ..support.scripted import adapter_type
from ..support.virtual_time import run_virtual
from ..support.wires import WIRES
from ..support.wires import responses as r

CLAUDE = WIRES[0]


def reply(body: Json) -> FakeReply:
    return FakeReply(msgspec.json.encode(body), headers={"content-type": "application/json"})


def test_a_shell_of_anthropics_is_run_by_the_hosts_function_and_swaps() -> None:
    """Claude is told its type, another model its description; either calls the same function."""
    run: list[str] = []

    @tool(name="bash", provider_options={"anthropic": {"type": "bash_20250124"}})
    def shell(command: str = "", restart: bool = False) -> str:
        """Runs a command."""
        run.append("restarted" if restart else command)
        return "done"

    def asks(given: JsonObject) -> JsonObject:
        call: Json = {"type": "tool_use", "id": f"toolu_{len(given)}", "name": "bash", "input": given}
        return {**CLAUDE.body("", 0, "tools"), "content": [call]}

    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "bash", "status": "completed"}
    home = FakeTransport(
        reply(asks({"command": "ls"})), reply(asks({"restart": True})), reply(CLAUDE.body("Hi", 0, "end")),
        reply(CLAUDE.body("Back", 0, "end")),
    )  # fmt: skip
    abroad = FakeTransport(
        reply(r.response(output=[{**call, "arguments": '{"command": "pwd"}'}])),
        reply(r.response(output=[r.message("There")])),
    )

    def make(kind: type[AnthropicAdapter] | type[OpenAIAdapter], transport: FakeTransport) -> AdapterEntry:
        def adapter(config: AdapterConfig, *, name: str, clock: Clock) -> ProviderAdapter:
            return kind(config, transport=transport, clock=clock)

        name = kind.wire_type.default_name
        return AdapterEntry(name=name, type=adapter_type(adapter), config=AdapterConfig(max_retries=0))

    async def go() -> None:
        entries = {e.name: e for e in (make(AnthropicAdapter, home), make(OpenAIAdapter, abroad))}
        names = {"anthropic:claude-opus-5": "anthropic", "openai:gpt-6-sol": "openai"}
        models = {
            id_: ModelEntry(id=id_, adapter=by, wire_name=id_.partition(":")[2]) for id_, by in names.items()
        }
        async with Engine(models=ModelRegistry(entries, models), trace=False) as engine:
            session = engine.session("anthropic:claude-opus-5", tools=[shell])
            await session.send("one", max_output_tokens=64, max_tool_rounds=3)
            session.model = "openai:gpt-6-sol"
            await session.send("two", max_output_tokens=64)
            session.model = "anthropic:claude-opus-5"
            assert (await session.send("three", max_output_tokens=64)).text == "Back"

    run_virtual(go)
    assert run == ["ls", "restarted", "pwd"]
    bodies = [msgspec.json.decode(request.body) for request in home.requests]
    assert [body["tools"][0].keys() - {"cache_control"} for body in bodies] == [{"name", "type"}] * 4
    assert [messages_faults(body) for body in bodies] == [[]] * 4
    [offered] = msgspec.json.decode(abroad.requests[0].body)["tools"]
    assert (offered["type"], offered["description"]) == ("function", "Runs a command.")
    assert [responses_faults(request.body) for request in abroad.requests] == [[]] * 2
