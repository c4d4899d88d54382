"""The engine on virtual time, without a store unless a test asks for one."""

from __future__ import annotations

import pytest

from ..support.virtual_time import Backend, backend


@pytest.fixture
def anyio_backend() -> Backend:
    return backend("virtual-asyncio")
