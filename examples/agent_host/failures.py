"""HTTP answers for the engine's exceptions, with the rest of a budget and the time to retry where known."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from callboard import AdapterError, BudgetExceededError, CallboardError, RateLimitError, SessionBusy, UnknownStream

from .agents import NoSuchChat


def answer_failures(app: FastAPI) -> None:
    """Answer the engine's exceptions with HTTP statuses. The most specific class wins."""
    app.add_exception_handler(NoSuchChat, not_found)
    app.add_exception_handler(BudgetExceededError, payment_required)
    app.add_exception_handler(RateLimitError, too_many_requests)
    app.add_exception_handler(UnknownStream, not_found)
    app.add_exception_handler(SessionBusy, conflict)
    app.add_exception_handler(AdapterError, bad_gateway)
    app.add_exception_handler(CallboardError, unavailable)


def not_found(request: Request, error: Exception) -> JSONResponse:
    return refusal(404, "There is no such thing.")


def payment_required(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, BudgetExceededError)
    seconds = None if error.fits_at is None else (error.fits_at - datetime.now(UTC)).total_seconds()
    return refusal(402, str(error), seconds, left_usd=str(error.left_usd))


def too_many_requests(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RateLimitError)
    return refusal(429, "The model's provider is at its limit.", error.retry_after_seconds)


def conflict(request: Request, error: Exception) -> JSONResponse:
    return refusal(409, "Too many turns of this chat wait.")


def bad_gateway(request: Request, error: Exception) -> JSONResponse:
    return refusal(502, f"The model failed: {type(error).__name__}.")


def unavailable(request: Request, error: Exception) -> JSONResponse:
    return refusal(503, f"This can't be done now: {type(error).__name__}.")


def refusal(status: int, why: str, retry_after: float | None = None, **more: str) -> JSONResponse:
    """A response with the reason, and with the seconds to wait before a retry."""
    headers = {} if retry_after is None else {"retry-after": str(max(1, math.ceil(retry_after)))}
    return JSONResponse({"error": why, **more}, status, headers)
