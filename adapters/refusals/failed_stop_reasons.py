"""Ends that are none: what servers say, as the reason for a reply's end, when the reply did not come to it."""

from __future__ import annotations

from collections.abc import Mapping

from bus.errors import AdapterError, OverloadedError, ServerError

from .classify import ErrorType

FAILED_ENDS: Mapping[str, ErrorType] = {
    "error": ServerError,
    "abort": ServerError,  # vLLM and SGLang, when they give a request up
    "cancelled": ServerError,  # by the provider: what we cancel gets no answer
    "network_error": ServerError,  # Z.ai
    "insufficient_system_resource": OverloadedError,  # DeepSeek
}
"""Reasons by their lower-case name. The servers of every protocol are read by the same list: gateways translate
bodies from one to another, and leave such words as they are."""


def failed_end(reason: str | None, provider: str) -> AdapterError | None:
    """The error that a reason for the end stands for; None if it is an end, well or not, or none at all."""
    kind = FAILED_ENDS.get((reason or "").lower())
    if kind is None:
        return None
    said = f"the reply ended with {reason!r} before it was complete"
    return kind(f"{provider}: {said}", provider=provider, provider_code=reason, provider_message=said)
