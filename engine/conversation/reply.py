"""A model's reply: the message that a turn gives back, and how it came about."""

from __future__ import annotations

from callboard.adapters import CallWarning, Message, MessageMetadata, StopReason, TokenUsage
from callboard.adapters.usage.unfinished import NOTHING_USED
from callboard.bus import Cost, RoutingDecision, TurnStatus
from callboard.bus.values.json import JsonObject
from callboard.bus.values.raw_reply import RawReply

from ..calls.outcome import NOT_KNOWN
from ..presented import in_markdown, in_plain_values


class Reply(Message, frozen=True, kw_only=True, eq=False, dict=True):
    """A message of the assistant that says how it came about. `Session.send` gives it back.

    It equals a Message with the same fields, such as the one that a resumed session has in its place.
    """

    metadata: MessageMetadata
    """The model, usage, cost and routing of the call. A reply always has it."""
    steers: bool = False
    """False: what steers a turn is said by the user."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__struct_fields__)

    def __ne__(self, other: object) -> bool:  # the Struct's own would look at the classes
        return not self == other

    def __hash__(self) -> int:
        return hash(Message(self.role, self.content, self.id, self.name, self.metadata))

    @property
    def status(self) -> TurnStatus:
        """The way the reply's turn ended, as the trace has it; ``awaiting_tools`` as long as the turn runs."""
        status: TurnStatus = self.__dict__.get("_status", "awaiting_tools")
        return status

    @property
    def undelivered(self) -> tuple[Message, ...]:
        """The messages that were to steer the reply's turn, and had not reached the model when the turn ended."""
        undelivered: tuple[Message, ...] = self.__dict__.get("_undelivered", ())
        return undelivered

    def to_dict(self) -> JsonObject:
        """The reply as plain values: text, status, model, usage, cost, calls, warnings. Money is exact text."""
        return in_plain_values(
            text=self.text,
            content=self.content,
            thinking=self.thinking,
            status=self.status,
            stop_reason=self.stop_reason,
            raw_stop_reason=self.raw_stop_reason,
            model=self.model,
            usage=self.usage,
            cost=self.cost,
            total_usage=self.total_usage,
            total_cost=self.total_cost,
            tool_uses=self.tool_uses,
            warnings=self.warnings,
            raw=self.raw,
            provider_details=self.metadata.provider_details,
        )

    def _repr_markdown_(self) -> str:
        """The reply in a notebook."""
        return in_markdown(self.text, self.model, self.usage, self.cost)

    def ended(
        self,
        status: TurnStatus,
        undelivered: tuple[Message, ...] = (),
        *,
        usage: TokenUsage | None = None,
        cost: Cost | None = None,
    ) -> None:
        """Note how the reply's turn ended. These are not fields: they are not stored and not compared.

        Args:
            status: How the turn ended.
            undelivered: The steering messages that the model did not get.
            usage: The tokens of all steps of the turn; None leaves those of this reply.
            cost: The cost of all calls of the turn; None leaves that of this reply.
        """
        noted = self.__dict__
        noted["_status"] = status
        if undelivered:
            noted["_undelivered"] = undelivered
        if usage is not None:
            noted["_total_usage"] = usage
        if cost is not None:
            noted["_total_cost"] = cost

    @property
    def stop_reason(self) -> StopReason:
        """The reason why the reply ended."""
        return self.metadata.stop_reason

    @property
    def raw_stop_reason(self) -> str | None:
        """The provider's own word for the stop reason; None if the provider sent none."""
        return self.metadata.raw_stop_reason

    @property
    def model(self) -> str:
        """``provider:name`` of the model that served the call."""
        return self.metadata.model

    @property
    def usage(self) -> TokenUsage:
        """All tokens of the call; `total_usage` has the tokens of the whole turn."""
        return self.metadata.usage

    @property
    def total_usage(self) -> TokenUsage:
        """The tokens of all steps of the turn. For a message of a resumed session, the tokens of its call."""
        total: TokenUsage = self.__dict__.get("_total_usage", self.usage)
        return total

    @property
    def total_cost(self) -> Cost:
        """The cost of all calls of the turn. For a message of a resumed session, the cost of its call."""
        total: Cost = self.__dict__.get("_total_cost", self.cost)
        return total

    @property
    def cost(self) -> Cost:
        """The cost of the call under the prices that were current when the message was handed out."""
        return self.metadata.cost

    @property
    def routing(self) -> RoutingDecision | None:
        """The decision that brought the call to its model."""
        return self.metadata.routing

    @property
    def raw(self) -> RawReply | None:
        """The reply as its provider sent it; None unless `include_raw` asked for it."""
        return self.metadata.raw

    @property
    def provider_details(self) -> JsonObject:
        """What the reply says beside its content and its usage, by the provider's own names; see
        `CanonicalResponse.provider_details`."""
        return self.metadata.provider_details or {}

    @property
    def warnings(self) -> tuple[CallWarning, ...]:
        """Warnings for the caller, such as parts of the history that were left out of the request."""
        return self.metadata.warnings


def as_reply(message: Message) -> Reply:
    """A stored message of the assistant whose calls are open. Without metadata, nothing is known of its call."""
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
