"""The fixtures of the bus's tests."""

from __future__ import annotations

import pytest

from .supervised import World


@pytest.fixture
def world() -> World:
    return World()
