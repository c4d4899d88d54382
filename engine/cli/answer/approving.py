"""Asking the person at the terminal whether a tool's call may run. It works beside a pipe, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from callboard.engine import ApprovalRequest, Approved, Denied, Tool
from callboard.engine.tools import Approve

from ..common.harmless import note, one_line
from ..common.output import json_text

_NOBODY = "it needs an approval, and nobody is there to give it"


def approver(tools: Iterable[Tool], *, asks_always: bool, tells: bool = True) -> Approve:
    """The function that decides about calls: tools that need no approval just run.

    Args:
        tools: The tools.
        asks_always: Whether the person is asked about every call.
        tells: Whether each call that just runs is told, on stderr.
    """
    careful = {tool.name for tool in tools if tool.needs_approval is not None}

    def approve(request: ApprovalRequest) -> Approved | Denied:
        call = f"{request.call.name} {json_text(request.arguments)}"
        if not asks_always and request.call.name not in careful:
            if tells:
                note(f"tool {call}")
            return Approved()
        try:
            with open("/dev/tty", "r+", encoding="utf-8", buffering=1) as terminal:
                return _asked(terminal, call)
        except OSError:
            note(f"tool {call}: {_NOBODY}")
            return Denied(_NOBODY)

    return approve


def _asked(terminal: TextIO, call: str) -> Approved | Denied:
    terminal.write(f"tool {one_line(call)}: may it run? [y/N, or why not] ")
    answer = terminal.readline().strip()
    if answer.lower() in ("y", "yes"):
        return Approved()
    return Denied("" if answer.lower() in ("", "n", "no") else answer)
