"""The table of words and codes by which errors are recognised."""

from __future__ import annotations

import re

import pytest

from callboard.adapters.refusals.classify import ErrorBody, build_error
from callboard.adapters.refusals.words import WordRow, word_rows
from callboard.bus.errors import AdapterError, ContextOverflowError, InvalidRequestError, QuotaExceededError, RateLimitError

ROWS = word_rows()


def refusal(
    status: int | None, *, message: str = "", code: str = "", kind: str = "", param: str = ""
) -> AdapterError:
    body = ErrorBody(type=kind, code=code, message=message, param=param)
    return build_error(body, status=status, provider="toy")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.code or row.words[:40])
def test_a_row_has_words_or_a_code(row: WordRow) -> None:
    """Each row has exactly one of the two, and the words are a regular expression."""
    assert bool(row.words) != bool(row.code)
    assert row.servers
    assert row.means == "money" or not row.certain
    re.compile(row.words)


def test_each_code_has_one_row() -> None:
    """No code has two meanings."""
    codes = [row.code for row in ROWS if row.code]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("status", [None, 400, 401, 403, 404, 412, 422, 429, 500, 502])
def test_words_of_money_count_with_any_status(status: int | None) -> None:
    """A payment error is final for the key, whatever status or code it comes with."""
    error = refusal(status, message="Insufficient balance (1008)", kind="rate_limit_error")
    assert type(error) is QuotaExceededError
    assert not error.retryable


@pytest.mark.parametrize("kind", ["invalid_request_error", "rate_limit_error", "permission_error", ""])
def test_the_status_402_is_about_money(kind: str) -> None:
    """The code beside it says nothing better."""
    assert type(refusal(402, message="no", kind=kind)) is QuotaExceededError


def test_a_quota_of_a_minute_is_no_payment_error() -> None:
    """Google uses the words of a spent plan for limits of a minute as well; its code decides."""
    words = "You exceeded your current quota, please check your plan and billing details."
    assert type(refusal(429, message=words, kind="RESOURCE_EXHAUSTED")) is RateLimitError
    assert type(refusal(429, message=words)) is QuotaExceededError


def test_the_name_of_the_parameter_may_have_the_words() -> None:
    """Xiaomi's server explains an overflow in `param`."""
    error = refusal(400, message="Param Incorrect", param="the prompt is longer than the max context length")
    assert type(error) is ContextOverflowError


@pytest.mark.parametrize("status", [401, 403, 404, 429, 503])
def test_words_of_an_overflow_count_with_refusals_of_a_request(status: int) -> None:
    """With another status they are the words of something else."""
    assert type(refusal(status, message="prompt is too long")) is not ContextOverflowError


def test_other_words_leave_the_status_its_meaning() -> None:
    """A message that speaks of tokens or of limits is no overflow by that alone."""
    for message in (
        "max_tokens must be at most 8192",
        "unknown parameter: context_length",
        "balance must be a number",
    ):
        assert type(refusal(400, message=message)) is InvalidRequestError
