"""The servers that the nodes of a round share."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread

from tests.support.nats_server import NatsServer
from tests.support.postgres_server import StartedServer

from .provider import OUTPUT_NANO_USD, Provider

MODELS = """
adapters:
  lab: {{type: openai_compatible, base_url: "{url}/v1", api_key_env: LAB_KEY}}
models:
  "lab:bench": {{adapter: lab}}
"""
PRICES = f"""
label: the lab's
date: 2026-01-01
prices:
  - {{model: "lab:*", input: 0, output: {OUTPUT_NANO_USD / 1000:g}}}
"""


class Servers:
    """The servers that the nodes share.

    Args:
        postgres: The server of the shared store, which the lab may restart.
        nats: The broker, which the lab may stop and wipe.
        dsn: The round's database.
        provider: The provider.
    """

    def __init__(self, postgres: StartedServer, nats: NatsServer, dsn: str, provider: Provider) -> None:
        self.dsn = dsn
        self.provider = provider
        self._postgres = postgres
        self._nats = nats

    @property
    def nats_url(self) -> str:
        """The broker's address."""
        return self._nats.url

    async def restart_postgres(self) -> None:
        """Kill PostgreSQL with all its connections, and start it again."""
        await anyio.to_thread.run_sync(self._postgres.restart, "immediate")

    async def wipe_nats(self, away_seconds: float) -> None:
        """Kill the broker, delete its data, and start it again after a while."""
        self._nats.stop()
        self._nats.wipe()
        await anyio.sleep(away_seconds)
        await anyio.to_thread.run_sync(self._nats.start)

    def write_configuration(self, home: Path) -> None:
        """Write the files with the provider's address and prices."""
        (home / "models.yaml").write_text(MODELS.format(url=self.provider.url))
        (home / "prices.yaml").write_text(PRICES)
