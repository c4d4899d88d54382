"""JSON Schemas of Python types, and checks and conversions of values with them.

A type is a msgspec Struct, a dataclass, a TypedDict, an attrs or pydantic class, or any hint that combines them
with plain types. Pydantic is imported only if msgspec does not support a part of a hint. Several named values,
such as the parameters of a function, become one Struct with `msgspec.defstruct`.
"""

from __future__ import annotations

from .checking import check, check_schema, convert
from .fitting import SchemaError, fitted
from .json_schema import inline_root, json_schema, refers_to

__all__ = ["SchemaError", "check", "check_schema", "convert", "fitted", "inline_root", "json_schema", "refers_to"]
