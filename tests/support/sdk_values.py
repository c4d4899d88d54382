"""Random values of the vendors' SDK types: small, with optional fields missing at random."""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Union

import pydantic
import typing_extensions as te
from hypothesis import strategies as st

from callboard.bus.values.base import Json
from scripts.wire_coverage import bare, fields, is_list

_PLAIN: Mapping[Any, st.SearchStrategy[Json]] = {
    str: st.sampled_from(["text", "a\nb", "☃"]), int: st.integers(0, 3), float: st.just(0.5), bool: st.booleans(),
    type(None): st.none(),
}  # fmt: skip
_DEPTH = 6


@functools.cache
def values(kind: Any, depth: int = _DEPTH) -> st.SearchStrategy[Json]:
    """JSON values of a type."""
    kind = bare(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if origin in (Union, types.UnionType):
        return st.one_of([values(inner, depth) for inner in typing.get_args(kind)])
    if is_list(kind):
        item = typing.get_args(kind)[0]
        return st.lists(values(item, depth - 1), max_size=2) if depth > 0 else st.just([])
    if found := fields(kind):
        return _objects(kind, found, depth)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(st.just("key"), values(typing.get_args(kind)[1], depth - 1), max_size=1)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return st.sampled_from([one.value for one in kind])
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return st.just({"key": "value"})
    return _PLAIN.get(kind, st.just("text"))


def _objects(kind: Any, found: Mapping[str, Any], depth: int) -> st.SearchStrategy[Json]:
    if kind.__module__.startswith("google."):  # whose replies leave out empty fields
        found = {name: _never_null(inner) for name, inner in found.items()}
    needed = _needed(kind, whole=depth < _DEPTH)
    must = {name: values(inner, depth - 1) for name, inner in found.items() if name in needed}
    may = {name: values(inner, depth - 1) for name, inner in found.items() if name not in needed and depth > 0}
    return st.fixed_dictionaries(must, optional=may)


def _never_null(kind: Any) -> Any:
    kind = bare(kind)
    if typing.get_origin(kind) not in (Union, types.UnionType):
        return kind
    return Union[tuple(inner for inner in typing.get_args(kind) if inner is not type(None))]  # noqa: UP007


def _needed(kind: Any, *, whole: bool) -> set[str]:
    """The fields that are always present.

    Args:
    kind: The type of an object.
    whole: Whether the object is inside another one, where OpenAI sends all fields.
    """
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        vendors = ("anthropic.", "openai.") if whole else ("anthropic.",)
        told = kind.__module__.startswith(vendors)  # whose replies have null for empty fields
        return {
            field.alias or name
            for name, field in kind.model_fields.items()
            if told or field.is_required() or name == "type"
        }
    found: set[str] = set()
    for name, hint in te.get_type_hints(kind, include_extras=True).items():
        required = name in kind.__required_keys__
        while te.get_origin(hint) in (te.Required, te.NotRequired, te.Annotated):
            if te.get_origin(hint) is not te.Annotated:
                required = te.get_origin(hint) is te.Required
            hint = te.get_args(hint)[0]
        if required:
            found.add(name)
    return found
