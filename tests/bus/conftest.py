"""The fixtures of the bus's tests. They run on asyncio; those of cancelling also run on trio."""

from __future__ import annotations

import pytest

from ..support.virtual_time import runs_on
from .supervised import World

anyio_backend = runs_on("virtual-asyncio")


@pytest.fixture
def world() -> World:
    return World()
