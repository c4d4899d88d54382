"""The conformance kit: checks of the contract for any adapter.

Describe the adapter with a kit. Then run ``python -m callboard.adapters.conformance my_package.kit:MY_KIT``, or
let pytest run it:

    from callboard.adapters.conformance import checks_of

    test_conformance = checks_of(MY_KIT)

See docs/adding-a-provider.md for a worked example. Nothing else imports this package.
"""

from . import failures, lifecycle, requests, streams
from .checks import CHECKS, SECTIONS, Check, Outcome, checklist, checks_of, run_check, run_checks, table
from .http_kit import HANG, FakeReply, FakeTransport, HttpKit, ServedKit, arguments, halves, write_event
from .kit import (
    CALLS,
    CONDITIONS,
    KEY,
    TOOLS,
    Fails,
    FakeClock,
    Kit,
    NotShown,
    Says,
    Scene,
    Silent,
    Stage,
    Unreachable,
    VirtualLoop,
    run_virtual,
)
from .streams import check_stream

_ORDER = [module.__name__ for module in (lifecycle, streams, requests, failures)]
CHECKS.sort(key=lambda each: _ORDER.index(each.body.__module__))

del failures, lifecycle, requests, streams

__all__ = [
    "CALLS",
    "CHECKS",
    "CONDITIONS",
    "HANG",
    "KEY",
    "SECTIONS",
    "TOOLS",
    "Check",
    "Fails",
    "FakeClock",
    "FakeReply",
    "FakeTransport",
    "HttpKit",
    "Kit",
    "NotShown",
    "Outcome",
    "Says",
    "Scene",
    "ServedKit",
    "Silent",
    "Stage",
    "Unreachable",
    "VirtualLoop",
    "arguments",
    "check_stream",
    "checklist",
    "checks_of",
    "halves",
    "run_check",
    "run_checks",
    "run_virtual",
    "table",
    "write_event",
]
