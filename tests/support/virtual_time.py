"""Time for the tests: the conformance kit's own."""

from adapters.conformance.virtual_time import (
    BACKENDS,
    Backend,
    FakeClock,
    VirtualLoop,
    backend,
    run_virtual,
)

__all__ = ["BACKENDS", "Backend", "FakeClock", "VirtualLoop", "backend", "run_virtual"]
