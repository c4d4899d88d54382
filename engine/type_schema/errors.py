"""What is raised where no JSON Schema can be had."""

from __future__ import annotations

from bus.errors import CallboardError


class SchemaError(CallboardError, TypeError):
    """A type that no JSON Schema expresses, or a schema that is none; the text says what to do."""
