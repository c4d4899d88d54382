"""The kits of the local model's adapter: each of its protocols, over a scripted server."""

from __future__ import annotations

from types import SimpleNamespace

from callboard.adapters.config import AdapterConfig
from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.health import AdapterHealth
from callboard.adapters.providers.local import LocalAdapter
from callboard.adapters.transport.transport import Transport
from callboard.bus.clock import Clock

from ..support.wires import AnthropicWire, ChatWire, ResponsesWire, Wire


class Serverless(LocalAdapter):
    """A local adapter that starts no process. Its transport replies in place of the server."""

    async def _could_start(self) -> AdapterHealth:
        return AdapterHealth(True, "there is no server to start")


async def found() -> SimpleNamespace:
    """A replacement for the running server."""
    return SimpleNamespace(url="http://127.0.0.1:9", api_key="key-of-the-server")


class LocalKit(Wire):
    """A mixin for the wire of one protocol."""

    protocol = "chat"
    takes_key = False  # except for the key that it creates

    def make(self, transport: Transport, clock: Clock, **config: object) -> ProviderAdapter:
        settings = AdapterConfig(**{"options": {"protocol": self.protocol}, **config})  # type: ignore[arg-type]
        adapter = Serverless(settings, name=self.name, clock=clock, transport=transport)
        adapter._transport.acquire = found  # type: ignore[assignment, method-assign]
        return adapter


class LocalMessages(LocalKit, AnthropicWire):
    name = "local-messages"
    protocol = "messages"


class LocalResponses(LocalKit, ResponsesWire):
    name = "local-responses"
    protocol = "responses"


class LocalChat(LocalKit, ChatWire):
    name = "local-chat"


LOCAL = (LocalMessages(), LocalResponses(), LocalChat())
