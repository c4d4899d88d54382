"""Tools of a lighthouse."""

from __future__ import annotations

from callboard import tool


def light_lamp(hours: int) -> str:
    """Light the lamp.

    Args:
        hours: For how long.
    """
    return f"lit for {hours} h"


@tool
def open_harbour() -> str:
    """Open the harbour."""
    return "open"


HARBOUR = [open_harbour, light_lamp]
