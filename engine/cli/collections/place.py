"""Where collections are kept."""

from __future__ import annotations

from pathlib import Path

from callboard.tracestore.home import home_folder

FILE_NAME = "embeddings.db"


def collections_file() -> Path:
    """The path of the file of collections, which need not be there."""
    return home_folder() / FILE_NAME
