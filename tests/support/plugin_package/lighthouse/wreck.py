"""A module that can't be imported."""

from __future__ import annotations

raise SystemExit("the ship is lost")
