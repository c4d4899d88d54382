"""The folder in which configuration, prices and the default trace file live."""

from __future__ import annotations

import os
from pathlib import Path

from callboard.bus import ConfigurationError


def home_folder() -> Path:
    """Where configuration and the default trace file live: CALLBOARD_HOME, else ~/.callboard. It need not exist.

    Raises:
        ConfigurationError: It is no folder.
    """
    given = os.environ.get("CALLBOARD_HOME")
    home = Path(given) if given else Path.home() / ".callboard"
    if home.is_file():
        raise ConfigurationError(f"{home} is a file, and should be a folder: set CALLBOARD_HOME to another place")
    return home
