"""The errors of LiteLLM's proxy, whose own words surround the provider's words. The kind of error stands only in
these words.

``litellm.ContextWindowExceededError: litellm.BadRequestError: OpenAIException - {"error": …}`` is followed by two
newlines and by the proxy's own actions. The type and the code beside it repeat the HTTP status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from callboard.bus.errors import (
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
    """The exception at the beginning of the message, if it is known. Otherwise an empty string."""
    match = _NAME.match(message)
    return match[1] if match is not None and match[1] in LITELLM_CODES else ""


def unwrapped(message: str) -> str:
    """The provider's own words. A message that isn't LiteLLM's stays as it is."""
    if _NAME.match(message) is None:
        return message
    wrappers = _WRAPPERS.match(message)
    remark = _REMARK.search(message)
    inner = message[wrappers.end() if wrappers else 0 : remark.start() if remark else None].strip()
    return inner[2:-1] if inner.startswith(("b'", 'b"')) else inner
