"""The folder in which configuration, prices and the default trace file live."""

from __future__ import annotations

import os
from pathlib import Path


def home_folder() -> Path:
    """Where configuration and the default trace file live: CALLBOARD_HOME, else ~/.callboard."""
    home = os.environ.get("CALLBOARD_HOME")
    return Path(home) if home else Path.home() / ".callboard"
