"""Compares the vendors' SDK types with the decisions in `docs/wire-coverage/` about the support of each field.

    python scripts/wire_coverage.py            writes docs/reference/wire-coverage.md
    python scripts/wire_coverage.py --check    lists the differences between the SDKs' types and the decisions

There is one file of decisions for each protocol. Its `parts` name the SDK types. Each member of a union, by its
`type` or `role`, has a table of its own. Each field has one row. The verdicts are

- `canonical`: a canonical field has the same meaning,
- `options`: it is sent unchanged from a host's `provider_options` or an `OpaqueBlock`,
- `reported`: it is returned unchanged in `provider_raw`, an `OpaqueBlock`, an event or a warning,
- `refused`: it is not supported; the row has the reason.

After a new release of an SDK, rows may be missing or superfluous. No vendor's types are copied here.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import tomllib
import types
import typing
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import pydantic
import typing_extensions as te

ROOT = Path(__file__).parents[1]
DECISIONS = ROOT / "docs" / "wire-coverage"
PAGE = ROOT / "docs" / "reference" / "wire-coverage.md"
VERDICTS = ("canonical", "options", "reported", "refused")
SINGLE = ""
"""The name of the type in a part that is not a union."""

Place = tuple[str, str, str]
"""The part, the type's name in the part, and the field."""


@dataclass(frozen=True)
class Row:
    """The decision about one field."""

    verdict: str
    """One of VERDICTS."""
    how: str
    """The canonical name, the place, or the reason of a refusal."""


@dataclass(frozen=True)
class Coverage:
    """The decisions about one protocol."""

    name: str
    """The file's name without its suffix."""
    protocol: str
    """The protocol's name in texts."""
    sdk: str
    """The distribution with the types."""
    parts: Mapping[str, tuple[str, ...]]
    """The SDK types of each part as `module:name`. There are several if the SDK defines the same type more than
    once.
    """
    rows: Mapping[Place, Row]
    """The decisions."""


def coverages() -> list[Coverage]:
    """The decisions about all protocols."""
    return [read_coverage(path) for path in sorted(DECISIONS.glob("*.toml"))]


def read_coverage(path: Path) -> Coverage:
    """The decisions of a file.

    Raises:
        ValueError: A verdict is unknown, or a field has two rows.
    """
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    parts = {name: (of,) if isinstance(of, str) else tuple(of) for name, of in data["parts"].items()}
    rows: dict[Place, Row] = {}
    for part in parts:
        for kind, fields, verdict in _decisions(data.get(part, {})):
            row = _row(verdict, f"{path.name}: {part} {kind} {fields}")
            for field in fields.split():
                if (part, kind, field) in rows:
                    raise ValueError(f"{path.name}: two rows for {part} {kind} {field}")
                rows[part, kind, field] = row
    return Coverage(path.stem, data["protocol"], data["sdk"], parts, rows)


