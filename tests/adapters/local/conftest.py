"""Real llama.cpp processes. Nothing is simulated, so no test asserts a time."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callboard.adapters.providers.local.child import (
    INSTALL_RUNTIME,
    INSTALL_WEIGHTS,
    LocalServerSettings,
    find_model,
)
from callboard.adapters.providers.local.process import LocalServer


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def model() -> Path:
    """The weights. Without them or without llama.cpp, the tests are skipped."""
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip(f"no local model runtime: {INSTALL_RUNTIME}")
    found = find_model()
    if found is None:
        pytest.skip(f"no local model weights: {INSTALL_WEIGHTS}")
    return found


@pytest.fixture(scope="session")
def settings(model: Path) -> LocalServerSettings:
    return LocalServerSettings(model, context_tokens=1024, slots=2)


@pytest.fixture(scope="module")
async def server(settings: LocalServerSettings) -> AsyncIterator[LocalServer]:
    """One running server for the tests of a module that only send requests."""
    async with LocalServer(settings) as server:
        yield server
