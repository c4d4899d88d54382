"""Section 8.1, core infrastructure. Other tests of the engine prove more of its rows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from callboard import ConfigurationError, Engine, GenerateResult, ModelRegistry, generate, set_default_engine

from ..support.fake_http import FakeTransport
from ..support.provider_server import ProviderServer, provider_server
from ..support.virtual_time import FakeClock
from ..support.wires.wire import Wire
from .providers import MODELS, WIRES, each_provider
from .rows import PROVIDERS, row

KEY_HEADERS = {
    "openai": ("authorization", "Bearer {}"),
    "anthropic": ("x-api-key", "{}"),
    "gemini": ("x-goog-api-key", "{}"),
}


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ProviderServer]]:
    """Servers for the three providers on this machine, and an environment with their addresses and without a
    key.
    """
    monkeypatch.setenv("CALLBOARD_HOME", str(tmp_path))
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    with ExitStack() as stack:
        found: dict[str, ProviderServer] = {}
        for wire in WIRES:
            body = msgspec.json.encode(wire.body(f"Hello from {wire.name}", 0, "end"))
            found[wire.name] = stack.enter_context(provider_server(200, body))
            monkeypatch.delenv(f"{wire.name.upper()}_API_KEY", raising=False)
            monkeypatch.setenv(f"{wire.name.upper()}_BASE_URL", found[wire.name].url)
        yield found


def asked(model: str | None = None, prompt: str = "Hi") -> GenerateResult:
    """Return the reply of an engine from the environment, which runs in its own event loop."""

    async def ask() -> GenerateResult:
        async with Engine.from_env() as engine:
            return await engine.generate(model, prompt)

    return asyncio.run(ask())


@each_provider
@row("8.1.1")
@row("8.2.2")
def test_an_engine_of_the_environment_reaches_each_provider_with_its_key(
    wire: Wire, servers: dict[str, ProviderServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sockets are real. The key is in the header that the provider expects."""
    monkeypatch.setenv(f"{wire.name.upper()}_API_KEY", "sk-of-the-environment")
    result = asked(f"{wire.name}:{MODELS[wire.name]}")
    assert result.text == f"Hello from {wire.name}"
    request = servers[wire.name].asked[-1]  # at another address, OpenAI's adapter first finds out the protocol
    name, form = KEY_HEADERS[wire.name]
    assert request.headers[name] == form.format("sk-of-the-environment")


@row("8.1.4")
@pytest.mark.parametrize("first", PROVIDERS)
def test_a_name_without_a_provider_goes_to_the_default_one(
    first: str, servers: dict[str, ProviderServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default provider is the first that has a key. No other provider gets a request."""
    for name in PROVIDERS[PROVIDERS.index(first) :]:
        monkeypatch.setenv(f"{name.upper()}_API_KEY", "sk")
    assert asked("a-model-of-tomorrow").text == f"Hello from {first}"
    assert [name for name, server in servers.items() if server.asked] == [first]


@row("8.1.5")
@pytest.mark.usefixtures("servers")
def test_without_a_provider_the_error_names_the_missing_setting() -> None:
    """The error is a ConfigurationError, for a known and for an unknown name."""
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        asked("gpt-5.2")
    with pytest.raises(ConfigurationError, match="a-model-of-tomorrow"):
        asked("a-model-of-tomorrow")
    with pytest.raises(ConfigurationError, match="no model given"):
        asked()


@row("8.1.7")
def test_the_functions_of_the_module_use_an_engine_of_the_environment(
    servers: dict[str, ProviderServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a default engine, the functions make one from the environment."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk")
    transport = FakeTransport(WIRES[0].whole("Hello from mine"))
    made = WIRES[0].make(transport, FakeClock())

    async def ask(model: str) -> str:
        return (await generate(model, "Hi")).text

    assert asyncio.run(ask("claude-sonnet-4-5")) == "Hello from anthropic"
    set_default_engine(Engine(models=ModelRegistry({}, {}), providers={"mine": made}, trace=False))
    try:
        assert asyncio.run(ask("mine:m")) == "Hello from mine"
    finally:
        set_default_engine(None)
    assert len(servers["anthropic"].asked) == 1


@row("8.1.2")
@row("8.1.3")
@pytest.mark.anyio
async def test_a_request_goes_to_the_adapter_of_its_provider() -> None:
    """The provider is named by `provider=` or by the model's prefix. The other providers get no request."""
    transports = {wire.name: FakeTransport(wire.whole("one"), wire.whole("two")) for wire in WIRES}
    adapters = {wire.name: wire.make(transports[wire.name], FakeClock()) for wire in WIRES}
    async with Engine(models=ModelRegistry({}, {}), providers=adapters, trace=False) as engine:
        for number, name in enumerate(PROVIDERS, 1):
            await engine.generate("some-model", "Hi", provider=name)
            await engine.generate(f"{name}:some-model", "Hi")
            assert [len(each.requests) for each in transports.values()] == [2] * number + [0] * (3 - number)
