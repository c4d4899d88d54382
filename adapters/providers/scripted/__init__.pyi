# Written by scripts/make_stubs.py.
from .adapter import ScriptedAdapter, ScriptedCall, ScriptedFailure, ScriptedReply

__all__ = [
    "ScriptedAdapter",
    "ScriptedCall",
    "ScriptedFailure",
    "ScriptedReply",
]
