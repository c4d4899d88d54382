"""Stop reasons that are failures: words with which servers end a reply that never came to its end."""

from __future__ import annotations

from collections.abc import Mapping

from callboard.bus.errors import AdapterError, OverloadedError, ServerError

from .classify import ErrorType

FAILED_ENDS: Mapping[str, ErrorType] = {
    "error": ServerError,
    "abort": ServerError,  # vLLM and SGLang, when they give a request up
    "cancelled": ServerError,  # by the provider: what we cancel gets no answer
    "network_error": ServerError,  # Z.ai
    "insufficient_system_resource": OverloadedError,  # DeepSeek
}
"""The errors by the stop reasons, in lower case. All protocols share the table, because gateways translate bodies
from one protocol to another and leave such words as they are."""


def failed_end(reason: str | None, provider: str) -> AdapterError | None:
    """The error that a stop reason means; None if it means a true end, or if there is no reason."""
    kind = FAILED_ENDS.get((reason or "").lower())
    if kind is None:
        return None
    said = f"the reply ended with {reason!r} before it was complete"
    return kind(f"{provider}: {said}", provider=provider, provider_code=reason, provider_message=said)
