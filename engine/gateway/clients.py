"""Clients of the gateway: their keys, the models they may use, their budgets, and their rates.

A key is 256 random bits, so one SHA-256 of it is enough: a slow hash protects passwords, which can be guessed.
Only the hash is stored. The registry looks for changes by other processes with one small query, at most once a second.
"""

from __future__ import annotations

import anyio

from callboard.adapters import TokenUsage
from callboard.tracestore.gateway import Client

from ..engine import Engine
from .wire import Failure

CLIENT_TAG = "client"
"""The tag of the client's name, in the trace and in budgets."""


class ClientRefused(Exception):
    """A request that a client may not make. `failure` has the details for its wire."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class RateHeaders:
    """The limits of a client by the minute, as they are after a request was admitted. None: there is no limit."""

    limit_requests: int | None
    remaining_requests: int | None
    reset_requests: float
    """Seconds until all requests are left again."""
    limit_tokens: int | None
    remaining_tokens: int | None
    reset_tokens: float


class Admission:
    """A request that was admitted. Call `over` when it has ended, however it ended."""

    rates: RateHeaders

    def over(self, usage: TokenUsage | None) -> None:
        """Replace the estimate by the tokens that the request used. None: they are unknown, the estimate stays."""


class Clients:
    """The clients of one gateway, read from the trace store of its engine.

    Args:
        engine: The engine. In a cluster the shared store has the clients, else the engine's own.
    """

    def __init__(self, engine: Engine) -> None: ...

    async def authenticate(self, key: str | None) -> Client:
        """The client with a key. Its budget is in force when this returns.

        A change by another process is seen at most one second later.

        Raises:
            ClientRefused: ``authentication``: there is no key, or it is unknown, expired or revoked.
            StoreError: The store can't be read.
        """
        raise NotImplementedError

    def may_use(self, client: Client, model: str) -> bool:
        """Whether a client may use a model, by the name that the client sends."""
        raise NotImplementedError

    def require_model(self, client: Client, model: str) -> None:
        """Raise ClientRefused (``permission``) if the client may not use the model."""

    def admit(self, client: Client, input_tokens: int, output_tokens: int) -> Admission:
        """Count a request in the client's rates.

        Args:
            client: The client.
            input_tokens: An estimate of the input.
            output_tokens: The most that the reply may have.

        Raises:
            ClientRefused: ``rate_limit``, with `retry_after`.
        """
        raise NotImplementedError

    def revocation(self, client: Client) -> anyio.Event:
        """An event that is set when the client is revoked, for requests in progress.

        It is set at most a second after the change. Race it against the reply, and cancel the call.
        """
        raise NotImplementedError

    def tags(self, client: Client) -> dict[str, str]:
        """The tags of the client's calls."""
        return {CLIENT_TAG: client.name}
