"""A round of the lab of nodes, so that the lab keeps working."""

from __future__ import annotations

import pytest

from labs.nodes.__main__ import play
from tests.support.nats_server import why_no_nats
from tests.support.postgres_server import why_not

SHORT = 7
"""A seed with short leases and few turns."""
MISSING = why_not() or why_no_nats()


@pytest.mark.deep("a round of a lab")
@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_node_loop() -> None:
    """The owner of a session is killed. Its readers and the shared store keep their guarantees."""
    assert play(SHORT, 1, "kill", per_second=200.0) == []
