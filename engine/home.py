"""The folder in which configuration, prices and the default trace file live."""

from __future__ import annotations

from tracestore.home import home_folder

__all__ = ["home_folder"]
