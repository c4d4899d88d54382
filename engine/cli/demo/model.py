"""The demo's models: one local server behind four adapters, or what it said when the cassettes were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from callboard.adapters import AdapterConfig
from callboard.adapters.cassettes.cassette import CassetteTransport, RecordingTransport
from callboard.adapters.health import AdapterHealth
from callboard.adapters.providers.local import LocalAdapter, LocalServer, LocalServerSettings, SharedServer
from callboard.adapters.providers.local.adapter import create_inner, read_options
from callboard.adapters.providers.local.settings import choose_model
from callboard.adapters.transport.opening import new_transport
from callboard.bus import SYSTEM_CLOCK, Clock, ConfigurationError
from callboard.bus.values.json import Json
from callboard.engine.models.entries import AdapterEntry, ModelEntry
from callboard.engine.models.registry import ModelRegistry

from ..common.places import cassette

Source: TypeAlias = Literal["live", "cassettes", "record"]

ADAPTERS: Mapping[str, dict[str, Json]] = {
    "local-chat": {"protocol": "chat"},
    "local-messages": {"protocol": "messages"},
    "local-responses": {"protocol": "responses"},
    "local-tools": {"protocol": "chat", "tools": "emulate"},
}
PROTOCOLS = {
    "local-chat": "Chat Completions",
    "local-messages": "Anthropic Messages",
    "local-responses": "OpenAI Responses",
    "local-tools": "Chat Completions",
}
WIRE_NAME = "smollm2"

_TYPES: Mapping[Source, str] = {
    "live": "local",
    "cassettes": f"{__name__}:ReplayedLocal",
    "record": f"{__name__}:RecordedLocal",
}


def demo_registry(source: Source) -> ModelRegistry:
    """The four models, by alias: from a running server, from the cassettes, or from a server into them."""
    adapters: dict[str, AdapterEntry] = {}
    models: dict[str, ModelEntry] = {}
    for name, options in ADAPTERS.items():
        if source != "live":
            options = {**options, "cassette": str(cassette(name))}
        config = AdapterConfig(options=options)
        adapters[name] = AdapterEntry(name=name, type=_TYPES[source], config=config)
        models[f"{name}:{WIRE_NAME}"] = ModelEntry(
            id=f"{name}:{WIRE_NAME}", adapter=name, wire_name=WIRE_NAME, aliases=(name,)
        )
    return ModelRegistry(adapters, models, source="the demo")


def shared_server() -> SharedServer:
    """A claim on the server that all four adapters use. Raises ConfigurationError if there are no weights."""
    return LocalServer.shared(LocalServerSettings(choose_model(None)))


def _cassette_of(config: AdapterConfig) -> tuple[Path, AdapterConfig]:
    options = dict(config.options)
    return Path(str(options.pop("cassette"))), msgspec.structs.replace(config, options=options)


class ReplayedLocal(LocalAdapter):
    """The local adapter on a recording: everything but the server is as it would be."""

    def __init__(self, config: AdapterConfig, *, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        path, config = _cassette_of(config)
        super().__init__(config, name=name, clock=clock)
        try:
            transport = CassetteTransport(path)
        except OSError as error:
            raise ConfigurationError(f"no recording to replay at {path}: {error.strerror}") from error
        options = read_options(config, name)
        self._inner = create_inner(config, options, name=name, clock=clock, transport=transport)

    async def initialize(self) -> None:
        """Nothing to start."""

    async def health_check(self) -> AdapterHealth:
        return AdapterHealth(True, "replays a recording")


class RecordedLocal(LocalAdapter):
    """The local adapter, with all that goes over HTTP written down."""

    def __init__(self, config: AdapterConfig, *, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        path, config = _cassette_of(config)
        transport = RecordingTransport(new_transport(), path, scenario=f"callboard demo, {name}")
        super().__init__(config, name=name, clock=clock, transport=transport)
