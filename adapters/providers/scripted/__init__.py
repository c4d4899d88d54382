"""A provider whose replies are written down beforehand, for tests and demos of hosts."""

from .adapter import ScriptedAdapter
from .replies import Call, Failure, Reply

__all__ = ["Call", "Failure", "Reply", "ScriptedAdapter"]
