"""What is raised where no JSON Schema can be had."""

from __future__ import annotations

from callboard.bus.errors import CallboardError


class SchemaError(CallboardError, TypeError):
    """No JSON Schema can express a type, or a schema is malformed. The text says what to do."""
