"""Who finds out whether a provider is back: the shared rows, and the interface to them.

A provider that all nodes leave alone, or one of its models, is probed by one node at a time, which has a lease
for it.
"""

from __future__ import annotations

from typing import Protocol


class ProbeTables(Protocol):
    """The rows. Every method raises StoreError while they can't be reached."""

    async def take(self, node: str, provider: str, model: str, seconds: float) -> float:
        """Take the lease for a probe, or take it for longer.

        Args:
            node: The node.
            provider: The provider.
            model: The model; empty for the provider as a whole.
            seconds: The length of the lease, by the store's clock.

        Returns:
            0 if the node has it; else the seconds for which another node has it at most.
        """
        ...

    async def release(self, node: str, provider: str, model: str) -> None:
        """Let go of a lease, if the node has it."""
        ...
