"""Which reasoning a provider has refused to take back, so that it is not offered to it again.

Signed reasoning can be bound to what came before it: the system prompt, the tools, earlier messages. When a host
changes those, or a conversation comes from elsewhere, the provider refuses the request; it is sent once more
without the reasoning, and without the signatures of texts and calls (see `adapters.refusals.repair`). Without a
memory every later turn would pay for one refusal.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapters import CallWarning, Message
from adapters.refusals.signed_reasoning import without_reasoning
from bus.values.warning_codes import WarningCode


class RefusedReasoning:
    """By provider, the ids of the messages whose reasoning it refused. As large as the history at most."""

    def __init__(self) -> None:
        self._refused: dict[str, set[str]] = {}

    def note(self, provider: str, sent: Sequence[Message], warnings: Sequence[CallWarning]) -> None:
        """Take in how a call ended whose request had these messages."""
        if any(warning.code == WarningCode.REASONING_REFUSED for warning in warnings):
            self._refused.setdefault(provider, set()).update(
                message.id
                for message in sent
                if message.id and without_reasoning(message, provider) is not message
            )

    def without(self, provider: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages as that provider takes them."""
        refused = self._refused.get(provider)
        if not refused:
            return messages
        return tuple(
            without_reasoning(message, provider) if message.id in refused else message for message in messages
        )

    def copy(self) -> RefusedReasoning:
        """For a fork, which then learns by itself."""
        other = RefusedReasoning()
        other._refused = {provider: set(ids) for provider, ids in self._refused.items()}
        return other
