"""The fixtures of the bus's tests. The tests run on asyncio; the tests of cancelling also run on trio."""

from __future__ import annotations

import pytest

from ..support.virtual_time import runs_on
from .supervised import World

anyio_backend = runs_on("virtual-asyncio")


@pytest.fixture
def world() -> World:
    return World()
