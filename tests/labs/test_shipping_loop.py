"""Two rounds of the shipping lab, so that the lab keeps working."""

from __future__ import annotations

import pytest

from labs.shipping.__main__ import play
from tests.support.postgres_server import why_not


@pytest.mark.deep("a round of a lab")
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_shipping_loop() -> None:
    seen, failed = play(1, 2)
    assert failed == []
    assert seen
