"""How LiteLLM's proxy tells of an error: its own words around the provider's, and the kind only in those words.

``litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - {"error": …}``, then two newlines
and what the proxy did about it. The type and code beside it are the HTTP status again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ContentFilterError,
    ContextOverflowError,
    QuotaExceededError,
)

LITELLM_CODES: Mapping[str, type[AdapterError]] = {
    # of exceptions; those that agree with their status need no word here
    "ContextWindowExceededError": ContextOverflowError,
    "ContentPolicyViolationError": ContentFilterError,
    "BudgetExceededError": QuotaExceededError,
    # types of the proxy's own errors, with whatever status
    "budget_exceeded": QuotaExceededError,
    "no_db_connection": AuthError,  # any key but the master's, to a proxy without a database
    "expired_key": AuthError,
    "token_not_found_in_db": AuthError,
    "key_model_access_denied": AccessDeniedError,
    "team_model_access_denied": AccessDeniedError,
    "user_model_access_denied": AccessDeniedError,
    "customer_model_access_denied": AccessDeniedError,
    "org_model_access_denied": AccessDeniedError,
    "project_model_access_denied": AccessDeniedError,
}

_NAME = re.compile(r"litellm\.([A-Z][A-Za-z]{1,60}): ")
_WRAPPERS = re.compile(r"(?:(?:litellm\.)?[A-Z][A-Za-z]{1,60}(?:Error|Exception|Timeout)(?:: | - ))+")
_REMARK = re.compile(r"\n+(?:LiteLLM: model group |model=)|\.? ?Received Model Group=")


def exception_name(message: str) -> str:
    """The exception that the message begins with, if it is known; else an empty string."""
    match = _NAME.match(message)
    return match[1] if match is not None and match[1] in LITELLM_CODES else ""


def unwrapped(message: str) -> str:
    """The provider's own words; the message itself if it isn't LiteLLM's."""
    if _NAME.match(message) is None:
        return message
    wrappers = _WRAPPERS.match(message)
    remark = _REMARK.search(message)
    inner = message[wrappers.end() if wrappers else 0 : remark.start() if remark else None].strip()
    return inner[2:-1] if inner.startswith(("b'", 'b"')) else inner
