"""The address of a trace on a server: what is taken, what is refused, and that its password is never shown."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.bus import ConfigurationError
from callboard.engine.store_address import StoreAddress

SHOWN = {
    "postgresql://host/db": "postgresql://host/db",
    "postgres://host/db": "postgresql://host/db",
    "postgresql://": "postgresql://",
    "postgresql:///db": "postgresql:///db",
    "postgresql://me:Geheim@host:5433/db": "postgresql://me@host:5433/db",
    "postgresql://:Geheim@host/db": "postgresql://host/db",
    "postgresql://me:Geh%40im@[::1]:5433/db?sslmode=verify-full": "postgresql://me@[::1]:5433/db?sslmode=verify-full",
    "postgresql://me@one:1,two:2/db?password=Geheim&sslmode=require": (
        "postgresql://me@one:1,two:2/db?sslmode=require"
    ),
    "postgresql:///db?host=/run/pg&sslpassword=Geheim": "postgresql:///db?host=/run/pg",
    "postgresql:///db?%70assword=Geheim&user=me": "postgresql:///db?user=me",
    "postgresql:///db?service=trace": "postgresql:///db?service=trace",
}


@pytest.mark.parametrize("given_text", SHOWN, ids=range(len(SHOWN)))
def test_it_is_shown_without_its_password(given_text: str) -> None:
    """And with everything else that says which trace it is; so it can be typed again."""
    address = StoreAddress(given_text)
    assert str(address) == SHOWN[given_text]
    assert "Geh" not in repr(address)
    assert str(StoreAddress(str(address))) == str(address)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:Ge/heim@host/db",
        "postgresql://me:12/heim@host/db",
        "postgresql://me:Ge?heim@host/db",
        "postgresql://me:Ge#heim@host/db",
        "postgresql://me:Ge@heim@host/db",
        "postgresql://me:Ge heim@host/db",
        "postgresql://me:Ge[heim@host/db",
        "postgresql://me:Geheim\n@host/db",
        "postgresql://host:port/db",
        "postgresql://host/db?Geheim",
        "mysql://me:Geheim@host/db",
        "Geheim",
    ],
)
def test_what_may_be_misread_is_refused_unseen(text: str) -> None:
    """A password with a character that ends it early would otherwise be quoted by whoever reads the rest."""
    with pytest.raises(ConfigurationError) as caught:
        StoreAddress(text)
    assert "eim" not in str(caught.value)
    assert "%2F" in str(caught.value)


@given(st.text(min_size=1), st.text(min_size=6))
def test_any_password_is_taken_and_hidden(user: str, password: str) -> None:
    """Written as the refusal says."""
    try:
        written = [quote(part, safe="") for part in (user, password)]
    except UnicodeEncodeError:  # a lone surrogate has no such form
        return
    shown = str(StoreAddress(f"postgresql://{written[0]}:{written[1]}@-/-"))
    assert shown == f"postgresql://{written[0]}@-/-"
