"""Data URLs."""

from __future__ import annotations

import pytest

from callboard.adapters.requests.media import read_data_url


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("data:image/png;base64,eA==", ("image/png", b"x")),
        ("DATA:Text/Plain;charset=utf-8,a%20b", ("text/plain", b"a b")),
        ("data:,x", ("", b"x")),
        ("data:image/jpeg;base64,_9j-4A==", ("image/jpeg", b"\xff\xd8\xfe\xe0")),
        ("data:image/jpeg;base64,/9j+\n4A==", ("image/jpeg", b"\xff\xd8\xfe\xe0")),
        ("data:image/png;base64,eA", None),
        ("data:image/png", None),
        ("https://x.test/a,b", None),
    ],
)
def test_reading(url: str, found: tuple[str, bytes] | None) -> None:
    """Type and bytes, or nothing."""
    assert read_data_url(url) == found
