"""Virtual time on asyncio, where the engine runs."""

from __future__ import annotations

import pytest

from ..support.virtual_time import Backend, backend


@pytest.fixture
def anyio_backend() -> Backend:
    return backend("virtual-asyncio")
