"""Rounds of tools on a real loop: plain functions run in threads."""

from __future__ import annotations

import pytest

from ...support.virtual_time import Backend, backend


@pytest.fixture
def anyio_backend() -> Backend:
    return backend("asyncio")
