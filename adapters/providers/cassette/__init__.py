"""An adapter of any type that gets its replies from a cassette, for tests and demos."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from callboard.bus.clock import SYSTEM_CLOCK, Clock
from callboard.bus.errors import ConfigurationError
from callboard.bus.values.base import Json

from ...config import AdapterConfig
from ...contract import ProviderAdapter
from ...provider import Provider, create_adapter

if TYPE_CHECKING:
    from ...transport.transport import Transport

PROVIDER = Provider(name="cassette", adapter=":cassette_adapter", kinds=())


class CassetteOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `AdapterConfig.options` of type ``cassette``."""

    type: str
    """The type of the recorded adapter."""
    file: str
    """The path of the cassette, from the working directory."""
    record: bool = False
    """Whether to use the real provider, and to write the file when the adapter is closed."""
    options: dict[str, Json] = {}
    """The options of the recorded adapter."""


def cassette_adapter(config: AdapterConfig, *, name: str, clock: Clock = SYSTEM_CLOCK) -> ProviderAdapter:
    """The adapter of ``options.type`` that plays, or records, ``options.file``. Raises ConfigurationError."""
    from ...requests.settings import read_options

    options = read_options(config.options, CassetteOptions, name=name, type_name="cassette")
    inner = msgspec.structs.replace(config, options=options.options)
    transport = _transport(config, options, name)
    try:
        return create_adapter(options.type, inner, name=name, clock=clock, transport=transport)
    except TypeError as error:
        if "transport" not in str(error):
            raise
        raise ConfigurationError(
            f"adapters.{name}: an adapter of type {options.type!r} sends no HTTP requests to record"
        ) from error


def _transport(config: AdapterConfig, options: CassetteOptions, name: str) -> Transport:
    from ...cassettes import CassetteTransport, RecordingTransport
    from ...transport.connection_pool import new_transport
    from ...transport.transport import given_keys

    if options.record:
        transport = new_transport(config.http_client)
        return RecordingTransport(transport, options.file, scenario=name, secrets=given_keys(config))
    try:
        return CassetteTransport(options.file)
    except OSError as error:
        raise ConfigurationError(
            f"adapters.{name}.options.file: {options.file!r} can't be read: {error.strerror}. To "
            f"create it, set `record: true`"
        ) from error
