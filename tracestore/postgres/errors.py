"""What psycopg raises, as what the store raises."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from callboard.bus.errors import StoreError, StoreUnavailable

from ..sql.connection import Unstorable

if TYPE_CHECKING:
    import psycopg

_MAY_PASS = ("08", "25006", "40", "53", "55P03", "57P", "58")
"""The beginnings of the SQLSTATEs of errors that may pass: the connection, a server that only reads (a standby),
a transaction that got in the way of another, no room or memory, a lock that was not had, a server that stops, and
its disk."""


@contextlib.contextmanager
def translated_errors(name: str) -> Iterator[None]:
    """Whatever psycopg says of a database is a StoreError; if it may pass, a StoreUnavailable.

    Args:
        name: The name of the database, for the message.
    """
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        text = f"{name}: {said(error)}"
        if may_pass(error):
            raise StoreUnavailable(text, reopen=False) from error
        raise StoreError(text) from error


def may_pass(error: psycopg.Error) -> bool:
    """Whether the same may work later."""
    import psycopg

    state = error.sqlstate
    if state is None:  # psycopg's own: no connection, or a connection that broke
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state.startswith(_MAY_PASS)


def said(error: Exception) -> str:
    """The words of an error in one line."""
    return " ".join(str(error).split()) or type(error).__name__


@contextlib.contextmanager
def unstorable() -> Iterator[None]:
    """A value that psycopg or a table doesn't take is `Unstorable`."""
    import psycopg

    try:
        yield
    except (UnicodeError, OverflowError) as error:
        raise Unstorable(str(error)) from error
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
        if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is not None:
            raise  # a fault of the statement or of the schema, and not of a value
        raise Unstorable(said(error)) from error
