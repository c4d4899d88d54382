"""Fake time for tests, from the conformance kit; and the selection of event loops for a folder or a module."""

from __future__ import annotations

import pytest

from callboard.adapters.conformance.kit import BACKENDS, Backend, FakeClock, VirtualLoop, backend, run_virtual

__all__ = ["BACKENDS", "Backend", "FakeClock", "VirtualLoop", "backend", "on_both", "run_virtual", "runs_on"]


def runs_on(*names: str, scope: str = "function") -> object:
    """The fixture `anyio_backend` of a folder or a module: its async tests run on each of these backends."""

    @pytest.fixture(scope=scope, params=names if len(names) > 1 else None)  # type: ignore[call-overload]
    def anyio_backend(request: pytest.FixtureRequest) -> Backend:
        return backend(getattr(request, "param", names[0]))

    return anyio_backend


on_both = pytest.mark.parametrize("anyio_backend", ["virtual-asyncio", "virtual-trio"], indirect=True)
"""A test that runs on asyncio and trio, because cancellation differs between them. Other tests run only on
asyncio.
"""