def _decisions(table: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for key, value in table.items():
        if isinstance(value, str):
            yield SINGLE, key, value
        else:
            for fields, verdict in value.items():
                yield key, fields, verdict


def _row(verdict: str, place: str) -> Row:
    name, _, how = verdict.partition(": ")
    if name not in VERDICTS or not how.strip():
        raise ValueError(f"{place}: {verdict!r} is no verdict with its words")
    return Row(name, how)


# -- the SDKs' types


def sdk_places(coverage: Coverage) -> set[Place]:
    """All fields of the SDK types in a file of decisions."""
    parts = {part: kinds(coverage, part) for part in coverage.parts}
    apart = [member for part in parts.values() for members in part.values() for member in members]
    return {
        (part, kind, field)
        for part in parts
        for kind, members in parts[part].items()
        for member in members
        for field in deep_fields(member, apart) or {"type": str}
    }


def kinds(coverage: Coverage, part: str) -> dict[str, list[Any]]:
    """The types of a part by their names."""
    found: dict[str, list[Any]] = {}
    members = [member for path in coverage.parts[part] for member in members_of(load(path))]
    for member in members:
        found.setdefault(discriminator(member) if len(members) > 1 else SINGLE, []).append(member)
    return found


def load(path: str) -> Any:
    """The type at `module:name`, or the type of a field at `module:name.field`."""
    module, _, names = path.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name, *inner = names.split(".")
        kind = getattr(importlib.import_module(module), name)
    for field in inner:
        kind = _without_none(fields(members_of(kind)[0])[field])
    return kind


def members_of(kind: Any) -> list[Any]:
    """The members of a union, with lists unwrapped; a type that is no union is its only member."""
    kind = bare(kind)
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return [
            inner for member in typing.get_args(kind) for inner in members_of(member) if inner is not type(None)
        ]
    if is_list(kind):
        return members_of(typing.get_args(kind)[0])
    if origin is typing.Literal:
        return [typing.Literal[value] for value in typing.get_args(kind)]
    return [kind]


def is_list(kind: Any) -> bool:
    """Whether a type is a list."""
    origin = typing.get_origin(kind)
    return (
        origin is not None
        and origin is not typing.Literal
        and (origin is list or getattr(origin, "__name__", "") in ("Iterable", "Sequence", "SequenceNotStr"))
    )


def bare(kind: Any) -> Any:
    """A type without `Required` and annotations."""
    while te.get_origin(kind) in (te.Required, te.NotRequired, te.Annotated):
        kind = te.get_args(kind)[0]
    return kind


def discriminator(member: Any) -> str:
    """The name of a member of a union: its constant `type` or `role`, else the type's name."""
    if typing.get_origin(member) is typing.Literal:
        return str(typing.get_args(member)[0])
    found = fields(member)
    for field in ("type", "role"):
        constants = _constants(found[field]) if field in found else ()
        if constants:
            return "|".join(map(str, constants))
    return str(getattr(member, "__name__", member))


def _constants(kind: Any) -> tuple[Any, ...]:
    kind = _without_none(kind)
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _without_none(kind: Any) -> Any:
    kind = bare(kind)
    if typing.get_origin(kind) in (Union, types.UnionType):
        others = [inner for inner in typing.get_args(kind) if inner is not type(None)]
        return bare(others[0]) if len(others) == 1 else kind
    return kind


def fields(kind: Any) -> dict[str, Any]:
    """The fields of a TypedDict or a pydantic model by their names on the wire. Other types have none."""
    if te.is_typeddict(kind):
        return te.get_type_hints(kind, include_extras=True)
    if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
        return {(field.alias or name): field.annotation for name, field in kind.model_fields.items()}
    return {}


def deep_fields(kind: Any, apart: Sequence[Any] = ()) -> dict[str, Any]:
    """Like `fields`, but nested objects are replaced by their fields, as in `reasoning.effort`.

    Args:
    kind: The type.
    apart: The types that have rows of their own, so they are not expanded here.
    """
    found: dict[str, Any] = {}
    for name, inner in fields(kind).items():
        inner = _without_none(inner)
        below = {} if inner in apart else fields(inner)
        if below and not any(_constants(below[key]) for key in ("type", "role") if key in below):
            found |= {f"{name}.{key}": value for key, value in below.items()}
        else:
            found[name] = inner
    return found


# -- what comes of it


def disagreements(coverage: Coverage) -> list[str]:
    """The fields without a row, and the rows without a field."""
    there, rows = sdk_places(coverage), set(coverage.rows)
    missing = [f"{coverage.name}: no row for {_place(place)}" for place in sorted(there - rows)]
    return missing + [f"{coverage.name}: no such field: {_place(place)}" for place in sorted(rows - there)]


def _place(place: Place) -> str:
    part, kind, field = place
    return f"[{part}.{kind!r}] {field}" if kind else f"[{part}] {field}"


def page() -> str:
    """The documentation page."""
    head = f"""# Wire coverage

This page lists every field of each vendor's wire, and how Callboard supports it.
`python scripts/wire_coverage.py` writes it from the decisions in [docs/wire-coverage](../wire-coverage/), one
file for each protocol. A test compares the decisions with the types of the vendors' SDKs, field by field. A new
release shows up as a difference.

| Verdict | Meaning |
|---|---|
| canonical | our own name has the same meaning |
| options | `provider_options` of a request, or an `OpaqueBlock` of its history, carries it unchanged |
| reported | a reply has it unchanged, in `provider_raw`, an `OpaqueBlock`, an event or a warning |
| refused | it is not supported; the row has the reason |

| Protocol | {" | ".join(VERDICTS)} |
|---|{"---:|" * len(VERDICTS)}
"""
    everything = coverages()
    for coverage in everything:
        counts = [sum(row.verdict == verdict for row in coverage.rows.values()) for verdict in VERDICTS]
        head += f"| {coverage.protocol} | {' | '.join(map(str, counts))} |\n"
    return head + "".join(_protocol(coverage) for coverage in everything)


def _protocol(coverage: Coverage) -> str:
    text = f"\n## {coverage.protocol}\n\nThe types are those of the package `{coverage.sdk}`.\n"
    for part in coverage.parts:
        text += f"\n### {coverage.protocol}: {part.replace('_', ' ')}\n\n| | Fields | | |\n|---|---|---|---|\n"
        shared: dict[tuple[str, Row], list[str]] = {}
        for (of, kind, field), row in coverage.rows.items():
            if of == part:
                shared.setdefault((kind, row), []).append(f"`{field}`")
        for (kind, row), names in shared.items():
            text += (
                f"| {_code(kind)} | {', '.join(names)} | {row.verdict} | {row.how.replace('|', chr(92) + '|')} |\n"
            )
    return text


def _code(kind: str) -> str:
    return f"`{kind}`".replace("|", "`, `") if kind else ""


def main(arguments: list[str]) -> int:
    """Write the page, or check the decisions."""
    if "--check" in arguments:
        found = [line for coverage in coverages() for line in disagreements(coverage)]
        print("\n".join(found) or "the SDKs' types and the decisions agree")
        return 1 if found else 0
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
