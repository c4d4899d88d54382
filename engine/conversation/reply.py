"""A model's reply: the message that a turn gives back, and how it came about."""

from __future__ import annotations

from adapters import CallWarning, Message, MessageMetadata, StopReason, TokenUsage
from adapters.usage.unfinished import NOTHING_USED
from bus import Cost, RoutingDecision

from ..calls.events import NOT_KNOWN


class Reply(Message, frozen=True, kw_only=True, eq=False):
    """A message of the assistant that says how it came about; what `send` gives back.

    metadata: never None.
    It equals a Message with the same fields, such as the one that a resumed session has in its place.
    """

    metadata: MessageMetadata

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__struct_fields__)

    def __ne__(self, other: object) -> bool:  # the Struct's own would look at the classes
        return not self == other

    def __hash__(self) -> int:
        return hash(Message(self.role, self.content, self.id, self.name, self.metadata))

    @property
    def model(self) -> str:
        """``provider:name`` of the model that served the call."""
        return self.metadata.model

    @property
    def usage(self) -> TokenUsage:
        """Of the call, all its tokens."""
        return self.metadata.usage

    @property
    def cost(self) -> Cost:
        """Of the call, under the prices that were current when the message was handed out."""
        return self.metadata.cost

    @property
    def routing(self) -> RoutingDecision | None:
        """How the call came to its model."""
        return self.metadata.routing

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """What its reader should know, such as what of the history was left out of the request."""
        return self.metadata.warnings


def as_reply(message: Message) -> Reply:
    """A stored message of the assistant whose calls are open; without metadata, nothing is known of its call."""
    if isinstance(message, Reply):
        return message
    metadata = message.metadata or MessageMetadata(
        provider="unknown",
        model="unknown",
        usage=NOTHING_USED,
        cost=NOT_KNOWN,
        stop_reason=StopReason.TOOL_USE,
    )
    return Reply(message.role, message.content, message.id, message.name, metadata=metadata)
