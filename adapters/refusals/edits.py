"""Changes of a request's body, made without writing the request again. This module is pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import UNSET, UnsetType

from callboard.bus.values.json import Json, JsonObject

_HOSTS_OWN = frozenset({"input_schema", "parameters", "schema", "input", "metadata"})


class Edit(msgspec.Struct, frozen=True):
    """A change of one parameter in the body of a request."""

    path: tuple[str, ...]
    """The keys from the body down to the parameter."""
    value: Json | UnsetType = UNSET
    """The new value; UNSET takes the parameter out."""
    rename: str | None = None
    """The new name of the parameter; None if it keeps its name."""
    anywhere: bool = False
    """Whether every key of the path's last name is taken out, at any place."""
    entry: Json | UnsetType = UNSET
    """The entry that is taken out of the list at the path; UNSET takes out the parameter."""

    @property
    def in_words(self) -> str:
        """The change in words, to follow "provider refused the request"."""
        said = ".".join(self.path)
        if self.rename is not None:
            return f"{said} is called {self.rename} there"
        if self.value is not UNSET:
            return f"{said} was set to {self.value!r}"
        return f"{said} was left out" if self.entry is UNSET else f"{self.entry} of {said} was left out"


def protocol_objects(value: Json) -> Iterator[JsonObject]:
    """All objects of the protocol in a body. The host's own objects (schemas, and the arguments of tools) are left
    out."""
    if isinstance(value, dict):
        yield value
        for name, inner in value.items():
            if not (isinstance(inner, dict) and name in _HOSTS_OWN):
                yield from protocol_objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from protocol_objects(inner)


def edited(body: bytes, edits: Iterable[Edit]) -> bytes:
    """A request's body with the changes made to it."""
    value: JsonObject = msgspec.json.decode(body)
    for edit in edits:
        if edit.anywhere:
            for inner in protocol_objects(value):
                inner.pop(edit.path[-1], None)
        else:
            _apply(value, edit)
    return msgspec.json.encode(value)


def _apply(body: JsonObject, edit: Edit) -> None:
    key, *rest = edit.path
    if rest:
        inner = body.get(key)
        if isinstance(inner, dict):
            _apply(inner, Edit(tuple(rest), edit.value, edit.rename))
            if not inner:
                del body[key]
    elif edit.value is not UNSET:
        body[key] = edit.value
    elif edit.entry is not UNSET:
        listed = body.get(key)
        kept = [one for one in listed if one != edit.entry] if isinstance(listed, list) else []
        body |= {key: kept}
        if not kept:
            del body[key]
    elif key in body:
        value = body.pop(key)
        if edit.rename is not None:
            body[edit.rename] = value
