"""What happened, and what it cost.

The store of events and calls, the writer that fills it from the bus, price tables, and repricing. Nothing here
calls a provider.
"""

from __future__ import annotations


def _check_siblings() -> None:
    """Refuse to run with another distribution's package in the place of one of ours.

    The folders are the import packages, so a `bus` of a host's own could stand before ours on `sys.path`.
    """
    from importlib.util import find_spec
    from pathlib import Path

    here = Path(__file__).resolve().parent.parent
    for name in ("bus", "adapters"):
        spec = find_spec(name)
        expected = here / name / "__init__.py"
        origin = None if spec is None or spec.origin is None else Path(spec.origin).resolve()
        if origin is None or origin.parent.parent != here:
            raise ImportError(
                f"callboard's package {name!r} is shadowed: expected {expected}, found "
                f"{origin or 'no such package'}. Rename or move the other package {name!r}, or put callboard's "
                f"directory ({here}) first on sys.path."
            )


_check_siblings()

from .database import Durability  # noqa: E402 - the siblings must be ours before anything is imported from them
from .prices import Component, Explanation, PriceRow, PriceTable  # noqa: E402
from .queries import CallFilter, CallRow, CostRow, SessionRow  # noqa: E402
from .repricing import ModelReprice, RepriceReport, RepriceRun  # noqa: E402
from .store import TraceStore  # noqa: E402
from .writer import Flush, TraceWriter, WriterCore, WriterOptions, WriterStatistics  # noqa: E402

__all__ = [
    "CallFilter",
    "CallRow",
    "Component",
    "CostRow",
    "Durability",
    "Explanation",
    "Flush",
    "ModelReprice",
    "PriceRow",
    "PriceTable",
    "RepriceReport",
    "RepriceRun",
    "SessionRow",
    "TraceStore",
    "TraceWriter",
    "WriterCore",
    "WriterOptions",
    "WriterStatistics",
]
