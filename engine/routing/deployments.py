"""Where a conversation's prompt is cached: at the deployment that answered last."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.adapters import Message, Role, StopReason

from .candidates import Plan


def deployment_of_last_reply(messages: Sequence[Message], plan: Plan) -> str | None:
    """The model that answered last, if it is the plan's first model at this or another provider.

    Two models are deployments of one if their providers call them alike. A fallback of another name is none: the
    conversation goes back to its own model as soon as that is available. A `ModelChoice` is chosen anew each time.

    Args:
        messages: The conversation so far.
        plan: The models that may serve.
    """
    if len(plan.named) == 1 or plan.chosen:
        return None
    last = next((message for message in reversed(messages) if message.role is Role.ASSISTANT), None)
    about = None if last is None else last.metadata
    if about is None or about.routing is None or about.stop_reason is StopReason.ERROR:
        return None
    named = next((each for each in plan.named if each.model == about.routing.model), None)
    if named is None or named.entry.wire_name != plan.named[0].entry.wire_name:
        return None
    return named.model
