"""What a failed call says to the person who made it: one line, with what to do, and an exit code."""

from __future__ import annotations

import os

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    CapabilityError,
    ContextOverflowError,
    NetworkError,
    NotFoundError,
    PromptTooLongError,
    QuotaExceededError,
    RateLimitError,
    RequestTimeoutError,
)

FAILED = 1
BADLY_CONFIGURED = 2


def exit_code(error: AdapterError) -> int:
    """2 for a wrong key or model, which the person mends; 1 for any other failure."""
    is_mine = isinstance(error, AuthError | NotFoundError) and not isinstance(error, AccessDeniedError)
    return BADLY_CONFIGURED if is_mine else FAILED


def said(error: AdapterError) -> str:
    """The error in one line, and what to do."""
    whose = f" of {error.provider}" if error.provider else ""
    hint = advice(error)
    return f"{type(error).__name__}{whose}: {error}{f' ({hint})' if hint else ''}"


def advice(error: AdapterError) -> str:
    """What to do about a failure; empty where nobody knows better than the error itself."""
    match error:
        case AccessDeniedError():
            return "the key is good, but may not do this: use another with --key, or ask for the right"
        case AuthError():
            return f"{_new_key(error.provider)}; `callboard doctor` tries it"
        case NotFoundError():
            return "`callboard models` shows the models there are, -m names one"
        case QuotaExceededError():
            return "add credit to the account, or name a model of another provider with -m"
        case RateLimitError():
            return "wait a little, or name a model of another provider with -m"
        case ContextOverflowError() | PromptTooLongError():
            return "ask with less, or name a model with a larger window with -m"
        case CapabilityError():
            return "`callboard models` shows what each can, -m names another"
        case RequestTimeoutError():
            return "ask again, or give it more time: -o timeout=600"
        case NetworkError():
            return "`callboard doctor` shows what can be reached"
        case _:
            return ""


def _new_key(provider: str | None) -> str:
    """How to give an adapter another key."""
    from callboard.adapters.provider import providers

    variables = next((each.key_variables for each in providers() if each.name == provider), ())
    if not variables:
        return "put a good key into the variable that models.yaml names"
    if os.environ.get(variables[0]):  # which goes before the file of keys
        return f"put a good key into {variables[0]}"
    return f"`callboard keys set {provider}` takes a good one"
