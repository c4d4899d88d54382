"""One table says what every exception means; code and page are held to it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from callboard.adapters import RetryPolicy, retry_delay
from callboard.adapters.refusals.classify import COMMON_CODES, ErrorBody, build_error
from callboard.bus import AdapterError, CallboardError, LlmCallFailed, RateLimitError, errors
from callboard.bus.errors import ERROR_TABLE, Counts, ErrorRow
from callboard.engine.routing.availability import blame

from ..definition_of_done.rows import row

PAGE = Path(__file__).parent.parent.parent / "docs" / "errors.md"
EVERY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CallboardError)]
each_row = pytest.mark.parametrize("row", ERROR_TABLE, ids=lambda row: row.kind.__name__)
GOOGLE = ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND",
          "RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "API_KEY_INVALID")  # fmt: skip


def failed(error: AdapterError) -> LlmCallFailed:
    return LlmCallFailed(
        provider="p",
        model="p:m",
        error_class=error.error_class,
        error_type=type(error).__name__,
        message="",
        will_retry=False,
        retry_count=0,
        provider_status=error.provider_status,
    )


def test_every_exception_of_a_call_has_one_row_and_every_other_one_is_named() -> None:
    of_calls = [kind for kind in EVERY if issubclass(kind, AdapterError)]
    assert sorted(row.kind.__name__ for row in ERROR_TABLE) == sorted(kind.__name__ for kind in of_calls)
    page = PAGE.read_text(encoding="utf-8")
    for kind in EVERY:
        assert f"`{kind.__name__}" in page, kind


@each_row
def test_the_page_has_the_row_as_it_is(row: ErrorRow) -> None:
    cells = (f"`{row.kind.__name__}`", row.error_class.value, row.retried, row.hint, row.counts, row.seen)
    assert f"| {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8").splitlines()


@each_row
@row("8.8.2")
def test_class_and_retrying_are_as_the_table_says(row: ErrorRow) -> None:
    assert row.kind.error_class is row.error_class
    assert row.kind.default_retryable is (row.retried == "yes")
    waits = retry_delay(row.kind("x"), 0, 2, RetryPolicy(), 0.0) is not None
    assert waits is (row.retried == "yes")
    assert retry_delay(row.kind("x"), 2, 2, RetryPolicy(), 0.0) is None, "never more than max_retries"
    assert (
        retry_delay(row.kind("x", retryable=True), 0, 2, RetryPolicy(), 0.0) is not None
    ) or row.retried == "no"


@each_row
def test_hints_are_honoured_where_the_table_says_so(row: ErrorRow) -> None:
    error = build_error(
        ErrorBody(code="code"),
        status=418,
        headers={"retry-after": "7"},
        codes={"code": row.kind},
        provider="p",
    )
    assert type(error) is row.kind
    assert error.retry_after_seconds == (7.0 if row.hint == "provider's" else None)


BLAME: dict[Counts, tuple[str, str]] = {
    "key": ("refused", "inconclusive"),
    "provider": ("failure", "inconclusive"),
    "provider and model": ("failure", "failure"),
    "model": ("answered", "refused"),
    "nobody": ("inconclusive", "inconclusive"),
}


@each_row
def test_failures_count_against_whom_the_table_names(row: ErrorRow) -> None:
    wanted = BLAME[row.counts] if row.kind is not RateLimitError else ("answered", "limited")
    assert blame(failed(row.kind("x"))) == wanted


@pytest.mark.parametrize("name", GOOGLE)
def test_googles_status_strings_are_in_the_table(name: str) -> None:
    """Each stands in the row of the exception that it becomes."""
    error = build_error(ErrorBody(type=name), provider="p")
    assert type(error) is COMMON_CODES[name]
    (row,) = [row for row in ERROR_TABLE if row.kind is type(error)]
    assert name in row.seen


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequestError),
        (401, errors.AuthError),
        (402, errors.QuotaExceededError),
        (403, errors.AccessDeniedError),
        (404, errors.NotFoundError),
        (408, errors.RequestTimeoutError),
        (413, errors.InvalidRequestError),
        (422, errors.InvalidRequestError),
        (424, errors.ServerError),
        (429, errors.RateLimitError),
        (498, errors.OverloadedError),
        (500, errors.ServerError),
        (503, errors.ServerError),
        (529, errors.OverloadedError),
    ],
)
@row("8.8.1")
def test_a_status_stands_in_the_row_of_its_exception(status: int, kind: type[AdapterError]) -> None:
    error = build_error(ErrorBody(), status=status, provider="p")
    assert type(error) is kind
    (row,) = [row for row in ERROR_TABLE if row.kind is kind]
    assert str(status) in row.seen or (status >= 500 and "5xx" in row.seen)


def test_a_request_too_large_for_a_minute_is_not_repeated() -> None:
    said = ErrorBody(code="rate_limit_exceeded", message="Request too large for model on tokens per minute (TPM)")
    error = build_error(said, status=413, provider="p")
    assert (type(error), error.retryable) == (RateLimitError, False)
