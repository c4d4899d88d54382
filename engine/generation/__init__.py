"""What is asked without a session: one conversation, from its first message to its last, in one call."""

from .low_level import complete

__all__ = ["complete"]
