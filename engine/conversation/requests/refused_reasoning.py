"""The memory of reasoning that a provider has refused to take back, so that it is not sent again.

Signed reasoning can be bound to everything before it: the system prompt, the tools, earlier messages. If a host
changes these, or if a conversation comes from elsewhere, the provider refuses the request. The request is then
sent once more without the reasoning, and without the signatures of texts and calls (see
`adapters.refusals.repair`). Without a memory every later turn would pay for one refusal.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.adapters import CallWarning, Message
from callboard.adapters.refusals.signed_reasoning import without_reasoning
from callboard.bus.values.warning_codes import WarningCode


class RefusedReasoning:
    """The ids of the messages whose reasoning was refused, by provider. It is as large as the history at most."""

    def __init__(self) -> None:
        self._refused: dict[str, set[str]] = {}

    def note(self, provider: str, sent: Sequence[Message], warnings: Sequence[CallWarning]) -> None:
        """Take in the end of a call.

        Args:
            provider: The provider that was asked.
            sent: The messages of the request.
            warnings: The warnings of the response.
        """
        if any(warning.code == WarningCode.REASONING_REFUSED for warning in warnings):
            self._refused.setdefault(provider, set()).update(
                message.id
                for message in sent
                if message.id and without_reasoning(message, provider) is not message
            )

    def without(self, provider: str, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages as a provider takes them."""
        refused = self._refused.get(provider)
        if not refused:
            return messages
        return tuple(
            without_reasoning(message, provider) if message.id in refused else message for message in messages
        )

    def copy(self) -> RefusedReasoning:
        """A copy for a fork, which then learns by itself."""
        other = RefusedReasoning()
        other._refused = {provider: set(ids) for provider, ids in self._refused.items()}
        return other
